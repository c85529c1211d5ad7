"""Counts of the tiny data by hand: four classes of 60 samples with five numbers each."""

from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from in_threads import on_ranks
from playing import prepare_alone, prepare_tiny

from hpcfl.commands import data_summary
from hpcfl.data.datasets import DataDescription, Dataset, Owners
from hpcfl.simulation.prepare import prepare

COUNTS = [[4, 0, 0, 0], [10, 10, 0, 0], [0, 0, 30, 0]]
NAMES = DataDescription(
    features=("age", "bmi", "heart rate", "x, y", " z"),
    label="outcome",
    client="hospital",
    classes=("no", "yes", "a: b", "late"),
    notes=("'id'",),
)
RANGE = torch.tensor([[-1.5], [2.0]])


class Described(tiny.Blobs):
    def read(self, name, root):
        return replace(super().read(name, root), description=NAMES)


class Owned(Described):
    def read(self, name, root):
        data = super().read(name, root)
        of = np.arange(len(data.y)) % 3
        return replace(data, owners=Owners(("north", "south, east", "03"), of))


class Images(Described):
    """Images of 6 × 4 pixels with two colours, from 0 to 255."""

    def read(self, name, root):
        y = torch.arange(4).repeat_interleave(60)
        x = torch.zeros(len(y), 2, 6, 4, dtype=torch.uint8)
        x[7, 1, 2, 3] = 255
        x[239, 1, 2, 3] = 3
        return Dataset(name, x, y, 4, mean=(0.5, 0.0), std=(0.5, 1.0))


described, owned, images = Described(), Owned(), Images()


def prepared(**sections):
    return prepare_tiny("fedavg", COUNTS, **sections)


def facts(text):
    """Return the text of each line by its name."""
    found, name = {}, ""
    for line in text.splitlines():
        assert len(line) <= data_summary.WIDTH
        name = line[: data_summary.INDENT].strip() or name
        joined = f"{found.get(name, '')} {line[data_summary.INDENT :]}"
        found[name] = joined.strip()
    return found


def read_facts(values=RANGE, **sections):
    return facts(data_summary.describe_data(prepared(**sections), values, False))


def test_columns_classes_and_clients_are_shown():
    seen = read_facts(data={"dataset": f"{__name__}:described"})
    assert seen["features"] == "5 columns: age, bmi, heart rate, 'x, y', ' z'"
    assert seen["label"] == "column outcome"
    assert (
        "4, training/test samples: no: 14/40, yes: 10/20, 'a: b': 30/20, late: 0/0"
        in seen["classes"]
    )
    assert seen["classes"].endswith("trains on 1 to 2 of them")
    assert "240 samples; clients train on 54 and are tested on 80" in seen["data"]
    assert seen["clients"] == (
        "3, training/test samples: smallest 4/20 (client 0), median 20/40 (client 1), "
        "largest 30/20 (client 2)"
    )
    assert seen["sample"] == "row of a table, 5 numbers"
    assert (
        seen["values"] == "float32 from -1.5 to 2; models take float32 from -1.5 to 2"
    )


def test_unnamed_features_and_classes_are_shown_as_numbers():
    seen = read_facts()
    assert seen["features"] == "5 without names"
    assert "0: 14/40" in seen["classes"]
    assert seen["client"] == "drawn by partition.scheme = 'tiny:Counts'"


def test_the_summary_names_the_datas_own_clients(tmp_path):
    data = {"dataset": f"{__name__}:owned"}
    assert "column hospital with 3 names " in read_facts(data=data)["client"]
    table = tiny.table("fedavg", data=data)

    def describe(**keys):
        table["partition"] = {"scheme": "by-client", "clients": 2, **keys}
        found = prepare_alone(table)
        return facts(data_summary.describe_data(found, RANGE))

    seen = describe(clients=3)
    assert "hospital with 3 names" in seen["client"]
    assert "partition.scheme = 'by-client'" in seen["client"]
    assert "(client 1 'south, east')" in seen["clients"]
    lists = tmp_path / "lists.json"
    lists.write_text('{"ann": [0, 1, 2, 3], "bob": [100, 101, 102, 103, 200]}')
    seen = describe(lists=str(lists))
    assert "partition.lists" in seen["client"]
    assert "(client 1 'bob')" in seen["clients"]


