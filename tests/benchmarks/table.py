"""Write the speed tables of ``results/benchmarks`` and the lines on speed in the
project's README from the measured values.

``python tests/benchmarks/table.py`` writes all of them.
"""

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pages

Values = dict[str, float]


@dataclass(frozen=True)
class Target:
    """One line of the table: a ratio of measured values and its bound.

    Attributes:
        row: name of the measurement in ``cpu.json`` or ``gpu.json``.
        what: label of the line.
        ratio: function that computes the ratio from the measured values.
        bound: largest ratio that meets the target.
        least: Whether the bound is the smallest ratio that meets the target.
        page: page with the medians, or an empty string if the line shows them.
    """

    row: str
    what: str
    ratio: Callable[[Values], float]
    bound: float
    least: bool = False
    page: str = ""

    @property
    def bound_text(self) -> str:
        """Return the bound as text."""
        return f"{'≥' if self.least else '≤'} {self.bound:.3g}"

    def value(self, results: dict[str, dict]) -> float | None:
        """Return the ratio, or None if the row or a contender was not measured."""
        try:
            return self.ratio(results[self.row]["values"])
        except KeyError:
            return None

    def is_missed(self, value: float) -> bool:
        """Return whether a ratio misses the target."""
        return value < self.bound if self.least else value > self.bound

    def short(self, results: dict[str, dict]) -> str:
        """Return the cells with the label, the target and the ratio."""
        start = f"| {self.what} | {self.bound_text} |"
        value = self.value(results)
        if value is None:
            return f"{start} not measured |"
        missed = " missed" if self.is_missed(value) else ""
        return f"{start} **{value:.3g}**{missed} |"

    def reasoned(self, results: dict[str, dict]) -> str:
        """Return the line of README.md, with the reason of a missed target."""
        value = self.value(results)
        is_missed = value is not None and self.is_missed(value)
        return f"{self.short(results)} {REASONS.get(self.what, 'not examined') if is_missed else '–'} |"

    def line(self, results: dict[str, dict]) -> str:
        """Return the line of details.md, with medians and the load of the machine."""
        if self.row not in results:
            return f"{self.short(results)} | |"
        found = results[self.row]
        seconds = ", ".join(
            f"{name} {number:.3g}" for name, number in found["values"].items()
        )
        if self.page:
            seconds = f"[{self.page}]({self.page})"
        load = f"load {found['load']:.1f}" if found["load"] else "load not kept"
        quick = ", quick" if found["quick"] else ""
        return f"{self.short(results)} {seconds} | {load}{quick} |"


# Reasons of missed targets by label; details.md explains them at length.
REASONS = {
    "W1, training only, against by hand": "0.004 above; ratios of two days differ by more",
    "W1, start and trained models scored, against the reference": (
        "scoring 17,500 samples with two models takes 0.8 s"
    ),
    "784-64-10, 100 clients of 60 samples, one process, CPU seconds, against by hand": (
        "gradients are stored before the update to keep the same bits"
    ),
    "64-32-10, 100 clients of 6 samples, one process, CPU seconds, against by hand": (
        "exact means, keyed draws and checks take a fixed time per round"
    ),
    "fedala's first activation, to convergence, on W1, against FedAvg": (
        "epochs until the loss converges; 2.85 to 3.69 on other days"
    ),
    "cwfedavg on W1, against FedAvg": "gradient of the regulariser; 1.05 on another day",
    "fednh on W1, against FedAvg": "a forward pass over all samples for class means",
    "fedala on W1, against FedAvg": "one more epoch over 80 % of the samples",
    "ditto, one personal epoch on W1, against FedAvg": (
        "five passes over the weights per personal step"
    ),
    "per-fedavg on W1, against FedAvg": "two gradients per mini-batch",
    "pfedme, K = 5 on W1, against FedAvg": "five inner steps per mini-batch, five weight passes each",
    "apple on W1, against FedAvg": "all core models are read twice per mini-batch",
    "784-64-10, 100 clients of 60 samples, two workers, against one process": (
        "0.006 above; three collective exchanges in a round of 0.07 s"
    ),
    "`hpcfl table` of the first experiment, seconds": "imports of pandas and numpy take 0.3 s",
    "a tenth of W1, CPU seconds, median method, two workers, against one process of PFLlib": (
        "0.01 above; the CNN's gradients, which both compute by the same operators"
    ),
    "a tenth of W1, CPU seconds, slowest method, two workers, against one process of PFLlib": (
        "FedProto; 0.95 with five measured rounds instead of two"
    ),
    "784-64-10, 20 clients of 260 samples, two workers, against one process": (
        "0.013 above; three collective exchanges in a round of 0.04 s"
    ),
    "64-32-10, 100 clients of 6 samples, two workers, against one process": (
        "a note before round 1 says that one process is faster"
    ),
    "two convolutions, two dropouts, one process against one process, against pfl-research": (
        "convolutions and products, which are the same in both"
    ),
    "two convolutions, two dropouts, two workers against two processes, against "
    "pfl-research": "a cohort is not spread evenly over two workers",
    "server step of diversifed, against copying all models": (
        "two float64 products; limited by arithmetic, not by memory"
    ),
    "1 % of 10,000 stateful clients, against 100 of 100 clients: time": (
        "the states of the cohort are read from files"
    ),
}


