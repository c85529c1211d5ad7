"""The table of ``results/benchmarks/README.md`` and the lines on speed in the project's
README, from the measured values.
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
    """A line of the table: ``ratio`` of a row's values and the bound that it should
    keep.
    """

    row: str
    what: str
    ratio: Callable[[Values], float]
    bound: float
    least: bool = False
    page: str = ""  # the page with the medians, if they are too many

    @property
    def asked(self) -> str:
        """Return the bound as text."""
        return f"{'≥' if self.least else '≤'} {self.bound:.3g}"

    def value(self, results: dict[str, dict]) -> float | None:
        """Return the ratio, None for a row or a contender that was not measured."""
        try:
            return self.ratio(results[self.row]["values"])
        except KeyError:
            return None

    def is_missed(self, value: float) -> bool:
        """Whether a ratio breaks the bound."""
        return value < self.bound if self.least else value > self.bound

    def short(self, results: dict[str, dict]) -> str:
        """Return the row's name, its target and its ratio."""
        start = f"| {self.what} | {self.asked} |"
        value = self.value(results)
        if value is None:
            return f"{start} not measured |"
        missed = " missed" if self.is_missed(value) else ""
        return f"{start} **{value:.3g}**{missed} |"

    def reasoned(self, results: dict[str, dict]) -> str:
        """Return the same with the reason of a row that breaks its bound."""
        value = self.value(results)
        is_missed = value is not None and self.is_missed(value)
        return f"{self.short(results)} {REASONS.get(self.what, 'not examined') if is_missed else '–'} |"

    def line(self, results: dict[str, dict]) -> str:
        """Return the same with the medians and the load of the machine."""
        if self.row not in results:
            return f"{self.short(results)} | |"
        found = results[self.row]
        seconds = ", ".join(
            f"{name} {number:.3g}" for name, number in found["values"].items()
        )
        if self.page:
            seconds = f"[{self.page}]({self.page})"
        return (
            f"{self.short(results)} {seconds} | load "
            f"{found['load']:.1f}{', quick' if found['quick'] else ''} |"
        )


# Why a row breaks its bound; the details are in details.md.
REASONS = {
    "W1, training only, against by hand": "0.004 above; days differ by more",
    "W1, start and trained models scored, against the reference": (
        "scoring 17,500 samples by two models takes 0.8 s"
    ),
    "784-64-10, 100 clients of 60 samples, one process, CPU seconds, against by hand": (
        "gradients are stored before the update, which keeps the bits"
    ),
    "64-32-10, 100 clients of 6 samples, one process, CPU seconds, against by hand": (
        "exact means, draws by key and checks take fixed time a round"
    ),
    "fedala's first activation, to convergence, on W1, against FedAvg": (
        "epochs until the loss settles; 2.85 to 3.69 on other days"
    ),
    "cwfedavg on W1, against FedAvg": "the regulariser's gradient; 1.05 on another day",
    "fednh on W1, against FedAvg": "a forward pass over all samples for class means",
    "fedala on W1, against FedAvg": "one more epoch over 80 % of the samples",
    "ditto, one personal epoch on W1, against FedAvg": (
        "five passes over the weights for each personal step"
    ),
    "per-fedavg on W1, against FedAvg": "two gradients for each mini-batch",
    "pfedme, K = 5 on W1, against FedAvg": "five inner steps, five passes each",
    "apple on W1, against FedAvg": "it reads all core models twice a mini-batch",
    "784-64-10, 100 clients of 60 samples, two workers, against one process": (
        "a round of 0.1 s has three meetings of the ranks"
    ),
    "hpcfl table of it, seconds": "the imports of pandas and numpy take 0.3 of it",
    "a tenth of W1, CPU seconds, median method, two workers, against one process of PFLlib": (
        "0.007 above; gradients of the CNN, by the same operators in both"
    ),
    "64-32-10, 100 clients of 6 samples, two workers, against one process": (
        "a note before round 1 says that one process is faster"
    ),
    "two convolutions, two dropouts, one process against one, against pfl-research": (
        "convolutions and products, the same in both"
    ),
    "two convolutions, two dropouts, two workers against two processes, against "
    "pfl-research": "a cohort is not spread evenly over two workers",
    "server step of diversifed, against copying all models": (
        "two float64 products, arithmetic and not memory"
    ),
    "1 % of 10,000 stateful clients, against 100 of 100: time": (
        "a round's states are read from files"
    ),
}


