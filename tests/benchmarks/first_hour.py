"""Measure a GPU: rows in the order of their worth, numbers first and tests last.

Needs no network, no installation and no data: data have CIFAR-10's shape and are made
up. Every row runs in a process of its own until its time limit. All files are in
``--out``: ``gpu.json`` and ``gpu.md``, written again after each row. Begun by gpu.sh;
with ``--device cpu --size 0.01`` the same rows are small enough for a CPU.
"""

import argparse
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]
NEEDED = ("torch", "numpy", "h5py", "mpi4py", "pydantic", "filelock", "rich", "click")
LANES = (1, 4, 20, 64)
PRECISIONS = ("exact", "tf32", "bf16")
MODELS = ("cnn", "resnet8", "resnet18", "mlp")
CLIENTS, SAMPLES, ROUNDS = 64, 60, 3  # of them 50 samples to train on, five batches
SHAPE, CLASSES = (3, 32, 32), 10
FLOATS = 11_181_642  # of a model, ResNet-18
ROWS_MOVED = 100

Found = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """A measurement: the name of a function of this file, with its arguments.

    Attributes:
        seconds: its time limit.
    """

    kind: str
    arguments: dict[str, Any]
    seconds: float = 120.0

    @property
    def name(self) -> str:
        values = ", ".join(str(value) for value in self.arguments.values())
        return f"{self.kind} {values}".rstrip()


@dataclass(frozen=True)
class Place:
    """The folder of all output, the device, and the size of the rows, at most 1."""

    out: Path
    device: str
    size: float

    def count(self, number: int) -> int:
        """Return a number of clients, rows or floats at this size."""
        return max(2, round(number * self.size))


def list_rows(place: Place) -> Iterator[Row]:
    """Yield all rows in their order."""
    models = MODELS if place.size == 1 else ("cnn", "mlp")
    for model, precision, lanes in itertools.product(models, PRECISIONS, LANES):
        allowed = place.device != "cpu" or precision == "exact"
        if allowed and (place.size == 1 or lanes <= place.count(CLIENTS)):
            yield Row("lanes", {"model": model, "precision": precision, "lanes": lanes})
    yield from (Row("by_hand", {"model": model}) for model in models)
    yield Row("resume", {"model": "cnn"}, 300)
    yield Row("transfers", {})
    yield Row("product", {})
    if place.device != "cpu":
        names = ("GPU-memory", "GPU-repeated", "GPU-methods")
        yield from (Row("promise", {"name": name}, 600) for name in names)
    if place.size == 1:
        yield Row("tests", {}, 1200)


def experiment(place: Place, model: str, **sections: Any) -> dict[str, Any]:
    """Return an experiment on the data that are made up."""
    table: dict[str, Any] = {
        "name": "gpu",
        "rounds": ROUNDS,
        "data": {"dataset": "npz", "file": str(place.out / "made-up.npz")},
        "partition": {"scheme": "iid", "clients": place.count(CLIENTS), "train": 0.84},
        "model": {"name": model},
        "training": {"batch_size": 10, "lr": 0.005},
        "method": {"name": "fedavg"},
        "evaluation": {"every": ROUNDS + 1},
        "runtime": {"device": place.device},
    }
    return {**table, **sections}


def make_data(place: Place) -> None:
    """Write samples with the shape of CIFAR-10's."""
    import numpy as np

    random = np.random.default_rng(0)
    count = place.count(CLIENTS) * SAMPLES
    images = random.integers(0, 256, (count, *SHAPE), np.uint8)
    labels = np.arange(count) % CLASSES
    np.savez(place.out / "made-up.npz", x=images, y=labels)


def lanes(place: Place, model: str, precision: str, lanes: int) -> Found:
    """Return seconds of the last round, with so many clients side by side, and of the
    first.
    """
    import hpcfl

    ends = [time.perf_counter()]
    runtime = {"device": place.device, "precision": precision, "lanes": lanes}
    hpcfl.run(
        experiment(place, model, runtime=runtime, checkpoint={"every": ROUNDS + 1}),
        place.out / "runs" / f"{model}-{precision}-{lanes}",
        fresh=True,
        on_round=lambda name, round, values: ends.append(time.perf_counter()),
        progress=False,
    )
    seconds = [after - before for before, after in itertools.pairwise(ends)]
    return {"round": min(seconds[1:ROUNDS]), "first": seconds[0], **used_memory(place)}


