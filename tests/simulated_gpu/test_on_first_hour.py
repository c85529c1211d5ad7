"""Those rows of ``benchmarks/gpu.sh`` that the simulated GPU can run."""

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import gpu_rows


@pytest.fixture
def place(tmp_path):
    found = gpu_rows.Place(tmp_path, "cuda", is_small=True)
    gpu_rows.write_data(found)
    return found


def test_lanes_are_trained_in_both_forms_and_their_memory_is_the_gpus(gpu, place):
    found = list(gpu_rows.lanes(place, "cnn", "float32"))
    cases = [(line["form"], line["lanes"]) for line in found]
    assert cases == [("grouped", 1), ("grouped", 2), ("loop", 2)]
    model = 4 * gpu_rows.prepare_rank(place).setup.layout.width
    assert all(2 * model < line["peak_bytes"] < 40 * model for line in found)


def test_check_counts_more_than_two_rounds_need(gpu, place):
    [line] = gpu_rows.memory(place)
    assert 0 < line["peak as a share of check"] < 1


def test_the_server_multiplies_on_the_gpu(gpu, place):
    [line] = gpu_rows.server_product(place)
    assert line["seconds"] > 0 and gpu.ledger.copies
