"""Options of the common base, class-wise aggregation and adaptive local aggregation of
methods other than their own; defaults.
"""

import inspect
import re
from pathlib import Path

import pytest
import tiny
import torch
from every_method import NAMES, kind, of_each_family, short

from hpcfl.communication.communicator import OneProcess
from hpcfl.communication.message import Mean
from hpcfl.errors import RankFailure, UserError
from hpcfl.experiment import config, plugins
from hpcfl.methods.fedavg import FedAvg
from hpcfl.methods.options import HOOKS, undeclared
from hpcfl.simulation.prepare import prepare

MIXED = [
    name
    for name in of_each_family()
    if issubclass(kind(name), FedAvg) and name not in ("fedavg", "cwfedavg")
]


def test_class_wise_fedavg_is_cwfedavg(federate):
    assert (
        federate({"name": "fedavg", "aggregation": "class-wise"}).digest
        == federate("cwfedavg").digest
    )


def test_cwfedavg_with_averages_is_fedavg(federate):
    assert (
        federate({"name": "cwfedavg", "aggregation": "average"}).digest
        == federate("fedavg").digest
    )


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
    """What is said of an experiment with this method that cannot be prepared."""
    with pytest.raises(UserError) as error:
        prepare(config.parse(tiny.table(own, **sections)), OneProcess())
    return str(error.value)