def used_memory(place: Place) -> Found:
    """Return the most bytes that torch used on a GPU."""
    import torch

    if place.device == "cpu":
        return {}
    return {"memory": torch.cuda.max_memory_allocated()}


def by_hand(place: Place, model: str) -> Found:
    """Return seconds of a round of a loop that trains one client after another."""
    import numpy as np
    import torch
    from torch.nn.functional import cross_entropy

    from hpcfl.experiment import plugins

    torch.set_num_threads(1)  # as runtime.threads
    builder = plugins.find("hpcfl.models", "model.name", model)
    module = builder(SHAPE, CLASSES).to(place.device)
    made_up = np.load(place.out / "made-up.npz")
    x = torch.from_numpy(made_up["x"]).to(place.device).float() / 127.5 - 1
    y = torch.from_numpy(made_up["y"]).to(place.device)
    first = {name: value.clone() for name, value in module.state_dict().items()}
    batches = [*zip(x.split(10), y.split(10), strict=True)]
    batches = batches[: place.count(CLIENTS) * 5]

    def play() -> None:
        for number, (images, labels) in enumerate(batches):
            if number % 5 == 0:  # the next client
                module.load_state_dict(first)
                optimizer = torch.optim.SGD(module.parameters(), lr=0.005)
            optimizer.zero_grad()
            cross_entropy(module(images), labels).backward()
            optimizer.step()

    return {"round": timed(place, play)}


def resume(place: Place, model: str) -> Found:
    """Return whether a run has the same digest after kill -9 and a resume."""
    table = experiment(place, model, checkpoint={"every": 1})
    calm, struck = place.out / "runs" / "calm", place.out / "runs" / "struck"
    code = (
        "import os, signal, sys, json, hpcfl; table, out, last = json.loads(sys.argv[1]);"
        "hpcfl.run(table, out, on_round=lambda name, round, values: round == last and "
        "os.kill(os.getpid(), signal.SIGKILL), progress=False)"
    )
    ends = []
    for folder, last in ((calm, 0), (struck, ROUNDS), (struck, 0)):
        words = json.dumps([table, str(folder), last])
        ended = subprocess.run([sys.executable, "-c", code, words], check=False)
        ends.append(ended.returncode)
    import hpcfl

    digests = {hpcfl.load(folder).summary.digest for folder in (calm, struck)}
    return {"same": len(digests) == 1 and ends == [0, -signal.SIGKILL, 0]}


def transfers(place: Place) -> Found:
    """Return bytes a second to the device and back, from page-locked memory or not."""
    import torch

    rows = torch.ones(place.count(ROWS_MOVED), place.count(FLOATS))
    there = rows.to(place.device, copy=True)
    found = {
        "up": timed(place, lambda: there.copy_(rows)),
        "down": timed(place, lambda: rows.copy_(there)),
    }
    if place.device != "cpu":
        locked = rows.pin_memory()
        found["up, locked"] = timed(place, lambda: there.copy_(locked))
        found["down, locked"] = timed(place, lambda: locked.copy_(there))
    return {name: rows.nbytes / seconds for name, seconds in found.items()}


def product(place: Place) -> Found:
    """Return seconds of a server's product of a square matrix and models."""
    import torch

    from hpcfl.rows import mixing

    models = place.count(ROWS_MOVED)
    rows, matrix = torch.ones(models, place.count(FLOATS)), torch.ones(models, models)
    mixing.use_device(torch.device(place.device))
    return {"seconds": timed(place, lambda: mixing.mix(matrix, rows))}


def promise(place: Place, name: str) -> Found:
    """Return a row of ``one_gpu.py`` on what runs promise on a GPU."""
    import one_gpu

    measure, workload = one_gpu.ROWS[name]
    return measure(None, workload)


