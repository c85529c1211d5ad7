"""What a GPU run promises: the CPU's state but for rounding, the same bits again, lanes that fit."""

import on_gpu
import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("a_gpu")]

EVEN = [[4, 4, 0, 0]] * 4


@pytest.mark.parametrize("case", on_gpu.PLAYED, ids=lambda case: f"{case[0]}-{case[2]}")
def test_a_method_ends_as_on_the_cpu_but_for_rounding(case, tmp_path):
    assert on_gpu.on_both(case, tmp_path) < on_gpu.TOLERANCE


@pytest.mark.parametrize("model", ["mlp", "cnn", "tiny:normalised"])
def test_a_run_has_the_same_bits_again_and_without_graphs(model, tmp_path):
    sections = {**on_gpu.made_up(model, tmp_path), "rounds": 5}
    assert len(on_gpu.digests({"name": "fedavg"}, sections, tmp_path)) == 1


@pytest.mark.parametrize("model", ["cnn", "resnet18"])
def test_lanes_need_no_more_memory_than_the_rule_says(model, tmp_path):
    training = {"batch_size": 4, "optimizer": "adam", "clip": 1.0}
    sections = {**on_gpu.made_up(model, tmp_path), "training": training}
    assert on_gpu.share_of_rule("fedavg", EVEN, sections, rounds=4) < 1
