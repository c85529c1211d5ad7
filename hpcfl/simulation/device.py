"""The device of a rank: its choice, its settings, and the ranks that share it.

On a GPU a run has the same bits for the same ranks, type of GPU and libraries. Kernels
add in a fixed order, algorithms are not chosen by a timing, and products use plain
float32 unless ``runtime.precision`` is set. Another type or library may choose other
kernels. A run records its types and libraries, and a run that continues with others
prints a note.
"""

import os
import warnings
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from hpcfl.communication.communicator import Communicator
from hpcfl.errors import UserError
from hpcfl.experiment.sections import Runtime
from hpcfl.simulation import torch_settings

LISTS = (
    "CUDA_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
)
COUNT = "SLURM_GPUS_ON_NODE"
NO_LIST = ("", "-1", "NoDevFiles")
MOST_RANGES = 12  # maximum number of ranges of clients or cores in a message


@dataclass(frozen=True)
class Device:
    """The device of this rank.

    Attributes:
        device: device of torch.
        sharing: number of ranks that share the device.
        kinds: GPU types and libraries of the job's ranks, in alphabetical order; empty
            on CPUs.
    """

    device: torch.device
    sharing: int = 1
    kinds: tuple[str, ...] = ()

    @property
    def memory(self) -> float:
        """Bytes of a rank's part of a GPU, 0 on a CPU."""
        if self.device.type == "cpu":
            return 0.0
        return torch.cuda.get_device_properties(self.device).total_memory / self.sharing


def choose_device(runtime: Runtime, local_rank: int) -> torch.device:
    """Choose the device of this rank, and set torch to the settings of a new process.

    A GPU becomes torch's current device and gets the run's precision. ``auto`` selects
    GPU number ``local_rank`` modulo the number of GPUs of the node, and the CPU if
    there are none. A job with assigned GPUs never uses the CPU by default. With several
    MIG slices a rank sees only one, slice ``local_rank`` modulo their number.

    Args:
        runtime: section ``[runtime]`` of the configuration.
        local_rank: number of the rank on its node.

    Raises:
        UserError: The requested GPU is missing or cannot be used.
    """
    torch_settings.set_plain()
    wanted = runtime.device
    if wanted == "cpu":
        return torch.device("cpu")
    _select_mig_slice(local_rank)
    if (
        wanted == "auto"
        and not torch.cuda.is_available()
        and describe_assigned_gpus() is None
    ):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise UserError(
            f"runtime.device = '{wanted}': torch finds no GPU on this machine"
            f"{describe_assigned_gpus() or ''}: {_explain_missing_gpu()}; to use the CPU, "
            "set runtime.device = 'cpu'"
        )
    count = torch.cuda.device_count()
    index = int(wanted.partition(":")[2] or local_rank % count)
    if index >= count:
        raise UserError(f"runtime.device = '{wanted}': this machine has {count} GPUs")
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)  # streams, graphs and MPI use the current device
    try:
        torch.cuda.synchronize(device)  # the first call that needs the GPU itself
    except RuntimeError as error:
        raise UserError(
            f"runtime.device = '{wanted}': GPU {index} of this node cannot be used: "
            f"{str(error).partition(chr(10))[0]}; the server and the workers share GPUs, so its "
            "compute mode must be Default (nvidia-smi -q -d COMPUTE prints it), or "
            "NVIDIA's MPS must run"
        ) from error
    _make_deterministic(runtime.precision)
    return device


def _select_mig_slice(local_rank: int) -> None:
    """Make only one MIG slice of the job's list visible to this process.

    CUDA uses only the first visible slice of a process. It reads the list in its first
    call.
    """
    slices = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if all(name.startswith("MIG-") for name in slices):
        os.environ["CUDA_VISIBLE_DEVICES"] = slices[local_rank % len(slices)]


def share_device_facts(
    device: torch.device, communicator: Communicator, precision: str
) -> Device:
    """Exchange facts about devices between ranks. Collective call.

    One GPU may be ``cuda:0`` on two ranks, and ``cuda:0`` on two ranks may be two GPUs,
    so ranks compare UUIDs.

    Args:
        device: device of this rank.
        communicator: communicator of all ranks.
        precision: value of ``runtime.precision``.
    """
    mine = [
        f"{communicator.host} {_find_device_id(device)}",
        describe_gpu(device, precision),
    ]
    numbers, kinds = zip(*communicator.allgather(mine), strict=True)
    sharing = numbers.count(mine[0])
    gpu_kinds = {kind_of_rank for kind_of_rank in kinds if kind_of_rank}
    return Device(device, sharing, tuple(sorted(gpu_kinds)))


