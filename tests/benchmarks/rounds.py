"""Seconds per round compared with two references: ``python tests/benchmarks/rounds.py
[--quick] [--only W1 …] [--pfllib FOLDER] [--fl-bench FOLDER] [--peers PYTHON] [--pfl
PYTHON]``.

Contenders of a row run in turn, several times, so that other load on the machine
affects all of them; the medians of all their rounds are compared. For PFLlib, FL-bench
and fluke even single rounds run in turn (``turns.py``). The script writes
``results/benchmarks/cpu.json`` (rows that did not run are kept) and the tables of the
pages in this folder. Data sets are looked for in $HPCFL_DATA.

Other simulators are measured if an option names them. --pfllib and --fl-bench are
checkouts. --peers is an interpreter with their dependencies and the package
``fluke-fl``, --pfl one with the package ``pfl``. Both need hpcfl's dependencies.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import fl_bench
import pfllib
import table
import turns
import workloads

from hpcfl.storage import provenance

HERE, RESULTS = (
    Path(__file__).parent,
    Path(__file__).parents[2] / "results" / "benchmarks",
)
# Methods of a row with their settings. FedALA's first activation is in round 2, the
# first round after the warm-up; in all rows but one it takes one epoch, as later ones.
METHODS = {
    **dict.fromkeys(("fedavg", "fedprox", "cwfedavg", "fednh", "diversifed"), ()),
    "fedala": ("method.most_epochs=1",),
    "fedrep": (),
}
STEPS = {
    "fedavg": (),
    "ditto": ("method.personal_epochs=1",),
    "per-fedavg": (),
    "pfedme": ("method.inner_steps=5",),
    "apple": (),
}
LITTLE = 100  # MB for rank 0's matrices; the server step has a gigabyte
UNSCORED = [f"evaluation.every={workloads.NEVER}"]
ROUND = re.compile(r"^round \d+$")
README = Path(__file__).parents[2] / "README.md"
THREE_RANKS = ("mpiexec", "-n", 3, sys.executable)
# words of the note before round 1
FASTER = "one process is faster than several ranks"


class Bench:
    """Runs of contenders in a scratch folder: ``rounds`` timed rounds per run,
    ``repeats`` runs of each.
    """

    def __init__(self, scratch: Path, options: argparse.Namespace):
        self.scratch, self.cores = scratch, 2
        self.pfllib: Path | None = options.pfllib
        self.fl_bench: Path | None = options.fl_bench
        self.peers: Path | None = options.peers
        self.pfl: Path | None = options.pfl
        self.minutes: float = options.minutes
        self.quick: bool = options.quick
        self.repeats = 1 if self.quick else 3
        self.counted: int = 1 if self.quick else options.counted

    def folder(self, name: str) -> Path:
        folder = self.scratch / name
        if not folder.exists():
            workloads.write(name, folder)
        return folder

    def compete(
        self, contenders: dict[str, Callable[[], list[float]]]
    ) -> dict[str, float]:
        """Return the median of each contender's rounds."""
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(self.repeats):
            for name, contender in contenders.items():
                seconds[name] += contender()
        return {name: statistics.median(rounds) for name, rounds in seconds.items()}

    def command(
        self, name: str, rounds: int, overrides: Sequence[str], ranks: int
    ) -> list[object]:
        """Return the command that times rounds of a workload."""
        folder = self.folder(name)
        settings = [f"partition.file={folder}/partition.h5", "runtime.device=cpu"]
        launcher = ["mpiexec", "-n", ranks] if ranks > 1 else []
        words = [*launcher, sys.executable, HERE / "round_times.py"]
        words += [folder / "experiment.toml", "--rounds", rounds]
        for setting in (*settings, *overrides):
            words += ["--set", setting]
        return words

    def hpcfl(
        self, name: str, rounds: int, *overrides: str, ranks: int | None = None
    ) -> dict[str, object]:
        """Return ``round_times.py`` on a workload, by default with a worker for each
        core and the server.
        """
        ranks = ranks or self.cores + 1
        words = self.command(name, rounds, overrides, ranks)
        return json.loads(self.run(*words, "--json"))

    def start(
        self, name: str, rounds: int, *overrides: str, ranks: int
    ) -> turns.Program:
        """Start ``round_times.py`` on a workload without scoring."""
        settings = [*UNSCORED, *overrides]
        words = self.command(name, rounds - 1, settings, ranks)
        return turns.Program(
            words, ROUND, environment=make_environment([HERE]), ends=True
        )

    def race_one_process(
        self, name: str, peer: str, start: Callable[[], turns.Program]
    ) -> dict[str, float]:
        """Return wall and CPU seconds of FedAvg in one process with one thread, and of
        another simulator.
        """
        warm_up = 1
        contenders = {
            "hpcfl": lambda: self.start(name, warm_up + self.counted, ranks=1),
            peer: start,
        }
        return turns.race(contenders, warm_up, self.counted)

    def play(self, name: str, rounds: int, *overrides: str, ranks: int) -> list[float]:
        """Return the seconds of rounds without scoring."""
        return self.hpcfl(name, rounds, *UNSCORED, *overrides, ranks=ranks)["rounds"]

    def loop(self, script: str, name: str, rounds: int, *options: str, ranks: int = 1):
        """Return what another program prints about rounds of a workload."""
        launcher = ["mpiexec", "-n", ranks] if ranks > 1 else []
        words = [*launcher, sys.executable, HERE / script, self.folder(name)]
        return json.loads(self.run(*words, *options, "--rounds", rounds))

    def by_hand(self, name: str, rounds: int) -> list[float]:
        return self.loop("loop_by_hand.py", name, rounds, ranks=self.cores)

    def reference(self, name: str, rounds: int) -> list[float]:
        return self.loop("reference.py", name, rounds, "--score")

    @staticmethod
    def run(*command: object, sources: Sequence[Path] = (HERE,)) -> str:
        """Return the output of a command whose Python finds modules in ``sources``
        first.
        """
        words, environment = [str(word) for word in command], make_environment(sources)
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise RuntimeError(
                f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout


def make_environment(sources: Sequence[Path]) -> dict[str, str]:
    """Return the environment of a command that finds programs in this interpreter's
    folder, and modules in ``sources``, first; it compiles no module again.
    """
    beside = Path(sys.executable).parent
    return {
        **os.environ,
        "PYTHONDONTWRITEBYTECODE": "",
        "PATH": f"{beside}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(map(str, sources)),
    }


def training_only(bench: Bench, name: str) -> dict[str, float]:
    return bench.compete(
        {
            "hpcfl": lambda: bench.play(name, 2, ranks=bench.cores + 1),
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
    """Measure small models, also in one process, because an additional worker may not
    reduce the time of short rounds.
    """
    # a step is replayed from its 101st call on; in W3 the size of a last batch occurs
    # once per round
    rounds = {"W2": 30, "W3": 300}[name]
    return bench.compete(
        {
            "hpcfl": lambda: bench.hpcfl(name, rounds)["rounds"],
            "one process": lambda: bench.hpcfl(name, rounds, ranks=1)["rounds"],
            "by hand": lambda: bench.by_hand(name, 10),
            "reference": lambda: bench.reference(name, 2),
        }
    )


def against_fedavg(
    bench: Bench, name: str, methods: Mapping[str, Sequence[str]], rounds: int = 2
) -> dict[str, float]:
    """Measure methods, each with its settings."""
    contenders = {}
    for method, settings in methods.items():
        words = [f"method.name={method}", *settings]
        contenders[method] = partial(
            bench.play, name, rounds, *words, ranks=bench.cores + 1
        )
    return bench.compete(contenders)


def dense(bench: Bench, name: str) -> dict[str, float]:
    """Measure CPU seconds of a round in one process, compared with manually batched
    clients.

    Other processes on the cores extend the wall time of a long round more than that of
    a short one.
    """
    rounds = {"dense": 30, "tiny": 300}[name]
    return bench.compete(
        {
            "hpcfl": lambda: bench.hpcfl(name, rounds, *UNSCORED, ranks=1)["cpu"],
            "by hand": lambda: bench.loop("dense_by_hand.py", name, rounds)["cpu"],
        }
    )


def first_rounds(bench: Bench, name: str) -> dict[str, float]:
    """Measure the mean CPU seconds of rounds 2 to 201, compared with the 200 rounds
    before the last.
    """
    cpu = bench.hpcfl(name, 600, *UNSCORED, ranks=1)["cpu"]
    return {
        "first 200": statistics.mean(cpu[:200]),
        "later": statistics.mean(cpu[-201:-1]),
    }


def ranks(bench: Bench, name: str) -> dict[str, float]:
    """Measure small dense models on a server and two workers, and in one process.

    The value "note" is 1 if a note before round 1 states that one process is faster.
    """
    found = {}
    for workload, rounds in (("dense", 30), ("tiny", 300), ("dense-few", 30)):
        contenders = {
            workload: partial(bench.play, workload, rounds, ranks=3),
            f"{workload}, one process": partial(bench.play, workload, rounds, ranks=1),
        }
        found |= bench.compete(contenders)
        folder = bench.folder(workload)
        words = [*THREE_RANKS, "-m", "hpcfl", "check", folder / "experiment.toml"]
        words += ["--set", f"partition.file={folder}/partition.h5"]
        output = " ".join(bench.run(*words).split())
        found[f"{workload}, note"] = float(FASTER in output)
    return found


def whole_commands(bench: Bench, name: str) -> dict[str, float]:
    """Measure the seconds of whole commands on README's first experiment, after one run
    of each, and of only the imports that three ranks need.
    """
    folder = bench.scratch / "first"
    folder.mkdir()
    file, run = folder / "first.toml", folder / "run"
    file.write_text(re.search(r"```toml\n(.*?)```", README.read_text(), re.DOTALL)[1])
    of_run = ["-m", "hpcfl", "run", file, "--fresh", "--out"]
    commands = {
        "one process": [sys.executable, *of_run, run],
        "server and two workers": [*THREE_RANKS, *of_run, folder / "ranks"],
        "imports of three": [*THREE_RANKS, "-c", "import torch, h5py, mpi4py.MPI"],
        "show": [sys.executable, "-m", "hpcfl", "show", run],
        "table": [sys.executable, "-m", "hpcfl", "table", run],
    }

    def time_command(words: list[object]) -> list[float]:
        begun = time.perf_counter()
        bench.run(*words)
        return [time.perf_counter() - begun]

    for words in commands.values():
        time_command(words)
    return bench.compete(
        {name: partial(time_command, words) for name, words in commands.items()}
    )


def against_pfllib(bench: Bench, name: str) -> dict[str, float]:
    """Measure wall and CPU seconds of each method on a server and workers, and in
    PFLlib.

    Methods that have not started after ``--minutes`` and methods that fail are left
    out.
    """
    if bench.pfllib is None or bench.peers is None:
        raise RuntimeError("tell where PFLlib is: --pfllib FOLDER --peers PYTHON")
    begun, found = time.monotonic(), {}
    given = workloads.load(bench.folder(name))
    folder = bench.scratch / "PFLlib"
    pfllib.copy(bench.pfllib, bench.folder(name), folder)
    for key, method in pfllib.METHODS.items():
        if time.monotonic() - begun > 60 * bench.minutes:
            break
        settings = [f"method.name={key}", *method.hpcfl]
        ranks, rounds = bench.cores + 1, method.warm_up + bench.counted
        contenders = {
            key: partial(bench.start, name, rounds, *settings, ranks=ranks),
            f"{key}, PFLlib": partial(pfllib.start, bench.peers, folder, given, method),
        }
        try:
            seconds = turns.race(contenders, method.warm_up, bench.counted)
        except Exception:  # the other methods are useful in any case
            traceback.print_exc()
            continue
        print(key, json.dumps(seconds), flush=True)
        found |= seconds
    if not found:
        raise RuntimeError("no method was measured")
    return found


def against_fl_bench(bench: Bench, name: str) -> dict[str, float]:
    if bench.fl_bench is None or bench.peers is None:
        raise RuntimeError("tell where FL-bench is: --fl-bench FOLDER --peers PYTHON")
    folder, given = bench.scratch / "FL-bench", workloads.load(bench.folder(name))
    fl_bench.copy(bench.fl_bench, bench.folder(name), folder)
    start = partial(fl_bench.start, bench.peers, folder, given)
    return bench.race_one_process(name, "FL-bench", start)


def against_fluke(bench: Bench, name: str) -> dict[str, float]:
    if bench.peers is None:
        raise RuntimeError("tell which Python has the package fluke-fl, --peers PYTHON")
    words = [bench.peers, HERE / "fluke_rounds.py", bench.folder(name)]
    # that environment has no hpcfl
    environment = make_environment([HERE, HERE.parents[1]]) | turns.ONE_THREAD
    start = partial(turns.Program, words, ROUND, environment=environment)
    return bench.race_one_process(name, "fluke", start)


def against_pfl_research(bench: Bench, name: str) -> dict[str, float]:
    """Measure one process of each with one thread, and a server with two workers
    compared with two processes.
    """
    if bench.pfl is None:
        raise RuntimeError("tell which Python has the package pfl, --pfl PYTHON")
    cohort, rounds = 50, 3
    fraction = f"participation.fraction={cohort / 1000}"

    def hpcfl(ranks: int) -> list[float]:
        return bench.play(name, rounds, fraction, "runtime.threads=1", ranks=ranks)

    def peer(*launcher: object) -> list[float]:
        words = [HERE / "pfl_research.py", bench.folder(name)]
        words += ["--rounds", rounds, "--cohort", cohort]
        # that environment has no hpcfl
        sources = (HERE, HERE.parents[1])
        output = bench.run(bench.pfl, *launcher, *words, sources=sources)
        return json.loads(output.splitlines()[-1])

    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", 2]
    return bench.compete(
        {
            "one process": lambda: hpcfl(1),
            "one process, pfl-research": lambda: peer(),
            "two workers": lambda: hpcfl(3),
            "two processes, pfl-research": lambda: peer(*torchrun),
        }
    )


def exchange(bench: Bench, name: str, *options: str) -> dict[str, float]:
    """Measure the exchange of 100 MB per rank, by default."""
    script = HERE / "exchange_speed.py"
    found = json.loads(bench.run(*THREE_RANKS, script, *options))
    return {
        "hpcfl": statistics.median(found["ours"]),
        "bare": statistics.median(found["bare"]),
    }


def rows(bench: Bench, name: str) -> dict[str, float]:
    """Measure 20 rows of ResNet-18, 894 MB, down and up again; bare MPI reuses its
    buffers.
    """
    return exchange(bench, name, "--resnet18")


def means(bench: Bench, name: str) -> dict[str, float]:
    """Measure means over clients; three ranks share the machine's cores, two by default."""
    found = json.loads(bench.run(*THREE_RANKS, HERE / "means_speed.py"))
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
    """Measure the microseconds of a worker for a client's step, with all clients."""
    return {
        f"{clients} clients": 1e6
        * bench.hpcfl(f"{name}-{clients}", 8, *UNSCORED)["seconds_per_round"]
        * bench.cores
        / (clients * workloads.STEPS_OF_A_CLIENT)
        for clients in (20, 100, 1000)
    }


def measure_few_clients(bench: Bench, name: str) -> dict[str, float]:
    """Measure 100 stateful clients per round, all clients or 1 % of 10,000, with 20 MB
    of state in memory: seconds, and a worker's MB.

    Ditto's clients store a whole model, and their first round has as much work as any
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
    "ranks": (ranks, ""),
    "commands": (whole_commands, ""),
    # A method that sends each client a different model.
    "personal": (
        partial(against_fedavg, methods={"fedavg": (), "fedamp": ()}, rounds=3),
        "ResNet-small",
    ),
    "methods": (partial(against_fedavg, methods=METHODS), "W1"),
    "steps": (partial(against_fedavg, methods=STEPS), "W1"),
    "activation": (
        partial(against_fedavg, methods={"fedavg": (), "fedala": ()}, rounds=1),
        "W1",
    ),
    "PFLlib": (against_pfllib, "W1-tenth"),
    "FL-bench": (against_fl_bench, "W1-tenth"),
    "fluke": (against_fluke, "W1-tenth"),
    "pfl-research": (against_pfl_research, "dropout"),
    "exchange": (exchange, ""),
    "rows": (rows, ""),
    "means": (means, ""),
    "server": (server_step, "CIFAR-100"),
    "scaling": (scaling, "scaling"),
    "few": (measure_few_clients, "few"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=ROWS,
        metavar="ROW",
        help=", ".join(ROWS),
    )
    parser.add_argument("--quick", action="store_true", help="each contender once")
    parser.add_argument(
        "--pfllib", type=Path, metavar="FOLDER", help="a checkout of PFLlib"
    )
    parser.add_argument(
        "--fl-bench", type=Path, metavar="FOLDER", help="a checkout of FL-bench"
    )
    parser.add_argument(
        "--peers",
        type=Path,
        metavar="PYTHON",
        help="an interpreter for these and fluke",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=60,
        help="after which no method of PFLlib begins",
    )
    parser.add_argument(
        "--counted", type=int, default=2, help="rounds in turn with another simulator"
    )
    parser.add_argument(
        "--pfl", type=Path, metavar="PYTHON", help="an interpreter with pfl-research"
    )
    options = parser.parse_args()
    # so that stopped programs of a race are killed and do not remain
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit("rounds.py: ended"))
    path = RESULTS / "cpu.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(path.read_text()) if path.exists() else {}
    failed = []
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch), options)
        given = {
            "PFLlib": options.pfllib,
            "FL-bench": options.fl_bench,
            "fluke": options.peers,
            "pfl-research": options.pfl,
        }
        for row in options.only or [row for row in ROWS if given.get(row, True)]:
            measure, name = ROWS[row]
            begun = time.monotonic()
            try:
                values = measure(bench, name)
            except Exception:  # the other rows are useful in any case
                traceback.print_exc()
                failed.append(row)
                continue
            results[row] = {
                "values": values,
                "minutes": round((time.monotonic() - begun) / 60, 1),
                "load": os.getloadavg()[1],
                "quick": options.quick,
                "when": time.strftime("%Y-%m-%d"),
                "machine": f"{provenance.read_processor()}, {os.cpu_count()} cores",
                "versions": provenance.collect_versions(),
                "commit": provenance.find_commit(),
            }
            path.write_text(json.dumps(results, indent=1) + "\n")
            table.update(RESULTS)
            print(row, results[row]["minutes"], "min", json.dumps(values), flush=True)
    if failed:
        sys.exit(f"rounds.py: no numbers of {', '.join(failed)}")


if __name__ == "__main__":
    main()
