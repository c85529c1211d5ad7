"""The results of a run, read from its folder, also of a running or damaged one."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfl.errors import UserError
from hpcfl.experiment import plugins, protocols
from hpcfl.experiment.config import fingerprint
from hpcfl.report.outcome import Summary, summarise
from hpcfl.scores._described import Described, Measure, resolve
from hpcfl.scores._metric_name import MetricName
from hpcfl.storage import packed_runs, run_folder, run_status, tune_folder
from hpcfl.storage import results as recorded
from hpcfl.storage.result_rounds import counts, scores
from hpcfl.storage.results import Results
from hpcfl.storage.run_status import RunStatus

if TYPE_CHECKING:
    import pandas
    from torch import nn

    from hpcfl.trained.models import Models


@dataclass(frozen=True)
class Run:
    """A run on the disk."""

    folder: Path
    summary: Summary
    config: Mapping[str, Any]  # resolved, in the shape of the experiment file
    results: Results  # everything recorded
    score: str  # the column that counts, such as ``pre``, ``post`` or ``global``
    metric: str  # the recorded name of the number in it that counts
    status: RunStatus
    notes: list[str] = field(default_factory=list)  # those of ``summary``
    # the user's own plugins that may be imported to look at models
    own: Collection[str] = ()

    def __repr__(self) -> str:
        """Three lines: what was run, how far it is, what came out."""
        best = self.summary.best
        result = "no round yet"
        if best:
            result = (
                f"best {self.counted} {best[self.score]:.4f} in round {best['round']}, "
                f"chosen on {self.summary.best_by} samples"
            )
        played = f"{self.summary.rounds} of {self.config['rounds']} rounds"
        return (
            f"{self.folder}: {self.summary.method} on {self.summary.dataset}\n"
            f"{self.summary.state}, {played}\n{result}"
        )

    @property
    def label(self) -> str:
        """Return the folder's name, which identifies a cell of a sweep."""
        return self.folder.name

    @property
    def counted(self) -> MetricName:
        """Return the name of the primary metric."""
        return MetricName(self.metric, self.score)

    @property
    def scores(self) -> dict[str, Described]:
        """Return the computed scores by name; the built-in ones for results without them."""
        return scores(self.results)

    @property
    def measure(self) -> Measure:
        """Return the measure of the primary metric: its score, unit and direction."""
        return resolve(self.metric, self.scores) or Measure(
            self.metric, "", self.metric, "", "up"
        )

    def accuracy(self, column: str) -> np.ndarray:
        """Return the primary metric of a column: [T] by round, NaN in rounds without it.

        Args:
            column: ``pre``, ``post`` or another one that the method has scored; else
                raises UserError.
        """
        recorded = sorted(
            name.column
            for name in self.results.names
            if name.number == self.metric and not name.of_clients
        )
        if recorded and column not in (*recorded, "pre", "post"):
            raise UserError(
                f"{self.folder}: '{column}' was not scored{plugins.nearest(column, recorded)}"
            )
        return self.results.series(MetricName(self.metric, column))

    def row(self) -> dict[str, Any]:
        """Return the run as a row of a table: its configuration by dotted key, and results.

        ``column`` and ``metric`` say which number counts; ``best`` and ``last`` are
        that number on test samples, in ``best_round``, which was chosen on ``best_by``
        samples, and ``last_round``; ``tail`` is its mean over the last tenth of the
        rounds; ``best_validation`` is that of the best round on held-out training
        samples, where there are any; ``played`` is how many rounds were.
        """
        summary = self.summary
        best, last, tail = summary.best, summary.last, summary.tail
        return {
            **protocols.flat(self.config),
            "state": summary.state,
            "played": summary.rounds,
            "column": self.score,
            "metric": self.metric,
            "best": best and best[self.score],
            "best_round": best and best["round"],
            "last": last and last[self.score],
            "last_round": last and last["round"],
            "tail": tail and tail[self.score],
            "best_by": summary.best_by,
            "best_validation": summary.best_validation,
            "digest": summary.digest,
            "seconds_per_round": summary.seconds_per_round,
            "floats_up": summary.floats_up,
            "floats_down": summary.floats_down,
        }

    def rounds(self) -> "pandas.DataFrame":
        """Return the recorded numbers of each round: one row a round, by its number."""
        from hpcfl.report import frames

        return frames.rounds(self.results)

    def clients(self) -> "pandas.DataFrame":
        """Return the recorded numbers of clients: one row for each round and client."""
        from hpcfl.report import frames

        return frames.clients(self.results)

    def model(
        self, client: int | str, moment: str | None = None, at: str | int = "last"
    ) -> "nn.Module":
        """Return a model of the run as a module of torch; its forward gives the scored
        logits.

        The round is played again for this client, so it is exact on the machine of the
        run. Raises UserError.

        Args:
            client: a client's number, or the name of a model of the server, such as
                "global" or "class 3".
            moment: the column as which it was scored: ``pre`` or ``post`` local
                training, or another of the method's; by default the one that counts.
            at: "last" or "best", of the rounds in which it was scored, or a round's
                number; ``checkpoint.every`` and ``checkpoint.keep`` say of which there
                are models.
        """
        return self.models.model(client, moment, at).module

    def predict(
        self,
        client: int | str,
        x: Any,
        moment: str | None = None,
        at: str | int = "last",
    ) -> np.ndarray:
        """Return the classes [n] that a model predicts for samples ``x`` [n, …] of the data
        set.

        Other arguments as for ``model``. Raises UserError also for samples of another
        shape.
        """
        from hpcfl.trained.models import predicted

        samples = self.models.taken(x)
        predictions: np.ndarray = predicted(
            self.model(client, moment, at), samples
        ).numpy()
        return predictions

    def confusion(
        self, client: int | str, moment: str | None = None, at: str | int = "last"
    ) -> np.ndarray:
        """Return the confusion matrix on test samples: true class i, predicted class j,
        int64 [classes, classes].

        They are the client's own; for a model of the server all clients'. Arguments as
        for ``model``.
        """
        from hpcfl.trained.models import confusion, predicted

        trained = self.models.model(client, moment, at)
        x, y = self.models.samples(trained.clients)
        return confusion(
            predicted(trained.module, x), y, self.models.replay.prepared.setup.classes
        )

    @cached_property
    def models(self) -> "Models":
        """Return access to all models; the data set stays in memory after the first."""
        from hpcfl.trained.models import Models

        best = self.summary.best["round"] if self.summary.best else None
        return Models(
            self.folder,
            self.config,
            self.results,
            self.score,
            best,
            self.summary.finished,
            self.own,
        )


