"""Products of the server, compared with plain loops."""

import subprocess
import threading
import time

import pytest
import torch

from hpcfl.files import heartbeat
from hpcfl.rows import mixing, sums


@pytest.fixture(params=[1, 7, 100, 1 << 22])
def any_blocks(monkeypatch, request):
    """Compute in blocks of different sizes."""
    monkeypatch.setattr(mixing, "BLOCK_FLOATS", request.param)


def test_mix_in_blocks_of_any_size_is_the_product(any_blocks):
    matrix, rows = torch.randn(3, 5).double(), torch.randn(5, 101)
    mixed = mixing.mix(matrix, rows)
    assert mixed.dtype == torch.float32 and mixed.shape == (3, 101)
    torch.testing.assert_close(mixed, (matrix @ rows.double()).float(), rtol=0, atol=0)


def test_combine_adds_products_in_order(any_blocks):
    """Bit for bit one product after the other, for any blocks."""
    matrix, rows = torch.randn(3, 5).double(), torch.randn(5, 101)
    expected = torch.zeros(3, 101).double()
    for weights, row in zip(matrix.T, rows.double(), strict=True):
        expected += weights[:, None] * row
    found = mixing.combine(matrix, rows, torch.float64)
    assert torch.equal(found, expected)
    assert torch.equal(mixing.combine(matrix, rows, torch.float32), found.float())


def test_row_sum_bits_do_not_depend_on_other_rows(two_threads):
    rows = torch.randn(3, 100_000, generator=torch.Generator().manual_seed(0))
    beside = mixing.sum_rows(rows)
    alone = [mixing.sum_rows(row[None]) for row in rows]
    assert torch.equal(torch.cat(alone), beside)
    alone = [row[None].sum(dim=1) for row in rows]
    assert not torch.equal(torch.cat(alone), beside)  # the reason for this function


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def cores(monkeypatch):
    """Return ``cores(number)``, with which the given number of blocks of 100 columns of
    nine rows are computed at once.
    """
    monkeypatch.setattr(mixing, "BLOCK_FLOATS", 900)
    yield lambda number: mixing.use_device(torch.device("cpu"), number)
    mixing.use_device(torch.device("cpu"))


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_several_cores_give_the_same_bits(cores, threads):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(9, 5003, generator=generator)
    matrix = torch.rand(7, 9, generator=generator, dtype=torch.float64)
    before, found, seen = torch.get_num_threads(), [], set()

    def part(block):
        name, _, _ = threading.current_thread().name.partition("_")
        seen.add((name, torch.get_num_threads()))
        return block.double() @ block.double().T

    torch.set_num_threads(threads)
    try:
        for number in (1, 3):
            cores(number)
            found.append(
                (
                    mixing.mix(matrix, rows),
                    mixing.combine(matrix, rows, torch.float32),
                    mixing.sum_blocks(part, rows),
                    mixing.compute_distances(rows, rows[2:]),
                    sums.compute_mean(rows, torch.arange(9.0).double()),
                )
            )
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))
    assert seen == {("MainThread", threads), ("blocks", threads)}


def compute_by_blocks(work):
    """Apply a function to 5,003 columns of nine rows."""
    cpu = torch.device("cpu")
    blocks = mixing.cut_blocks(5003, 9, cpu)
    return mixing.compute_on_all_cores(work, blocks, cpu)


@pytest.mark.parametrize(
    ("number", "held", "expected"),
    [(3, 1 << 20, 4), (3, 3 * 800, 3), (3, 800, 1), (1, 1 << 20, 1)],
)
def test_no_more_results_are_held_than_there_is_room_for(
    cores, monkeypatch, number, held, expected
):
    """Results have 800 bytes each; all but one wait until it is taken."""
    cores(number)
    monkeypatch.setattr(mixing, "HELD", held)
    begun = []

    def work(columns):
        begun.append(columns)
        return torch.zeros(100, dtype=torch.float64)

    most = 0
    for taken, _ in enumerate(compute_by_blocks(work)):
        most = max(most, len(begun) - taken)
    assert most <= expected and len(begun) == taken + 1 == 51