def against(contender: str, yardstick: str) -> Callable[[Values], float]:
    """Return the function that divides one measured value by another."""
    return lambda values: values[contender] / values[yardstick]


def ratio(values: Values) -> float:
    """Return a ratio that was measured as such."""
    return values["ratio"]


def seconds(command: str) -> Callable[[Values], float]:
    """Return the function that selects the seconds of a command."""
    return lambda values: values[command]


def find_ratios(values: Values, kind: str) -> dict[str, float]:
    """Return the ratio to PFLlib of each measured method.

    Args:
        values: measured seconds by method and simulator.
        kind: "" for wall seconds, " CPU" for CPU seconds.
    """
    found = {}
    for name, theirs in values.items():
        method, matched, rest = name.partition(", PFLlib")
        if matched and rest == kind:
            found[method] = values[f"{method}{kind}"] / theirs
    return found


def reduce_methods(
    statistic: Callable[[list[float]], float], kind: str
) -> Callable[[Values], float]:
    """Return the function that computes a statistic of all ratios to PFLlib."""
    return lambda values: statistic(list(find_ratios(values, kind).values()))


METHODS = {
    "fedprox": 1.10,
    "cwfedavg": 1.05,
    "fednh": 1.15,
    "diversifed": 1.10,
    "fedala": 1.10,
    "fedrep": 1.60,
}
STEPS = {
    "ditto": ("ditto, one personal epoch", 2.15),
    "per-fedavg": ("per-fedavg", 2.20),
    "pfedme": ("pfedme, K = 5", 5.50),
    "apple": ("apple", 2.50),
}
TARGETS = [
    Target(
        "W1", "W1, training only, against by hand", against("hpcfl", "by hand"), 1.05
    ),
    Target(
        "W1-scored",
        "W1, start and trained models scored, against the reference",
        against("hpcfl", "reference"),
        0.50,
    ),
    Target("W2", "W2, scored, against by hand", against("hpcfl", "by hand"), 1.35),
    Target(
        "W2", "W2, scored, against the reference", against("hpcfl", "reference"), 0.40
    ),
    Target(
        "W3", "W3, scored, against the reference", against("hpcfl", "reference"), 0.17
    ),
    Target(
        "W3",
        "W3, scored, one process, against the reference",
        against("one process", "reference"),
        0.15,
    ),
    Target(
        "dense",
        "784-64-10, 100 clients of 60 samples, one process, CPU seconds, against by hand",
        against("hpcfl", "by hand"),
        1.5,
    ),
    Target(
        "tiny",
        "64-32-10, 100 clients of 6 samples, one process, CPU seconds, against by hand",
        against("hpcfl", "by hand"),
        4.0,
    ),
    Target(
        "first-rounds",
        "first 200 rounds of W3 in one process, CPU seconds, against later rounds",
        against("first 200", "later"),
        1.2,
    ),
    *(
        Target(
            "ranks",
            f"{what}, two workers, against one process",
            against(workload, f"{workload}, one process"),
            bound,
        )
        for what, workload, bound in (
            ("784-64-10, 100 clients of 60 samples", "dense", 0.8),
            ("64-32-10, 100 clients of 6 samples", "tiny", 1.2),
            ("784-64-10, 20 clients of 260 samples", "dense-few", 0.8),
        )
    ),
    *(
        Target("commands", f"{what}, seconds", seconds(command), bound)
        for what, command, bound in (
            ("README's first experiment in one process", "one process", 3.0),
            (
                "README's first experiment with a server and two workers",
                "server and two workers",
                4.0,
            ),
            ("`hpcfl show` of the first experiment", "show", 0.5),
            ("`hpcfl table` of the first experiment", "table", 0.5),
        )
    ),
    Target(
        "personal",
        "fedamp on ResNet-18, 20 clients of 10 samples, against FedAvg",
        against("fedamp", "fedavg"),
        2.0,
    ),
    *(
        Target(
            "methods",
            f"{method} on W1, against FedAvg",
            against(method, "fedavg"),
            bound,
        )
        for method, bound in METHODS.items()
    ),
    Target(
        "activation",
        "fedala's first activation, to convergence, on W1, against FedAvg",
        against("fedala", "fedavg"),
        3.0,
    ),
    *(
        Target(
            "steps", f"{what} on W1, against FedAvg", against(method, "fedavg"), bound
        )
        for method, (what, bound) in STEPS.items()
    ),
    *(
        Target(
            "PFLlib",
            f"a tenth of W1, {what}, two workers, against one process of PFLlib",
            reduce_methods(statistic, kind),
            bound,
            page="pfllib.md",
        )
        for what, statistic, kind, bound in (
            ("slowest method", max, "", 0.6),
            ("CPU seconds, median method", statistics.median, " CPU", 0.8),
            ("CPU seconds, slowest method", max, " CPU", 1.0),
        )
    ),
    *(
        Target(
            peer,
            f"a tenth of W1, one process{kind and ', CPU seconds'}, against {peer}",
            against(f"hpcfl{kind}", f"{peer}{kind}"),
            0.9,
        )
        for peer in ("FL-bench", "fluke")
        for kind in ("", " CPU")
    ),
    *(
        Target(
            "pfl-research",
            f"two convolutions, two dropouts, {what}, against pfl-research",
            against(ours, theirs),
            0.90,
        )
        for what, ours, theirs in (
            (
                "one process against one process",
                "one process",
                "one process, pfl-research",
            ),
            (
                "two workers against two processes",
                "two workers",
                "two processes, pfl-research",
            ),
        )
    ),
    Target(
        "exchange",
        "exchange of 100 MB per rank, time of bare MPI against hpcfl",
        against("bare", "hpcfl"),
        0.70,
        least=True,
    ),
    Target(
        "rows",
        "exchange of 20 rows of ResNet-18, 894 MB, against bare MPI with reused buffers",
        against("hpcfl", "bare"),
        3.0,
    ),
    Target(
        "means",
        "mean of 100 × 878,538 numbers as sums of three ranks, against gathering and averaging",
        against("added", "gathered"),
        0.65,
    ),
    *(
        Target(
            "server",
            f"server step of {method}, 100 × 878,538 numbers, share of a round",
            against(method, "round"),
            0.05,
        )
        for method in ("cwfedavg", "diversifed")
    ),
    *(
        Target(
            "server",
            f"server step of {method}, against copying all models",
            against(method, "copy"),
            2.0,
        )
        for method in ("cwfedavg", "diversifed")
    ),
    Target(
        "server",
        "server step of diversifed and a checkpoint, runtime.memory = 100: "
        "MB outside files, share of the 100 MB",
        lambda values: values["MB of it"] / 100,
        1.0,
    ),
    Target(
        "scaling",
        "step of a client among 1,000 clients, against 20 clients",
        against("1000 clients", "20 clients"),
        1.10,
    ),
    Target(
        "few",
        "1 % of 10,000 stateful clients, against 100 of 100 clients: time",
        against("10000 clients", "100 clients"),
        1.10,
    ),
    Target(
        "few",
        "1 % of 10,000 stateful clients, against 100 of 100 clients: memory of a worker",
        against("10000 clients MB", "100 clients MB"),
        1.25,
    ),
    Target("GPU round by hand cnn", "one GPU, cnn, against by hand", ratio, 1 / 25),
    Target(
        "GPU round by hand resnet18",
        "one GPU, ResNet-18, against by hand",
        ratio,
        1 / 3,
    ),
    Target(
        "GPU pfl research",
        "one GPU, two convolutions, two dropouts, against pfl-research",
        ratio,
        0.1,
    ),
    Target(
        "GPU methods",
        "one GPU, final state of every method, difference to the CPU",
        lambda values: values["difference"],
        1e-3,
    ),
    Target(
        "GPU memory",
        "one GPU, peak memory, share of the estimate of `hpcfl check`",
        lambda values: values["peak as a share of check"],
        1.0,
    ),
]