def load(folder: Path, own: Collection[str] = ()) -> Run:
    """Load the run in a folder, finished or not. Raises UserError if none can be read.

    Args:
        own: the user's own plugins, ``module:object``, that may be imported when its
            models are asked for.
    """
    notes: list[str] = []
    description = _description(folder, notes)
    run = fingerprint(description) if description else None
    try:
        results = recorded.read(folder, run)
        notes += results.notes
    except UserError as error:
        notes.append(str(error))
        results = Results()
    config = description or results.header.get("config")
    if config is None:
        raise UserError(
            "; ".join([f"{folder}: no run of hpcfl can be read here", *notes])
        )
    run = run or results.header.get(recorded.RUN)
    status = run_status.look(folder, config["rounds"], results, run)
    notes += [*status.others, *_lost(folder, status, results)]
    column, measure = counts(config["evaluation"], results)
    summary = summarise(config, results, column, measure, status, notes)
    return Run(
        folder, summary, config, results, column, measure.recorded, status, notes, own
    )


def load_all(folder: Path, own: Collection[str] = ()) -> list[Run]:
    """Load the run in a folder, or the runs in a sweep's folder, sorted by name; see
    ``runs_in``.

    Raises UserError if there is no run.

    Args:
        own: as for ``load``.
    """
    if not folder.is_dir() and not packed_runs.is_packed(folder):
        raise UserError(f"{folder}: no such folder")
    if tune_folder.is_tuning(folder):
        folder = folder / tune_folder.FINAL
    return runs_in([folder], own) or [load(folder, own)]


