"""What a GPU run promises: the CPU's state but for rounding, the same bits again, lanes
that fit.
"""

import on_gpu
import pytest

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


@pytest.mark.parametrize(("model", "clients"), on_gpu.SIDE_BY_SIDE.items())
def test_lanes_need_no_more_memory_than_the_rule_says(model, clients, tmp_path):
    training = {"batch_size": 4, "optimizer": "adam", "clip": 1.0}
    sections = {**on_gpu.made_up(model, tmp_path), "training": training}
    share = on_gpu.share_of_rule(
        "fedavg", [[4, 4, 0, 0]] * clients, sections, 4, on_gpu.OF_CUBLAS
    )
    assert 0 < share < 1