def test_a_failure_on_one_core_is_raised_and_leaves_nothing_running(cores):
    cores(3)
    running, done = [], []

    def work(columns):
        if columns.start == 500:
            raise ValueError("here")
        running.append(columns)
        time.sleep(0.01)
        done.append(columns)

    with pytest.raises(ValueError, match="here"):
        list(compute_by_blocks(work))
    assert len(running) == len(done) < 12


FORKS = """
import os, torch
from hpcfl.rows import mixing
torch.set_num_threads(1)
mixing.BLOCK_FLOATS = 900
mixing.use_device(torch.device("cpu"), 2)
rows = torch.ones(2, 5000)
mixing.mix(torch.eye(2), rows)
child = os.fork()
same = torch.equal(mixing.mix(torch.eye(2), rows), rows)
os._exit(not same or bool(child) and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
def test_a_forked_process_has_separate_worker_threads(zygote):
    """Otherwise it would wait for its parent's threads for ever."""
    assert subprocess.run([zygote.python, "-c", FORKS], timeout=60).returncode == 0


@pytest.mark.parametrize("width", [1, 3, 1001])
def test_combined_row_bits_do_not_depend_on_other_rows(width):
    matrix, rows = torch.randn(9, 7).double(), torch.randn(7, width).double()
    together = mixing.combine(matrix, rows, torch.float64)
    for count in range(1, 9):
        for first in range(9 - count):
            part = slice(first, first + count)
            combined = mixing.combine(matrix[part], rows, torch.float64)
            assert torch.equal(combined, together[part])
    assert mixing.combine(matrix[:0], rows, torch.float64).shape == (0, width)


@pytest.mark.parametrize("transposed", [False, True])
def test_lane_product_bits_do_not_depend_on_other_lanes(transposed):
    matrix, rows = torch.randn(9, 513), torch.randn(513, 40)
    rows = rows.T.contiguous().T if transposed else rows
    whole = mixing.multiply_lanes(matrix, rows)
    torch.testing.assert_close(whole, matrix @ rows, rtol=1e-4, atol=1e-4)
    for first, last in ((0, 1), (3, 5), (8, 9)):
        part = mixing.multiply_lanes(matrix[first:last], rows)
        assert torch.equal(part, whole[first:last])


def test_equal_models_mix_to_themselves_bit_for_bit():
    for clients in (1, 3, 7, 20, 100):
        weights = torch.rand(clients, dtype=torch.float64)
        weights, model = weights / weights.sum(), torch.randn(1000)
        models = model.repeat(clients, 1)
        assert torch.equal(mixing.average(weights, models), model)
        [combined] = mixing.combine(weights[None], models, model.dtype)
        assert torch.equal(combined, model)


def test_average_is_more_exact_than_float32_sums():
    rows = torch.tensor([[1e8], [1.0], [-1e8]])
    mean = mixing.average(torch.ones(3).double() / 3, rows)
    assert mean.item() == pytest.approx(1 / 3, rel=1e-6)


def test_nan_with_weight_zero_gives_nan():
    assert mixing.average(
        torch.tensor([1.0, 0.0]).double(), torch.tensor([[1.0], [torch.nan]])
    ).isnan()


def test_distances_are_norms_of_differences(any_blocks):
    rows, others = torch.randn(3, 50), torch.randn(4, 50)
    expected = (rows.double()[:, None] - others.double()).norm(dim=2)
    found = mixing.compute_distances(rows, others)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=0)


def test_distances_of_nearly_equal_models_keep_their_digits():
    """The Gram expansion would give 0 or noise here."""
    row = 1000 * torch.ones(1, 10_000)
    near = row.clone()
    near[0, 3] += 2**-10
    assert mixing.compute_distances(row, near).item() == 2**-10
    assert mixing.compute_distances(row, row).item() == 0


