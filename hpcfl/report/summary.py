"""What came out of a run, read from its folder: while it runs, after an interruption, and from
what damage left."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.errors import UserError
from hpcfl.experiment import measures, plugins
from hpcfl.scores._described import Described, Measure, resolve
from hpcfl.storage import life, run_folder
from hpcfl.storage import results as recorded
from hpcfl.storage.life import Life
from hpcfl.storage.manifest import newest_first
from hpcfl.storage.results import Results


@dataclass(frozen=True)
class Summary:
    """A run in a few numbers; None where nothing is known yet. Accuracies are in [0, 1].

    rounds: how many were played. best: the round that is best by ``evaluation.metric`` in the column that
    counts, ``evaluation.score`` or the method's own, last: the last round that has it: {"round", "pre",
    "post"}, the metric before and after local training. The start models that the last aggregation makes
    count as round R + 1, which most methods score only before training. scores: every number of the column
    that counts in the best round.
    digest: of the state in the newest checkpoint. seconds_per_round: mean wall time without the first round.
    floats_up, floats_down: per participating client and round. state: see ``storage/life.py``. notes:
    what is damaged or lost.
    """

    method: str
    dataset: str
    rounds: int
    finished: bool
    best: dict[str, Any] | None
    last: dict[str, Any] | None
    digest: str | None
    seconds_per_round: float | None
    floats_up: float | None
    floats_down: float | None
    state: str
    notes: list[str]
    scores: dict[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """A run on the disk: its summary, its configuration in the shape of the experiment file, and
    everything recorded.

    score, metric: the column that counts, ``pre``, ``post`` or ``global``, and the name of the number
    in it that does.
    """

    folder: Path
    summary: Summary
    config: Mapping[str, Any]
    results: Results
    score: str
    metric: str
    life: Life
    notes: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        """Three lines: what was run, how far it is, what came out."""
        best = self.summary.best
        came_out = (f"best {self.score}/{self.metric} {best[self.score]:.4f} in round {best['round']}" if best
                    else "no round yet")
        return (f"{self.folder}: {self.summary.method} on {self.summary.dataset}\n"
                f"{self.summary.state}, {self.summary.rounds} of {self.config['rounds']} rounds\n{came_out}")

    @property
    def label(self) -> str:
        """The folder's name, which for a cell of a sweep is what sets it apart."""
        return self.folder.name

    @property
    def scores(self) -> dict[str, Described]:
        """What was measured; in results from before that was recorded, what could be."""
        return _scores(self.results)

    @property
    def measure(self) -> Measure:
        """What the number that counts is."""
        return _measure(self.metric, self.results)

    def accuracy(self, score: str) -> np.ndarray:
        """Accuracy, or what else ``metric`` is, [T] of ``pre``, ``post`` or ``global``, NaN in
        rounds without it.

        Raises UserError for another column.
        """
        recorded = sorted(name.removesuffix(f"/{self.metric}") for name in self.results.values
                          if name.endswith(f"/{self.metric}") and not name.startswith("clients/"))
        if recorded and score not in (*recorded, "pre", "post"):
            raise UserError(f"{self.folder}: '{score}' was not scored{plugins.nearest(score, recorded)}")
        return _column(self.results, f"{score}/{self.metric}")


def load(folder: Path) -> Run:
    """The run in a folder. Raises UserError where there is none."""
    notes: list[str] = []
    description = _description(folder, notes)
    try:
        results = recorded.read(folder)
        notes += results.notes
    except UserError as error:
        notes.append(str(error))
        results = Results()
    config = description or results.header.get("config")
    if config is None:
        raise UserError("; ".join([f"{folder}: no run of hpcfl can be read here", *notes]))
    came = life.look(folder, config["rounds"], results)
    notes += _lost(folder, came, results)
    evaluation = config["evaluation"]
    score = results.header.get("primary", "pre") if evaluation["score"] == "method" else evaluation["score"]
    measure = _measure(evaluation["metric"], results)
    summary = _summarise(config, results, score, measure, came, notes)
    return Run(folder, summary, config, results, score, measure.recorded, came, notes)


