"""Repetitions of one experiment, repeated runs, and separate experiments."""

from dataclasses import replace
from pathlib import Path

import pytest
from made_up import run, seeds
from refusals import expect_refusal

from hpcfl.report import search_spending, sweep_table
from hpcfl.report.arrangement import arrange, name_repetitions
from hpcfl.trained.run import Run


def ended(one: Run, digest: str, **header: object) -> Run:
    """Return the same run with another final state, from another machine."""
    return replace(
        one,
        status=replace(one.status, digest=digest),
        results=replace(one.results, header=header),
    )


def test_the_repetitions_are_in_the_order_of_their_seeds():
    found = arrange([run(seed=seed) for seed in (10, 2, 0)])
    assert list(found.cells) == [("fedavg", "digits iid")]
    assert [
        placed.run.config["seed"] for placed in found.cells["fedavg", "digits iid"]
    ] == [0, 2, 10]


def test_repetitions_are_labelled_by_the_differing_seeds():
    one = [{"seed": seed, "partition.seed": seed + 1} for seed in (0, 1)]
    assert name_repetitions(one) == ["seed=0", "seed=1"]
    assert name_repetitions(one[:1]) == ["seed=0"]
    dealt = [{"seed": 0, "partition.seed": seed} for seed in (5, 6)]
    assert name_repetitions(dealt) == ["partition.seed=5", "partition.seed=6"]
    assert (
        name_repetitions([*dealt, {"seed": 1, "partition.seed": 5}])[0]
        == "seed=0 partition.seed=5"
    )


def test_the_same_run_twice_counts_once():
    found = arrange([ended(run(), "a"), ended(run(), "a", commit="later")])
    assert found.rows == ["fedavg"] and len(found.cells["fedavg", "digits iid"]) == 1
    [note] = found.notes
    assert note.startswith("runs/fedavg-0: ") and note.endswith(" runs/fedavg-0")
    assert (
        arrange([ended(run(), "a"), run()]).notes == found.notes
    )  # its checkpoints were removed


def test_a_finished_copy_replaces_an_unfinished_one():
    partial = ended(run(accuracy=(0.5,), finished=False), "a")
    whole = replace(ended(run(), "b"), folder=Path("later"))
    for copies in ([partial, whole], [whole, partial]):
        found = arrange(copies, unfinished=True)
        assert found.runs == [whole]
        assert found.notes[0].endswith("it is the same run as later")


def test_a_null_key_equals_a_missing_key():
    found = arrange([ended(run(), "a"), ended(run(layers=None), "a")])
    assert len(found.runs) == 1 and len(found.notes) == 1


def test_rows_are_labelled_by_the_key_with_most_differences():
    """The first method's runs differ in two keys, the second's in one of these."""
    runs = [
        run("a", mu=0.1, alpha=1),
        run("a", mu=1.0, alpha=2),
        run("b", mu=0.1),
        run("b", mu=1.0),
    ]
    rows = {"a mu=0.1", "a mu=1.0", "b mu=0.1", "b mu=1.0"}
    assert set(arrange(runs).rows) == set(arrange(runs[::-1]).rows) == rows


def test_two_ends_of_one_configuration_are_separate_rows():
    one = ended(run(), "a", commit="abc", versions={"torch": "2.8"})
    other = ended(run(), "b", commit="abc", versions={"torch": "2.9"})
    found = arrange([one, other])
    assert found.rows == ["fedavg torch=2.8", "fedavg torch=2.9"] and not found.notes
    with expect_refusal(r"versions\.torch; .*--rows or --columns"):
        arrange([one, other], ["method.name"])
    assert arrange([one, other], ["method.name", "versions.torch"]).rows == found.rows


def test_two_unexplained_ends_count_once_with_a_note():
    found = arrange([ended(run(), "a"), ended(run(), "b")])
    assert found.rows == ["fedavg"] and len(found.cells) == 1
    assert len(found.notes) == 1


@pytest.mark.parametrize(
    ("section", "keys", "names"),
    [
        ("partition", [{"file": "one.h5"}, {"file": "two.h5"}], ["one.h5", "two.h5"]),
        # a rule precedes its own keys
        ("aggregation", [{"rule": "mean"}, {"rule": "krum", "f": 4}], ["mean", "krum"]),
    ],
)
def test_rows_are_labelled_by_file_name_or_rule(section, keys, names):
    runs = [ended(run(), digest) for digest in "ab"]
    for one, given in zip(runs, keys, strict=True):
        one.config[section] = one.config.get(section, {}) | given
    key, *_ = keys[0]
    assert arrange(runs).rows == [f"fedavg {key}={name}" for name in names]


def test_keys_that_end_alike_are_not_mixed_up():
    one, other, neither = run(), run(), run()
    one.config["method"]["lr"], other.config["training"] = 0.1, {"lr": 0.1}
    assert arrange([one, other, neither]).rows == [
        "fedavg method.lr=0.1",
        "fedavg training.lr=0.1",
        "fedavg",
    ]


def test_a_comparison_of_different_code_is_noted():
    runs = [
        ended(run("fedavg"), "a", commit="abc"),
        ended(run("local"), "b", commit="abc"),
        ended(run("ditto"), "c", commit="def"),
        ended(run("moon"), "d"),
    ]  # the last one outside a repository
    [note] = sweep_table.make(arrange(runs)).notes
    assert note.endswith("commit: abc (fedavg, local), def (ditto)")
    assert sweep_table.make(arrange(runs, ["method.name", "commit"])).notes == []


def test_the_note_on_one_partition_names_the_columns_that_have_one():
    one, other = seeds("a", 0.5, 0.6)
    other.config["partition"]["seed"] = 2
    shared = seeds("a", 0.5, 0.6, dataset="mnist")
    notes = sweep_table.make(arrange([one, other, *shared])).notes
    assert notes == [f"mnist iid: {sweep_table.ONE_PARTITION}"]
    shared[0].config["partition"]["seed"] = shared[1].config["partition"]["seed"] = 7
    assert len(sweep_table.make(arrange([*seeds("a", 0.5, 0.6), *shared])).notes) == 2


def test_the_searches_of_a_method_are_repetitions():
    """Two searches selected other rates for FedAvg."""
    runs = []
    for method, search, seed, rate in (
        ("fedavg", 0, 0, 0.1),
        ("fedavg", 0, 1, 0.1),
        ("fedavg", 1, 50, 0.2),
        ("fedavg", 1, 51, 0.2),
        ("local", 0, 0, 0.3),
        ("local", 1, 50, 0.3),
    ):
        one = run(method, seed)
        config = one.config | {
            "training": {"lr": rate},
            "partition": one.config["partition"] | {"seed": seed % 50},
            "evaluation": {"score": "method"},
        }
        name = f"{method},search={search},tuned,seed={seed % 50}"
        runs.append(replace(one, config=config, folder=one.folder.with_name(name)))
    found = arrange(runs, rows=["method.name"])
    assert {row: len(found.column("digits iid")[row]) for row in found.rows} == {
        "fedavg": 4,
        "local": 2,
    }
    assert not found.notes
    assert search_spending.count_searches(found) == {"fedavg": 2, "local": 2}
    table = sweep_table.make(arrange(runs, ["method.name"]))
    assert table.texts["searches"].tolist() == ["2", "2"]
    assert "4 runs of 2 searches" in table.title
    one_search = [one for one in runs if "search=0" in one.label]
    assert not search_spending.count_searches(arrange(one_search))