def test_held_out_samples_are_counted_separately():
    seen = read_facts(training={"validation": 0.5})
    assert (
        "train on 27, hold out 27 for validation and are tested on 80" in seen["data"]
    )


def test_the_range_covers_the_clients_samples_of_all_ranks():
    """No client has sample 7, and each channel has its mean and deviation."""
    data = {"dataset": f"{__name__}:images"}
    table = tiny.parse("fedavg", [[4, 0, 0, 1], [4, 0, 0, 0]], data=data)

    def find(communicator):
        return data_summary.find_range(prepare(table, communicator), communicator)

    for ranks in (1, 3):
        assert on_ranks(ranks, find).tolist() == [[0, 0], [0, 3]]
    ends = torch.tensor([[0, 0], [127, 255]], dtype=torch.uint8)
    seen = read_facts(data=data, values=ends)
    assert seen["sample"] == "image of 2 channels of 6 × 4 pixels (channels first)"
    assert seen["values"] == "uint8 from 0 to 255; models take float32 from -1 to 1"


def test_each_channel_is_normalised_on_its_own():
    ends = torch.tensor([[255, 0], [255, 255]], dtype=torch.uint8)
    seen = read_facts(data={"dataset": f"{__name__}:images"}, values=ends)
    assert seen["values"] == "uint8 from 0 to 255; models take float32 from 0 to 1"


@pytest.mark.parametrize(
    "x, words",
    [
        (torch.zeros(1, 9, dtype=torch.int64), "text of 9 token ids, vocabulary of 50"),
        (torch.zeros(1, 9), "row of a table, 9 numbers"),
        (torch.zeros(1, 9, 2), "array, 9 × 2"),
        (
            torch.zeros(1, 1, 8, 8),
            "image of 1 channel of 8 × 8 pixels (channels first)",
        ),
    ],
)
def test_the_layout_of_samples_is_described(x, words):
    data = Dataset("made", x, torch.zeros(1, dtype=torch.int64), 1, vocabulary=50)
    assert data_summary.describe_layout(data) == words


def test_long_lists_are_cut():
    names = [f"column {number}" for number in range(1000)]
    short = data_summary.list_entries(names, whole=False)
    assert short.startswith("column 0, column 1, ") and short.endswith(", … 994 more")
    assert data_summary.list_entries(names, whole=True) == ", ".join(names)
    assert data_summary.list_entries(names[:5], whole=False) == ", ".join(names[:5])
    assert len(data_summary.list_entries(["x" * 5000], whole=False)) <= 40


def test_ambiguous_names_are_quoted():
    listed = ["plain", "two words", "a, b", "", " padded", "a:1", "\x1b[31m"]
    expected = ["plain", "two words", "'a, b'", "''", "' padded'", "'a:1'", r"\x1b[31m"]
    assert [data_summary.show_name(name) for name in listed] == expected


def test_notes_of_the_reader_and_untrained_classes_are_noted():
    data = {"dataset": f"{__name__}:described"}
    found = prepared(data=data).notes
    assert found.count("'id'") == 1
    assert not any(" classes " in note for note in found)


class LateTest(tiny.Counts):
    def draw(self, labels, classes, official_test):
        draw = super().draw(labels, classes, official_test)
        late = np.arange(230, 240)
        return replace(draw, test=[np.union1d(held, late) for held in draw.test])


def test_a_class_that_is_only_tested_is_noted():
    partition = {"scheme": f"{__name__}:LateTest"}
    data = {"dataset": f"{__name__}:described"}
    (note,) = (
        line
        for line in prepared(data=data, partition=partition).notes
        if "1 of 4 classes" in line
    )
    assert note.endswith(": late")
