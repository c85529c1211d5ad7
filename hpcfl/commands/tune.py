"""``hpcfl tune``: the search for every method, the final runs of what was chosen, and
what came out.

A search is a loop over rungs, in each of which runs of the rung before go on. Every
step of a run ends with a file (``storage/tune_folder.py``), and who goes on follows from
these files alone. So the same command continues after any interruption, on other ranks,
or as many jobs at once, which are told their part.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hpcfl.commands.run import allowed_silence, check_world, run
from hpcfl.communication.agreement import agreed
from hpcfl.communication.communicator import Communicator
from hpcfl.errors import Diverged, UserError
from hpcfl.experiment import config
from hpcfl.experiment.sweep import in_file_name
from hpcfl.files import atomic, destination
from hpcfl.report import metric_values, summary
from hpcfl.report.summary import Run
from hpcfl.report.text import plain
from hpcfl.scores._metric_name import SAMPLE_GRADIENTS, MetricName
from hpcfl.storage import sweep_folder, tune_folder
from hpcfl.storage.tune_folder import COST, Result
from hpcfl.tuning import halving, outcome, plan, spending, standing
from hpcfl.tuning.halving import Rung
from hpcfl.tuning.plan import Candidate, Cell, Plan
from hpcfl.tuning.standing import Choice, step

Told = TypeVar("Told")

TUNED = "tuned"  # the label of what was chosen
WHOLE = Rung(share=Fraction(1), trials=1)  # of a configuration that is not chosen from


@dataclass(frozen=True)
class Part:
    """What one job of many plays of a tuning.

    Attributes:
        stage: The number of a rung, "final", or "outcome".
        cell: The name of a run in it; "" for "outcome".
    """

    stage: str
    cell: str


def tune_file(
    file: Path,
    overrides: Iterable[str],
    out: Path | None,
    communicator: Communicator,
    part: Part | None = None,
) -> None:
    """Tune as an experiment file says, or play a part of it. Collective.

    Raises UserError, RunFailure or Interrupted, on all ranks.
    """
    with agreed(communicator):
        check_world(communicator)
        cell = part.cell if part else ""
        tuning = plan.read(config.read(file, overrides), str(file), cell)
        folder = folder_of(tuning, out)
        first = tuning.untuned(tuning.section.methods[0])
        communicator.watch(allowed_silence([tuning.config(first, 0, 1)]))
        if communicator.is_server:
            whole = part is None
            begin(tuning, folder, whole, unchecked=whole)
    player = Player(tuning, folder, communicator)
    if part is None:
        player.refuse_overspending()
        player.play_all()
    else:
        player.play_part(part)


def folder_of(tuning: Plan, out: Path | None) -> Path:
    """The folder that a tuning's results go to. Raises UserError."""
    folder = out or Path("runs") / str(tuning.base.get("name", "experiment"))
    destination.check_folder(folder)
    return folder


def has_outcome(folder: Path) -> bool:
    """Whether a tuning has said what came out."""
    return (folder / outcome.TABLE).is_file()


def begin(
    tuning: Plan, folder: Path, whole: bool = True, unchecked: bool = False
) -> None:
    """Make the folder of a tuning, or find that it is. Raises UserError or RunFailure.

    whole: whether the names of all runs that it may have are written, too. unchecked:
        as for ``tune_folder.begin``.
    """
    table = tuning.table
    identity = config.identifying(table)
    identity["tune"].pop("overspend")
    tune_folder.begin(folder, identity | {"rounds": tuning.most}, unchecked)
    if not whole:
        return
    sweeps: dict[str, list[str]] = {sweep: [] for sweep in tune_folder.SWEEPS}
    for method in tuning.section.methods:
        for sweep, cells in cells_of(tuning, method).items():
            sweeps[sweep] += [cell.name for cell in cells]
    for sweep, names in sweeps.items():
        sweep_folder.record(folder / sweep, names)


def cells_of(tuning: Plan, method: str) -> dict[str, list[Cell]]:
    """The runs of a method by the folder of their sweep.

    Which candidate is chosen is not known before: in its name it is "tuned".
    """
    section = tuning.section
    without = tuning.untuned(method)
    tried = [*tuning.trials(method), without]
    tuned = Candidate(method, TUNED, {})
    return {
        tune_folder.SEARCH: [
            Cell(one, seed) for one in tried for seed in section.search_seeds
        ],
        tune_folder.FINAL: [Cell(tuned, seed) for seed in section.final_seeds],
        tune_folder.UNTUNED: [Cell(without, seed) for seed in section.final_seeds],
    }