def test_the_tutorials_momentum_is_refused_class_wise(tmp_path, monkeypatch):
    """The momentum of its ``aggregate`` would not reach the mixes of clients."""
    site = Path(__file__).parents[2] / "launch" / "site"
    page = (site / "tutorials" / "own-method.md").read_text(encoding="utf-8")
    (source,) = re.findall(
        r"^```python\n# my_server\.py\n(.*?)^```$", page, re.M | re.S
    )
    (tmp_path / "tutorials_server.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    own = {"name": "tutorials_server:Momentum"}
    line = source[: source.index("def aggregate")].count("\n") + 1
    place = f"tutorials_server.py:{line}: method.aggregation = 'class-wise': Momentum.aggregate"
    assert refused(own | {"aggregation": "class-wise"}).startswith(place)
    prepare(config.parse(tiny.table(own | {"ala": True})), OneProcess())


class Silent(FedAvg):
    """Uploads no model."""

    def upload(self, fleet, inbox, trained):
        return {"other": Mean(trained, self.shares(fleet))}


def test_a_method_without_an_uploaded_model_is_refused_class_wise(federate):
    with pytest.raises(RankFailure, match="clients' message has no 'model'"):
        federate({"name": f"{__name__}:Silent", "aggregation": "class-wise"})


class Forgetful(FedAvg):
    """Starts from the received model, whatever ALA made of it."""

    def start(self, fleet, inbox):
        return inbox["model"]


class Declared(Forgetful):
    """Has a hook that does ALA's work, and says so."""

    keeps = ("ala",)

    def start(self, fleet, inbox):
        return self.blended(fleet, inbox["model"], inbox["model"])


class Heir(Declared):
    """Has no hook that ALA needs."""

    def store_state(self, fleet, trained):
        pass


class Knowing(FedAvg):
    """Trains by itself, with what the options' loss reads."""

    keeps = ("aggregation",)

    def local_train(self, fleet, rows, inbox):
        return fleet.train(rows, variables=self.loss_variables(fleet, inbox))


class Whole(FedAvg):
    """Plays a round by itself, and calls all hooks that ALA lives in."""

    keeps = ("ala",)

    def update(self, fleet, inbox):
        trained = fleet.train(self.start(fleet, inbox))
        self.remember(fleet, trained)
        return self.upload(fleet, inbox, trained)


class Elsewhere(FedAvg):
    """What it trains is not called ``model``, so no statistics of it travel."""

    models = ("other",)

    def local_train(self, fleet, rows, inbox):
        return fleet.train(rows, model="other")


@pytest.mark.parametrize("kind", ["Declared", "Heir", "Whole"])
def test_hooks_that_do_what_an_option_needs_may_have_it(federate, short_ala, kind):
    blended = federate({"name": f"{__name__}:{kind}", "ala": True}, rounds=3)
    assert (blended.clients["ala.weights"] < 1).any()


def test_a_training_of_ones_own_that_knows_what_options_read_is_class_wise(federate):
    own, known = (
        federate({"name": name, "aggregation": "class-wise"}).digest
        for name in (f"{__name__}:Knowing", "fedavg")
    )
    assert own == known


def test_hooks_that_may_leave_an_option_out_are_named():
    here = Path(__file__).name
    line = inspect.getsourcelines(Forgetful.start)[1]
    forgetful = refused({"name": f"{__name__}:Forgetful", "ala": True})
    assert f"{here}:{line}: method.ala = True: Forgetful.start replaces" in forgetful
    # it does without ``local_train``
    whole = refused({"name": f"{__name__}:Whole", "aggregation": "class-wise"})
    assert "Whole.update replaces" in whole
    elsewhere = refused(f"{__name__}:Elsewhere", training={"buffers": "average"})
    assert "Elsewhere.models = ('other',) has no 'model', whose statistics" in elsewhere


@pytest.mark.parametrize("name", plugins.names("hpcfl.methods"))
def test_built_in_methods_declare_the_options_that_they_have(name):
    for key in HOOKS:
        if key in kind(name).model_fields:
            assert undeclared(kind(name), key) is None, key


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "fedavg",
        "fedprox",
        "cwfedavg",
        "diversifed",
        "fedamp",
        "fedrep",
        "ditto",
        "pfedme",
    ],
)
def test_ala_blends_before_training(federate, short_ala, name):
    """Some of the methods that have the option; each starts from a blend from its
    second round on.
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
    """Also where clients that were absent in the first round blend in the second."""
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


# Values that the papers print, and what is chosen where their codes differ. ``primary``
# is the score that a paper reports, of the received models ("pre") if it is not given.
PRINTED = {
    "apfl": {"alpha": 0.5, "adaptive": True, "primary": "post"},
    "apple": {
        "relation_lr": 0.01,
        "mu": 0.1,
        "period": 0.2,
        "times_clients": True,
        "primary": "post",
    },
    "cfl": {"eps1": 0.4, "eps2": 0.9, "quiet_rounds": 20, "linkage": "single"},
    "creff": {
        "features_each": 100,
        "match_steps": 100,
        "features_lr": 0.01,
        "head_epochs": 300,
        "head_lr": 0.01,
    },
    "cwfedavg": {
        "distribution": "wdr",
        "layers": "output",
        "wdr": 10,
        "wdr_half": True,
    },
    "ditto": {
        "lam": 0.1,
        "personal_epochs": 2,
        "anchor": "received",
        "primary": "post",
    },
    "diversifed": {"alpha": 1, "lam": 2, "tau": 1, "primary": "post"},
    "fedadagrad": {"beta1": 0, "tau": 0.001},
    "fedadam": {"beta1": 0.9, "beta2": 0.99, "tau": 0.001},
    "fedala": {
        "eta": 1,
        "share": 0.8,
        "layers": 1,
        "threshold": 0.01,
        "most_epochs": 100,
        "activation": "round",
    },
    "fedamp": {
        "alpha": 1000,
        "lam": 1,
        "sigma": 0.1,
        "relative": False,
        "cap": False,
        "primary": "post",
    },
    "fedas": {"primary": "post"},
    "fedavg-c": {"tune_epochs": 10, "tuned_upload": True},
    "fedavgm": {"momentum": 0.9, "server_lr": 1, "nesterov": False},
    "fedbabu": {"tune_epochs": 5, "tune_from": "global", "primary": "tuned"},
    "fedcac": {"tau": 0.5, "beta": 100, "primary": "post"},
    "fedcp": {"lam": 5, "noise": False},
    "feddbe": {"kappa": 50, "initial": "keep"},
    "feddyn": {"alpha": 0.01, "alpha_by": "equal", "weights": "uniform"},
    "fedfomo": {"received": "all", "validation": 0.2, "primary": "post"},
    "fedlc": {"tau": 1},
    "fednh": {
        "rho": 0.9,
        "scale": 1,
        "learn_scale": True,
        "weights": "uniform",
        "primary": "post",
    },
    "fednova": {"mu": 0, "server_momentum": 0, "weights": "samples"},
    "fedpac": {
        "lam": 1,
        "head_epochs": 1,
        "head_lr": None,
        "collaborate": True,
        "primary": "post",
    },
    "fedphp": {"mu": 0.9, "lam": 0.01, "variant": "original", "primary": "post"},
    "fedproto": {"lam": 1, "weights": "uniform", "primary": "post"},
    "fedprox": {"mu": 0.001},
    "fedprox-c": {"mu": 0.001},
    "fedrep": {"head_epochs": 5},
    "fedrod": {"personal": "linear", "order": "together", "primary": "post"},
    "fedtgp": {"primary": "post"},
    "feduv": {"lam": 2.5, "mu": 0.5, "normalise": False, "detach_scale": False},
    "fedyogi": {"beta1": 0.9, "beta2": 0.99, "tau": 0.001},
    "fml": {"primary": "post"},
    "gpfl": {"lam": 0.01, "mu": 0.1, "lag": False},
    "ifca": {"weights": "samples"},
    "local": {"primary": "post"},
    "moon": {"mu": 5, "tau": 0.5},
    "mr-mtl": {"primary": "post"},
    "partialfed": {
        "warmup": 20,
        "temperature": 5,
        "decay": 0.965,
        "strategy_share": 0.2,
        "draw": "round",
        "primary": "post",
    },
    "per-fedavg": {"variant": "first-order", "alpha": None, "beta": None},
    "pfedme": {
        "lam": 15,
        "personal_lr": 0.01,
        "inner_steps": 5,
        "beta": 1,
        "mu": 0,
        "primary": "post",
    },
    "pfedsim": {"primary": "post"},
    "q-ffl": {"q": 1, "weights": "uniform"},
    "scaffold": {"server_lr": 1, "weights": "uniform"},
}


@pytest.mark.parametrize("name", NAMES)
def test_a_method_by_its_name_alone_is_the_papers(name):
    chosen = config.parse({"method": {"name": name}}).method
    expected = {"primary": "pre", **PRINTED.get(name, {})}
    assert {key: getattr(chosen, key) for key in expected} == expected
