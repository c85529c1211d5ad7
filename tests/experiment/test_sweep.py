"""A grid of experiments in one file."""

import pytest
import tiny
from refusals import expect_refusal

from hpcfl.errors import UserError
from hpcfl.experiment.sweep import expand


def names(**sweep):
    return list(expand(tiny.table("fedavg", sweep=sweep), "f.toml"))


def test_without_a_sweep_one_cell_with_the_experiments_name():
    cells = expand(tiny.table("fedavg", name="mine"), "f.toml")
    assert {name: cell.name for name, cell in cells.items()} == {"mine": "mine"}


def test_a_file_with_a_search_is_refused_by_run():
    table = {"tune": {"methods": ["fedavg"]}, "sweep": {"seed": [0, 1]}}
    words = r"^f\.toml: .* hpcfl tune f\.toml\b"
    with expect_refusal(words):
        expand(table, "f.toml")


def test_lists_are_multiplied_in_their_order():
    cells = expand(
        tiny.table(
            "fedavg", sweep={"seed": [0, 1], "method": {"name": ["fedavg", "local"]}}
        ),
        "f.toml",
    )
    assert list(cells) == [
        "seed=0,fedavg",
        "seed=0,local",
        "seed=1,fedavg",
        "seed=1,local",
    ]
    assert [(cell.seed, cell.method.name) for cell in cells.values()] == [
        (0, "fedavg"),
        (0, "local"),
        (1, "fedavg"),
        (1, "local"),
    ]
    assert cells["seed=0,fedavg"].name == "experiment-seed=0,fedavg"
    assert len({cell.fingerprint() for cell in cells.values()}) == 4


def test_cases_are_linked_columns():
    cases = [
        {"method": {"name": "fedprox", "mu": 0.5}, "training": {"lr": 0.1}},
        {"method": {"name": "local"}},
    ]
    cells = expand(
        tiny.table("fedavg", sweep={"cases": cases, "seed": [7, 8]}), "f.toml"
    )
    assert [(cell.method.name, cell.seed) for cell in cells.values()] == [
        ("fedprox", 7),
        ("fedprox", 8),
        ("local", 7),
        ("local", 8),
    ]
    assert next(iter(cells.values())).method.mu == 0.5


@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, [1, 2, 8]), ({"seed": "seed"}, [1, 2, 8]), ({"seed": 5}, [5, 5, 5])],
)
def test_each_seed_has_its_own_partition_unless_that_has_a_seed(given, expected):
    """Without any seed the results equal those of earlier versions, in which the
    partition's default was 1.
    """
    table = {
        "method": {"name": "fedavg"},
        "partition": given,
        "sweep": {"seed": [0, 1, 7]},
    }
    cells = expand(table, "f.toml").values()
    assert [cell.partition.seed for cell in cells] == expected
    assert [cell.resolved()["partition"]["seed"] for cell in cells] == expected


def test_each_mistake_of_all_cells_is_reported_once():
    table = tiny.table(
        "fedavg",
        training={"lr": -1.0},
        sweep={"training.epochs": [0, 1], "method.name": ["fedavg", "fedprocs"]},
    )
    with pytest.raises(UserError) as caught:
        expand(table, "f.toml")
    starts = [
        "f.toml [sweep] epochs=0,fedavg: training.epochs = 0: must be greater than 0",
        "f.toml [sweep] epochs=0,fedavg: training.lr = -1.0: must be greater than 0",
        "f.toml [sweep] epochs=0,fedprocs: method.name = 'fedprocs' is unknown",
    ]
    assert len(caught.value.args) == 3
    for line, start in zip(sorted(caught.value.args), starts, strict=True):
        assert line.startswith(start)


def test_names_contain_no_characters_unsafe_in_folders():
    assert names(model={"hidden": [[4], [4, 8]]}) == ["hidden=_4_", "hidden=_4_8_"]


def test_long_names_are_shortened_and_stay_apart():
    long, longer = names(
        partition={"counts": [[[1] * 4] * 40, [[1] * 4] * 41]},
        method={"name": ["fedavg"]},
    )
    assert len(long) == len(longer) == 200
    assert long[:180] == longer[:180]
    assert long != longer


def test_plugins_come_before_their_keys_and_replace_those_of_the_one_before():
    table = tiny.table(
        "fedavg",
        model={"name": "mlp", "hidden": [6]},
        sweep={
            "cases": [
                {"model": {"hidden": 7, "name": "tiny:zero_head"}},
                {"model": {"name": "spiral"}},
                {"model": {"name": "mlp"}},
            ]
        },
    )
    first, second, third = (cell.model for cell in expand(table, "f.toml").values())
    assert (first.name, first.options, second.options, third.options) == (
        "tiny:zero_head",
        {"hidden": 7},
        {},
        {"hidden": [6]},
    )


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        (
            {key: {f"{i}": list(range(208)) for i in range(3)} for key in ["x"]},
            "sweep: 8,998,912 cells.* 10,000 ",
        ),
        (
            {"seed": list(range(10_001))},
            "sweep: 10,001 cells.* 10,000 ",
        ),
        (
            {"name": ["a", "b"]},
            "f.toml: sweep.name: ",
        ),
        (
            {"rounds": {"x": [1]}},
            r"f.toml \[sweep\] x=1: rounds.x: 'rounds' ",
        ),
        (
            {"seed": [[[[[[[[[[[1]]]]]]]]]]]},
            "f.toml: .* 10 deep",
        ),
        ({}, r"f.toml: sweep = \{\}: "),
        ({"seed": 3}, "f.toml: sweep.seed = 3: "),
        ({"seed": []}, r"f.toml: sweep.seed = \[\]: "),
        ({"seed": [1, 1]}, "f.toml: sweep: .*'seed=1'"),
        ({"training": {"lr": [1, 1.0]}}, "f.toml: sweep: .*'lr=1' .*'lr=1.0'"),
        (
            {"evaluation": {"metric": ["macro-f1", "macro_f1"]}},
            "sweep: .*'metric=macro-f1' .*'metric=macro_f1'",
        ),
        ({"cases": [{"seed": 1}, {"rounds": 9}], "seed": [2]}, "f.toml: sweep.*'seed'"),
        ({"partition": [{"seed": 1}, {"seed": 2}]}, "sweep.partition: 'seed' "),
        ({"cases": [{}, {"seed": 1}]}, "sweep.cases: "),
        (
            {"training": {"lrr": [1]}},
            "lrr=1: .*'training.lrr'; .*'lr'",
        ),
        (
            {"method": {"name": ["fedavg", "fedalla"]}},
            "fedalla: method.name = 'fedalla' .*'fedala'",
        ),
    ],
)
def test_bad_sweeps_are_found_before_the_first_cell_runs(sweep, message):
    with expect_refusal(message):
        names(**sweep)
