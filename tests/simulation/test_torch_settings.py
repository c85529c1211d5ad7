import numpy as np
import pytest
import tiny
import torch
from refusals import expect_refusal

import hpcfl
from hpcfl.errors import RankFailure
from hpcfl.methods.fedavg import FedAvg
from hpcfl.simulation import torch_settings

pytestmark = pytest.mark.slow

# settings that a notebook may change, by name
CHANGES = {
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "device": lambda: torch.set_default_device("meta"),
    "autocast": lambda: torch.set_autocast_enabled("cpu", True),
    "gradients": lambda: torch.set_grad_enabled(False),
    "threads": lambda: torch.set_num_threads(7),
    "denormal": lambda: torch.set_flush_denormal(True),
    "precision": lambda: torch.set_float32_matmul_precision("medium"),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "mkldnn": lambda: setattr(torch.backends.mkldnn, "deterministic", True),
    "numpy": lambda: np.seterr(all="raise"),
}


def run(folder, method="fedavg", on_round=None):
    return hpcfl.run(tiny.table(method), out=folder, on_round=on_round)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the digest of a run in a process without changed settings."""
    return run(tmp_path_factory.mktemp("undisturbed") / "run").summary.digest


@pytest.fixture(autouse=True)
def set_back():
    with torch_settings.restored():
        yield


@pytest.mark.parametrize("change", CHANGES)
def test_changed_torch_settings_are_restored_and_change_no_bit(
    tmp_path, undisturbed, change
):
    CHANGES[change]()
    before = torch_settings.read()
    played = run(tmp_path / "run", on_round=lambda *_: CHANGES[change]())
    assert torch_settings.read() == before
    assert played.summary.digest == undisturbed
    loaded = hpcfl.load(tmp_path / "run", own=["tiny:blobs"])
    model = loaded.model(0)
    assert loaded.confusion(0).any()
    assert len(loaded.predict(0, np.zeros((3, 5)))) == 3
    assert torch_settings.read() == before
    assert next(model.parameters()).dtype == torch.float32


def test_on_round_may_change_the_working_folder(tmp_path, monkeypatch, undisturbed):
    monkeypatch.chdir(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    played = run("run", on_round=lambda *_: monkeypatch.chdir(other))
    assert played.summary.digest == undisturbed
    assert not list(other.iterdir())


def test_a_default_device_of_a_with_block_is_refused(tmp_path):
    words = r"torch\.device.*torch\.inference_mode"
    with torch.device("meta"), expect_refusal(words):
        run(tmp_path / "run")
    assert not list(tmp_path.iterdir())


class Careless(FedAvg):
    """FedAvg that changes the default dtype during local training."""

    def update(self, fleet, inbox):
        message = super().update(fleet, inbox)
        torch.set_default_dtype(torch.float64)
        return message


def test_a_hook_that_leaves_a_setting_is_refused_before_the_run(tmp_path):
    with expect_refusal(r"torch\.set_default_dtype .*float64"):
        run(tmp_path / "run", f"{__name__}:Careless")
    assert not list(tmp_path.iterdir())
    assert torch.get_default_dtype() == torch.float32


def test_a_second_run_from_on_round_is_refused(tmp_path):
    with pytest.raises(RankFailure, match=r"^round 1, .*on_round .*UserError"):
        run(tmp_path / "run", on_round=lambda *_: run(tmp_path / "second"))
    assert not (tmp_path / "second").exists()
