"""Notes and errors about an experiment as a whole, before round 1."""

import itertools
from dataclasses import replace

import pytest
import tiny
from in_threads import on_ranks
from playing import prepare_alone
from refusals import expect_refusal

from hpcfl.communication.communicator import Process
from hpcfl.simulation.prepare import prepare, prepare_together


def test_more_ranks_than_clients_are_noted():
    """Each worker has one client; an additional worker has no work."""
    experiment = tiny.parse("fedavg")
    clients = experiment.partition.clients
    assert prepare(experiment, Process(0, clients + 1)).notes == []
    (note,) = prepare(experiment, Process(0, clients + 2)).notes
    assert note.startswith(f"1 of {clients + 1} ")
    assert f"-n {clients + 1} " in note


@pytest.mark.parametrize(("scheme", "is_noted"), [("iid", True), ("by-client", False)])
def test_clients_that_a_key_names_and_nothing_uses_are_noted(
    tmp_path, scheme, is_noted
):
    rows = [f"{number / 7},{number % 2},{'ab'[number % 4 < 2]}" for number in range(40)]
    file = tmp_path / "t.csv"
    file.write_text("\n".join(["x,label,site", *rows]))
    table = {
        "data": {"dataset": "csv", "file": str(file), "client": "site"},
        "partition": {"scheme": scheme, "clients": 2},
        "method": {"name": "fedavg"},
    }
    notes = prepare_alone(table).notes
    assert any("data.client selects 2 clients" in note for note in notes) is is_noted


def test_notes_are_of_the_data_and_not_of_a_stored_partition(tmp_path):
    """Ascending numbers look like an identifier, unless they are named."""
    file, stored = tmp_path / "t.csv", tmp_path / "partition.h5"
    rows = [f"{number % 7 / 9},{number},{number % 2}" for number in range(40)]
    file.write_text("\n".join(["x,age,label", *rows]))
    data = {"dataset": "csv", "file": str(file)}
    for saved, read in (({}, {"features": ["x", "age"]}), ({"features": ["x"]}, {})):
        table = {
            "data": {**data, **saved},
            "partition": {"scheme": "iid", "clients": 2},
            "method": {"name": "fedavg"},
        }
        prepare_alone(table).data.split.save(stored)
        table["data"] = {**data, **read}
        table["partition"]["file"] = str(stored)
        notes = prepare_alone(table).notes
        assert any("column age" in note for note in notes) is not bool(read)


@pytest.mark.parametrize(
    ("partition", "is_noted"),
    [
        ({"scheme": "iid"}, True),
        ({"scheme": "by-client"}, False),
        ({"scheme": "client-dirichlet", "train_samples": 9, "test_samples": 2}, False),
    ],
)
def test_resplitting_a_users_test_samples_is_noted(tmp_path, partition, is_noted):
    rows = []
    for number in range(40):
        part = "train" if number < 30 else "test"
        rows.append(f"{number % 7 / 9},{number % 2},{number % 4 // 2},{part}")
    file = tmp_path / "t.csv"
    file.write_text("\n".join(["x,label,client,split", *rows]))
    table = {
        "data": {"dataset": "csv", "file": str(file)},
        "partition": {"clients": 2, **partition},
        "method": {"name": "fedavg"},
    }
    notes = [note for note in prepare_alone(table).notes if "10 test samples" in note]
    assert len(notes) == is_noted


class Blurred(tiny.Blobs):
    """Data whose samples differ in every call, with the same labels."""

    calls = itertools.count()

    def read(self, name, root):
        data = super().read(name, root)
        return replace(data, x=data.x + next(self.calls))


blurred = Blurred()


def test_ranks_with_other_samples_are_refused():
    data = {"dataset": f"{__name__}:blurred"}
    table = tiny.parse("fedavg", data=data)

    def work(communicator):
        prepare_together(table, communicator)

    on_ranks(1, work)
    with expect_refusal(r"data\.dataset = .*: \d+ on rank 0, "):
        on_ranks(2, work)
