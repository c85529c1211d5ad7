"""``hpcfl tune``: the search for every method, the final runs of what was chosen, and
what came out.

A search is a loop over rungs, in each of which runs of the rung before go on. Every
step of a run ends with a file (``storage/tune_folder.py``), and who goes on follows from
these files alone. So the same command continues after any interruption, on other ranks,
or as many jobs at once, which are told their part.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hpcfl.commands.run import allowed_silence, check_world, run
from hpcfl.communication.communicator import Communicator, agreed
from hpcfl.errors import Diverged, UserError
from hpcfl.experiment import config, experiment_file
from hpcfl.files import atomic, output
from hpcfl.files.file_names import make_file_name
from hpcfl.report import metric_values
from hpcfl.report.text import plain
from hpcfl.scores.metric_names import SAMPLE_GRADIENTS, SCORING_GRADIENTS, MetricName
from hpcfl.storage import run_folder, tune_folder
from hpcfl.storage.tune_folder import COST, Result
from hpcfl.trained import loading
from hpcfl.trained.run import Run
from hpcfl.tuning import halving, outcome, plan, search_results
from hpcfl.tuning.halving import Rung
from hpcfl.tuning.plan import Candidate, Cell, Plan
from hpcfl.tuning.search_results import Choice, name_step

Told = TypeVar("Told")

# keys of [tune] that earlier versions lack; their defaults make no other tuning
ADDED = {"at": "method", "searches": 1, "hard_cap": None}
WHOLE = Rung(share=Fraction(1), trials=1)  # of a configuration that is not chosen from


@dataclass(frozen=True)
class Part:
    """Part of a tuning that one of several jobs plays.

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
    """Return the folder of a tuning's results. Raises UserError."""
    folder = out or Path("runs") / str(tuning.base.get("name", "experiment"))
    atomic.check_folder(folder)
    return folder


def has_outcome(folder: Path) -> bool:
    """Return whether a tuning has written its outcome."""
    return (folder / outcome.TABLE).is_file()


def begin(
    tuning: Plan, folder: Path, whole: bool = True, unchecked: bool = False
) -> None:
    """Make the folder of a tuning, or find that it is. Raises UserError or RunFailure.

    whole: whether the names of all runs that it may have are written, too. unchecked:
        as for ``tune_folder.begin``.
    """
    table = tuning.table
    identity = experiment_file.identifying(table)
    identity["tune"].pop("overspend")
    for key, default in ADDED.items():
        if identity["tune"][key] == default:
            identity["tune"].pop(key)
    tune_folder.begin(folder, identity | {"rounds": tuning.most}, unchecked)
    if not whole:
        return
    sweeps: dict[str, list[str]] = {sweep: [] for sweep in tune_folder.SWEEPS}
    for search in tuning.searches:
        for method in tuning.section.methods:
            for sweep, cells in cells_of(search, method).items():
                sweeps[sweep] += [cell.name for cell in cells]
    for sweep, names in sweeps.items():
        run_folder.record_cells(folder / sweep, names)


def cells_of(search: Plan, method: str) -> dict[str, list[Cell]]:
    """Return the runs of a method in a search by the folder of their sweep.

    The chosen candidate is unknown before the search. Its name contains "tuned"
    instead. The first search has the untuned final runs.
    """
    section = search.section
    tried = [*search.trials(method), *search.references(method)]
    cells = {run_folder.SEARCH: (tried, section.search_seeds)}
    cells[run_folder.FINAL] = [search.tuned(method)], section.final_seeds
    if search.number == 0:
        cells[run_folder.UNTUNED] = [search.untuned(method)], section.final_seeds
    return {
        sweep: [Cell(candidate, seed) for candidate in candidates for seed in seeds]
        for sweep, (candidates, seeds) in cells.items()
    }


def gradients_of(run: Run, number: str = SAMPLE_GRADIENTS) -> tuple[list[int], int]:
    """Return the sample gradients of each played round, and those of the final
    scoring.
    """
    results = run.results
    counts = np.nan_to_num(results.series(MetricName(number))).astype(np.int64)
    return counts[results.played].tolist(), int(counts[~results.played].sum())


