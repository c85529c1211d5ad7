"""Seconds per round against two yardsticks: ``python tests/benchmarks/rounds.py
[--quick] [--only W1 …] [--pfllib FOLDER] [--pfl PYTHON]``.

Contenders of a row run in turn, several times, so that a noisy neighbour meets all of
them (but once against PFLlib, which takes minutes); compared are the medians of all
their rounds. Writes ``results/benchmarks/cpu.json`` (rows not run stay as they were)
and the table in the README beside it. Data sets are looked for in $HPCFL_DATA. The row
"PFLlib" is measured where --pfllib names a checkout of it, "pfl-research" where --pfl
names an interpreter that has its package ``pfl`` and all that hpcfl needs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

import pfllib
import table
import workloads

from hpcfl.storage import provenance

HERE, RESULTS = (
    Path(__file__).parent,
    Path(__file__).parents[2] / "results" / "benchmarks",
)
METHODS = ("fedavg", "fedprox", "cwfedavg", "fednh", "diversifed", "fedala", "fedrep")
STEPS = ("fedavg", "ditto", "per-fedavg", "pfedme", "apple")
OF_STEPS = {"ditto": ["method.personal_epochs=1"], "pfedme": ["method.inner_steps=5"]}
OF_METHODS = {"fedala": ["method.most_epochs=1"]}
LITTLE = 100  # MB for rank 0's matrices, of which the server step has a gigabyte
UNSCORED = [f"evaluation.every={workloads.NEVER}"]


class Bench:
    """Runs contenders in a scratch folder. ``rounds`` timed rounds a run, ``repeats``
    runs of each.
    """

    def __init__(self, scratch: Path, options: argparse.Namespace):
        self.scratch, self.cores = scratch, options.cores
        self.pfllib: Path | None = options.pfllib
        self.pfl: Path | None = options.pfl
        self.quick: bool = options.quick
        self.repeats = 1 if self.quick else 3

    def folder(self, name: str) -> Path:
        folder = self.scratch / name
        if not folder.exists():
            workloads.write(name, folder)
        return folder

    def compete(
        self, contenders: dict[str, Callable[[], list[float]]]
    ) -> dict[str, float]:
        """The median of each contender's rounds."""
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(self.repeats):
            for name, contender in contenders.items():
                seconds[name] += contender()
        return {name: statistics.median(rounds) for name, rounds in seconds.items()}

    def hpcfl(
        self, name: str, rounds: int, *overrides: str, ranks: int | None = None
    ) -> dict[str, object]:
        """``round_times.py`` on a workload, by default with a worker for each core and
        the server.
        """
        folder, ranks = (
            self.folder(name),
            ranks or self.cores + 1,
        )
        settings = [
            f"partition.file={folder}/partition.h5",
            "runtime.device=cpu",
            *overrides,
        ]
        return json.loads(
            self.run(
                "mpiexec",
                "-n",
                ranks,
                sys.executable,
                HERE / "round_times.py",
                folder / "experiment.toml",
                "--json",
                "--rounds",
                rounds,
                *(word for one in settings for word in ("--set", one)),
            )
        )

    def by_hand(self, name: str, rounds: int) -> list[float]:
        return json.loads(
            self.run(
                "mpiexec",
                "-n",
                self.cores,
                sys.executable,
                HERE / "loop_by_hand.py",
                self.folder(name),
                "--rounds",
                rounds,
            )
        )

    def reference(self, name: str, rounds: int) -> list[float]:
        return json.loads(
            self.run(
                sys.executable,
                HERE / "reference.py",
                self.folder(name),
                "--score",
                "--rounds",
                rounds,
            )
        )

    @staticmethod
    def run(*command: object, sources: Sequence[Path] = (HERE,)) -> str:
        """The output of a command, whose Python finds modules in ``sources`` first."""
        beside = Path(sys.executable).parent
        environment = {
            **os.environ,
            "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(map(str, sources)),
        }
        words = [str(word) for word in command]
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise RuntimeError(
                f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout


def training_only(bench: Bench, name: str) -> dict[str, float]:
    return bench.compete(
        {
            "hpcfl": lambda: bench.hpcfl(name, 2, *UNSCORED)["rounds"],
            "by hand": lambda: bench.by_hand(name, 2),
        }
    )


def scored(bench: Bench, name: str) -> dict[str, float]:
    return bench.compete(
        {
            "hpcfl": lambda: bench.hpcfl(name, 1)["rounds"],
            "reference": lambda: bench.reference(name, 1),
        }
    )


def small(bench: Bench, name: str) -> dict[str, float]:
    """Also in one process: in short rounds a worker more may not pay."""
    # a step is replayed from its 101st call on: in W3 a tail's size comes once a round
    rounds = {"W2": 30, "W3": 300}[name]
    return bench.compete(
        {
            "hpcfl": lambda: bench.hpcfl(name, rounds)["rounds"],
            "one process": lambda: bench.hpcfl(name, rounds, ranks=1)["rounds"],
            "by hand": lambda: bench.by_hand(name, 10),
            "reference": lambda: bench.reference(name, 2),
        }
    )


def methods(bench: Bench, name: str) -> dict[str, float]:
    """FedALA's first activation, in round 2, is cut to the one epoch of its later ones."""
    return against_fedavg(bench, name, METHODS, OF_METHODS)


def steps(bench: Bench, name: str) -> dict[str, float]:
    """Methods that do their own steps: Ditto with one personal epoch, pFedMe with five
    steps a batch.
    """
    return against_fedavg(bench, name, STEPS, OF_STEPS)


def against_fedavg(
    bench: Bench,
    name: str,
    methods: tuple[str, ...],
    extra: dict[str, list[str]],
    rounds: int = 2,
) -> dict[str, float]:
    def run(method: str) -> list[float]:
        return bench.hpcfl(
            name, rounds, *UNSCORED, f"method.name={method}", *extra.get(method, [])
        )["rounds"]

    return bench.compete({method: lambda m=method: run(m) for method in methods})


def activation(bench: Bench, name: str) -> dict[str, float]:
    """FedALA's first activation, to convergence, is in round 2, the first after the one
    that warms up.
    """
    return against_fedavg(bench, name, ("fedavg", "fedala"), {}, rounds=1)


def dense(bench: Bench, name: str) -> dict[str, float]:
    """CPU seconds of a round in one process, against all clients side by side by hand.

    Other processes on the cores stretch the wall time of a long round more than that of
    a short one.
    """
    rounds = {"dense": 30, "tiny": 300}[name]
    command = (sys.executable, HERE / "dense_by_hand.py", bench.folder(name))
    return bench.compete(
        {
            "hpcfl": lambda: bench.hpcfl(name, rounds, *UNSCORED, ranks=1)["cpu"],
            "by hand": lambda: json.loads(
                bench.run(*command, "--rounds", rounds),
            )["cpu"],
        }
    )


def first_rounds(bench: Bench, name: str) -> dict[str, float]:
    """Mean CPU seconds of rounds 2 to 201, against the 200 rounds before the last."""
    cpu = bench.hpcfl(name, 600, *UNSCORED, ranks=1)["cpu"]
    return {
        "first 200": statistics.mean(cpu[:200]),
        "later": statistics.mean(cpu[-201:-1]),
    }


def personal(bench: Bench, name: str) -> dict[str, float]:
    """A method that sends each client a model of its own, from round 2 on."""
    return against_fedavg(bench, name, ("fedavg", "fedamp"), {}, rounds=3)


def against_pfllib(bench: Bench, name: str) -> dict[str, float]:
    """Each method once after the other in hpcfl and in PFLlib, which takes minutes for
    some.
    """
    if bench.pfllib is None:
        raise RuntimeError("tell where a checkout of PFLlib lies, --pfllib FOLDER")
    folder, found = bench.scratch / "PFLlib", {}
    pfllib.copy(bench.pfllib, bench.folder(name), folder)
    for key, method in pfllib.METHODS.items():
        report = bench.hpcfl(name, 2, *UNSCORED, f"method.name={key}", *method.hpcfl)
        found[key] = statistics.median(report["rounds"])
        found[f"{key}, PFLlib"] = statistics.median(
            pfllib.seconds(folder, bench.folder(name), method)
        )
    return found


def against_pfl_research(bench: Bench, name: str) -> dict[str, float]:
    """One process against one, each with one thread, and a server with two workers
    against two processes.
    """
    if bench.pfl is None:
        raise RuntimeError("tell which Python has the package pfl, --pfl PYTHON")
    cohort, rounds = 50, 3
    fraction = f"participation.fraction={cohort / 1000}"

    def hpcfl(ranks: int) -> list[float]:
        settings = [*UNSCORED, fraction, "runtime.threads=1"]
        return bench.hpcfl(name, rounds, *settings, ranks=ranks)["rounds"]

    def peer(*launcher: object) -> list[float]:
        words = [HERE / "pfl_research.py", bench.folder(name)]
        words += ["--rounds", rounds, "--cohort", cohort]
        # that environment has no hpcfl
        sources = (HERE, HERE.parents[1])
        said = bench.run(bench.pfl, *launcher, *words, sources=sources)
        return json.loads(said.splitlines()[-1])

    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", 2]
    return bench.compete(
        {
            "one process": lambda: hpcfl(1),
            "one process, pfl-research": lambda: peer(),
            "two workers": lambda: hpcfl(3),
            "two processes, pfl-research": lambda: peer(*torchrun),
        }
    )


def exchange(bench: Bench, name: str) -> dict[str, float]:
    found = json.loads(
        bench.run("mpiexec", "-n", 3, sys.executable, HERE / "exchange_speed.py")
    )
    return {
        "hpcfl": statistics.median(found["ours"]),
        "bare": statistics.median(found["bare"]),
    }


def means(bench: Bench, name: str) -> dict[str, float]:
    """All three ranks share the machine's cores, two unless told otherwise."""
    found = json.loads(
        bench.run("mpiexec", "-n", 3, sys.executable, HERE / "means_speed.py")
    )
    values = {
        kind: statistics.median(seconds) for kind, seconds in found["seconds"].items()
    }
    return values | {f"{kind} MB": size for kind, size in found["MB"].items()}


def server_step(bench: Bench, name: str) -> dict[str, float]:
    found = json.loads(
        bench.run(
            sys.executable,
            HERE / "server_step.py",
            bench.folder(name),
            LITTLE,
            "cwfedavg",
            "diversifed",
        )
    )
    little = {
        "diversifed, little memory": found["little"]["diversifed"],
        "MB of it": found["little"]["diversifed MB"],
    }
    return {
        **found["seconds"],
        **little,
        "round": bench.hpcfl(name, 1, *UNSCORED)["seconds_per_round"],
    }


def scaling(bench: Bench, name: str) -> dict[str, float]:
    """Microseconds of a worker for a client's step, all taking part."""
    return {
        f"{clients} clients": 1e6
        * bench.hpcfl(f"{name}-{clients}", 8, *UNSCORED)["seconds_per_round"]
        * bench.cores
        / (clients * workloads.STEPS_OF_A_CLIENT)
        for clients in (20, 100, 1000)
    }


def few(bench: Bench, name: str) -> dict[str, float]:
    """100 stateful clients a round, all there are or 1 % of 10,000, 20 MB of state in
    memory: seconds, a worker's MB.

    Ditto's clients keep a whole model and work the same in their first round as in any
    other.
    """
    found = {}
    for clients in (100, 10_000):
        report = bench.hpcfl(
            f"{name}-{clients}",
            150 if not bench.quick else 40,
            "method.name=ditto",
            "evaluation.clients=cohort",
            "runtime.memory=20",
            f"participation.fraction={100 / clients}",
        )
        found |= {
            f"{clients} clients": report["seconds_per_round"],
            f"{clients} clients MB": max(report["memory_mb"][1:]),
        }
    return found


ROWS: dict[str, tuple[Callable[[Bench, str], dict[str, float]], str]] = {
    "W1": (training_only, "W1"),
    "W1-scored": (scored, "W1"),
    "W2": (small, "W2"),
    "W3": (small, "W3"),
    "dense": (dense, "dense"),
    "tiny": (dense, "tiny"),
    "first-rounds": (first_rounds, "W3"),
    "personal": (personal, "ResNet-small"),
    "methods": (methods, "W1"),
    "steps": (steps, "W1"),
    "activation": (activation, "W1"),
    "PFLlib": (against_pfllib, "W1"),
    "pfl-research": (against_pfl_research, "dropout"),
    "exchange": (exchange, ""),
    "means": (means, ""),
    "server": (server_step, "CIFAR-100"),
    "scaling": (scaling, "scaling"),
    "few": (few, "few"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=ROWS,
        metavar="ROW",
        help=", ".join(ROWS),
    )
    parser.add_argument("--quick", action="store_true", help="each contender once")
    parser.add_argument("--cores", type=int, default=2, help="workers on the CPU")
    parser.add_argument(
        "--pfllib", type=Path, metavar="FOLDER", help="a checkout of PFLlib"
    )
    parser.add_argument(
        "--pfl", type=Path, metavar="PYTHON", help="an interpreter with pfl-research"
    )
    options = parser.parse_args()
    path = RESULTS / "cpu.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(path.read_text()) if path.exists() else {}
    failed = []
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch), options)
        given = {"PFLlib": options.pfllib, "pfl-research": options.pfl}
        for row in options.only or [row for row in ROWS if given.get(row, True)]:
            measure, name = ROWS[row]
            try:
                values = measure(bench, name)
            except Exception:  # the other rows are worth having all the same
                traceback.print_exc()
                failed.append(row)
                continue
            results[row] = {
                "values": values,
                "load": os.getloadavg()[1],
                "quick": options.quick,
                "when": time.strftime("%Y-%m-%d"),
                "machine": f"{provenance.processor()}, {os.cpu_count()} cores",
                "versions": provenance.versions(),
                "commit": provenance.commit(),
            }
            path.write_text(json.dumps(results, indent=1) + "\n")
            table.update(RESULTS)
            print(row, json.dumps(values), flush=True)
    if failed:
        sys.exit(f"rounds.py: no numbers of {', '.join(failed)}")


if __name__ == "__main__":
    main()
