"""Names of tensors that a method reads, assigns or changes in place."""

import weakref

import pytest
import tiny
import torch
from refusals import expect_refusal

import hpcfl
from hpcfl.communication.message import Mean
from hpcfl.errors import RankFailure
from hpcfl.methods.fedavg import FedAvg
from hpcfl.rows.declared import (
    DeclaredTensors,
    FixedTensors,
    NamedTensors,
    UnknownName,
    Watch,
)


def declared(**varying):
    tensors = {"model": torch.zeros(2), "later": torch.zeros(0)}
    return DeclaredTensors(tensors, "server", "server_state", **varying)


WAYS = {
    "item": lambda server, name, value: server.__setitem__(name, value),
    "update": lambda server, name, value: server.update({name: value}),
    "or": lambda server, name, value: server.__ior__({name: value}),
    "default": lambda server, name, value: server.setdefault(name, value),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_misspelt_name_is_refused_in_every_assignment(way):
    server = declared()
    with pytest.raises(UnknownName, match=r"server\['modell'\].*'model'"):
        WAYS[way](server, "modell", torch.ones(2))
    assert set(server) == {"model", "later"}


@pytest.mark.parametrize("value", [torch.ones(2).double(), torch.ones(3), 1.0])
def test_a_tensor_keeps_its_type_and_shape(value):
    with pytest.raises(UnknownName, match=r"server\['model'\]"):
        declared()["model"] = value


def test_a_varying_tensor_may_change_its_length_and_no_type():
    server = declared(varying=("model", "found"))
    server["model"] = torch.ones(5)
    server["found"] = torch.ones(1)
    server["later"] = torch.ones(4)
    assert [len(server[name]) for name in ("model", "found", "later")] == [5, 1, 4]
    with pytest.raises(UnknownName):
        server["model"] = torch.ones(5).double()
    with pytest.raises(UnknownName):  # if it has elements
        server["later"] = torch.ones(3)


def test_a_missing_name_lists_those_that_are_there():
    inbox = NamedTensors({"model": 1, "mask": 2}, "inbox")
    with pytest.raises(KeyError, match=r"inbox\['maks'\].*'mask'.*model, mask"):
        inbox["maks"]
    assert inbox.get("maks", 3) == 3
    assert {**inbox, "start": 4} == {"model": 1, "mask": 2, "start": 4}
    for joined in (inbox | {"start": 4}, {"start": 4} | inbox):
        with pytest.raises(UnknownName):
            joined["maks"]


def test_a_server_that_sends_cannot_be_changed():
    with pytest.raises(UnknownName, match="aggregate"):
        FixedTensors({"model": 1}, "server")["model"] = 2


class Plain(FedAvg):
    def server_state(self, setup):
        return {"model": setup.initial(), "mask": torch.zeros(setup.layout.width)}

    def client_state(self, setup):
        return {"mask": torch.zeros(setup.layout.width)}


class Misspelt(Plain):
    def aggregate(self, server, cohort, uplink):
        server["modell"] = uplink["model"]


class MisspeltState(Plain):
    def store_state(self, fleet, trained):
        fleet.state["msk"] = fleet.state["mask"]


class MisreadState(Plain):
    def start(self, fleet, inbox):
        return fleet.state["maskk"]


class Missent(Plain):
    def send(self, server, audience):
        return {"modle": server["model"]}


class MissentUp(Plain):
    def upload(self, fleet, inbox, trained):
        return {"modle": Mean(trained, self.shares(fleet))}


class MisreadByServer(Plain):
    def send(self, server, audience):
        return {"model": server["modell"]}


class MisspeltVariable(Plain):
    def local_train(self, fleet, rows, inbox):
        def step(context):
            context.variables["cuont"] = context.variables["count"] + 1

        count = torch.zeros(len(fleet.ids))
        return fleet.train_by(step, rows, variables={"count": count})[0]


class Wrong(Plain):
    def start(self, fleet, inbox):
        return self.mixed(inbox["model"])

    def mixed(self, model):
        return model @ model.double()


class Misprepared(Plain):
    def prepare(self, fleet, inbox):
        return {**inbox, "begin": inbox["model"]}

    def start(self, fleet, inbox):
        return inbox["beginn"]


class Number(Plain):
    def server_state(self, setup):
        return {**super().server_state(setup), "steps": 0}


class NumberedState(Plain):
    def server_state(self, setup):
        return {**super().server_state(setup), 0: torch.zeros(1)}


class Brief(Plain):
    def client_state(self, setup):
        return {"mask": torch.zeros(1, dtype=torch.bfloat16)}


class NumberOfClients(Plain):
    def client_state(self, setup):
        return {"mask": 1.0}


class Changes(Plain):
    def send(self, server, audience):
        server["model"] = 0 * server["model"]
        return {"model": server["model"]}


class ChangesInbox(Plain):
    def start(self, fleet, inbox):
        inbox["model"][:3] = 0
        return inbox["model"]


class ChangesRows(Plain):
    def client_model(self, fleet, inbox, rows, trained):
        if trained:
            rows[:, :3] = 0
        return super().client_model(fleet, inbox, rows, trained)


class ChangesState(Plain):
    def client_model(self, fleet, inbox, rows, trained):
        fleet.state["mask"] += 1
        return super().client_model(fleet, inbox, rows, trained)


class Returns(Plain):
    def aggregate(self, server, cohort, uplink):
        return {"model": uplink["model"]}


class Forgets(Plain):
    def prepare(self, fleet, inbox):
        inbox["begin"] = inbox["model"]


class Later(Plain):
    def aggregate(self, server, cohort, uplink):
        server["modell" if cohort.round > 1 else "model"] = uplink["model"]


def play(folder, name, **sections):
    method = f"test_declared:{name}"
    experiment = tiny.table(method, [[2, 2, 0, 0], [4, 4, 0, 0]], **sections)
    return hpcfl.run(experiment, out=folder / "run", progress=False)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Misspelt", r"test_declared.py:\d+: .*server\['modell'\].*'model'"),
        ("MisspeltState", r"test_declared.py:\d+: .*fleet.state\['msk'\].*'mask'"),
        ("MisreadState", r"test_declared.py:\d+: .*fleet.state\['maskk'\].*'mask'"),
        ("Missent", r"test_declared.py:\d+: .*inbox\['model'\].*'modle'"),
        ("MissentUp", r"test_declared.py:\d+: .*uplink\['model'\].*'modle'"),
        ("MisreadByServer", r"test_declared.py:\d+: .*server\['modell'\].*'model'"),
        ("MisspeltVariable", r"test_declared.py:\d+: .*'cuont'\].*'count'"),
        ("Misprepared", r"test_declared.py:\d+: .*inbox\['beginn'\].*'begin'"),
        ("Number", r"test_declared.py:\d+: 'server_state' .*'steps' as a int"),
        ("NumberedState", r"test_declared.py:\d+: 'server_state' .*name 0; "),
        ("Brief", r"test_declared.py:\d+: 'client_state' .*'mask' as bfloat16"),
        ("NumberOfClients", r"test_declared.py:\d+: .*'mask' as a float"),
        ("Changes", r"test_declared.py:\d+: .*server\['model'\].*'aggregate'"),
        ("ChangesInbox", r"test_declared.py:\d+: .*inbox\['model'\] in place"),
        ("ChangesRows", r"test_declared.py:\d+: .*rows in place"),
        ("ChangesState", r"test_declared.py:\d+: .*fleet.state\['mask'\] in place"),
        ("Returns", r"test_declared.py:\d+: .*'aggregate' returns a dict"),
        ("Forgets", r"test_declared.py:\d+: .*'prepare' returns a NoneType"),
        ("Wrong", r"test_declared.py:\d+: .*Wrong' .*'start': RuntimeError"),
    ],
)
@pytest.mark.parametrize("buffers", ["local", "average"])
def test_a_mistake_is_refused_before_round_1(tmp_path, name, text, buffers):
    sections = {"model": {"name": "tiny:normalised"}, "training": {"buffers": buffers}}
    with expect_refusal(text):
        play(tmp_path, name, **sections)


