"""Copies between host and device: page-locked up to a size, and during the computation
of a product.
"""

import pytest
import torch
from on_gpu import apart

from hpcfl.rows import mixing

CUDA = torch.device("cuda")
BLOCKS = 5


@pytest.mark.parametrize("product", [mixing.mix, mixing.combine])
def test_the_host_waits_for_a_block_when_the_next_one_is_under_way(
    gpu, monkeypatch, product
):
    matrix, rows = torch.randn(3, 4, dtype=torch.float64), torch.randn(4, 50)
    expected = product(matrix, rows, torch.float32)
    monkeypatch.setattr(mixing, "GPU_BLOCK_FLOATS", 70)  # 10 columns
    mixing.use_device(CUDA)
    before = []  # copies before each wait

    def wait(why):
        before.append(len(gpu.ledger.copies))
        gpu.ledger.waits[why] += 1

    matrix_copies = 1
    gpu.ledger.clear()
    monkeypatch.setattr(gpu, "wait", wait)
    found = product(matrix, rows, torch.float32)
    assert apart(found, expected) < 1e-6
    assert found.device.type == "cpu"
    assert len(gpu.ledger.copies) == matrix_copies + 2 * BLOCKS
    of_blocks = before[-BLOCKS:]
    # each block is copied there and back
    assert of_blocks == [matrix_copies + copies for copies in (4, 6, 8, 10, 10)]


def test_large_copies_are_not_page_locked(gpu, monkeypatch):
    monkeypatch.setattr(mixing, "LOCKED", 40)
    for numbers, locked in ((10, True), (11, False)):
        rows = [torch.arange(numbers).float() + start for start in range(2)]
        gpu.ledger.clear()
        there = mixing.move_to_device(rows[0], CUDA)
        assert there.is_cuda and torch.equal(mixing.move_to_host(there), rows[0])
        stacked = mixing.stack_on_device([rows[0][:5], rows[1][:5]], CUDA)
        assert torch.equal(stacked.cpu(), torch.stack(rows)[:, :5])
        up, down, *_ = gpu.ledger.copies
        assert (up.pinned, down.pinned) == (locked, locked)
        mixed = mixing.stack_on_device([rows[0], there, rows[1]], CUDA)
        assert torch.equal(mixed.cpu(), torch.stack([rows[0], rows[0], rows[1]]))