def tests(place: Place) -> Found:
    """Return the last line of the tests that need a GPU."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests"]
    given = {"cwd": PROJECT, "capture_output": True, "text": True, "check": False}
    ended = subprocess.run([*command, "-p", "no:cacheprovider"], **given)
    (place.out / "tests.txt").write_text(ended.stdout + ended.stderr)
    return {"code": ended.returncode, "last line": ended.stdout.strip()[-200:]}


KINDS: dict[str, Callable[..., Found]] = {
    kind.__name__: kind
    for kind in (lanes, by_hand, resume, transfers, product, promise, tests)
}


def timed(place: Place, work: Callable[[], object]) -> float:
    """Return the seconds of the faster of two calls."""
    import torch

    seconds = []
    for _ in range(2):
        begun = time.perf_counter()
        work()
        if place.device != "cpu":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def measure(place: Place, row: Row, seconds: float) -> Found:
    """Return the numbers of a row from a process of its own, or why there are none."""
    answer = place.out / "row.json"
    answer.unlink(missing_ok=True)
    words = json.dumps([str(place.out), place.device, place.size])
    given = [words, row.kind, json.dumps(row.arguments), str(answer)]
    command = [sys.executable, __file__, "--row", *given]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(PROJECT), *sys.path[1:]])
    with (place.out / "log.txt").open("a") as log:
        print(f"\n{row.name}", file=log, flush=True)
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return {"failure": f"took more than {seconds:.0f} s"}
    if code or not answer.exists():
        return {"failure": f"code {code}, see log.txt"}
    return dict(json.loads(answer.read_text()))


def write_results(place: Place, found: dict[str, Found]) -> None:
    """Write the JSON and the page."""
    text = json.dumps(
        {"size": place.size, "device": place.device, "rows": found}, indent=1
    )
    (place.out / "gpu.json").write_text(text)
    lines = [
        f"# One GPU ({place.device}, size {place.size:g})",
        "",
        "| Row | Numbers |",
        "|---|---|",
    ]
    for name, numbers in found.items():
        shown = (
            f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}"
            for key, value in numbers.items()
        )
        lines.append(f"| {name} | {', '.join(shown)} |")
    (place.out / "gpu.md").write_text("\n".join([*lines, ""]))


def run_rows(place: Place, hours: float, rows: list[Row]) -> int:
    """Measure rows until the hours are over; return 1 where a row failed, else 0."""
    end = time.monotonic() + 3600 * hours
    found: dict[str, Found] = {}
    for row in rows:
        left = end - time.monotonic()
        seconds = min(row.seconds, left)
        numbers = {"failure": "no time left"}
        if seconds > 1:
            numbers = measure(place, row, seconds)
        found[row.name] = numbers
        print(f"{row.name}: {numbers}", flush=True)
        write_results(place, found)
    return int(any("failure" in numbers for numbers in found.values()))


def main(words: list[str]) -> int:
    """Measure all rows, or a single one in a process that ``measure`` has begun."""
    if words[:1] == ["--row"]:
        where, kind, arguments, answer = words[1:]
        out, device, size = json.loads(where)
        numbers = KINDS[kind](Place(Path(out), device, size), **json.loads(arguments))
        Path(answer).write_text(json.dumps(numbers))
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of all output")
    parser.add_argument("--hours", type=float, default=1.0, help="time for all rows")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--size", type=float, default=1.0, help="of the rows, at most 1"
    )
    given = parser.parse_args(words)
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"{sys.executable} lacks {', '.join(missing)}", file=sys.stderr)
        return 2
    place = Place(given.out.resolve(), given.device, given.size)
    import torch

    if place.device != "cpu" and not torch.cuda.is_available():
        print(
            f"torch {torch.__version__} of {sys.executable} offers no GPU (CUDA "
            f"{torch.version.cuda}); nvidia-smi prints the driver's version",
            file=sys.stderr,
        )
        return 2
    place.out.mkdir(parents=True, exist_ok=True)
    make_data(place)
    return run_rows(place, given.hours, [*list_rows(place)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
