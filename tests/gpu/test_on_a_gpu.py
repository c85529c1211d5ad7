"""Guarantees of a GPU run: the CPU's state up to rounding, reproducible bits, lanes
that fit.
"""

import on_gpu
import pytest
import torch

from hpcfl.rows import mixing
from hpcfl.simulation import lane_choice, prepare

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("a_gpu")]


@pytest.mark.parametrize("case", on_gpu.PLAYED, ids=lambda case: f"{case[0]}-{case[2]}")
def test_a_method_ends_as_on_the_cpu_but_for_rounding(case, tmp_path):
    assert on_gpu.on_both(case, tmp_path) < on_gpu.TOLERANCE


@pytest.mark.parametrize(
    ("model", "training"),
    [("mlp", {}), ("mlp", {"clip": 0.1}), ("cnn", {}), ("tiny:normalised", {})],
)
def test_a_run_has_the_same_bits_again_and_without_graphs(model, training, tmp_path):
    sections = {**on_gpu.made_up(model, tmp_path), "rounds": 5, "training": training}
    assert len(on_gpu.digests({"name": "fedavg"}, sections, tmp_path)) == 1


@pytest.mark.parametrize("model", ["cnn", "resnet8"])
def test_convolutions_lane_by_lane_end_as_on_the_cpu(model, tmp_path):
    case = "fedavg", {}, model, {}
    assert on_gpu.on_both(case, tmp_path, convolutions="loop") < on_gpu.TOLERANCE


def test_products_in_blocks_on_two_streams_have_the_bits_of_the_cpu(monkeypatch):
    matrix, rows = torch.randn(20, 30, dtype=torch.float64), torch.randn(30, 100_003)
    expected = mixing.combine(matrix, rows, torch.float32)
    monkeypatch.setattr(mixing, "GPU_BLOCK_FLOATS", 1 << 16)
    mixing.use_device(torch.device("cuda"))
    try:
        for _ in range(5):
            found = mixing.combine(matrix, rows, torch.float32)
            assert torch.equal(found, expected)
    finally:
        mixing.use_device(torch.device("cpu"))


@pytest.mark.parametrize(("method", "together"), [("apple", 1), ("fedfomo", 3)])
def test_groups_of_clients_end_as_on_the_cpu(method, together, tmp_path, monkeypatch):
    """Meanwhile the rows of other groups are on the CPU, and so are pools."""
    monkeypatch.setattr(lane_choice, "fit_clients", lambda *_: together)
    monkeypatch.setattr(prepare, "POOL_SHARE", 0)
    case = method, {}, "mlp", {}
    assert on_gpu.on_both(case, tmp_path) < on_gpu.TOLERANCE


@pytest.mark.parametrize(("model", "clients"), on_gpu.SIDE_BY_SIDE.items())
def test_lanes_need_no_more_memory_than_the_rule_estimates(model, clients, tmp_path):
    training = {"batch_size": 4, "optimizer": "adam", "clip": 1.0}
    sections = {**on_gpu.made_up(model, tmp_path), "training": training}
    share = on_gpu.share_of_rule(
        "fedavg", [[4, 4, 0, 0]] * clients, sections, 4, on_gpu.OF_CUBLAS
    )
    assert 0 < share < 1
