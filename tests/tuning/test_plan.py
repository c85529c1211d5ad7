"""Trials of a tuning: ranges, draws, rungs, and invalid files."""

import copy

import pytest
from refusals import expect_refusal

from hpcfl.tuning import plan
from hpcfl.tuning.section import Interval

TABLE = {
    "rounds": 20,
    "training": {"validation": 0.2},
    "tune": {
        "methods": ["fedavg", "ditto"],
        "budget": 50_000_000,
        "trials": 4,
        "rungs": 2,
        "search_seeds": [100],
        "final_seeds": [0, 1],
        "search": {
            "training.lr": {
                "low": 0.001,
                "high": 0.1,
                "log": True,
            }
        },
    },
}


def table(**changes):
    changed = copy.deepcopy(TABLE)
    changed["tune"] |= changes
    return changed


def test_a_method_is_searched_over_its_own_ranges_and_the_shared_ones():
    tuning = plan.read(table(), "t.toml")
    shared = Interval(low=0.001, high=0.1, log=True)
    assert tuning.find_ranges("fedavg") == {"training.lr": shared}
    assert tuning.find_ranges("ditto") == {
        "method.lam": [0.0001, 0.001, 0.01, 0.1, 1.0, 10.0],
        "method.personal_epochs": list(range(1, 11)),
        "training.lr": shared,
    }


def test_overrides_are_other_ranges_or_values():
    overrides = {"ditto": {"method.lam": 0.5, "training.lr": [0.1, 0.2]}}
    tuning = plan.read(table(overrides=overrides), "t.toml")
    assert tuning.find_ranges("ditto").keys() == {
        "method.personal_epochs",
        "training.lr",
    }
    for candidate in tuning.list_trials("ditto"):
        config = tuning.make_config(candidate, seed=7, rounds=3)
        assert config.method.lam == 0.5
        assert config.training.lr in (0.1, 0.2)
        assert (config.seed, config.partition.seed, config.rounds) == (7, 8, 3)
    assert tuning.make_config(tuning.make_untuned("ditto"), 0, 1).method.lam == 0.5
    assert tuning.make_config(tuning.make_untuned("fedavg"), 0, 1).training.lr == 0.005


def test_keys_need_no_quotes():
    nested = {"training": {"lr": {"low": 0.1, "high": 0.2}}}
    overrides = {"ditto": {"method": {"lam": 0.5}}}
    tuning = plan.read(table(search=nested, overrides=overrides), "t.toml")
    assert tuning.find_ranges("fedavg") == {"training.lr": Interval(low=0.1, high=0.2)}
    assert tuning.find_fixed("ditto") == {"method.lam": 0.5}


def test_a_protocol_defines_the_maximum_number_of_rounds():
    given = table(methods=["fedavg"]) | {"protocol": "cwfedavg"}
    del given["rounds"]
    tuning = plan.read(given | {"partition": {"seed": "seed"}}, "t.toml")
    assert tuning.most_rounds == 1000
    assert tuning.make_config(tuning.make_untuned("fedavg"), 7, 3).partition.seed == 8


def test_draws_are_keyed_by_seed_and_trial():
    interval = Interval(low=0.001, high=0.1, log=True)
    ranges = {"a": interval, "b": [1, 2, 3]}
    one = plan.draw(ranges, 0, 2)
    assert one == plan.draw(dict(reversed(ranges.items())), 0, 2)
    # another key changes none
    assert one["a"] == plan.draw({"a": interval}, 0, 2)["a"]
    for other in [(1, 2), (0, 3)]:
        assert plan.draw(ranges, *other)["a"] != one["a"]
    drawn = [plan.draw(ranges, 0, trial) for trial in range(200)]
    rates = [draw["a"] for draw in drawn]
    assert 0.001 <= min(rates) < 0.0012 and 0.085 < max(rates) <= 0.1
    # half of them are below the geometric mean, up to chance
    assert 80 < sum(rate < 0.01 for rate in rates) < 120
    assert {draw["b"] for draw in drawn} == {1, 2, 3}


def test_each_search_has_different_draws_and_partitions():
    """Except for its first trial, the first search equals that of a tuning with one
    search.
    """
    alone = plan.read(table(), "t.toml")
    repeated = plan.read(table(searches=3), "t.toml")
    seeds = [tuple(search.section.search_seeds) for search in repeated.searches]
    assert seeds[0] == (100,) and len(set(seeds)) == 3
    drawn = []
    for search in repeated.searches:
        first, *others = search.list_trials("ditto")
        assert first == search.make_untuned("ditto") and first.setting == {}
        assert not search.list_references("ditto")
        drawn.append([trial.setting for trial in others])
        fedavg = [trial.setting for trial in search.list_trials("fedavg")[1:]]
        rates = [setting["training.lr"] for setting in drawn[-1]]
        assert [setting["training.lr"] for setting in fedavg] == rates
    assert drawn[0] == [trial.setting for trial in alone.list_trials("ditto")[1:]]
    assert drawn[0] != drawn[1] != drawn[2]
    again = plan.read(repeated.table, "t.toml").searches[2]
    assert again.list_trials("ditto") == repeated.searches[2].list_trials("ditto")


def test_final_runs_of_all_searches_share_partitions_and_no_seed_of_training():
    searches = plan.read(table(searches=3), "t.toml").searches
    configs = [
        search.make_final_config(search.make_untuned("fedavg"), seed, 5)
        for search in searches
        for seed in (0, 1)
    ]
    assert [config.partition.seed for config in configs] == [1, 2] * 3
    assert len({config.seed for config in configs}) == 6
    assert configs[0].seed == 0


