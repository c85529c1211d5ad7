"""Options of the base classes: class-wise aggregation and adaptive local aggregation in
other methods.
"""

import inspect
from pathlib import Path

import pytest
import torch
from every_method import kind, of_each_family, short
from playing import prepare_tiny
from refusals import expect_refusal

from hpcfl.communication.message import Mean
from hpcfl.errors import RankFailure
from hpcfl.experiment import plugins
from hpcfl.methods.fedavg import FedAvg
from hpcfl.methods.options import HOOKS, find_undeclared

MIXED = [
    name
    for name in of_each_family()
    if issubclass(kind(name), FedAvg) and name not in ("fedavg", "cwfedavg")
]


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXED)
def test_class_wise_aggregation_changes_the_start_models(federate, name):
    average, class_wise = (
        federate(short(name, aggregation=how)) for how in ("average", "class-wise")
    )
    assert "uploads" in class_wise.server and "uploads" not in average.server
    assert not torch.equal(class_wise.server["model"], average.server["model"])
    assert all(tensor.isfinite().all() for tensor in class_wise.server.values())


def refused(own: dict[str, str] | str, **sections) -> str:
    """Return the error of an experiment with this method that cannot be prepared."""
    with expect_refusal() as error:
        prepare_tiny(own, **sections)
    return str(error.value)


class Silent(FedAvg):
    """A method that uploads no model."""

    def upload(self, fleet, inbox, trained):
        return {"other": Mean(trained, self.shares(fleet))}


def test_a_method_without_an_uploaded_model_is_refused_class_wise(federate):
    with pytest.raises(
        RankFailure, match=r"^round 1, .*method.aggregation = 'class-wise': .*'model'"
    ):
        federate({"name": f"{__name__}:Silent", "aggregation": "class-wise"})


class Forgetful(FedAvg):
    """A method that starts from the received model and ignores ALA's result."""

    def start(self, fleet, inbox):
        return inbox["model"]


class Declared(Forgetful):
    """A method that overrides a hook of ALA and declares that it supports ALA."""

    keeps = ("ala",)

    def start(self, fleet, inbox):
        return self.blended(fleet, inbox["model"], inbox["model"])


class Stepping(FedAvg):
    """A method with a server step from the mean, which the mixes of clients do not
    include.
    """

    def aggregate(self, server, cohort, uplink):
        super().aggregate(server, cohort, uplink)


class Layered(FedAvg):
    """A method with overlays of its own, without those of class-wise aggregation."""

    def overlays(self):
        return ()


class Amnesic(FedAvg):
    """A method that does not store the models that ALA blends."""

    def remember(self, fleet, trained):
        self.store_state(fleet, trained)


class Heir(Declared):
    """A method that overrides no hook of ALA."""

    def store_state(self, fleet, trained):
        pass


class Knowing(FedAvg):
    """A method with its own training, which passes the variables of the options' loss."""

    keeps = ("aggregation",)

    def local_train(self, fleet, rows, inbox):
        return fleet.train(rows, variables=self.loss_variables(fleet, inbox))


class Whole(FedAvg):
    """A method that overrides ``update`` and calls all hooks of ALA."""

    keeps = ("ala",)

    def update(self, fleet, inbox):
        trained = fleet.train(self.start(fleet, inbox))
        self.remember(fleet, trained)
        return self.upload(fleet, inbox, trained)


class Elsewhere(FedAvg):
    """A method that trains a model with another name than ``model``, so its statistics
    are not sent.
    """

    models = ("other",)

    def local_train(self, fleet, rows, inbox):
        return fleet.train(rows, model="other")


@pytest.mark.parametrize("kind", ["Declared", "Heir", "Whole"])
def test_hooks_that_implement_an_option_may_use_it(federate, short_ala, kind):
    blended = federate({"name": f"{__name__}:{kind}", "ala": True}, rounds=3)
    assert (blended.clients["ala.weights"] < 1).any()


def test_hooks_that_may_leave_an_option_out_are_named():
    here = Path(__file__).name
    line = inspect.getsourcelines(Forgetful.start)[1]
    forgetful = refused({"name": f"{__name__}:Forgetful", "ala": True})
    assert f"{here}:{line}: method.ala = True: Forgetful.start replaces" in forgetful
    line = inspect.getsourcelines(Stepping.aggregate)[1]
    stepping = refused({"name": f"{__name__}:Stepping", "aggregation": "class-wise"})
    assert f"{here}:{line}: method.aggregation = 'class-wise'" in stepping
    # without ``local_train``
    whole = refused({"name": f"{__name__}:Whole", "aggregation": "class-wise"})
    assert "Whole.update replaces" in whole
    layered = refused({"name": f"{__name__}:Layered", "aggregation": "class-wise"})
    assert "Layered.overlays replaces" in layered
    amnesic = refused({"name": f"{__name__}:Amnesic", "ala": True})
    assert "Amnesic.remember replaces" in amnesic
    elsewhere = refused(f"{__name__}:Elsewhere", training={"buffers": "average"})
    assert "Elsewhere.models = ('other',) has no 'model', whose statistics" in elsewhere


@pytest.mark.parametrize("name", plugins.list_names("hpcfl.methods"))
def test_built_in_methods_declare_the_options_that_they_have(name):
    for key in HOOKS:
        if key in kind(name).model_fields:
            assert find_undeclared(kind(name), key) is None, key


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "cwfedavg",
        "diversifed",
        "fedrep",
        "ditto",
        "pfedme",
    ],
)
def test_ala_blends_before_training(federate, short_ala, name):
    """The methods mix on the server, have a head or a model per client, or define their
    own training; each starts from a blend from its second round on.
    """
    plain, blended = (
        federate({"name": name, "ala": ala}, rounds=3) for ala in (False, True)
    )
    assert "ala.weights" in blended.clients and "ala.weights" not in plain.clients
    assert (
        (blended.clients["ala.weights"] >= 0) & (blended.clients["ala.weights"] <= 1)
    ).all()
    assert (blended.clients["ala.weights"] < 1).any()
    key = "models" if "models" in plain.server else "model"
    assert not torch.equal(plain.server[key], blended.server[key])


@pytest.mark.slow
def test_ala_as_an_option_is_fedalas(federate, short_ala):
    """The same holds if clients that were absent in the first round blend in the
    second.
    """
    part = {"rounds": 3, "participation": {"fraction": 0.4}}
    option = federate({"name": "fedavg", "ala": True}, **part)
    method = federate({"name": "fedala", "most_epochs": 5}, **part)
    other = federate(
        {
            "name": "fedala",
            "most_epochs": 5,
            "activation": "own",
        },
        **part,
    )
    assert torch.equal(option.server["model"], method.server["model"])
    assert not torch.equal(option.server["model"], other.server["model"])
