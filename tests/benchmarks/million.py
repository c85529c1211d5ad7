"""Cost of clients that do not take part: rounds of 100 among 10,000 and among 1,000,000
clients with a model each.

``python tests/benchmarks/million.py`` writes ``results/benchmarks/million.json`` and
the table in ``million.md``.

Ditto trains an MLP of 16-8-10 on four samples per client, in one process and on a
server with two workers. The seconds of a round are rank 0's processor seconds, because
wall time depends on other processes of the machine.
"""

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pages

ROWS = [(clients, ranks) for ranks in (1, 3) for clients in (10_000, 1_000_000)]
ROUNDS = 30
SAMPLES = 4  # samples of a client, training and test together
COHORT = 100
COLUMNS = [
    ("median", "a round, median, CPU s", ".4f"),
    ("longest", "longest, CPU s", ".4f"),
    ("clock", "a round, median, s", ".4f"),
    ("checkpoint", "the round with a checkpoint, CPU s", ".2f"),
    ("setup", "set-up, CPU s", ".1f"),
    ("memory", "rank 0, MB", ",.0f"),
    ("show", "`hpcfl show`, CPU s", ".1f"),
    ("page", "`hpcfl report`, CPU s", ".1f"),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--play", help=argparse.SUPPRESS
    )  # option with which each rank is started
    arguments = parser.parse_args()
    if arguments.play:
        play(Path(arguments.play))
        return
    path = pages.RESULTS / "million.json"
    found: dict[str, dict[str, float]] = {}
    for clients, ranks in ROWS:
        found[f"{clients} {ranks}"] = measure(clients, ranks)
        path.write_text(json.dumps(found, indent=1) + "\n")
        write(found)


def measure(clients: int, ranks: int) -> dict[str, float]:
    """Return one row: the numbers of ``COLUMNS`` by name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        random = np.random.default_rng(0)
        samples = SAMPLES * clients
        np.savez(
            folder / "samples.npz",
            x=random.standard_normal((samples, 16), dtype=np.float32),
            y=random.integers(0, 10, samples),
        )
        (folder / "million.toml").write_text(experiment(folder, clients))
        command = [sys.executable, __file__, "--play", name]
        if ranks > 1:
            command = ["mpiexec", "-n", str(ranks), *command]
        subprocess.run(command, check=True)
        numbers: dict[str, float] = json.loads((folder / "numbers.json").read_text())
        numbers["show"] = cpu_seconds("show", folder / "run")
        numbers["page"] = cpu_seconds(
            "report", folder / "run", "--out", folder / "page.html"
        )
        return numbers


def experiment(folder: Path, clients: int) -> str:
    return f"""
rounds = {ROUNDS}
[data]
dataset = "npz"
file = "{folder}/samples.npz"
[partition]
scheme = "iid"
clients = {clients}
[model]
name = "mlp"
hidden = [8]
[method]
name = "ditto"
[participation]
fraction = {COHORT / clients}
[evaluation]
clients = "cohort"
"""


def play(folder: Path):
    """Run the experiment on every rank, and record its costs on rank 0."""
    import hpcfl

    ends: list[tuple[float, float]] = []

    def note(*round):
        ends.append((time.process_time(), time.perf_counter()))

    hpcfl.run(
        folder / "million.toml", out=folder / "run", progress=False, on_round=note
    )
    if not ends:
        return  # a worker's
    cpu, clock = np.diff(np.array(ends), axis=0).T
    # The first rounds have new shapes, and the last two the checkpoint.
    steady = cpu[1:-2]
    numbers = {
        "median": statistics.median(steady),
        "longest": max(steady),
        "clock": statistics.median(clock[1:-2]),
        "checkpoint": max(cpu[-2:]),
        "setup": ends[0][0],
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }
    (folder / "numbers.json").write_text(json.dumps(numbers))


def cpu_seconds(*arguments: str | Path) -> float:
    """Return the processor seconds of one command of hpcfl, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "hpcfl", *map(str, arguments)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def write(found: dict[str, dict[str, float]]):
    """Write the table in million.md."""
    heads = ["clients", "ranks", *(title for _, title, _ in COLUMNS)]
    rows = []
    for key, numbers in found.items():
        clients, ranks = key.split()
        cells = [f"{int(clients):,}", ranks]
        cells += [format(numbers[name], form) for name, _, form in COLUMNS]
        rows.append(cells)
    page = pages.RESULTS / "million.md"
    pages.replace(page, "million.py", pages.table(heads, rows))


if __name__ == "__main__":
    main()