def describe_gpu(device: torch.device, precision: str) -> str:
    """Describe the GPU properties that determine the last bits of results; "" on a CPU."""
    if device.type == "cpu":
        return ""
    platform, convolutions = f"CUDA {torch.version.cuda}", "cuDNN"
    if torch.version.hip:
        platform, convolutions = f"ROCm {torch.version.hip}", "MIOpen"
    return (
        f"{torch.cuda.get_device_name(device)}, {platform}, {convolutions} "
        f"{torch.backends.cudnn.version()}, precision {precision}"
    )


def list_device_notes(device: torch.device, runtime: Runtime) -> list[str]:
    """Return notes on keys of lanes without effect, and on AMD GPUs."""
    notes, on_gpu = [], device.type == "cuda"
    if runtime.lane_table is not None and not (on_gpu and runtime.lanes == "auto"):
        notes.append(
            "runtime.lane_table is read only on a GPU with runtime.lanes = 'auto'"
        )
    one_by_one = runtime.lanes == 1 or (runtime.lanes == "auto" and not on_gpu)
    if one_by_one and runtime.convolutions != "auto":
        notes.append(
            "runtime.convolutions has no effect with one lane, or on a CPU with "
            "runtime.lanes = 'auto'"
        )
    if on_gpu and torch.version.hip:
        notes.append(
            f"torch {torch.__version__} is for ROCm: hpcfl was tested only with CUDA, "
            "and does not guarantee the same bits in another run on an AMD GPU"
        )
    return notes


def _find_device_id(device: torch.device) -> str:
    """Return the UUID of a GPU or MIG slice; "cpu" for the CPU."""
    if device.type != "cuda":
        return "cpu"
    return str(torch.cuda.get_device_properties(device).uuid)


def _make_deterministic(precision: str) -> None:
    """Configure torch so that every call gives the same bits.

    Operators without a deterministic kernel raise a warning.
    """
    # cuBLAS reads this variable at the first product.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # hpcfl never reads uninitialised memory, so filling it would only take time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # hpcfl uses cumsum only along the first dimension, which is summed in order.
    warnings.filterwarnings(
        "ignore", "cumsum_cuda_kernel does not have a deterministic implementation"
    )


def describe_assigned_gpus() -> str | None:
    """Return the part of a message on the variable that assigns GPUs to this process.

    Returns:
        The text; None without such a variable.
    """
    for name in LISTS:
        if (value := os.environ.get(name, "")) not in NO_LIST:
            return f", although the job has {name} = {value}"
    if (value := os.environ.get(COUNT, "0")) not in ("", "0"):
        return f", although the job has {COUNT} = {value}"
    return None


def _explain_missing_gpu() -> str:
    """Return the reason that torch finds no GPU."""
    build, tool = "has no CUDA", "nvidia-smi"
    if torch.version.cuda:
        build = f"was built for CUDA {torch.version.cuda}"
    elif torch.version.hip:
        build, tool = f"was built for ROCm {torch.version.hip}", "rocm-smi"
    return f"torch {torch.__version__} {build}; {tool} prints the driver's version"


def list_ranks(
    communicator: Communicator, device: torch.device, clients: Iterable[int]
) -> list[str]:
    """Return a line for each rank, on every rank. Collective call.

    For example ``rank 2 on node7 (pid 4711, cores 4-7, 1 thread, cuda:1 NVIDIA A100,
    clients 0-3, 9)``.

    Args:
        communicator: communicator of all ranks.
        device: device of this rank.
        clients: ids of this rank's clients.
    """
    rank, host = communicator.rank, communicator.host
    hosted = describe_ranges(clients)
    hosts = "the server" if communicator.is_server else "no clients"
    if hosted:
        hosts = f"clients {hosted}"
    threads = torch.get_num_threads()
    plural = "s" if threads > 1 else ""
    name = str(device)
    if device.type == "cuda":
        name = f"{device} {torch.cuda.get_device_name(device)}"
    cores = describe_ranges(os.sched_getaffinity(0))
    return communicator.allgather(
        f"rank {rank} on {host} (pid {os.getpid()}, cores {cores}, {threads} "
        f"thread{plural}, {name}, {hosts})"
    )


def describe_ranges(numbers: Iterable[int]) -> str:
    """Return ``0-3, 7`` for 0, 1, 2, 3, 7.

    Only the first MOST_RANGES ranges are listed, followed by the number of the remaining
    ones.
    """
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    texts = []
    for first, last in parts:
        texts.append(str(first) if first == last else f"{first}-{last}")
    more = f" and {len(texts) - MOST_RANGES} more" if len(texts) > MOST_RANGES else ""
    return ", ".join(texts[:MOST_RANGES]) + more
