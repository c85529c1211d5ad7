import pytest
from refusals import expect_refusal

from hpcfl.tuning import section

NEEDED = {
    "methods": ["fedavg"],
    "budget": 9,
    "search_seeds": [100],
    "final_seeds": [0],
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"final_seeds": [100, 3]}, r"tune\.final_seeds = \[100, 3\]: \[100\] "),
        ({"budgets": 3}, "'tune.budgets'; .*'budget'"),
        (
            {"overrides": {"ditto": {"method.lam": []}}},
            r"overrides .*: method.lam = \[\]: ",
        ),
        (
            {"overrides": {"ditto": {"method.lam": {"low": 1}}}},
            "method.lam = {'low': 1}: .* high = …",
        ),
        ({"search": {"training.lr": []}}, r"search .*: training.lr = \[\]: "),
        ({"search": {"rounds": [10, 12]}}, "tune.search .*: rounds "),
        ({"search": {"partition": {"seed": [0]}}}, "tune.search .*: partition.seed "),
        ({"search": {"training.lr": 0.1}}, "training.lr = 0.1: "),
        ({"search": {"training.lr": {"low": 1, "hi": 2}}}, "training.lr = .* low = …"),
        (
            {"overrides": {"ditto": {"method.name": "fedavg"}}},
            "tune.overrides .*: method.name ",
        ),
        ({"methods": ["fedavg", "fedavg"]}, "tune.methods = "),
        ({"searches": 2, "overspend": True}, "overspend = true: .*hard_cap = false"),
    ],
)
def test_an_invalid_section_is_refused(changed, expected):
    with expect_refusal(rf"^t.toml: .*{expected}"):
        section.parse(NEEDED | changed, "t.toml")
