"""Notes on clients without steps and on short rounds, refusal of runs without any step,
and comparison of the decisions of two starts of a run.
"""

import pytest
import tiny
from in_threads import on_ranks
from refusals import expect_refusal

from hpcfl.clock.schedule import make_schedule
from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.methods.fedavg import FedAvg
from hpcfl.simulation import preflight, start_checks
from hpcfl.simulation.prepare import prepare

COUNTS = [[4, 0, 0, 0], [10, 10, 0, 0], [0, 0, 30, 0]]  # 4, 20 and 30 samples
FULL = {"drop_last": True}


class Idle(FedAvg):
    """A method without training."""

    def local_train(self, fleet, rows, inbox):
        return fleet.rows(rows).clone()


class NoEpochs(FedAvg):
    def local_train(self, fleet, rows, inbox):
        return fleet.train(rows, epochs=0)


class OnlyScored(FedAvg):
    """A method that trains only for a score."""

    def local_train(self, fleet, rows, inbox):
        with fleet.trial():
            fleet.train(rows, phase="trial")
        return fleet.rows(rows).clone()


class Shared(FedAvg):
    """A method that trains on half of the samples."""

    def local_train(self, fleet, rows, inbox):
        return fleet.train(rows, share=0.5)


def tried(method="fedavg", **sections):
    table = tiny.table(method, COUNTS, **sections)
    return try_table(table)


def try_table(table):
    alone = OneProcess()
    prepared = preflight.run(prepare(config.parse(table), alone), alone)
    return start_checks.note_idle_clients(prepared, make_schedule(prepared, alone))


def idle(prepared):
    """Return the first word of each note on clients that never take a step or never
    train.
    """
    words = ("never take a step", "never train", "take no step")
    found = [note for note in prepared.notes if any(word in note for word in words)]
    return [int(note.split()[0]) for note in found]


@pytest.mark.parametrize(
    "method, training, expected",
    [
        ("fedavg", {"batch_size": 100}, []),
        ("fedavg", {"batch_size": 4, **FULL}, []),
        ("fedavg", {"batch_size": 5, **FULL}, [1]),
        ("fedavg", {"batch_size": 30, **FULL}, [2]),
        # half of 4, 20 and 30 samples are held out
        ("fedavg", {"batch_size": 11, "validation": 0.5, **FULL}, [2]),
        ("ditto", {"batch_size": 30, **FULL}, [2]),
        ("per-fedavg", {"batch_size": 10, **FULL}, [1]),
        ("per-fedavg", {"batch_size": 15, **FULL}, [2]),
        (f"{__name__}:Shared", {"batch_size": 15, **FULL}, [2]),
        (f"{__name__}:Idle", {"batch_size": 100, **FULL}, []),
        (f"{__name__}:OnlyScored", {"batch_size": 100, **FULL}, []),
    ],
)
def test_clients_with_too_few_samples_are_counted(method, training, expected):
    assert idle(tried(method, training=training)) == expected


@pytest.mark.parametrize(
    "method, training, words",
    [
        (
            "fedavg",
            {"batch_size": 31, **FULL},
            "training.batch_size = 31 .* 30 ",
        ),
        ("per-fedavg", {"batch_size": 16, **FULL}, "2 batches"),
        (f"{__name__}:NoEpochs", {}, "NoEpochs' .* 0 epochs"),
    ],
)
def test_a_run_without_any_step_is_refused(method, training, words):
    with expect_refusal(rf"no client .*{words}"):
        tried(method, training=training)


def test_clients_that_are_never_selected_are_counted():
    few = {"participation": {"fraction": 0.34}, "rounds": 1}
    assert idle(tried(**few)) == [2]


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_clients_without_steps_are_counted_in_virtual_time(mode):
    time = {"mode": mode, "sample_ms": 1.0}
    training = {"batch_size": 30, **FULL}
    assert 2 in idle(tried(time=time, training=training))
    with expect_refusal("no client"):
        tried(time=time, training={"batch_size": 31, **FULL})


def test_a_deadline_that_no_client_meets_is_refused():
    time = {"mode": "synchronous", "sample_ms": 1e6, "deadline": 0.2}
    with expect_refusal(r"3 rounds: .*participation\.fraction or time\.deadline"):
        tried(time=time)


def test_newcomers_are_counted_where_they_train():
    training = {"batch_size": 5, **FULL}
    new = {"clients": 1, "epochs": 1}
    counts = [COUNTS[1], COUNTS[2], COUNTS[0]]
    table = tiny.table("fedavg", counts, training=training, newcomers=new)
    table["partition"]["clients"] = 2
    assert idle(try_table(table)) == [1]


# 5·6 + 6 + 6·4 + 4 = 64 parameters, 54 samples, two epochs, six operations each
OPERATIONS = 6 * 64 * 54 * 2


def count_notes(ranks, **sections):
    table = tiny.table("fedavg", COUNTS, **sections)

    def work(communicator):
        prepared = preflight.run(
            prepare(config.parse(table), communicator), communicator
        )
        noted = start_checks.note_short_rounds(prepared)
        return len(noted.notes) - len(prepared.notes)

    return on_ranks(ranks, work)


@pytest.mark.parametrize(
    ("limit", "ranks", "expected"),
    [(OPERATIONS, 3, 1), (OPERATIONS - 1, 3, 0), (OPERATIONS, 1, 0)],
)
def test_a_round_of_few_operations_is_noted_on_ranks(
    monkeypatch, limit, ranks, expected
):
    monkeypatch.setattr(start_checks, "SHORT_ROUND", limit)
    assert count_notes(ranks, training={"epochs": 2}) == expected


def test_models_of_other_layers_have_no_note():
    model = {"name": "tiny:normalised", "hidden": 6}
    assert count_notes(3, training={"batch_size": 100}, model=model) == 0


BEGAN = {"asked": ["cpu", "auto"], "clients train": "side by side"}


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        (BEGAN, []),
        ({**BEGAN, "clients train": "one after the other"}, ["clients train"]),
        # the user requests other lanes
        ({"asked": ["cpu", 1], "clients train": "one after the other"}, []),
        # a decision that the earlier version did not make
        ({**BEGAN, "noise": "Gaussian"}, []),
    ],
)
def test_decisions_with_the_same_settings_are_compared(now, changed):
    found = start_checks.list_changed_decisions(BEGAN, now)
    assert [text.split(" one ")[0] for text in found] == changed