def gradients_of(run: Run) -> tuple[list[int], int]:
    """The gradients of samples of each round that was played, and of the final scoring."""
    results = run.results
    numbers = results.series(MetricName(SAMPLE_GRADIENTS))
    counts = np.nan_to_num(numbers).astype(np.int64)
    return counts[results.played].tolist(), int(counts[~results.played].sum())


@dataclass(frozen=True)
class Player:
    """Plays a tuning in its folder, on all ranks together."""

    tuning: Plan
    folder: Path
    communicator: Communicator

    def play_all(self) -> None:
        """Collective. Search for each method, play the final runs, write what came out."""
        for method in self.tuning.section.methods:
            self.search(method)
        for method in self.tuning.section.methods:
            for cell in self.final_cells(method):
                self.play_final(cell)
        self.write_outcome()

    def play_part(self, part: Part) -> None:
        """Collective. Play what one job of many plays. Raises UserError for a part that
        this tuning does not have.
        """
        if part.stage == "outcome":
            self.write_outcome()
            return
        method = self.tuning.method_of(part.cell)
        sweeps = cells_of(self.tuning, method)
        names = (
            tune_folder.SWEEPS[1:] if part.stage == "final" else [tune_folder.SEARCH]
        )
        cells = {cell.name: cell for name in names for cell in sweeps[name]}
        if part.cell not in cells:
            raise UserError(f"{self.folder}: '{part.cell}' is no run of this tuning")
        cell = cells[part.cell]
        if part.stage != "final":
            self.play_rung_of(cell, int(part.stage))
        elif cell in self.final_cells(method):
            self.play_final(cell)
        else:
            self.say(f"{cell.name}: not played, no run of the search came to an end")

    # The search

    def search(self, method: str) -> None:
        """Collective. All rungs of a method, and its untuned configuration."""
        seeds = self.tuning.section.search_seeds
        for number, rung in enumerate(self.tuning.rungs(method)):
            candidates = self.going_on(method, number)
            for place, candidate in enumerate(candidates, start=1):
                for seed in seeds:
                    cell = Cell(candidate, seed)
                    where = f"rung {number + 1}, {place} of {len(candidates)}"
                    self.play_rung(cell, number, rung, where)
        untuned = self.tuning.untuned(method)
        for seed in seeds:
            self.play_rung(Cell(untuned, seed), 0, WHOLE, "untuned")
        self.say(self.told(lambda: self.write_choice(method)))

    def play_rung_of(self, cell: Cell, number: int) -> None:
        """Collective. One run's part of a rung, if it goes on so far."""
        candidate = cell.candidate
        if candidate.label == plan.UNTUNED:
            self.play_rung(cell, 0, WHOLE, "untuned")
            return
        rungs = self.tuning.rungs(candidate.method)
        goes_on = number < len(rungs) and candidate in self.going_on(
            candidate.method, number
        )
        if not goes_on:
            self.say(f"{cell.name}: does not go on to rung {number + 1}")
            return
        self.play_rung(cell, number, rungs[number], f"rung {number + 1}")

    def play_rung(self, cell: Cell, number: int, rung: Rung, where: str) -> None:
        """Collective. Play a run as far as a rung goes, unless that is done.

        Its first rounds tell what it costs, and so how many rounds the budget allows.
        """
        if self.result(cell, step(number)) is not None:
            return
        before = self.result(cell, step(number - 1)) if number else self.cost(cell)
        assert before is not None
        if before["failure"] is not None:
            self.keep(cell, step(number), before)
            return
        goes_on = not self.plays_whole(cell)
        played = before["rounds"] if goes_on else 0
        rounds = halving.rounds_at(before["whole"], rung.share, played)
        place = f"{where}, rounds {played + 1} to {rounds} of {before['whole']}"
        self.say(f"{cell.name}: {place}: {cell.candidate.said}")
        folder = self.folder / tune_folder.SEARCH / cell.name
        after = self.played(cell, folder, rounds, before, played)
        self.keep(cell, step(number), after)

    def cost(self, cell: Cell) -> Result:
        """Collective. Return what the first rounds of a run tell of its cost.

        They are the beginning of the run itself, or of one aside where it cannot go on.
        """
        known = self.result(cell, COST)
        if known is not None:
            return known
        every = self.tuning.config(cell.candidate, cell.seed, 1).evaluation.every
        rounds = min(self.tuning.most, halving.measured_rounds(every))
        nothing = Result(
            rounds=0, whole=rounds, gradients=0, score=None, rank=None, failure=None
        )
        sweep = tune_folder.MEASURED if self.plays_whole(cell) else tune_folder.SEARCH
        folder = self.folder / sweep / cell.name
        after = self.played(cell, folder, rounds, nothing, 0)
        self.keep(cell, COST, after)
        return after

    def refuse_overspending(self) -> None:
        """Collective. Measure all trials before the first rung, and raise UserError for
        all methods whose first rounds alone exceed the budget. Nothing is left then.

        The rungs go on with what is measured.
        """
        if self.told(lambda: not tune_folder.is_unchecked(self.folder)):
            return
        lines = [self.overspending(method) for method in self.tuning.section.methods]
        refused = [line for line in lines if line]
        if refused:
            self.told(lambda: tune_folder.remove(self.folder))
            raise UserError(*refused)
        self.told(lambda: tune_folder.check_off(self.folder))

    def overspending(self, method: str) -> str:
        """Collective. Return why a method's search cannot keep its budget, or ""."""
        if self.tuning.section.overspend:
            return ""
        costs = [
            self.cost(Cell(candidate, seed))["gradients"]
            for candidate in self.tuning.trials(method)
            for seed in self.tuning.section.search_seeds
        ]
        return spending.refusal(self.tuning, method, sum(costs))

    def plays_whole(self, cell: Cell) -> bool:
        """Whether a run cannot go on with more rounds."""
        candidate = cell.candidate
        if candidate.label == plan.UNTUNED:
            return self.tuning.config(candidate, cell.seed, 1).needs_rounds
        return self.tuning.plays_whole(candidate.method)

    def played(
        self, cell: Cell, folder: Path, rounds: int, before: Result, since: int
    ) -> Result:
        """Collective. Play a run up to so many rounds; what it came to.

        Args:
            cell: Which run.
            folder: Its own.
            rounds: That it has then.
            before: What it came to in the step before.
            since: How many of its rounds are counted there.
        """
        experiment = self.tuning.config(cell.candidate, cell.seed, rounds)
        try:
            run(experiment, folder, self.communicator)
        except Diverged as error:
            self.say(f"{cell.name}: diverged, and does not go on")
            more = self.told(lambda: sum(gradients_of(summary.load(folder))[0][since:]))
            return Result(
                rounds=rounds,
                whole=before["whole"],
                gradients=before["gradients"] + more,
                score=None,
                rank=None,
                failure=str(error),
            )
        every = experiment.evaluation.every
        return self.told(lambda: self.judged(folder, rounds, before, since, every))

    def judged(
        self, folder: Path, rounds: int, before: Result, since: int, every: int
    ) -> Result:
        """What a run that was played came to, read from its folder. On rank 0."""
        played = summary.load(folder)
        of_rounds, final = gradients_of(played)
        if len(of_rounds) > rounds:
            raise UserError(
                f"{folder}: has {len(of_rounds)} rounds, and no file in "
                f"{self.folder / tune_folder.RESULTS} tells what its first {rounds} came "
                "to; delete the run's folder, and the same command plays it again"
            )
        whole = before["whole"]
        if not since and before["rounds"] == 0:
            whole = halving.rounds_within(
                self.tuning.section.budget, of_rounds, final, every, self.tuning.most
            )
        more = sum(of_rounds[since:]) + final if rounds > since else 0
        value = metric_values.value(played, metric_values.VALIDATION, "tail").value
        score = value if math.isfinite(value) else None
        return Result(
            rounds=rounds,
            whole=whole,
            gradients=before["gradients"] + more,
            score=score,
            rank=None if score is None else played.measure.rank(score),
            failure=None,
        )

    # The final runs

    def final_cells(self, method: str) -> list[Cell]:
        """Collective. The runs on the final partitions: of the chosen configuration, if
        there is one, and of the untuned one, if its runs came to an end.
        """
        seeds = self.tuning.section.final_seeds
        labels = self.told(lambda: self.final_labels(method))
        return [
            Cell(Candidate(method, label, {}), seed)
            if label == TUNED
            else Cell(self.tuning.untuned(method), seed)
            for label in labels
            for seed in seeds
        ]

    def final_labels(self, method: str) -> list[str]:
        """Which configurations of a method have final runs. On rank 0."""
        choices = self.choices(method)
        return [label for label, choice in choices.items() if choice is not None]

    def choices(self, method: str) -> dict[str, Choice | None]:
        """The configurations of a method that are compared at the end, by label. On
        rank 0.
        """
        return {
            TUNED: standing.chosen(self.tuning, self.folder, method),
            plan.UNTUNED: standing.untuned(self.tuning, self.folder, method),
        }

    def play_final(self, cell: Cell) -> None:
        """Collective. Play one final run, unless it is complete; one that diverges is
        left out of what comes out.
        """
        experiment = self.final_experiment(cell)
        tuned = cell.candidate.label == TUNED
        sweep = tune_folder.FINAL if tuned else tune_folder.UNTUNED
        try:
            run(experiment, self.folder / sweep / cell.name, self.communicator)
        except Diverged as error:
            self.say(f"{cell.name}: {error}")

    def final_experiment(self, cell: Cell) -> config.Config:
        """Collective. The configuration of a final run."""
        method, label = cell.candidate.method, cell.candidate.label

        def name_and_rounds() -> list[Any]:
            choice = self.choices(method)[label]
            assert choice is not None
            return [choice.candidate.name, choice.rounds]

        name, rounds = self.told(name_and_rounds)
        candidate = self.candidates(method)[name]
        experiment = self.tuning.config(candidate, cell.seed, rounds)
        named = f"{self.tuning.base.get('name', 'experiment')}-{cell.candidate.name}"
        return experiment.model_copy(update={"name": named})

    def write_choice(self, method: str) -> str:
        """Write the file of a method's chosen configuration; returns a line on it. On
        rank 0.
        """
        choice = standing.chosen(self.tuning, self.folder, method)
        if choice is None:
            return f"{method}: nothing is chosen, no run came to an end"
        text = outcome.chosen_text(self.tuning, choice)
        name = f"{in_file_name(method)}.toml"
        path = self.folder / tune_folder.CHOSEN / name
        atomic.write(path, text.encode())
        return f"{method}: chosen: {choice.candidate.said}"

    def write_outcome(self) -> None:
        """Collective. Write and print what came out."""

        def write() -> None:
            for method in self.tuning.section.methods:
                self.write_choice(method)
            outcome.tell(self.tuning, self.folder)

        self.told(write)

    # What all ranks know alike

    def candidates(self, method: str) -> dict[str, Candidate]:
        """A method's configurations by name."""
        known = [*self.tuning.trials(method), self.tuning.untuned(method)]
        return {candidate.name: candidate for candidate in known}

    def going_on(self, method: str, rung: int) -> list[Candidate]:
        """Collective. The candidates that are played in a rung, the best first."""

        def names() -> list[str]:
            found = standing.going_on(self.tuning, self.folder, method, rung)
            return [candidate.name for candidate in found]

        known = self.candidates(method)
        return [known[name] for name in self.told(names)]

    def result(self, cell: Cell, step: str) -> Result | None:
        """Collective. What a step of a run came to; None where it has not ended."""
        return self.told(lambda: tune_folder.result(self.folder, cell.name, step))

    def keep(self, cell: Cell, step: str, result: Result) -> None:
        """Collective. Write what a step of a run came to."""
        self.told(lambda: tune_folder.keep(self.folder, cell.name, step, result))

    def told(self, found: Callable[[], Told]) -> Told:
        """Collective. What rank 0 finds in the folder, for all ranks.

        Raises:
            UserError, RunFailure: on all ranks, where rank 0 does.
        """
        value = None
        with agreed(self.communicator):
            if self.communicator.is_server:
                value = found()
        told: Told = self.communicator.bcast(value)
        return told

    def say(self, text: str) -> None:
        if self.communicator.is_server:
            print(plain(text), flush=True)
