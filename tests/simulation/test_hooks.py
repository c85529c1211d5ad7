"""Overlays that change the messages of methods."""

import copy
from dataclasses import dataclass, field, replace
from numbers import Real

import numpy as np
import pytest
import tiny
import torch
from playing import prepare_tiny
from refusals import expect_refusal

from hpcfl.communication.communicator import OneProcess
from hpcfl.communication.message import Mean, wrap_entries
from hpcfl.errors import RankFailure
from hpcfl.methods.base import Overlay
from hpcfl.simulation import preflight
from hpcfl.simulation.hooks import MessageError, call_hook, find_called_hook
from hpcfl.simulation.round import Round, RoundPlan
from hpcfl.simulation.stages import FINAL_SCORING, TRAINING, play

NORMALISED = {"name": "tiny:Normalised", "hidden": 6}
BUFFERS = "buffers.model"


def prepared_with(*overlays, method="fedavg", **sections):
    """Prepare an experiment with further, outermost overlays."""
    prepared = prepare_tiny(method, **sections)
    hooks = replace(prepared.hooks, overlays=(*prepared.hooks.overlays, *overlays))
    for overlay in overlays:
        prepared.initial_server_state.update(overlay.server_state(prepared.setup))
    return replace(prepared, hooks=hooks)


def play_round(prepared):
    """Run round 1 for clients 0, 1 and 2; the last client is only scored."""
    plan = RoundPlan(1, np.array([0, 1]), np.array([0, 1, 2]), is_scored=True)
    round = Round(plan, OneProcess(), prepared, prepared.initial_server_state)
    play(round, TRAINING)
    return round


@dataclass(frozen=True)
class Clip(Overlay):
    """Overlay that clips the change of all uploaded numbers to a norm, and adds the
    same noise to each.
    """

    norm: float
    noise: float
    norms: list = field(default_factory=list)

    def upload(self, fleet, inbox, message):
        entries = wrap_entries(message)
        changes = {name: entry.tensor - inbox[name] for name, entry in entries.items()}
        norms = torch.cat([*changes.values()], dim=1).norm(dim=1, keepdim=True)
        factor = self.norm / norms.clamp(min=self.norm)
        self.norms.append((sorted(entries), norms[:, 0]))
        sent = {}
        for name, change in changes.items():
            clipped = inbox[name] + factor * change + self.noise
            sent[name] = Mean(clipped, entries[name].weights)
        return sent


def test_the_outermost_overlay_receives_averaged_batch_norm_statistics():
    training = {"buffers": "average"}
    plain = prepared_with(model=NORMALISED, training=training)
    before = copy.deepcopy(dict(plain.initial_server_state))
    play_round(plain)
    statistics = (plain.initial_server_state[BUFFERS] - before[BUFFERS]).norm()
    assert statistics > 0.1

    overlay = Clip(norm=1e-3, noise=0.5)
    clipped = prepared_with(overlay, model=NORMALISED, training=training)
    play_round(clipped)
    [(names, norms)] = overlay.norms
    assert names == [BUFFERS, "model"]
    assert (norms >= statistics / 2).all()
    for name in names:
        change = clipped.initial_server_state[name] - before[name] - 0.5
        assert change.norm() < 2e-3


@dataclass(frozen=True)
class Logged(Overlay):
    """Overlay that adds its name to every message and records the names that it
    receives.
    """

    name: str
    log: list

    def server_state(self, setup):
        return {self.name: torch.zeros(1)}

    def send(self, server, audience, message):
        self.log.append(("send", self.name, {*message}))
        return {**message, self.name: server[self.name]}

    def receive(self, fleet, inbox):
        self.log.append(("receive", self.name, {*inbox}))
        return {name: value for name, value in inbox.items() if name != self.name}

    def upload(self, fleet, inbox, message):
        assert torch.equal(inbox[self.name], torch.zeros(1))
        self.log.append(("upload", self.name, {*message}))
        return {**message, self.name: torch.ones(len(fleet.ids), 1)}

    def aggregate(self, server, cohort, uplink):
        self.log.append(("aggregate", self.name, {*uplink}))
        server[self.name] = uplink[self.name].sum(dim=0)
        return {name: value for name, value in uplink.items() if name != self.name}


def test_overlays_go_outwards_up_and_inwards_down():
    log = []
    prepared = prepared_with(Logged("inner", log), Logged("outer", log))
    play_round(prepared)
    inside, between = {"model"}, {"model", "inner"}
    outside = {"model", "inner", "outer"}
    down = [("receive", "outer", outside), ("receive", "inner", between)]
    assert log == [
        ("send", "inner", inside),
        ("send", "outer", between),
        *down,
        ("upload", "inner", inside),
        ("upload", "outer", between),
        *down,  # the observers
        ("aggregate", "outer", outside),
        ("aggregate", "inner", between),
    ]
    state = prepared.initial_server_state
    assert state["inner"] == state["outer"] == 2