def test_a_mistake_of_a_later_round_has_its_line(tmp_path):
    place = r"round 2, .*test_declared.py:\d+: server\['mo"
    with pytest.raises(RankFailure, match=place):
        play(tmp_path, "Later")


def test_a_misspelt_name_is_refused_for_large_models_too(tmp_path, monkeypatch):
    """For a large model the dry round has fewer clients than the experiment."""
    monkeypatch.setattr("hpcfl.simulation.dry_round.FLOATS", 1)
    experiment = tiny.table("test_declared:Misspelt")
    with expect_refusal("modell"):
        hpcfl.run(experiment, out=tmp_path / "run", progress=False)


def set_row(tensor):
    tensor[1] = 2


@pytest.mark.parametrize(
    "change",
    [
        set_row,
        lambda tensor: tensor.add_(1),
        lambda tensor: tensor.view(-1)[3:].zero_(),
        lambda tensor: torch.add(tensor, 1, out=tensor),
    ],
)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_a_change_in_place_is_found(change, mode):
    with mode():
        tensors = {"changed": torch.zeros(5, 3), "other": torch.zeros(5, 3)}
        watch = Watch(tensors)
        change(tensors["changed"])
        assert watch.end() == ["changed"]
        assert Watch(tensors).end() == []


def test_reading_is_no_change():
    flags, number = torch.zeros(3, dtype=torch.bool), torch.tensor(3)
    tensors = {"flags": flags, "round": number, "empty": torch.zeros(0)}
    watch = Watch(tensors)
    tensors["flags"] = ~flags
    assert (number + 1).item() == 4
    assert watch.end() == []


def test_gradients_pass_a_watched_tensor():
    tensor = torch.zeros(3, requires_grad=True)
    watch = Watch({"a": tensor})
    (tensor * 2).sum().backward()
    assert watch.end() == []
    assert tensor.grad is not None


def test_tensors_of_inference_mode_are_left_out():
    with torch.inference_mode():
        tensors = {"a": torch.zeros(3)}
    assert Watch(tensors).end() == []


def test_an_ended_watch_holds_no_tensor():
    tensor = torch.zeros(3)
    watch, held = Watch({"a": tensor}), weakref.ref(tensor)
    watch.end()
    del tensor
    assert held() is None and watch.end() == []
