"""Rows of gpu.sh in their order, each a generator of the lines of a table.

A row runs in a separate process, which is forked before it uses a GPU. The page quotes
the docstring of a row's function, so the docstring describes the columns.
"""

import gc
import importlib.util
import itertools
import json
import multiprocessing
import os
import platform
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import loop_by_hand
import numpy as np
import on_gpu
import profile_round
import round_times
import torch
import workloads

import hpcfl
from hpcfl import __main__ as command
from hpcfl.commands import needs
from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.rows import mixing
from hpcfl.simulation.prepare import Prepared, prepare
from hpcfl.storage import provenance

# Most rows need these modules, and forked processes find them imported.
for module in ("scipy.ndimage", "torch._dynamo"):
    importlib.import_module(module)
gc.freeze()  # objects that garbage collection need not check in every row

PROJECT = Path(__file__).parents[2]
Found = dict[str, Any]

MODELS = ("cnn", "resnet8", "resnet18", "mlp")
# name of a precision in the table of lanes, and its value of runtime.precision
PRECISIONS = {"float32": "exact", "tf32": "tf32", "bf16": "bf16"}
EPOCHS, WARM = 5, 2  # epochs, and the warm-up epochs among them
EXPERIMENT = """
name = "gpu"
rounds = 4
[data]
dataset = "npz"
file = "{data}"
samples = {samples}
[partition]
scheme = "iid"
clients = {clients}
train = 0.8334
[model]
name = "cnn"
[training]
batch_size = 10
lr = 0.005
[method]
name = "fedavg"
[evaluation]
every = 1000
[runtime]
device = "{device}"
"""
STRUCK = 3  # the round after which a run is killed
WORKERS = 2
FLOATS = 11_181_642  # of a model, ResNet-18
# Bytes that another process leaves free on the GPU: some lanes of ResNet-18 fit, none
# fit.
LEFT = (8 << 30, 1 << 30)
ADDRESSES = 2 << 30  # bytes of address space on a CPU, too few for one model
NO_RANKS = (
    "no mpiexec beside the interpreter or on the PATH; a module of the cluster has one, "
    "or type: {python} -m pip install mpich"
)
NO_PFL = (
    "the interpreter lacks pfl-research; type: {python} -m pip install --no-deps "
    "--target FOLDER pfl multiprocess dill prv-accountant; export PYTHONPATH=FOLDER"
)
NO_PYTEST = (
    "the interpreter lacks pytest; type: {python} -m pip install pytest pytest-timeout"
)
# Open MPI refuses root, and more ranks than cores, unless these are set.
ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
}


class Missing(Exception):
    """A row that this machine cannot run, with the command to type."""

    def __init__(self, text: str):
        super().__init__(text.format(python=sys.executable))


