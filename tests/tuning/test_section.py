import pytest

from hpcfl.errors import UserError
from hpcfl.tuning import section

NEEDED = {
    "methods": ["fedavg"],
    "budget": 9,
    "search_seeds": [100],
    "final_seeds": [0],
}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"final_seeds": [100, 3]}, "search_seeds too"),
        ({"budgets": 3}, "did you mean 'budget'"),
        ({"overrides": {"ditto": {"method.lam": []}}}, "nothing to choose from"),
        ({"overrides": {"ditto": {"method.lam": {"low": 1}}}}, "must be a value"),
        ({"search": {"training.lr": []}}, "nothing to choose from"),
        ({"search": {"rounds": [10, 12]}}, "rounds is set by the tuning itself"),
        ({"search": {"partition": {"seed": [0]}}}, "partition.seed is set by"),
        ({"search": {"training.lr": 0.1}}, "nothing to search"),
        ({"search": {"training.lr": {"low": 1, "hi": 2}}}, "training.lr = .* low = …"),
        ({"overrides": {"ditto": {"method.name": "fedavg"}}}, "method.name is set by"),
        ({"methods": ["fedavg", "fedavg"]}, "each once"),
        ({"searches": 2, "overspend": True}, "leave out overspend, or set hard_cap"),
    ],
)
def test_a_mistake_is_one_line(changed, said):
    with pytest.raises(UserError, match=rf"^t.toml: .*{said}") as error:
        section.parse(NEEDED | changed, "t.toml")
    assert "\n" not in str(error.value)
