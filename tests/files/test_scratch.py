"""Matrices beyond a limit are in unlinked files."""

import ctypes
import mmap
import subprocess
import sys
import tempfile
import tracemalloc

import pytest
import torch

from hpcfl.errors import RunFailure
from hpcfl.files import hdf5, heartbeat, scratch
from hpcfl.files.scratch import Scratch


def test_only_arrays_beyond_the_limit_are_stored_in_files(files):
    memory = Scratch(1000)
    first, second = memory.empty([10, 20]), memory.empty([1, 60])  # 800 and 240 bytes
    assert len(files) == 1
    view = first[3:].view(-1)
    del first
    memory.empty([1, 60])
    assert len(files) == 2  # the view still uses it
    del view
    memory.empty([10, 20])
    assert len(files) == 2
    assert second.fill_(7).sum() == 420
    assert Scratch(0).empty([0, 5]).shape == (0, 5) and len(files) == 2


@pytest.mark.parametrize("limit", [0, 1e9])
@pytest.mark.parametrize(
    "value",
    [
        torch.randn(3, 5),
        torch.tensor(2.5).double(),
        torch.zeros(0, 4),
        torch.tensor([True, False]),
        torch.arange(6).view(2, 3).T,
    ],
)
def test_a_copy_has_the_values_type_and_shape_and_is_apart(limit, value):
    copied = Scratch(limit).copy(value)
    assert torch.equal(copied, value) and copied.is_contiguous()
    assert copied.dtype == value.dtype
    before = value.clone()
    copied.zero_()
    assert torch.equal(value, before)


def test_released_memory_is_returned():
    memory = Scratch()
    tracemalloc.start()
    try:
        kept = memory.empty_bytes(2 * scratch.REUSED)
        held = tracemalloc.get_traced_memory()[0]
        del kept
        assert tracemalloc.get_traced_memory()[0] > held - scratch.REUSED
        memory.release()
        assert tracemalloc.get_traced_memory()[0] < held - scratch.REUSED
    finally:
        tracemalloc.stop()


def test_a_full_disk_is_a_failure_that_names_it(small_disk, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(small_disk))
    with pytest.raises(RunFailure, match=f"{small_disk}: No space left on device"):
        Scratch(0).empty([1000, 1000])
    monkeypatch.setattr(scratch, "LARGE", 0)
    with pytest.raises(RunFailure, match=f"{small_disk}: No space left on device"):
        scratch.open_file(4_000_000)


def test_hdf5_bytes_are_the_same_in_memory_and_files(files, monkeypatch):
    data = {f"group/{i}": torch.randn(i, 1000).numpy() for i in range(5)}
    plain = bytes(hdf5.encode(data, {"note": "text"}))
    monkeypatch.setattr(scratch, "LARGE", 0)
    assert bytes(hdf5.encode(data, {"note": "text"})) == plain and files


def test_a_long_copy_sends_heartbeats(monkeypatch):
    """On a busy disk gigabytes take longer than the time that a rank may be silent."""
    beats = []
    monkeypatch.setattr(heartbeat, "_listener", lambda: beats.append(len(beats)))
    monkeypatch.setattr(scratch, "PART_BYTES", 2 * 4 * 8)
    row = torch.arange(8.0)
    assert torch.equal(Scratch().copy(row.expand(5, 8)), row.repeat(5, 1))
    assert len(beats) >= 3
    beats.clear()
    assert [len(part) for part in scratch.split_rows(row.expand(5, 8))] == [
        2,
        2,
        1,
    ]
    assert len(beats) == 3


def test_a_freed_array_is_reused_for_the_next_of_its_size(monkeypatch):
    monkeypatch.setattr(scratch, "REUSED", 400)
    memory = Scratch()
    first = memory.empty([100]).fill_(1)
    place, view = first.data_ptr(), first.numpy()[3:]
    del first
    second = memory.empty([100]).fill_(2)  # while a view uses the first
    assert second.data_ptr() != place and view.sum() == 97
    del view
    third = memory.empty([100])
    assert third.data_ptr() == place
    # the reserved memory is at most the memory used at once: 800 bytes, of which 720
    # are in use
    del second, third
    large = memory.empty([180])
    assert sum(map(len, memory._free)) == 0 and len(large) == 180


# Prints the number of page faults of five arrays of 8 MB in ten rounds.
FAULTS = """
import resource
import numpy as np
from hpcfl.files import scratch
scratch.keep_freed_memory()
for round in range(11):
    if round == 1:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [np.ones(1 << 20) for _ in range(5)]
    del arrays
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
# Prints the number of pages returned to the system with 63 arrays of 2 MB below one in
# use.
RETURNED = """
from pathlib import Path
import numpy as np
from hpcfl.files import scratch
scratch.keep_freed_memory()
scratch.return_freed_memory()
arrays = [np.ones(1 << 18) for _ in range(64)]
pages = []
for _ in range(2):
    pages.append(int(Path("/proc/self/statm").read_text().split()[1]))
    del arrays[:-1]
print(pages[0] - pages[1])
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library is not glibc"
)
def test_freed_memory_is_kept_or_returned():
    def count_pages(code):
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        return int(done.stdout) * mmap.PAGESIZE

    assert count_pages(FAULTS) < 40e6  # less than a round's arrays
    assert count_pages(RETURNED) > 100e6