def test_a_method_is_tuned_at_several_moments():
    methods = ["fedavg", "fedavg at tuned_5", "ditto"]
    overrides = {"fedavg": {"training.lr": [0.1, 0.2]}}
    moments = table(methods=methods, at="post", overrides=overrides)
    moments["evaluation"] = {"tune_epochs": [0, 5]}
    tuning = plan.read(moments, "t.toml")
    scored = [
        tuning.make_config(tuning.make_untuned(method), 0, 1).evaluation.score
        for method in methods
    ]
    assert scored == ["post", "tuned_5", "post"]
    own, fine_tuned = (tuning.list_trials(method) for method in methods[:2])
    for one, other in zip(own, fine_tuned, strict=True):
        assert one.setting["training.lr"] == other.setting["training.lr"]
        assert one.name != other.name


def test_an_invalid_draw_is_drawn_again():
    """In pFedMe's ranges some pairs have personal_lr · lam ≥ 2."""
    tuning = plan.read(table(methods=["pfedme"], trials=60), "t.toml")
    for candidate in tuning.list_trials("pfedme"):
        setting = candidate.setting
        assert setting["method.personal_lr"] * setting["method.lam"] < 2
    overrides = {"pfedme": {"method.personal_lr": 1.0, "method.lam": 5.0}}
    with expect_refusal(r"\[tune\] pfedme,untuned: .*lam .*= 5 "):
        plan.read(table(methods=["pfedme"], overrides=overrides), "t.toml")


def test_methods_that_need_all_rounds_run_in_full():
    """FedPHP: of 4/2 + 2/2 = 3 whole runs two fit, measured by 3 of 20 rounds."""
    tuning = plan.read(table(methods=["fedphp", "fedavg"]), "t.toml")
    assert [rung.trials for rung in tuning.list_rungs("fedphp")] == [2]
    assert [rung.trials for rung in tuning.list_rungs("fedavg")] == [4, 2]
    assert len(tuning.list_trials("fedphp")) == 2
    cosine = table() | {"training": {"validation": 0.2, "schedule": "cosine"}}
    assert plan.read(cosine, "t.toml").plays_whole("fedavg")


def test_a_search_is_refused_with_the_least_budget_that_its_first_rounds_need():
    """4/2 + 2/2 = 3 whole runs, so 3,001 gradients need a budget of 1,001."""
    small = plan.read(table(budget=1000), "t.toml")
    assert plan.describe_refusal(small, "fedavg", 3000) == ""
    assert "tune.budget = 1001 " in plan.describe_refusal(small, "fedavg", 3001)
    enough = plan.read(table(budget=1001), "t.toml")
    assert plan.describe_refusal(enough, "fedavg", 3001) == ""


MISTAKES = [
    ({"sweep": {"seed": [0, 1]}}, {}, r"sweep .*\[tune\]; tune\.search"),
    ({"seed": 3}, {}, r"seed .*\[tune\]; tune\.search_seeds"),
    ({"partition": {"seed": 3}}, {}, "partition.file .*partition.seed = 'seed'"),
    (
        {"partition": {"file": "partition.h5"}},
        {},
        "partition.file .*partition.seed = 'seed'",
    ),
    (
        {"protocol": "cwfedavg"},
        {"methods": ["fedavg"]},
        "partition.file .*partition.seed = 'seed'",
    ),
    ({"rounds": "20"}, {}, "rounds = '20'"),
    ({"rounds": 0}, {}, "rounds = 0"),
    ({"training": {}}, {}, "training.validation = 0"),
    ({}, {"methods": ["fedavgg"]}, "method.name = 'fedavgg' .*'fedavg'"),
    ({}, {"overrides": {"fedavgg": {}}}, "tune.overrides: 'fedavgg' .*'fedavg'"),
    ({}, {"search": {"training.lr": [0.1, "0.2"]}}, "training.lr = '?0.2"),
    (
        {},
        {"methods": ["local"], "overrides": {"fedavg": {}}},
        "tune.overrides: 'fedavg' .*: local$",
    ),
    (  # the entry has its own overrides
        {},
        {
            "methods": ["fedavg at post"],
            "overrides": {
                "fedavg": {"training.lr": 0.1},
                "fedavg at post": {"training.epochs": 2},
            },
        },
        "tune.overrides: 'fedavg' .*'fedavg at post'",
    ),
    (
        {},
        {"search": {"partition": {"beta": [0.1, 1.0]}}},
        r"partition.beta .*\[partition\]",
    ),
    (
        {},
        {"overrides": {"fedavg": {"partition.clients": 4}}},
        r"partition.clients .*\[partition\]",
    ),
    ({}, {"search": {"training.lrr": [0.1]}}, "'training.lrr'; .*'lr'"),
    (
        {},
        {
            "search": {
                "training.lr": {
                    "low": 0.0,
                    "high": 1.0,
                    "log": True,
                }
            }
        },
        "training.lr = .*low = 0 .*log = true",
    ),
    (
        {},
        {"methods": ["fedavg at tuned_5"]},
        "'?tuned_5'?, .* 5 .*evaluation.tune_epochs",
    ),
    ({}, {"eta": 1}, "tune.eta = 1: .* 2"),
]


@pytest.mark.parametrize("of_file, of_section, expected", MISTAKES)
def test_an_invalid_file_is_refused(of_file, of_section, expected):
    with expect_refusal(expected):
        plan.read(table(**of_section) | of_file, "t.toml")


def test_a_file_without_the_tune_section_is_refused():
    with expect_refusal(r"^t\.toml: .*\[tune\]; .*search_seeds"):
        plan.read({"rounds": 3}, "t.toml")
