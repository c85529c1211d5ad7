"""Selection of trials by synthetic results."""

import copy

import pytest

from hpcfl.errors import RunFailure
from hpcfl.storage import tune_folder
from hpcfl.storage.tune_folder import Result
from hpcfl.tuning import plan
from hpcfl.tuning.plan import Cell
from hpcfl.tuning.search_results import SearchResults, name_step

TABLE = {
    "training": {"validation": 0.2},
    "tune": {
        "methods": ["fedavg"],
        "budget": 1000,
        "trials": 4,
        "rungs": 3,
        "search_seeds": [7, 8],
        "final_seeds": [0],
        "search": {"training.lr": {"low": 0.01, "high": 1.0}},
    },
}


@pytest.fixture
def make_search(tmp_path):
    def make(**keys):
        table = copy.deepcopy(TABLE)
        table["tune"] |= keys
        made = plan.read(table, "t.toml")
        tune_folder.begin(tmp_path, made.table)
        return SearchResults(made, tmp_path)

    return make


@pytest.fixture
def search(make_search):
    return make_search()


def keep(search, rung, scores, gradients=10):
    """Store results of a rung: by trial the scores on both seeds, higher is better."""
    for trial, of_seeds in scores.items():
        candidate = search.plan.list_trials("fedavg")[trial]
        for seed, score, rounds in zip((7, 8), of_seeds, (12, 9), strict=True):
            result = Result(
                rounds=3,
                whole=rounds,
                gradients=gradients,
                score=score,
                rank=score,
                failure=None,
            )
            name = Cell(candidate, seed).name
            tune_folder.keep(search.folder, name, name_step(rung), result)


def trials_of(candidates):
    return [candidate.label for candidate in candidates]


def test_halving_of_made_up_results_by_hand(search):
    """Means over both seeds: 0.5, 0.6, none, 0.4. Two continue, the best first. After
    more rounds trial 0 is better and is finally selected.
    """
    assert len(search.select_candidates("fedavg", 0)) == 4
    scores = {
        0: (0.4, 0.6),
        1: (0.9, 0.3),
        2: (0.99, None),
        3: (0.4, 0.4),
    }
    keep(search, 0, scores)
    second = search.select_candidates("fedavg", 1)
    assert trials_of(second) == ["trial=1", "trial=0"]
    keep(search, 1, {0: (0.7, 0.7), 1: (0.6, 0.7)}, gradients=30)
    assert trials_of(search.select_candidates("fedavg", 2)) == ["trial=0"]
    keep(search, 2, {0: (0.5, 0.75)}, gradients=90)
    chosen = search.choose("fedavg")
    assert (chosen.candidate.label, chosen.rounds, chosen.score) == (
        "trial=0",
        9,
        0.625,
    )
    # later results change no earlier selection
    assert search.select_candidates("fedavg", 1) == second
    # the last of each run: trial 0 90, trial 1 30, the others 10, on two seeds
    spent = 2 * (90 + 30 + 10 + 10)
    assert search.sum_gradients("fedavg") == (spent, 0)


def test_the_untuned_trial_waits_for_its_last_rung(make_search):
    """Trial 0 is untuned and continues in rung 1, which a requeued job still plays."""
    search = make_search(hard_cap=True)
    keep(search, 0, {0: (0.9, 0.9), 1: (0.8, 0.8), 2: (0.1, 0.1), 3: (0.1, 0.1)})
    keep(search, 1, {1: (0.5, 0.5)})
    with pytest.raises(RunFailure, match="fedavg,untuned,seed=7: rung 2"):
        search.find_untuned("fedavg")
    keep(search, 1, {0: (0.25, 0.5)})
    assert search.find_untuned("fedavg").score == 0.375
