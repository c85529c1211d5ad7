"""Device of a rank, ranks that share it, and its guarantees."""

import os
import re
from types import SimpleNamespace

import pytest
import tiny
import torch
from playing import run_table
from refusals import expect_refusal

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment.sections import Runtime
from hpcfl.simulation import device

VARIABLES = (*device.LISTS, device.COUNT)


@pytest.fixture(autouse=True)
def no_job(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def gpus(monkeypatch):
    """Return ``gpus("A", "B")``, which simulates a machine with these GPUs, by their
    numbers.
    """
    kept = (
        torch.get_float32_matmul_precision(),
        torch.backends.cudnn.allow_tf32,
        torch.backends.cudnn.deterministic,
    )

    def make(*numbers):
        def properties(where):
            return SimpleNamespace(
                uuid=numbers[torch.device(where).index],
                total_memory=80e9,
                major=9,
                minor=0,
            )

        for name, face in {
            "is_available": lambda: True,
            "device_count": lambda: len(numbers),
            "set_device": lambda where: None,
            "synchronize": lambda where: None,
            "get_device_properties": properties,
            "get_device_name": lambda where: "NVIDIA H200",
        }.items():
            monkeypatch.setattr(torch.cuda, name, face)

    yield make
    torch.set_float32_matmul_precision(kept[0])
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = kept[1:]
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


def test_auto_takes_the_cpu_where_there_is_no_gpu_and_none_was_given(
    no_gpu, monkeypatch
):
    for name, value in (
        ("CUDA_VISIBLE_DEVICES", ""),
        ("CUDA_VISIBLE_DEVICES", "-1"),
        (device.COUNT, "0"),
    ):
        monkeypatch.setenv(name, value)
        assert device.choose_device(Runtime(), 0).type == "cpu"


@pytest.mark.parametrize("name", VARIABLES)
def test_auto_does_not_fall_back_where_the_job_was_given_gpus(
    no_gpu, monkeypatch, name
):
    monkeypatch.setenv(name, "1")
    words = f"runtime.device = 'auto': .*{name} = 1: torch "
    with expect_refusal(words) as found:
        device.choose_device(Runtime(), 0)
    assert "runtime.device = 'cpu'" in str(found.value)
    assert device.choose_device(Runtime(device="cpu"), 0).type == "cpu"


def test_a_gpu_that_is_asked_for_has_to_be_there(no_gpu):
    with expect_refusal(r"runtime\.device = 'cuda': .* torch "):
        device.choose_device(Runtime(device="cuda"), 0)


def test_an_exclusive_gpu_in_use_is_refused(gpus, monkeypatch):
    def busy(where):
        raise RuntimeError(
            "CUDA error: CUDA-capable device(s) is/are busy or unavailable\nCUDA kernel …"
        )

    gpus("A")
    monkeypatch.setattr(torch.cuda, "synchronize", busy)
    with expect_refusal(r"'auto': GPU 0 .* CUDA error: "):
        device.choose_device(Runtime(), 0)


def test_ranks_take_the_gpus_of_a_node_in_turn(gpus):
    gpus("A", "B")
    assert [device.choose_device(Runtime(), rank).index for rank in range(3)] == [
        0,
        1,
        0,
    ]
    assert device.choose_device(Runtime(device="cuda:1"), 0).index == 1
    with expect_refusal(r"runtime\.device = 'cuda:2': .* 2 GPUs"):
        device.choose_device(Runtime(device="cuda:2"), 0)


def test_ranks_take_the_mig_slices_of_a_job_in_turn(gpus, monkeypatch):
    """A process of CUDA uses only the first slice of its list."""
    seen = []
    for rank in range(3):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-a,MIG-b")
        gpus("A")
        assert device.choose_device(Runtime(), rank).index == 0
        seen.append(os.environ["CUDA_VISIBLE_DEVICES"])
    assert seen == ["MIG-a", "MIG-b", "MIG-a"]
    device.choose_device(Runtime(), 1)  # a second run of the same process
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "MIG-a"


@pytest.mark.parametrize("given", ["0,1", "GPU-a,GPU-b", "MIG-a", ""])
def test_lists_without_several_mig_slices_stay_as_they_are(gpus, monkeypatch, given):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    gpus("A", "B")
    device.choose_device(Runtime(), 1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == given


def test_an_amd_gpu_is_used_with_a_note(gpus, monkeypatch):
    gpus("A")
    chosen = torch.device("cuda", 0)
    assert device.list_device_notes(chosen, Runtime()) == []
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert "ROCm 6.4, MIOpen" in device.describe_gpu(chosen, "exact")
    (note,) = device.list_device_notes(chosen, Runtime())
    assert "ROCm" in note and "\n" not in note
    assert device.list_device_notes(torch.device("cpu"), Runtime()) == []


def test_a_missing_amd_gpu_is_refused(no_gpu, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "0")
    with expect_refusal(r"ROCR_VISIBLE_DEVICES = 0: .* ROCm 6\.4; rocm-smi"):
        device.choose_device(Runtime(), 0)


@pytest.mark.parametrize(
    ("precision", "matmul"), [("exact", "highest"), ("tf32", "high")]
)
def test_a_gpu_computes_the_same_bits_again(gpus, monkeypatch, precision, matmul):
    gpus("A")
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    device.choose_device(Runtime(precision=precision), 0)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert torch.backends.cudnn.deterministic and not torch.backends.cudnn.benchmark
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.get_float32_matmul_precision() == matmul
    assert torch.backends.cudnn.allow_tf32 == (precision == "tf32")


class Two(OneProcess):
    """A process that receives another rank's information about its GPU."""

    def __init__(self, host, number):
        super().__init__()
        self.other = [f"{host or self.host} {number}", "another kind"]

    def allgather(self, value):
        return [value, self.other]


@pytest.mark.parametrize(
    ("host", "number", "sharing"), [("", "A", 2), ("", "B", 1), ("elsewhere", "A", 1)]
)
def test_ranks_that_see_the_same_gpu_share_it(gpus, host, number, sharing):
    """Names on ranks are not compared: under --gpus-per-task every rank has its GPU as
    cuda:0.
    """
    gpus("A")
    found = device.share_device_facts(
        torch.device("cuda", 0), Two(host, number), "exact"
    )
    assert found.sharing == sharing and found.memory == 80e9 / sharing
    assert found.kinds[1] == "another kind"
    assert found.kinds[0].startswith("NVIDIA H200, CUDA")


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1, 2, 3], "0-3"),
        ([7, 2, 1, 0, 5], "0-2, 5, 7"),
        (range(0, 40, 2), "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22 and 8 more"),
    ],
)
def test_consecutive_numbers_are_shown_as_ranges(numbers, text):
    assert device.describe_ranges(numbers) == text


def test_one_process_is_server_and_worker(monkeypatch):
    alone = OneProcess()
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    (line,) = device.list_ranks(alone, torch.device("cpu"), range(5))
    cores = device.describe_ranges(os.sched_getaffinity(0))
    assert line == (
        f"rank 0 on {alone.host} (pid {os.getpid()}, cores {cores}, 1 thread, cpu, "
        "clients 0-4)"
    )
    assert re.search(r"cores \d", line)


@pytest.mark.slow
def test_a_sweep_prints_each_placement_of_clients_once(tmp_path, printed):
    """The note is repeated if a rank has other clients."""
    cases = [
        {"partition.counts": tiny.COUNTS[:n], "partition.clients": n} for n in (3, 5)
    ]
    table = tiny.table("fedavg", sweep={"cases": cases, "seed": [0, 1]})
    run_table(table, tmp_path / "out")
    placed = [
        line.partition("cpu, ")[2]
        for line in printed().splitlines()
        if line.startswith("rank ")
    ]
    assert placed == ["clients 0-2)", "clients 0-4)"]