@pytest.mark.parametrize("epochs", [0, 1])
def test_messages_for_newcomers_and_final_scoring_pass_the_overlays(epochs):
    log = []
    prepared = prepared_with(
        Logged("outer", log),
        counts=[*tiny.COUNTS, [0, 5, 5, 0]],
        partition={"clients": len(tiny.COUNTS)},
        newcomers={"clients": 1, "epochs": epochs},
    )
    nobody, clients = np.arange(0), np.arange(len(tiny.COUNTS))
    new = prepared.newcomer_ids
    plan = RoundPlan(4, nobody, clients, is_scored=True, newcomers=new, is_final=True)
    round = Round(plan, OneProcess(), prepared, prepared.initial_server_state)
    play(round, FINAL_SCORING)
    steps = [step for step, _, _ in log]
    assert steps == ["send", "receive", "send", "receive"]


class Broken(Overlay):
    def upload(self, fleet, inbox, message):
        return {**message, "extra": torch.ones(1)}


def test_an_invalid_message_of_an_overlay_names_its_hook():
    assert "Broken.upload" in str(find_error(prepared_with(Broken())))


def find_error(prepared):
    """Return the cause for which round 1 fails."""
    with pytest.raises(RankFailure) as failure:
        play_round(prepared)
    return failure.value.__cause__


class Assigning(Overlay):
    def send(self, server, audience, message):
        server["model"] = message["model"]
        return message


def test_an_overlay_assigns_on_the_server_in_aggregate_alone():
    assert "'aggregate'" in str(find_error(prepared_with(Assigning())))


class Clash(Overlay):
    def server_state(self, setup):
        return {"model": setup.initial()}


def test_a_name_of_the_methods_state_is_refused_in_an_overlay():
    prepared = prepared_with()
    hooks = replace(prepared.hooks, overlays=(Clash(),))
    with expect_refusal(r"Clash\.server_state: .*'model'"):
        hooks.make_initial_state("server_state", prepared.setup)


class Failing(Overlay):
    def receive(self, fleet, inbox):
        return inbox["nothing"]


def test_a_failure_in_an_overlay_names_its_hook():
    prepared = prepared_with(Failing())
    error = find_error(prepared)
    assert find_called_hook(error, prepared.hooks) == "Failing.receive"


class Forgetting(Overlay):
    def receive(self, fleet, inbox):
        pass


def test_an_overlay_that_returns_no_inbox_is_named():
    error = find_error(prepared_with(Forgetting()))
    assert str(error).startswith("'Forgetting.receive' returns a NoneType")


@dataclass(frozen=True)
class Measuring(Overlay):
    returned: object

    def upload(self, fleet, inbox, message):
        fleet.record("own", torch.ones(len(fleet.ids)))
        return message

    def measure(self, server, round):
        return self.returned


@pytest.mark.parametrize(
    ("returned", "named"),
    [
        (None, "NoneType"),
        ({"recorded/norm": "high"}, "recorded/norm"),
        ({"norm": torch.ones(3)}, "norm"),
        ({"norm": 1j}, "norm"),
        ({"pre/weighted": 1.0}, "pre/weighted"),  # a score of hpcfl
        ({"a/b/c": 1.0}, "a/b/c"),
        ({3: 1.0}, "3"),
        ({"recorded/own": 1.0}, "recorded/own"),  # recorded for each client, too
        ({"recorded/own_std": 1.0}, "recorded/own_std"),
    ],
)
def test_numbers_that_cannot_be_recorded_are_refused_before_round_1(returned, named):
    with expect_refusal(rf"Measuring\.measure.*{named}"):
        preflight.run(prepared_with(Measuring(returned)), OneProcess())


def test_numbers_of_overlays_are_recorded_as_floats():
    returned = {"recorded/norm": torch.tensor(2.0), "norm": np.int64(3)}
    hooks = prepared_with(Measuring(returned)).hooks
    found = hooks.measure({}, round=1, taken=["norm_std"])
    assert found == {"recorded/norm": 2.0, "norm": 3.0}
    with pytest.raises(MessageError, match="norm"):
        hooks.measure({}, round=1, taken=["norm"])


@dataclass(frozen=True)
class Answering(Overlay):
    """An overlay whose hooks of the commands return one object."""

    returned: object

    def notes(self):
        return self.returned

    def describe(self, rounds, cohort, uploads):
        return self.returned

    def list_decisions(self):
        return self.returned

    def count_server_bytes(self, clients, uploads):
        return self.returned


@pytest.mark.parametrize(
    ("hook", "kind", "facts", "returned"),
    [
        ("notes", list, [], None),
        ("notes", list, [], ["a note", 1]),
        ("describe", list, [1, None, {}], "a text"),
        ("list_decisions", dict, [], None),
        ("count_server_bytes", Real, [1, {}], "8"),
    ],
)
def test_an_overlays_answer_of_another_type_is_refused(hook, kind, facts, returned):
    with expect_refusal(rf"Answering\.{hook} returns"):
        call_hook(Answering(returned), hook, kind, *facts)


def test_a_valid_answer_is_returned():
    size = np.int64(4)
    assert call_hook(Answering(size), "count_server_bytes", Real, 1, {}) == 4
    assert call_hook(Answering(["a note"]), "notes", list) == ["a note"]