def render(results: dict[str, dict]) -> str:
    """Return the table of targets, ratios and reasons as Markdown."""
    head = [
        "",
        "| Row | Target | Ratio | Reason of a miss |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *(target.reasoned(results) for target in TARGETS), "", ""])


def render_details(results: dict[str, dict]) -> str:
    """Return the table with the medians behind each ratio as Markdown."""
    machines = sorted(
        {
            f"{found['machine']}, torch {found['versions']['torch']}"
            for found in results.values()
        }
    )
    rows_of: dict[str, list[str]] = {}
    for row, found in results.items():
        rows_of.setdefault(_source(found), []).append(row)
    commits = [f"{source} ({', '.join(rows)})" for source, rows in rows_of.items()]
    head = [
        "",
        f"Machine: {'; '.join(machines)}.",
        f"Commits (+: with uncommitted changes): {'; '.join(commits)}.",
        "",
        "| row | target | ratio | medians, seconds per round | load |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(target.line(results) for target in TARGETS), "", ""])


def _source(found: dict[str, Any]) -> str:
    """Return the short commit of the measured package, or its version if it was
    installed from a wheel.
    """
    commit = found["commit"]
    if commit is None:
        return f"hpcfl {found['versions']['hpcfl']} as installed"
    changed = "+" if commit.endswith("+") else ""
    return f"{commit[:7]}{changed}"


def render_short(results: dict[str, dict]) -> str:
    """Return the lines of the project's README: wins, ties and misses."""
    w1 = results["W1"]["values"]
    pfl = results["pfl-research"]["values"]
    alone = pfl["one process"] / pfl["one process, pfl-research"]
    two = pfl["two workers"] / pfl["two processes, pfl-research"]
    dense, tiny = results["dense"]["values"], results["tiny"]["values"]
    gpu = [target for target in TARGETS if target.what.startswith("one GPU")]
    unmeasured = [target for target in gpu if target.row not in results]
    lines = [
        "* Handwritten loop of an expert for one experiment (MNIST, 20 clients, CNN, FedAvg without "
        f"scoring): hpcfl takes {w1['hpcfl'] / w1['by hand']:.3f} of the loop's time. The loop runs two "
        "processes with one thread each. hpcfl runs a server and two workers with one thread each.",
        *compare_with_pfllib(results),
        *compare_one_process(results),
        "* pfl-research, two convolutions with dropout: hpcfl takes "
        f"{alone:.3f} of its time with one process on both sides, and {two:.2f} with two "
        "workers against two processes. hpcfl is not faster here.",
        "* Small dense models, handwritten batched loop over 100 clients, one process with one thread "
        f"each: hpcfl takes {dense['hpcfl'] / dense['by hand']:.2g} times its CPU seconds for 784-64-10 "
        f"with 60 samples per client, and {tiny['hpcfl'] / tiny['by hand']:.2g} times for 64-32-10 with "
        "6 samples. hpcfl is slower in both.",
        *count_misses(results),
        f"* {len(unmeasured)} of {len(gpu)} GPU rows have not been measured yet.",
    ]
    return "\n".join(["", *lines, "", ""])


def compare_with_pfllib(results: dict[str, dict]) -> list[str]:
    """Return a line on the methods of both simulators, or [] before a measurement."""
    if "PFLlib" not in results:
        return []
    values = results["PFLlib"]["values"]
    wall = sorted(find_ratios(values, "").values())
    processor = sorted(find_ratios(values, " CPU").values())
    return [
        f"* PFLlib, {len(wall)} methods on a tenth of that experiment: hpcfl takes {wall[0]:.2f} to "
        f"{wall[-1]:.2f} of its time, median {statistics.median(wall):.2f}. PFLlib runs one process with "
        "one thread. hpcfl runs a server and two workers with one thread each on two cores. The ratio of CPU "
        f"seconds is {processor[0]:.2f} to {processor[-1]:.2f}, median {statistics.median(processor):.2f}."
    ]


def compare_one_process(results: dict[str, dict]) -> list[str]:
    """Return a line for each simulator measured in one process."""
    lines = []
    for peer in ("FL-bench", "fluke"):
        if peer not in results:
            continue
        values = results[peer]["values"]
        wall = values["hpcfl"] / values[peer]
        processor = values["hpcfl CPU"] / values[f"{peer} CPU"]
        lines.append(
            f"* {peer}, FedAvg on a tenth of that experiment, one process with one thread "
            f"each: hpcfl takes {wall:.2f} of its time and {processor:.2f} of its CPU "
            "seconds."
        )
    return lines


def render_methods(results: dict[str, dict]) -> str:
    """Return the table of all methods in hpcfl and PFLlib as Markdown."""
    if "PFLlib" not in results:
        return "\nNot measured yet.\n\n"
    found = results["PFLlib"]
    values = found["values"]
    wall, processor = find_ratios(values, ""), find_ratios(values, " CPU")
    rows = []
    for method in sorted(wall, key=wall.get, reverse=True):
        cells = [method]
        for kind, ratios in (("", wall), (" CPU", processor)):
            cells.append(f"{ratios[method]:.2f}")
            cells.append(f"{values[f'{method}{kind}']:.3g}")
            cells.append(f"{values[f'{method}, PFLlib{kind}']:.3g}")
        rows.append(cells)
    heads = ["method", "ratio", "hpcfl, s", "PFLlib, s"]
    heads += ["CPU ratio", "hpcfl, CPU s", "PFLlib, CPU s"]
    about = (
        f"Measured on {found['when']}: {found['machine']}, torch "
        f"{found['versions']['torch']}, hpcfl {_source(found)}, load {found['load']:.1f}."
    )
    return f"\n{about}\n{pages.table(heads, rows)}"


def count_misses(results: dict[str, dict]) -> list[str]:
    """Return a line with the number of missed targets, or [] if none is missed."""
    values = [(target, target.value(results)) for target in TARGETS]
    known = [(target, value) for target, value in values if value is not None]
    count = sum(target.is_missed(value) for target, value in known)
    if not count:
        return []
    return [
        f"* {count} of {len(known)} measured rows miss their target. The table of all rows "
        "gives the reason for each."
    ]


def read_measurements(folder: Path) -> dict[str, dict]:
    """Return all rows of ``cpu.json``, and of ``gpu.json`` if it exists."""
    results = json.loads((folder / "cpu.json").read_text())
    gpu = folder / "gpu.json"
    return results | (read_gpu(gpu) if gpu.exists() else {})


def read_gpu(path: Path) -> dict[str, dict]:
    """Return the successful rows of a file of ``gpu.sh``.

    A row is named "GPU" and its name in the file, and has the largest value of each
    column.
    """
    whole = json.loads(path.read_text())
    machine = whole["machine"]
    about = {
        "machine": machine["device"],
        "versions": machine,
        "commit": machine["commit"],
        "load": machine["load"],
        "quick": whole["small"],
    }
    results = {}
    for name, row in whole["rows"].items():
        values: Values = {}
        for line in row["lines"]:
            for column, value in line.items():
                if isinstance(value, float):
                    values[column] = max(value, values.get(column, value))
        if row["status"] == "ok":
            results[f"GPU {name}"] = {**about, "values": values}
    return results


def update(folder: Path):
    """Write the tables of a results folder and the lines of the project's README."""
    results = read_measurements(folder)
    for readme, text in (
        (folder / "README.md", render(results)),
        (folder / "details.md", render_details(results)),
        (folder / "pfllib.md", render_methods(results)),
        (folder.parents[1] / "README.md", render_short(results)),
    ):
        pages.replace(readme, "rounds.py", text)


if __name__ == "__main__":
    update(pages.RESULTS)