def load_all(folder: Path) -> list[Run]:
    """The run in a folder, or the runs of a sweep's folder, by name. Raises UserError where
    there are none."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    cells = [] if run_folder.is_run(folder) else [cell for cell in sorted(folder.iterdir())
                                                  if run_folder.is_run(cell)]
    current = [cell for cell in cells if not run_folder.is_aside(cell)]
    return [load(cell) for cell in current or [folder]]


def as_json(folder: Path) -> dict[str, Any]:
    """What ``hpcfl show --json`` prints: the summary of a run, or the summaries of a sweep's runs by name."""
    runs = load_all(folder)
    return ({run.label: asdict(run.summary) for run in runs} if is_sweep(folder, runs)
            else asdict(runs[0].summary))


def is_sweep(folder: Path, runs: list[Run]) -> bool:
    """Whether ``runs``, which ``load_all`` gave, are cells of the folder and not the folder itself."""
    return runs[0].folder != folder


def _description(folder: Path, notes: list[str]) -> Mapping[str, Any] | None:
    """The configuration in ``run.json``, None where it is missing or damaged."""
    try:
        there = run_folder.read(folder)
        return there and there["config"]
    except (UserError, KeyError, TypeError) as error:
        notes.append(str(error) if isinstance(error, UserError)
                     else f"{folder / run_folder.RUN}: not a description of a run")
        return None


def _lost(folder: Path, came: Life, results: Results) -> list[str]:
    """A line for what damage took for good: rounds that were played but have no metrics, the state
    of a finished run."""
    played = results.rounds[results.played]
    missing = sorted(set(range(1, max(came.done, played.max(initial=0)) + 1)) - set(played.tolist()))
    lines = ([f"{folder}: the metrics of {_ranges(missing)} are lost, their files were damaged"]
             if missing else [])
    if came.finished and came.done != came.asked and newest_first(folder / run_folder.CHECKPOINTS):
        lines.append(f"{folder}: its checkpoints are damaged, the final state is lost; "
                     "--fresh makes it again")
    return lines


def _ranges(rounds: list[int]) -> str:
    """``rounds 3–5, 9``."""
    starts = [number for number in rounds if number - 1 not in rounds]
    ends = [number for number in rounds if number + 1 not in rounds]
    texts = [str(start) if start == end else f"{start}–{end}"
             for start, end in zip(starts, ends, strict=True)]
    return f"round{'s' if len(rounds) > 1 else ''} {', '.join(texts)}"


def _scores(results: Results) -> dict[str, Described]:
    return results.header.get("scores") or measures.describe(measures.built_in())


def _measure(metric: str, results: Results) -> Measure:
    """What ``evaluation.metric``, or a recorded number's name, means; by itself where no score has it."""
    return resolve(metric, _scores(results)) or Measure(metric, "", metric, "", "up")


def _summarise(config: Mapping[str, Any], results: Results, score: str, measure: Measure, came: Life,
               notes: list[str]) -> Summary:
    played, metric = results.played, measure.recorded
    numbers = _column(results, f"{score}/{metric}")
    scored = np.flatnonzero(np.isfinite(numbers))
    best = max(scored.tolist(), key=lambda position: measure.rank(float(numbers[position])), default=None)
    return Summary(
        method=config["method"]["name"],
        dataset=config["data"]["dataset"],
        rounds=int(results.rounds[played].max(initial=0)),
        finished=came.finished,
        best=None if best is None else _row(results, best, score, metric),
        last=_row(results, int(scored[-1]), score, metric) if len(scored) else None,
        digest=came.digest if not came.finished or came.done == came.asked else None,
        seconds_per_round=_mean(_column(results, "seconds/round")[played][1:]),
        floats_up=_mean(_column(results, "clients/floats_up")[played]),
        floats_down=_mean(_column(results, "floats_down")[played]),
        state=came.state,
        notes=notes,
        scores={} if best is None else _all_of(results, best, score))


def _row(results: Results, position: int, score: str, metric: str) -> dict[str, Any]:
    accuracies = {name: float(_column(results, f"{name}/{metric}")[position])
                  for name in dict.fromkeys(("pre", "post", score))}
    return {"round": int(results.rounds[position]),
            **{name: value if np.isfinite(value) else None for name, value in accuracies.items()}}


def _all_of(results: Results, position: int, column: str) -> dict[str, float | None]:
    """Every number of a column in a round, by name."""
    found = {name.removeprefix(f"{column}/"): float(values[position])
             for name, values in sorted(results.values.items())
             if name.startswith(f"{column}/") and values.ndim == 1}
    return {name: value if np.isfinite(value) else None for name, value in found.items()}


def _column(results: Results, name: str) -> np.ndarray:
    return results.values.get(name, np.full(len(results.rounds), np.nan))


def _mean(values: np.ndarray) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else None