@dataclass(frozen=True)
class Player:
    """Plays a tuning in its folder, on all ranks together."""

    tuning: Plan
    folder: Path
    communicator: Communicator

    def play_all(self) -> None:
        """Search for each method, play the final runs, and write the outcome.
        Collective call.
        """
        methods = self.tuning.section.methods
        players = [replace(self, tuning=search) for search in self.tuning.searches]
        for player in players:
            for method in methods:
                player.search(method)
        for player in players:
            for method in methods:
                for cell in player.final_cells(method):
                    player.play_final(cell)
        self.write_outcome()

    def play_part(self, part: Part) -> None:
        """Play the part of one of several jobs. Raises UserError for a part that this
        tuning does not have. Collective call.
        """
        if part.stage == "outcome":
            self.write_outcome()
            return
        method = self.tuning.method_of(part.cell)
        names = tune_folder.SWEEPS[1:] if part.stage == "final" else [run_folder.SEARCH]
        for search in self.tuning.searches:
            sweeps = cells_of(search, method)
            for cell in (cell for name in names for cell in sweeps.get(name, [])):
                if cell.name == part.cell:
                    replace(self, tuning=search).play_cell(cell, part.stage)
                    return
        raise UserError(f"{self.folder}: '{part.cell}' is no run of this tuning")

    def play_cell(self, cell: Cell, stage: str) -> None:
        """Play a run's part of a stage. Collective call."""
        if stage != "final":
            self.play_rung_of(cell, int(stage))
        elif cell in self.final_cells(cell.candidate.method):
            self.play_final(cell)
        else:
            self.say(f"{cell.name}: not played, no run of the search came to an end")

    # The search

    def search(self, method: str) -> None:
        """Play all rungs of a method, and its untuned configuration. Collective
        call.
        """
        seeds = self.tuning.section.search_seeds
        for number, rung in enumerate(self.tuning.rungs(method)):
            candidates = self.going_on(method, number)
            for place, candidate in enumerate(candidates, start=1):
                for seed in seeds:
                    cell = Cell(candidate, seed)
                    where = f"rung {number + 1}, {place} of {len(candidates)}"
                    self.play_rung(cell, number, rung, where)
        for untuned in self.tuning.references(method):
            for seed in seeds:
                self.play_rung(Cell(untuned, seed), 0, WHOLE, "untuned")
        self.say(self.share_result(lambda: self.write_choice(method)))

    def play_rung_of(self, cell: Cell, number: int) -> None:
        """Play one run's part of a rung if the run reaches it. Collective call."""
        candidate = cell.candidate
        if candidate in self.tuning.references(candidate.method):
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
        """Play a run to the end of a rung, unless that is done. Collective call.

        The cost of its first rounds determines how many rounds the budget allows.
        """
        if self.result(cell, name_step(number)) is not None:
            return
        before = self.result(cell, name_step(number - 1)) if number else self.cost(cell)
        assert before is not None
        if before["failure"] is not None:
            self.keep(cell, name_step(number), before)
            return
        if self.tuning.section.is_capped:
            after = self.spend(cell, number, rung, before, where)
            self.keep(cell, name_step(number), after)
            return
        goes_on = not self.plays_whole(cell)
        played = before["rounds"] if goes_on else 0
        rounds = halving.rounds_at(before["whole"], rung.share, played)
        place = f"{where}, up to round {rounds} of {before['whole']}"
        self.say(f"{cell.name}: {place}: {cell.candidate.description}")
        folder = self.folder / run_folder.SEARCH / cell.name
        after = self.played(
            cell=cell,
            folder=folder,
            rounds=rounds,
            before=before,
            since=played,
        )
        self.keep(cell, name_step(number), after)

    def spend(
        self, cell: Cell, number: int, rung: Rung, before: Result, where: str
    ) -> Result:
        """Play a run in a rung as long as its share of the budget is expected to
        suffice, and return its result. Collective call.

        While rounds differ in cost, it is played in several parts, each of which at most
        doubles it, with a file for each. A run that takes more nevertheless is out.
        """
        share = int(rung.share * self.tuning.section.budget)
        folder = self.folder / run_folder.SEARCH / cell.name
        goes_on = not self.plays_whole(cell)
        after, played = before, before["rounds"] if goes_on else 0
        while after["failure"] is None and (goes_on or after is before):
            more = (share - after["gradients"]) // after["highest_cost"]
            rounds = min(self.tuning.most, played + max(0, more))
            is_even = after["gradients"] == played * after["highest_cost"]
            if goes_on and not (is_even and played > 1):
                rounds = min(rounds, 2 * played)
            if rounds == played:
                break
            part = f"{name_step(number)},rounds={rounds}"
            known = self.result(cell, part)
            if known is None:
                place = f"{where}, up to round {rounds}"
                self.say(f"{cell.name}: {place}: {cell.candidate.description}")
                known = self.played(cell, folder, rounds, after, played)
                self.keep(cell, part, known)
            after, played = known, rounds
        if after["failure"] is None and (not played or after["gradients"] > share):
            failure = f"needs more than {share:,} gradients of training"
            after = Result(**{**after, "score": None, "rank": None, "failure": failure})
        return after

    def cost(self, cell: Cell) -> Result:
        """Measure the cost of a run's first rounds, of the first one under a hard cap.
        Collective call.

        These rounds begin the run itself. A run that cannot continue has a separate one
        for them.
        """
        known = self.result(cell, COST)
        if known is not None:
            return known
        every = self.tuning.config(cell.candidate, cell.seed, 1).evaluation.every
        least = halving.measured_rounds(every)
        rounds = min(self.tuning.most, 1 if self.tuning.section.is_capped else least)
        nothing = Result(
            rounds=0,
            whole=rounds,
            gradients=0,
            score=None,
            rank=None,
            failure=None,
        )
        sweep = run_folder.MEASURED if self.plays_whole(cell) else run_folder.SEARCH
        folder = self.folder / sweep / cell.name
        after = self.played(
            cell=cell,
            folder=folder,
            rounds=rounds,
            before=nothing,
            since=0,
        )
        self.keep(cell, COST, after)
        return after

    def refuse_overspending(self) -> None:
        """Measure all trials before the first rung. Raise UserError for all methods
        whose first rounds exceed the budget. Collective call.

        A refused tuning leaves no files. An accepted one continues from the measured
        rounds.
        """
        if self.share_result(lambda: not tune_folder.is_unchecked(self.folder)):
            return
        lines = [
            replace(self, tuning=search).overspending(method)
            for search in self.tuning.searches
            for method in search.section.methods
        ]
        refused = [line for line in lines if line]
        if refused:
            self.share_result(lambda: tune_folder.remove(self.folder))
            raise UserError(*refused)
        self.share_result(lambda: tune_folder.check_off(self.folder))

    def overspending(self, method: str) -> str:
        """Return why a method's search cannot keep its budget, or "". Collective
        call.
        """
        if self.tuning.section.overspend:
            return ""
        costs = [
            self.cost(Cell(candidate, seed))["gradients"]
            for candidate in self.tuning.trials(method)
            for seed in self.tuning.section.search_seeds
        ]
        return plan.refusal(self.tuning, method, sum(costs))

    def plays_whole(self, cell: Cell) -> bool:
        """Return whether a run cannot continue with more rounds."""
        candidate = cell.candidate
        if candidate in self.tuning.references(candidate.method):
            return self.tuning.config(candidate, cell.seed, 1).needs_rounds
        return self.tuning.plays_whole(candidate.method)

    def played(
        self,
        cell: Cell,
        folder: Path,
        rounds: int,
        before: Result,
        since: int,
    ) -> Result:
        """Play a run up to ``rounds`` rounds and return its result. Collective call.

        Args:
            cell: The run.
            folder: The run's folder.
            rounds: The number of rounds at the end.
            before: The result of the step before.
            since: The number of rounds that ``before`` counts.
        """
        experiment = self.tuning.config(cell.candidate, cell.seed, rounds)
        try:
            run(experiment, folder, self.communicator)
        except Diverged as error:
            self.say(f"{cell.name}: diverged, and does not go on")
            failed = Result(
                rounds=rounds,
                whole=before["whole"],
                gradients=before["gradients"],
                score=None,
                rank=None,
                failure=str(error),
            )
            return self.share_result(
                lambda: self.charged(failed, loading.load_run(folder), before, since)
            )
        every = experiment.evaluation.every
        return self.share_result(
            lambda: self.judged(
                folder=folder,
                rounds=rounds,
                before=before,
                since=since,
                every=every,
            )
        )

    def judged(
        self,
        folder: Path,
        rounds: int,
        before: Result,
        since: int,
        every: int,
    ) -> Result:
        """Read the result of a played run from its folder. On rank 0."""
        played = loading.load_run(folder)
        of_rounds, final = gradients_of(played)
        if len(of_rounds) > rounds:
            raise UserError(
                f"{folder}: has {len(of_rounds)} rounds, and no file in "
                f"{self.folder / tune_folder.RESULTS} tells what its first {rounds} came "
                "to; delete the run's folder, and the same command plays it again"
            )
        whole = before["whole"]
        is_capped = self.tuning.section.is_capped
        if not since and before["rounds"] == 0 and not is_capped:
            whole = halving.rounds_within(
                self.tuning.section.budget,
                of_rounds,
                final,
                every,
                self.tuning.most,
            )
        value = metric_values.value(played, metric_values.VALIDATION, "tail").value
        score = value if math.isfinite(value) else None
        result = Result(
            rounds=rounds,
            whole=whole,
            gradients=before["gradients"],
            score=score,
            rank=None if score is None else played.measure.rank(score),
            failure=None,
        )
        if rounds > since:
            result = self.charged(result, played, before, since)
        return result

    def charged(self, result: Result, run: Run, before: Result, since: int) -> Result:
        """Return a result with the gradients of a run's rounds after ``since``. On rank
        0.
        """
        of_rounds, final = gradients_of(run)
        spent = sum(of_rounds[since:]) + final
        section = self.tuning.section
        if not section.is_capped:
            return Result(**{**result, "gradients": before["gradients"] + spent})
        of_scores, _ = gradients_of(run, SCORING_GRADIENTS)
        training = [
            every - scored for every, scored in zip(of_rounds, of_scores, strict=True)
        ]
        paid = before["gradients"] + sum(training[since:])
        highest = halving.highest_cost(training or [0])
        more = max(0, (section.budget - paid) // highest)
        whole = min(self.tuning.most, max(1, len(training) + more))
        scoring = before.get("scoring", 0) + spent - sum(training[since:])
        return Result(
            **{**result, "gradients": paid, "whole": whole},
            scoring=scoring,
            highest_cost=highest,
        )

    # The final runs

    def final_cells(self, method: str) -> list[Cell]:
        """Return the final runs of the chosen and the untuned configuration, as far as
        both exist. Collective call.
        """
        names = self.share_result(lambda: list(self.choices(method)))
        sweeps = cells_of(self.tuning, method)
        return [
            cell
            for sweep in tune_folder.SWEEPS[1:]
            for cell in sweeps.get(sweep, [])
            if cell.candidate.name in names
        ]

    def choices(self, method: str) -> dict[str, Choice]:
        """Return the configurations of a method that are compared at the end, by the
        name of their final runs. On rank 0.
        """
        tuning = self.tuning
        found = {
            tuning.tuned(method).name: search_results.choose(
                tuning, self.folder, method
            ),
            tuning.untuned(method).name: search_results.find_untuned(
                tuning, self.folder, method
            ),
        }
        return {name: choice for name, choice in found.items() if choice is not None}

    def play_final(self, cell: Cell) -> None:
        """Play one final run, unless it is complete. A diverged run is left out of the
        outcome. Collective call.
        """
        experiment = self.final_experiment(cell)
        is_tuned = cell.candidate == self.tuning.tuned(cell.candidate.method)
        sweep = run_folder.FINAL if is_tuned else run_folder.UNTUNED
        try:
            run(experiment, self.folder / sweep / cell.name, self.communicator)
        except Diverged as error:
            self.say(f"{cell.name}: {error}")

    def final_experiment(self, cell: Cell) -> config.Config:
        """Return the configuration of a final run. Collective call."""
        method = cell.candidate.method

        def name_and_rounds() -> list[Any]:
            choice = self.choices(method)[cell.candidate.name]
            return [choice.candidate.name, choice.rounds]

        name, rounds = self.share_result(name_and_rounds)
        candidate = self.candidates(method)[name]
        experiment = self.tuning.final_config(candidate, cell.seed, rounds)
        named = f"{self.tuning.base.get('name', 'experiment')}-{cell.candidate.name}"
        return experiment.model_copy(update={"name": named})

    def write_choice(self, method: str) -> str:
        """Write the file of a method's chosen configuration; returns a line on it. On
        rank 0.
        """
        choice = search_results.choose(self.tuning, self.folder, method)
        if choice is None:
            return f"{method}: nothing is chosen, no run came to an end"
        text = outcome.chosen_text(self.tuning, choice)
        name = f"{make_file_name(method)},{self.tuning.prefix}".rstrip(",")
        path = self.folder / tune_folder.CHOSEN / f"{name}.toml"
        atomic.write(path, text.encode())
        return f"{method}: chosen: {choice.candidate.description}"

    def write_outcome(self) -> None:
        """Write and print the outcome. Collective call."""

        def write() -> None:
            for search in self.tuning.searches:
                for method in search.section.methods:
                    replace(self, tuning=search).write_choice(method)
            outcome.tell(self.tuning, self.folder)

        self.share_result(write)

    # Values that are the same on all ranks

    def candidates(self, method: str) -> dict[str, Candidate]:
        """Return a method's configurations by name."""
        known = [*self.tuning.trials(method), *self.tuning.references(method)]
        return {candidate.name: candidate for candidate in known}

    def going_on(self, method: str, rung: int) -> list[Candidate]:
        """Return the candidates of a rung, the best first. Collective call."""

        def names() -> list[str]:
            found = search_results.select_candidates(
                self.tuning, self.folder, method, rung
            )
            return [candidate.name for candidate in found]

        known = self.candidates(method)
        return [known[name] for name in self.share_result(names)]

    def result(self, cell: Cell, step: str) -> Result | None:
        """Return the result of a run's step, or None before its end. Collective
        call.
        """
        return self.share_result(
            lambda: tune_folder.result(self.folder, cell.name, step)
        )

    def keep(self, cell: Cell, step: str, result: Result) -> None:
        """Write the result of a run's step. Collective call."""
        self.share_result(
            lambda: tune_folder.keep(self.folder, cell.name, step, result)
        )

    def share_result(self, found: Callable[[], Told]) -> Told:
        """Call a function on rank 0 and return its result on all ranks. Collective
        call.

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
            output.say(plain(text))