@pytest.mark.parametrize(
    "second", [[0, 2, 3], [3, 1], [2]], ids=["the same", "others", "one"]
)
def test_distances_within_are_those_of_the_chosen_rows(any_blocks, second):
    rows, first, second = (
        torch.randn(5, 50),
        torch.tensor([0, 2, 3]),
        torch.tensor(second),
    )
    found = mixing.compute_distances_within(rows, first, second)
    expected = mixing.compute_distances(rows[first], rows[second])
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)


def test_distances_within_keep_the_digits_of_pairs_that_are_close():
    """Two models far from the others and 2^−10 apart, a twin of one, and others that
    are not close.
    """
    rows = torch.randn(6, 10_000)
    rows[3:] = 1000
    rows[4, 3] += 2**-10
    everyone = torch.arange(6)
    found = mixing.compute_distances_within(rows, everyone, everyone)
    assert found[3, 4].item() == found[4, 3].item() == found[5, 4].item() == 2**-10
    assert found[3, 5].item() == found[5, 3].item() == 0 and not found.diagonal().any()
    torch.testing.assert_close(
        found, mixing.compute_distances(rows, rows), rtol=1e-12, atol=0
    )


def test_distances_within_take_differences_of_close_pairs_alone(monkeypatch):
    rows, seen = torch.randn(5, 1000), []
    rows[4] = rows[1] + 0.01 * torch.randn(1000)
    plain = mixing.compute_block_distances
    monkeypatch.setattr(
        mixing,
        "compute_block_distances",
        lambda left, right: seen.append((left, right)) or plain(left, right),
    )
    everyone = torch.arange(5)
    mixing.compute_distances_within(rows, everyone, everyone)
    assert all(torch.equal(one, rows[[1, 4]]) for pair in seen for one in pair) and seen
    seen.clear()
    mixing.compute_distances_within(rows, everyone[:4], everyone[:4])
    assert not seen


def test_blocks_of_columns_are_summed(any_blocks):
    rows, row = torch.randn(4, 30).double(), torch.randn(30).double()
    total = mixing.sum_blocks(torch.matmul, rows, row)
    torch.testing.assert_close(total, rows @ row)


def test_picked_and_repeated_rows_are_copies():
    rows = torch.arange(6.0).view(3, 2)
    assert mixing.pick(rows, torch.tensor([2, 0])).tolist() == [[4, 5], [0, 1]]
    mixing.pick(rows, torch.arange(3)).zero_()
    assert mixing.repeat(rows[1], 2).zero_().shape == (2, 2)
    assert rows[1].tolist() == [2, 3]
    assert mixing.repeat(torch.tensor([True]), 2).tolist() == [[True], [True]]


def test_replacing_rows_leaves_the_given_ones():
    rows, new = torch.zeros(3, 2), torch.ones(2, 2)
    assert mixing.replace(rows, torch.tensor([0, 2]), new)[:, 0].tolist() == [1, 0, 1]
    assert not rows.any()
    assert mixing.replace(rows, torch.arange(3), torch.ones(3, 2)).eq(1).all()


def test_every_block_of_columns_sends_a_heartbeat(monkeypatch):
    beats = []
    monkeypatch.setattr(sums, "BLOCK_FLOATS", 6)
    with heartbeat.use_listener(lambda: beats.append(1)):
        assert sums.compute_mean(torch.ones(3, 10), torch.ones(3)).eq(1).all()
    # two passes over blocks of two columns, the exponents and the division
    assert len(beats) == 2 * 5 + 2


@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize(
    "where", [slice(1, 3), torch.tensor([3, 0])], ids=["slice", "indices"]
)
def test_index_copy_puts_rows_in_any_deterministic_mode(mode, where):
    whole, rows = torch.zeros(4, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    expected = whole.clone()
    expected[where] = rows
    torch.set_deterministic_debug_mode(mode)
    try:
        mixing.index_copy(whole, where, rows)
        assert torch.equal(whole, expected)
        assert torch.get_deterministic_debug_mode() == mode
        with pytest.raises(IndexError):
            mixing.index_copy(whole, torch.tensor([9]), rows[:1])
        assert torch.get_deterministic_debug_mode() == mode
    finally:
        torch.set_deterministic_debug_mode(0)