def runs_below(
    folders: Sequence[Path], own: Collection[str] = ()
) -> tuple[list[Run], list[str]]:
    """Load the runs in some folders and below them, with notes on those left out.

    These are the ones that ``--fresh`` moved aside, see ``_places``. Files of packed
    runs count as folders. own: as for ``load``. Raises UserError if there is no run, or
    a folder without any.
    """
    tried: list[Path] = []

    def all_below(folder: Path) -> list[Path]:
        """List a folder and those below it, without those that a tuning tried."""
        found: list[Path] = []
        for place in sorted(folder.glob("**/")):
            left_out = tune_folder.leaves_out(folder, place)
            (tried if left_out else found).append(place)
        return found

    packed, folders = _packed(folders)
    if packed and not folders:
        return packed, []
    current, aside = _places(folders, all_below)
    resolved = [place.resolve() for place in [*current, *aside]]
    for folder in folders:
        if not any(place.is_relative_to(folder.resolve()) for place in resolved):
            raise UserError(f"{folder}: no run of hpcfl here")
    if not current:
        raise UserError(
            f"{aside[0]}: --fresh moved it aside, and there is no other run; name it "
            "alone"
        )
    notes = []
    if aside:
        more = f" and {len(aside) - 1} more" if len(aside) > 1 else ""
        notes.append(
            f"left out, as --fresh moved it aside: {aside[0]}{more}; named alone it "
            "counts"
        )
    if tried:
        notes.append(
            f"left out: what was tried in a tuning, {tried[0]} and others; named alone "
            "they count"
        )
    return [*packed, *(load(place, own) for place in current)], notes


def runs_in(folders: Sequence[Path], own: Collection[str] = ()) -> list[Run]:
    """Load the runs in some folders, or one level below the folder of a sweep.

    Those that ``--fresh`` moved aside are left out, see ``_places``. own: as for
    ``load``.
    """

    def cells(folder: Path) -> list[Path]:
        if run_folder.is_run(folder):
            return [folder]
        return sorted(folder.iterdir()) if folder.is_dir() else []

    packed, folders = _packed(folders)
    current, _ = _places(folders, cells)
    return [*packed, *(load(place, own) for place in current)]


def _packed(paths: Sequence[Path]) -> tuple[list[Run], list[Path]]:
    """Load the runs of packed files among some paths; return also the other paths.

    Raises UserError.
    """
    runs: list[Run] = []
    folders = []
    for path in paths:
        if not packed_runs.is_packed(path):
            folders.append(path)
            continue
        with packed_runs.unpacked(path) as folder:
            for place in sorted(folder.iterdir()):
                runs.append(_packed_run(path, place))
    return runs, folders


def _packed_run(path: Path, place: Path) -> Run:
    """Load the run of a packed file that lies unpacked at a place.

    Raises UserError where a file of it is missing or damaged: a packed run has no
    other copy.
    """
    try:
        run = load(place)
    except UserError as error:
        notes = [str(error)]
    else:
        notes = run.notes
    if notes:
        said = notes[0].replace(str(place.parent), str(path))
        raise UserError(f"{path}: cannot be read as packed runs ({said})")
    return replace(run, folder=path / place.name)


def _places(
    folders: Sequence[Path], below: Callable[[Path], list[Path]]
) -> tuple[list[Path], list[Path]]:
    """Return the runs' folders among those of ``below``, and those that lie aside, each
    once.

    A run that ``--fresh`` moved aside counts only where its folder alone is named.
    """
    current, aside = dict[Path, Path](), dict[Path, Path]()
    for folder in folders:
        named = [folder.name] if len(folders) > 1 else []
        for place in filter(run_folder.is_run, below(folder)):
            names = [*named, *place.relative_to(folder).parts]
            kind = aside if any(map(run_folder.is_aside, names)) else current
            kind.setdefault(place.resolve(), place)
    return list(current.values()), list(aside.values())


def is_sweep(folder: Path, runs: list[Run]) -> bool:
    """Tell whether ``runs`` of ``load_all`` are cells of the folder."""
    return runs[0].folder != folder


def _description(folder: Path, notes: list[str]) -> Mapping[str, Any] | None:
    """Return the configuration in ``run.json``; None if it is missing, or damaged, which
    adds to ``notes``.
    """
    try:
        content = run_folder.read(folder)
        return content and content["config"]
    except run_folder.AnotherFormat:
        raise
    except UserError as error:
        notes.append(str(error))
        return None


def _lost(folder: Path, status: RunStatus, results: Results) -> list[str]:
    """Return lines about data that damage has destroyed: metrics, or the final state."""
    if results.is_packed:
        return []
    played = results.rounds[results.played]
    rounds = max(status.done, int(played.max(initial=0)))
    missing = rounds - len(played)
    lines = []
    if missing > 0:
        lines.append(
            f"{folder}: metrics of {missing} of {rounds} rounds are lost, files were damaged"
        )
    if status.finished and status.checkpoints_lost:
        lines.append(
            f"{folder}: its checkpoints are damaged, the final state is lost; "
            "--fresh makes it again"
        )
    return lines
