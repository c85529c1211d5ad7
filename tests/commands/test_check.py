"""``hpcfl check`` and its output."""

import pytest
from playing import set_keys

from hpcfl.commands.check import describe_cells

EXPERIMENT = """
name = "small"
rounds = 2
[partition]
scheme = "iid"
clients = 4
[model]
name = "mlp"
hidden = [4]
[method]
name = "fedavg"
"""


@pytest.fixture
def check(hpcfl, tmp_path):
    """Return ``check(*options)``, which runs ``hpcfl check`` on a file."""
    (tmp_path / "own.toml").write_text(EXPERIMENT)
    return lambda *options, name="check": hpcfl(name, "own.toml", *options)


OWN = """
from hpcfl.methods.base import OwnOverlay
from hpcfl.methods.fedavg import FedAvg

class Own(FedAvg):
    def store_sate(self, fleet, trained):
        return self.helper(trained)

    def helper(self, trained):
        return trained

class Changed(OwnOverlay):
    def uplaod(self, fleet, inbox, message):
        return message
"""


@pytest.mark.parametrize("name", ["check", "run"])
def test_a_function_that_is_nearly_named_as_a_hook_is_noted(check, tmp_path, name):
    (tmp_path / f"{name}_hooks.py").write_text(OWN)
    code, output, _ = check("--set", f"method.name={name}_hooks:Own", name=name)
    assert code == 0 and output.count("Own.store_sate") == 1
    assert "'store_state'" in output
    overlay = f'overlay=[{{kind="{name}_hooks:Changed"}}]'
    _, output, _ = check("--set", overlay, "--set", "name=other", name=name)
    assert output.count("Changed.uplaod") == 1 and "'upload'" in output
    assert "did you mean" not in check()[1]


def test_the_data_come_first_and_only_changed_keys_are_printed(check):
    code, printed, _ = check("--set", "training.lr=0.25")
    assert code == 0
    assert printed.startswith("data        digits, 1,797 samples;")
    assert "lr = 0.25" in printed
    assert "momentum" not in printed and len(printed.splitlines()) < 50


def test_all_keys_are_printed_where_asked(check):
    _, printed, _ = check("--all")
    assert printed.startswith("data        digits")
    assert "momentum = 0.0" in printed and "# momentum of SGD" in printed


@pytest.mark.parametrize("name", ["check", "run"])
def test_a_run_without_a_step_is_refused_before_anything_is_written(
    check, tmp_path, name
):
    options = set_keys("training.drop_last=true", "training.batch_size=1000")
    code, _, output = check(*options, name=name)
    assert code == 2
    assert "training.drop_last = true" in output and len(output.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["own.toml"]


@pytest.mark.parametrize("name", ["check", "run"])
def test_clients_without_a_step_are_noted(check, name):
    """Digits are divided among 4 clients: one has 337 training samples, the others 336."""
    options = set_keys("training.drop_last=true", "training.batch_size=337")
    code, printed, _ = check(*options, name=name)
    assert code == 0
    assert "of 4 clients " in " ".join(printed.split())


def test_only_a_few_of_many_cells_are_listed():
    names = [f"cell {number}" for number in range(560)]
    line = describe_cells(names)
    assert "560 valid cells" in line and line.endswith("cell 2 and 557 more")
    assert describe_cells(names[:2]).endswith(": cell 0; cell 1")
    assert describe_cells(names[:1]) == ""