@dataclass(frozen=True)
class Place:
    """Folder of all output, the device, and whether rows have a hundredth of their
    size.
    """

    out: Path
    device: str
    is_small: bool

    @property
    def is_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def work(self) -> Path:
        """Return the folder of runs, which is deleted at the end."""
        return self.out / "work"

    @property
    def lanes(self) -> tuple[int, ...]:
        return (1, 2) if self.is_small else (1, 4, 20, 64)

    @property
    def samples(self) -> int:
        """Return the samples of a client: five batches of ten and ten to test, or half a
        batch and one to test.
        """
        return 6 if self.is_small else 60

    def count(self, number: int) -> int:
        """Return a number of clients, rows or floats at this size."""
        return max(2, number // 100) if self.is_small else number


@dataclass(frozen=True)
class Row:
    """A measurement in a separate process.

    Attributes:
        function: function of the place and the arguments that yields lines of a table.
        seconds: expected duration; it may take three times as long if others leave
            time.
        priority: priority, of which 1 is left out last.
    """

    function: Callable[..., Iterator[Found]]
    seconds: float
    priority: int
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.function.__name__.replace("_", " ")

    @property
    def name(self) -> str:
        return " ".join([self.title, *self.arguments.values()])


def list_rows() -> list[Row]:
    """Return all rows in their order."""
    rows = []
    for model, precision in itertools.product(MODELS, PRECISIONS):
        seconds = 120 if model == "resnet18" else 60
        main = model in ("cnn", "resnet18")
        priority = 1 if precision == "float32" else 2 if main else 3
        arguments = {"model": model, "precision": precision}
        rows.append(Row(lanes, seconds, priority, arguments))
    return [
        *rows,
        Row(round_by_hand, 60, 1, {"model": "cnn"}),
        Row(round_by_hand, 60, 1, {"model": "resnet18"}),
        Row(round_by_hand, 60, 2, {"model": "mlp"}),
        Row(kill_and_resume, 60, 1),
        Row(two_ranks, 120, 1),
        Row(out_of_memory, 60, 1),
        Row(memory, 60, 1),
        Row(transfers, 30, 1),
        Row(server_product, 40, 2),
        Row(pfl_research, 120, 2),
        Row(methods, 300, 2),
        Row(profile, 60, 1),
        Row(tests, 600, 3),
    ]


def write_data(place: Place):
    """Write random samples of CIFAR-10's shape, or of a quarter of it, and the
    experiment of all rows.
    """
    clients = place.count(100)
    samples = clients * place.samples
    random = np.random.default_rng(0)
    side = 16 if place.is_small else 32
    images = random.integers(0, 256, (samples + 1, 3, side, side), np.uint8)
    place.work.mkdir(parents=True, exist_ok=True)
    data = place.work / "made-up.npz"
    np.savez(data, x=images, y=np.arange(len(images)) % 10)
    text = EXPERIMENT.format(
        data=data, samples=samples, clients=clients, device=place.device
    )
    (place.work / "experiment.toml").write_text(text)


def prepare_rank(place: Place, *settings: str) -> Prepared:
    """Return the experiment with some keys set, ready for its first round."""
    experiment = config.load(place.work / "experiment.toml", settings)
    return prepare(experiment, OneProcess())


def set_clients(place: Place, clients: int) -> list[str]:
    """Return the keys for the given number of clients, with unchanged samples per
    client.
    """
    samples = clients * place.samples
    return [f"partition.clients={clients}", f"data.samples={samples}"]


def describe(error: Exception) -> str:
    """Return the first line of an error."""
    return f"{type(error).__name__}: {error}".partition("\n")[0][:200]


def synchronize(place: Place):
    """Wait until the device has done its work."""
    if place.is_gpu:
        torch.cuda.synchronize()


def forget_memory(place: Place):
    """Free the memory of earlier measurements, and reset the peak."""
    gc.collect()
    if place.is_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_bytes(place: Place) -> int:
    """Return the largest number of bytes that torch used on the GPU, or the process on
    a CPU.
    """
    if place.is_gpu:
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def time_fastest(place: Place, work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of three calls."""
    seconds = []
    for _ in range(3):
        begun = time.perf_counter()
        work()
        synchronize(place)
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def run_in_fork(work: Callable[[], object]) -> int | None:
    """Return the exit code of a process that is forked from this one, which has not
    used a GPU.
    """
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    return process.exitcode


def run_command(*words: str):
    """Run ``hpcfl`` in this process."""
    sys.argv = ["hpcfl", *words]
    command.main()


def words_of_run(place: Place, folder: Path, *settings: str) -> list[str]:
    """Return the words of ``hpcfl run`` for the experiment with some keys set."""
    chosen = [word for setting in settings for word in ("--set", setting)]
    file = str(place.work / "experiment.toml")
    return ["run", file, "--out", str(folder), *chosen]


def machine(place: Place) -> Iterator[Found]:
    """Describe the GPU and the libraries."""
    facts: Found = {"device": provenance.read_processor()}
    if place.is_gpu:
        if not torch.cuda.is_available():
            raise Missing(
                f"torch {torch.__version__} of {{python}} finds no GPU (CUDA "
                f"{torch.version.cuda}); nvidia-smi prints the driver's version"
            )
        properties = torch.cuda.get_device_properties(0)
        facts = {
            "device": properties.name,
            "memory, bytes": properties.total_memory,
            "CUDA": torch.version.cuda,
            "cuDNN": torch.backends.cudnn.version(),
            "processor": provenance.read_processor(),
        }
    yield {
        **facts,
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[1],
        "system": platform.platform(),
        **provenance.collect_versions(),
        "commit": provenance.find_commit(),
    }


def lanes(place: Place, model: str, precision: str) -> Iterator[Found]:
    """Train clients in batched lanes, with each form of a convolution over lanes.

    A lane is a client of five batches of ten samples. seconds_per_sample is the median
    of three epochs after two warm-up epochs, divided by the samples of all lanes;
    first_round has the seconds of the first epoch. peak_bytes is the most memory that
    torch used. In a line with ``fitting`` the lanes did not fit the memory, and the
    given number was trained at a time. fastest marks the fastest line of a model and a
    precision.
    """
    errors: list[Exception] = []
    cases = [("grouped", count) for count in place.lanes]
    # A single lane has one form, the mlp no convolution, and torch's batch norm on a
    # CPU does not accept bfloat16 numbers of several lanes.
    if model != "mlp" and (place.is_gpu or precision != "bf16"):
        cases += [("loop", count) for count in place.lanes[1:]]
    for form, count in cases:
        settings = [
            f"model.name={model}",
            f"runtime.precision={PRECISIONS[precision]}",
            f"runtime.lanes={count}",
            f"runtime.convolutions={form}",
            *set_clients(place, count),
        ]
        line = {"model": model, "precision": precision, "lanes": count, "form": form}
        try:
            forget_memory(place)
            found = time_training(place, prepare_rank(place, *settings), count)
        except Exception as error:  # more lanes may fail and another form succeed
            traceback.print_exc()
            errors.append(error)
            found = {"error": describe(error)}
        yield {**line, **found}
    if errors:
        raise RuntimeError(f"{len(errors)} lines have an error")


def time_training(place: Place, prepared: Prepared, clients: int) -> Found:
    """Return the seconds of an epoch of the given number of clients, all in one call."""
    rows = prepared.initial_server_state["model"].to(prepared.resources.device)
    patience = 0.2 if place.is_small else 20.0  # then no further epoch begins
    seconds: list[float] = []
    while len(seconds) < EPOCHS and sum(seconds) < patience:
        fleet = prepared.make_fleet(
            np.arange(clients), len(seconds) + 1, is_scored=False
        )
        begun = time.perf_counter()
        fleet.train(rows)
        synchronize(place)
        seconds.append(time.perf_counter() - begun)
    timed = seconds[WARM:] or seconds[-1:]  # few epochs if they take long
    samples = int(prepared.setup.counts.sum())
    found = {
        "seconds_per_sample": statistics.median(timed) / samples,
        "first_round": seconds[0],
        "peak_bytes": peak_bytes(place),
    }
    fitting = prepared.resources.lane_limits[0]
    return found if fitting >= clients else {**found, "fitting": fitting}


def round_by_hand(place: Place, model: str) -> Iterator[Found]:
    """Compare a round with the loop that an expert would write for exactly this
    experiment.

    The loop trains one client after the other, with all data and models on the device.
    hpcfl chooses its lanes by the table of the rows before. Columns are seconds: hpcfl
    is the median of rounds after the first, first has the preparation and the first
    round, which captures graphs; ratio is hpcfl's time as a share of the loop's.
    """
    folder = place.work / f"by-hand-{model}"
    text = (place.work / "experiment.toml").read_text()
    workloads.write_text(text.replace('"cnn"', f'"{model}"'), folder)
    rounds = 1 if place.is_small else 5
    table = f"runtime.lane_table={place.out / 'lanes.json'}"
    experiment = config.load(folder / "experiment.toml", [table])
    report = round_times.measure(experiment, rounds, OneProcess())
    loop = statistics.median(
        loop_by_hand.time_rounds(workloads.load(folder), rounds, place.device)
    )
    ours = report["seconds_per_round"]
    yield {
        "model": model,
        "hpcfl": ours,
        "first": report["warm_up"],
        "by hand": loop,
        "ratio": ours / loop,
    }


def kill_and_resume(place: Place) -> Iterator[Found]:
    """Kill a run by kill -9 after a round, resume it, and compare its final state.

    The digest must equal that of an undisturbed run, to the last bit.
    """
    settings = ["method.name=ditto", "checkpoint.every=1"]
    table = config.read(place.work / "experiment.toml", settings)

    def play(folder: Path, last: int):
        def strike(name: str, round: int, values: Found):
            if round == last:
                os.kill(os.getpid(), signal.SIGKILL)

        hpcfl.run(table, folder, on_round=strike, progress=False)

    calm, struck = place.work / "calm", place.work / "struck"
    codes = []
    for folder, last in ((calm, 0), (struck, STRUCK), (struck, 0)):
        codes.append(run_in_fork(lambda f=folder, n=last: play(f, n)))
    digests = [hpcfl.load(folder).summary.digest for folder in (calm, struck)]
    yield {"exit codes": codes, "digests": [digest[:16] for digest in digests]}
    if codes != [0, -signal.SIGKILL, 0] or digests[0] != digests[1]:
        raise RuntimeError("the resumed run differs from the undisturbed one")


def two_ranks(place: Place) -> Iterator[Found]:
    """Run one experiment in one process, and with a server and two workers that share
    the device.

    On a GPU the ranks run it twice, with the same digest. On a CPU they run it once,
    with the digest of one process. seconds is the mean of rounds after the first.
    """
    digests = []
    for number, ranks in enumerate([1, 1 + WORKERS, 1 + WORKERS]):
        if number == 2 and place.is_small:
            break
        folder = place.work / f"ranks-{number}"
        code = run_ranks(ranks, words_of_run(place, folder))
        if code:
            raise RuntimeError(f"{ranks} ranks ended with {code}{explain_loopback()}")
        run = hpcfl.load(folder)
        digests.append(run.summary.digest)
        yield {
            "ranks": run.results.header["ranks"],
            "seconds": run.summary.seconds_per_round,
            "digest": run.summary.digest[:16],
        }
    if digests[-1] != digests[-2]:
        raise RuntimeError("the same experiment ended with two digests")


def run_ranks(ranks: int, words: Sequence[str]) -> int | None:
    """Return the exit code of ``hpcfl`` in one process or on several ranks."""
    if ranks == 1:
        return run_in_fork(lambda: run_command(*words))
    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        raise Missing(NO_RANKS)
    launch = [mpiexec, "-n", str(ranks), sys.executable, "-m", "hpcfl", *words]
    return subprocess.run(launch, env=os.environ | ENVIRONMENT).returncode


def explain_loopback() -> str:
    """Return the command to type if the ranks of a machine cannot communicate."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        return (
            f"; the loopback interface does not work ({error}), type as root: "
            "ip link set lo up"
        )
    return ""


@contextmanager
def fill_gpu(left: int):
    """Leave the given number of bytes of the GPU free inside a block."""
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(max(0, free - left), dtype=torch.uint8, device="cuda")
    yield
    del held
    torch.cuda.empty_cache()


@contextmanager
def limit_addresses(left: int):
    """Limit the address space of processes that start inside a block."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (left, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def out_of_memory(place: Place) -> Iterator[Found]:
    """Run ResNet-18 while another process leaves little of the GPU's memory.

    With 8 GiB left hpcfl uses fewer lanes and ends with 0. With 1 GiB left it reports
    that the memory is full and ends with 1. On a CPU the address space is limited to 2
    GiB instead, in which no lane fits. "last line" is the last line on memory that hpcfl
    printed.
    """
    if place.is_gpu:
        settings = ["model.name=resnet18", "runtime.lanes=20", *set_clients(place, 20)]
        cases = [(LEFT[0], fill_gpu, 0), (LEFT[1], fill_gpu, 1)]
    else:
        settings = ["model.name=mlp", "model.hidden=[1280000]"]
        cases = [(ADDRESSES, limit_addresses, 1)]
    wrong = []
    for left, take_memory, expected in cases:
        words = words_of_run(place, place.work / f"memory-{left}", *settings)
        with take_memory(left):
            ended = subprocess.run(
                [sys.executable, "-m", "hpcfl", *words], capture_output=True, text=True
            )
        print(ended.stdout, ended.stderr)
        lines = [line for line in ended.stderr.splitlines() if "memory" in line]
        last = "".join(lines[-1:])
        yield {"bytes left": left, "exit code": ended.returncode, "last line": last}
        if ended.returncode != expected or not last:
            wrong.append(f"code {ended.returncode} instead of {expected}, or no reason")
    if wrong:
        raise RuntimeError("; ".join(wrong))


def memory(place: Place) -> Iterator[Found]:
    """Compare the memory of two rounds with the forecast of ``hpcfl check``.

    peak has the most bytes that torch used on the GPU, or the process on a CPU.
    """
    sizes = {"cnn": 2} if place.is_small else {"cnn": 64, "resnet18": 16}
    for model, clients in sizes.items():
        lanes = f"runtime.lanes={clients}"
        settings = [f"model.name={model}", lanes, *set_clients(place, clients)]
        prepared = prepare_rank(place, *settings)
        computed = needs.compute_gpu_needs(prepared) or needs.compute_rank_needs(
            prepared
        )
        check = computed.samples + computed.rows + computed.lanes
        del prepared
        forget_memory(place)
        experiment = config.load(place.work / "experiment.toml", settings)
        round_times.measure(experiment, 1, OneProcess())
        peak = peak_bytes(place)
        yield {
            "model": model,
            "clients": clients,
            "check, bytes": check,
            "peak, bytes": peak,
            "peak as a share of check": peak / check,
        }


def transfers(place: Place) -> Iterator[Found]:
    """Copy models of ResNet-18 to the device and back, from ordinary and from
    page-locked (pinned) memory.

    Each number is the fastest of three copies.
    """
    rows = torch.ones(place.count(25), place.count(FLOATS))
    there = rows.to(place.device, copy=True)
    kinds = {"ordinary": rows}
    if place.is_gpu:
        kinds["pinned"] = rows.pin_memory()
    for name, here in kinds.items():
        to_device = time_fastest(place, lambda here=here: there.copy_(here))
        to_host = time_fastest(place, lambda here=here: here.copy_(there))
        yield {
            "memory": name,
            "to the device, bytes a second": rows.nbytes / to_device,
            "to the host, bytes a second": rows.nbytes / to_host,
        }


def server_product(place: Place) -> Iterator[Found]:
    """Multiply a matrix with 100 models of ResNet-18 (A·W), the server's step of most
    personalised methods, in float64 with models in host memory.
    """
    models = place.count(100)
    rows, matrix = torch.ones(models, place.count(FLOATS)), torch.ones(models, models)
    mixing.use_device(torch.device(place.device))
    seconds = time_fastest(place, lambda: mixing.mix(matrix, rows))
    yield {
        "models": models,
        "seconds": seconds,
        "bytes a second": 2 * rows.nbytes / seconds,
    }


def pfl_research(place: Place) -> Iterator[Found]:
    """Compare rounds of FedAvg with pfl-research's on the same device.

    The model is that of pfl-research's benchmark, two convolutions and two dropouts.
    Columns are seconds, the median of rounds after the warm-up rounds; ratio is hpcfl's
    time as a share of pfl-research's.
    """
    if importlib.util.find_spec("pfl") is None:
        raise Missing(NO_PFL)
    folder = place.work / "pfl-research"
    text = (place.work / "experiment.toml").read_text()
    workloads.write_text(text.replace('"cnn"', '"two_dropouts:Net"'), folder)
    rounds = 1 if place.is_small else 20
    cohort = place.count(50)
    experiment = config.load(
        folder / "experiment.toml",
        [f"participation.fraction={cohort / place.count(100)}"],
    )
    report = round_times.measure(experiment, rounds, OneProcess())
    ours = statistics.median(report["rounds"][rounds // 2 :])
    script = str(Path(__file__).with_name("pfl_research.py"))
    options = {"rounds": rounds, "cohort": cohort, "device": place.device}
    words = [f"--{name}={value}" for name, value in options.items()]
    peer = subprocess.run(
        [sys.executable, script, str(folder), *words],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    theirs = statistics.median(json.loads(peer.stdout.splitlines()[-1]))
    yield {"hpcfl": ours, "pfl-research": theirs, "ratio": ours / theirs}


def methods(place: Place) -> Iterator[Found]:
    """Compare the final state of every method with that on the CPU.

    difference is the largest difference of a number, as a share of the largest number
    of its tensor; rounding gives less than 0.001.
    """
    wrong = 0
    cases = on_gpu.PLAYED[:2] if place.is_small else on_gpu.PLAYED
    for number, case in enumerate(cases):
        line = {"method": case[0], "model": case[2], "options": json.dumps(case[1])}
        folder = place.work / f"method-{number}"
        folder.mkdir()
        try:
            difference = on_gpu.on_both(case, folder, place.device)
        except Exception as error:  # the other methods are useful in any case
            difference = float("inf")
            line["error"] = describe(error)
        wrong += difference >= on_gpu.TOLERANCE
        yield {**line, "difference": difference}
    if wrong:
        raise RuntimeError(f"{wrong} of {len(cases)} methods end elsewhere")


def profile(place: Place) -> Iterator[Found]:
    """Profile the training of a steady round of cnn by torch.profiler, with the
    operators that take the most time.

    ms are milliseconds in the operator itself, on the device and on the host.
    """
    prepared = prepare_rank(place)
    warm_up = 1 if place.is_small else 5
    ids = np.asarray(prepared.store.ids)
    record = profile_round.profile_update(prepared, ids, warm_up)
    events = record.key_averages()
    on_device = {event.key: event.self_device_time_total for event in events}
    on_host = {event.key: event.self_cpu_time_total for event in events}
    order = on_device if place.is_gpu else on_host
    for event in sorted(events, key=lambda event: -order[event.key])[:20]:
        yield {
            "operator": event.key[:60],
            "calls": event.count,
            "device, ms": on_device[event.key] / 1000,
            "host, ms": on_host[event.key] / 1000,
        }


def tests(place: Place) -> Iterator[Found]:
    """Run the tests that need a GPU."""
    if importlib.util.find_spec("pytest") is None:
        raise Missing(NO_PYTEST)
    # The limit of pyproject.toml is an unknown option without pytest-timeout.
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore:Unknown config option"]
    scratch = str(place.work / "pytest")
    words = ["-m", "pytest", *options, "--basetemp", scratch, "-m", "gpu", "tests/gpu"]
    ended = subprocess.run(
        [sys.executable, *words], cwd=PROJECT, capture_output=True, text=True
    )
    print(ended.stdout, ended.stderr)
    last = ended.stdout.strip().splitlines()[-1:]
    yield {"exit code": ended.returncode, "last line": "".join(last)}
    if ended.returncode:
        raise RuntimeError("a test failed")