def against(contender: str, yardstick: str) -> Callable[[Values], float]:
    return lambda values: values[contender] / values[yardstick]


def ratio(values: Values) -> float:
    return values["ratio"]


def seconds(command: str) -> Callable[[Values], float]:
    return lambda values: values[command]


def find_ratios(values: Values, kind: str) -> dict[str, float]:
    """Return the ratio to PFLlib of each method that was measured.

    kind: "" for wall seconds, " CPU" for CPU seconds.
    """
    found = {}
    for name, theirs in values.items():
        method, matched, rest = name.partition(", PFLlib")
        if matched and rest == kind:
            found[method] = values[f"{method}{kind}"] / theirs
    return found


def of_methods(
    choose: Callable[[list[float]], float], kind: str
) -> Callable[[Values], float]:
    """Return the function that chooses one of the ratios to PFLlib."""
    return lambda values: choose(list(find_ratios(values, kind).values()))


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
    Target("W3", "the same in one process", against("one process", "reference"), 0.15),
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
        "first 200 rounds of W3 in one process, CPU seconds, against later ones",
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
            ("the same with a server and two workers", "server and two workers", 4.0),
            ("hpcfl show of it", "show", 0.5),
            ("hpcfl table of it", "table", 0.5),
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
            of_methods(choose, kind),
            bound,
            page="pfllib.md",
        )
        for what, choose, kind, bound in (
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
                "one process against one",
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
        "exchange of 100 MB a rank, bare MPI's time against ours",
        against("bare", "hpcfl"),
        0.70,
        least=True,
    ),
    Target(
        "rows",
        "exchange of 20 rows of ResNet-18, 894 MB, against bare MPI with buffers that "
        "are reused",
        against("hpcfl", "bare"),
        3.0,
    ),
    Target(
        "means",
        "mean of 100 × 878,538 added up by three ranks, against gathering and averaging them",
        against("added", "gathered"),
        0.65,
    ),
    *(
        Target(
            "server",
            f"server step of {method}, 100 × 878,538, share of a round",
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
        "MB beside files, share of it",
        lambda values: values["MB of it"] / 100,
        1.0,
    ),
    Target(
        "scaling",
        "a client's step among 1,000 clients, against 20",
        against("1000 clients", "20 clients"),
        1.10,
    ),
    Target(
        "few",
        "1 % of 10,000 stateful clients, against 100 of 100: time",
        against("10000 clients", "100 clients"),
        1.10,
    ),
    Target(
        "few",
        "the same: a worker's memory",
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
        "one GPU, every method's final state against the CPU's",
        lambda values: values["difference"],
        1e-3,
    ),
    Target(
        "GPU memory",
        "one GPU, most memory, share of what check computes",
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
        f"Measured on: {'; '.join(machines)}.",
        f"Commits, + with changes that were not committed: {'; '.join(commits)}.",
        "",
        "| row | target | ratio | medians, seconds a round | noise |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(target.line(results) for target in TARGETS), "", ""])


def _source(found: dict[str, Any]) -> str:
    """The short commit of the package that was measured, or the version of an installed
    package, which has no commit.
    """
    commit = found["commit"]
    if commit is None:
        return f"hpcfl {found['versions']['hpcfl']} as installed"
    changed = "+" if commit.endswith("+") else ""
    return f"{commit[:7]}{changed}"


def render_short(results: dict[str, dict]) -> str:
    """Return the lines for the project's README, wins, ties and misses alike."""
    w1 = results["W1"]["values"]
    pfl = results["pfl-research"]["values"]
    alone = pfl["one process"] / pfl["one process, pfl-research"]
    two = pfl["two workers"] / pfl["two processes, pfl-research"]
    dense, tiny = results["dense"]["values"], results["tiny"]["values"]
    gpu = [target for target in TARGETS if target.what.startswith("one GPU")]
    unmeasured = [target for target in gpu if target.row not in results]
    lines = [
        "* A loop that an expert writes by hand for one experiment (MNIST, 20 clients, a "
        f"CNN), FedAvg's training alone: {w1['hpcfl'] / w1['by hand']:.3f} of its time. "
        "The loop has two processes of one thread, hpcfl a server and two workers of one "
        "thread.",
        *compare_with_pfllib(results),
        *compare_one_process(results),
        "* pfl-research, two convolutions with dropout: "
        f"{alone:.3f} of its time with one process against one, {two:.2f} with two "
        "workers against two processes. hpcfl is not faster there.",
        "* Small dense models, 100 clients side by side by hand, one process of one "
        f"thread each, CPU seconds: {dense['hpcfl'] / dense['by hand']:.2g} times as long "
        "for 784-64-10 with 60 samples a client, "
        f"{tiny['hpcfl'] / tiny['by hand']:.2g} times for 64-32-10 with 6 samples. "
        "hpcfl loses both.",
        *missed(results),
        f"* {len(unmeasured)} of {len(gpu)} measures on a GPU have not been taken yet.",
    ]
    return "\n".join(["", *lines, "", ""])


def compare_with_pfllib(results: dict[str, dict]) -> list[str]:
    """Return a line on the methods that both have, none if they were not measured."""
    if "PFLlib" not in results:
        return []
    values = results["PFLlib"]["values"]
    wall = sorted(find_ratios(values, "").values())
    processor = sorted(find_ratios(values, " CPU").values())
    return [
        f"* PFLlib, {len(wall)} methods on a tenth of that experiment: {wall[0]:.2f} to "
        f"{wall[-1]:.2f} of its time, median {statistics.median(wall):.2f}. PFLlib has one "
        "process of one thread, hpcfl a server and two workers of one thread on two "
        f"cores. In CPU seconds it is {processor[0]:.2f} to {processor[-1]:.2f}, median "
        f"{statistics.median(processor):.2f}."
    ]


def compare_one_process(results: dict[str, dict]) -> list[str]:
    """Return a line on each simulator that was measured in one process."""
    lines = []
    for peer in ("FL-bench", "fluke"):
        if peer not in results:
            continue
        values = results[peer]["values"]
        wall = values["hpcfl"] / values[peer]
        processor = values["hpcfl CPU"] / values[f"{peer} CPU"]
        lines.append(
            f"* {peer}, FedAvg on a tenth of that experiment, one process of one thread "
            f"each: {wall:.2f} of its time, {processor:.2f} of its CPU seconds."
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


def missed(results: dict[str, dict]) -> list[str]:
    """Return a line with the number of rows that break their bound, none where no row
    does.
    """
    values = [(target, target.value(results)) for target in TARGETS]
    known = [(target, value) for target, value in values if value is not None]
    count = sum(target.is_missed(value) for target, value in known)
    if not count:
        return []
    return [
        f"* {count} of {len(known)} measured rows miss their target; the table of all "
        "rows names them with a reason."
    ]


def measured(folder: Path) -> dict[str, dict]:
    """All rows of ``cpu.json``, and of ``gpu.json`` if it is there."""
    results = json.loads((folder / "cpu.json").read_text())
    gpu = folder / "gpu.json"
    return results | (read_gpu(gpu) if gpu.exists() else {})


def read_gpu(path: Path) -> dict[str, dict]:
    """The rows of a file of gpu.sh that are ok, as "GPU" and their names, each with the
    largest number of every column.
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


def update(folder: Path) -> None:
    """Replace what the folder's README.md and the project's say by the folder's
    measurements.
    """
    results = measured(folder)
    for readme, text in (
        (folder / "README.md", render(results)),
        (folder / "details.md", render_details(results)),
        (folder / "pfllib.md", render_methods(results)),
        (folder.parents[1] / "README.md", render_short(results)),
    ):
        pages.replace(readme, "rounds.py", text)


if __name__ == "__main__":
    update(pages.RESULTS)
