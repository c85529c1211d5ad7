"""``hpcfl tune``: search configurations for every method, run the chosen ones, and
report the outcome.

A search is a loop over rungs; in each rung, selected runs of the previous rung continue.
Every step of a run ends with a file (``storage/tune_folder.py``), and the selection
depends only on these files. The same command therefore continues after any interruption,
on other ranks, or as several concurrent jobs that each play a part.
"""

import math
from collections.abc import Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from hpcfl.commands.run import check_world, find_allowed_silence, run
from hpcfl.communication.communicator import Communicator, agreed
from hpcfl.errors import Diverged, RunFailure, UserError
from hpcfl.experiment import config, experiment_file
from hpcfl.experiment.config import Config
from hpcfl.files import atomic, output
from hpcfl.files.file_names import make_file_name
from hpcfl.report import metric_values
from hpcfl.report.text import escape
from hpcfl.scores.metric_names import SAMPLE_GRADIENTS, SCORING_GRADIENTS, MetricName
from hpcfl.storage import run_folder, tune_folder
from hpcfl.storage.tune_folder import COST, Result
from hpcfl.trained import loading
from hpcfl.trained.run import Run
from hpcfl.tuning import halving, outcome, plan
from hpcfl.tuning.plan import Cell, TuningPlan
from hpcfl.tuning.search_results import SearchResults, name_step

Made = TypeVar("Made")

# Keys of [tune] that earlier versions lack. With their defaults the tuning is the same.
ADDED = {"at": "method", "searches": 1, "hard_cap": None}


@dataclass(frozen=True)
class Step:
    """A run that all ranks play up to the rounds of its configuration."""

    folder: Path
    config: Config

    def as_json(self) -> list[Any]:
        """Return folder, name and configuration to send to the other ranks.

        The name is separate because it may be longer than a configuration allows.
        """
        table = self.config.resolved()
        return [str(self.folder), table.pop("name"), table]


# Runs to play. The generator receives the error of a run that diverged, else None.
Steps = Generator[Step, str | None, Made]


def tune_file(
    file: Path,
    overrides: Iterable[str],
    out: Path | None,
    communicator: Communicator,
    stage: str | None = None,
    cell: str = "",
) -> None:
    """Tune an experiment, or play the part of one of several jobs. Collective.

    Args:
        file: Experiment file.
        overrides: Assignments ``section.key=value`` that override keys of the file.
        out: Folder of the tuning; by default ``runs/NAME``.
        communicator: Communicator of all ranks.
        stage: Number of a rung, "final" or "outcome"; None for the whole tuning.
        cell: Name of a run in the stage; "" for "outcome".

    Raises:
        UserError, RunFailure, Interrupted: On all ranks.
    """
    with agreed(communicator):
        check_world(communicator)
        tuning = plan.read(config.read(file, overrides), str(file), cell)
        folder = find_folder(tuning, out)
        first = tuning.make_untuned(tuning.section.methods[0])
        communicator.watch(find_allowed_silence([tuning.make_config(first, 0, 1)]))
        if communicator.is_server:
            begin(tuning, folder, unchecked=stage is None)
            if stage is None:
                record_cells(tuning, folder)
    player = Player(tuning, folder)
    steps = player.play_all() if stage is None else player.play_part(stage, cell)
    try:
        play_steps(steps, communicator)
    except UserError:
        if communicator.is_server:
            tune_folder.remove_unplayed(folder)
        raise


def find_folder(tuning: TuningPlan, out: Path | None) -> Path:
    """Return the folder of a tuning. Raises UserError if it cannot be used."""
    folder = out or Path("runs") / str(tuning.base.get("name", "experiment"))
    atomic.check_folder(folder)
    return folder


def has_outcome(folder: Path) -> bool:
    """Return whether a tuning has written its outcome."""
    return (folder / outcome.TABLE).is_file()


def begin(tuning: TuningPlan, folder: Path, unchecked: bool = False) -> None:
    """Create the folder of a tuning, or check that it belongs to this tuning.

    Args:
        tuning: Plan of the tuning.
        folder: Folder of the tuning.
        unchecked: Whether the budget is still to be checked, as for
            ``tune_folder.begin``.

    Raises:
        UserError: If the folder belongs to another tuning.
        RunFailure: If the folder cannot be written.
    """
    table = tuning.table
    identity = experiment_file.select_identity_keys(table)
    identity["tune"].pop("overspend")
    for key, default in ADDED.items():
        if identity["tune"][key] == default:
            identity["tune"].pop(key)
    tune_folder.begin(folder, identity | {"rounds": tuning.most_rounds}, unchecked)


def record_cells(tuning: TuningPlan, folder: Path) -> None:
    """Write the names of all runs that a tuning may have into its folder.

    Raises RunFailure if the folder cannot be written.
    """
    sweeps: dict[str, list[str]] = {sweep: [] for sweep in tune_folder.SWEEPS}
    for search in tuning.searches:
        for method in tuning.section.methods:
            for sweep, cells in list_cells(search, method).items():
                sweeps[sweep] += [cell.name for cell in cells]
    for sweep, names in sweeps.items():
        run_folder.record_cells(folder / sweep, names)


def list_cells(search: TuningPlan, method: str) -> dict[str, list[Cell]]:
    """Return the runs of a method in a search by the folder of their sweep.

    The chosen candidate is unknown before the search; "tuned" takes its place in the
    name. Only the first search has untuned final runs.
    """
    section = search.section
    tried = [*search.list_trials(method), *search.list_references(method)]
    cells = {run_folder.SEARCH: (tried, section.search_seeds)}
    cells[run_folder.FINAL] = [search.make_tuned(method)], section.final_seeds
    if search.number == 0:
        cells[run_folder.UNTUNED] = [search.make_untuned(method)], section.final_seeds
    return {
        sweep: [Cell(candidate, seed) for candidate in candidates for seed in seeds]
        for sweep, (candidates, seeds) in cells.items()
    }


def count_gradients(run: Run, number: str = SAMPLE_GRADIENTS) -> tuple[list[int], int]:
    """Return the sample gradients of each played round and of the final scoring.

    Args:
        run: Run.
        number: Recorded number to read.
    """
    results = run.results
    counts = np.nan_to_num(results.get_series(MetricName(number))).astype(np.int64)
    return counts[results.played].tolist(), int(counts[~results.played].sum())


@dataclass(frozen=True)
class Player(SearchResults):
    """Decisions of a tuning, made on rank 0 from the files in its folder.

    Methods that return ``Steps`` yield the runs that all ranks play (``play_steps``).
    """

    def play_all(self) -> Steps[None]:
        """Search for each method, play the final runs, and write the outcome."""
        yield from self.refuse_overspending()
        methods = self.plan.section.methods
        players = [replace(self, plan=search) for search in self.plan.searches]
        for player in players:
            for method in methods:
                yield from player.search(method)
        for player in players:
            for method in methods:
                for sweep, cells in list_cells(player.plan, method).items():
                    if sweep != run_folder.SEARCH:
                        yield from player.play_finals(sweep, cells)
        self.write_outcome()

    def play_part(self, stage: str, name: str) -> Steps[None]:
        """Play the part of one of several jobs.

        Args:
            stage: Number of a rung, "final" or "outcome".
            name: Name of a run in the stage; "" for "outcome".

        Raises:
            UserError: If this tuning does not have the part.
        """
        if stage == "outcome":
            self.write_outcome()
            return
        method = self.plan.find_method(name)
        for search in self.plan.searches:
            player = replace(self, plan=search)
            for sweep, cells in list_cells(search, method).items():
                named = [cell for cell in cells if cell.name == name]
                if not named or (sweep == run_folder.SEARCH) == (stage == "final"):
                    continue
                if stage == "final":
                    yield from player.play_finals(sweep, named)
                else:
                    yield from player.play_rung_of(named[0], int(stage))
                return
        raise UserError(f"{self.folder}: this tuning has no run '{name}'")

    # The search

    def search(self, method: str) -> Steps[None]:
        """Play all rungs of a method, and its untuned configuration."""
        seeds = self.plan.section.search_seeds
        for number in range(len(self.plan.list_rungs(method))):
            candidates = self.select_candidates(method, number)
            for place, candidate in enumerate(candidates, start=1):
                for seed in seeds:
                    cell = Cell(candidate, seed)
                    where = f"rung {number + 1}, {place} of {len(candidates)}"
                    yield from self.play_rung(cell, number, where)
        for untuned in self.plan.list_references(method):
            for seed in seeds:
                yield from self.play_rung(Cell(untuned, seed), 0, "untuned")
        _print_line(self.write_choice(method))

    def play_rung_of(self, cell: Cell, number: int) -> Steps[None]:
        """Play a run in one rung if the run is selected for it."""
        candidate, method = cell.candidate, cell.candidate.method
        if candidate in self.plan.list_references(method):
            yield from self.play_rung(cell, 0, "untuned")
            return
        is_rung = number < len(self.plan.list_rungs(method))
        goes_on = is_rung and candidate in self.select_candidates(method, number)
        if not goes_on:
            _print_line(f"{cell.name}: not selected for rung {number + 1}")
            return
        yield from self.play_rung(cell, number, f"rung {number + 1}")

    def play_rung(self, cell: Cell, number: int, where: str) -> Steps[None]:
        """Play a run to the end of a rung unless that is done.

        The cost of the run's first rounds determines how many rounds the budget allows.

        Args:
            cell: Run.
            number: Number of the rung.
            where: Text for progress lines.

        Raises:
            UserError: As for ``refuse_other_draws``.
        """
        self.refuse_other_draws(cell)
        if self.read_result(cell, name_step(number)) is not None:
            return
        if number:
            before = self.read_result(cell, name_step(number - 1))
            assert before is not None
        else:
            before = yield from self.measure_cost(cell)
        if before["failure"] is not None:
            after = before
        elif self.plan.section.is_capped:
            after = yield from self.spend(cell, number, before, where)
        else:
            share = self.find_share(cell, number)
            played = self.count_played(cell, before)
            rounds = halving.count_rounds_at(before["whole"], share, played)
            place = f"{where}, up to round {rounds} of {before['whole']}"
            _print_line(f"{cell.name}: {place}: {cell.candidate.description}")
            folder = self.folder / run_folder.SEARCH / cell.name
            after = yield from self.play_up_to(cell, folder, rounds, before)
        self.keep(cell, name_step(number), after)

    def find_share(self, cell: Cell, number: int) -> Fraction:
        """Return the fraction of a whole run at the end of a rung."""
        candidate = cell.candidate
        if candidate in self.plan.list_references(candidate.method):
            return Fraction(1)
        return self.plan.list_rungs(candidate.method)[number].share

    def count_played(self, cell: Cell, before: Result) -> int:
        """Return the rounds of the previous step from which a run continues."""
        return 0 if self.plays_whole(cell) else before["rounds"]

    def spend(
        self, cell: Cell, number: int, before: Result, where: str
    ) -> Steps[Result]:
        """Play a run in a rung while its share of the budget suffices.

        The cost of further rounds is estimated by the highest cost so far. While rounds
        differ in cost, the run is played in several parts with a file each, and a part
        at most doubles the number of rounds. A run that exceeds its share nevertheless
        fails.

        Args:
            cell: Run.
            number: Number of the rung.
            before: Result of the previous step.
            where: Text for progress lines.

        Returns:
            Result of the run in this rung.
        """
        share = int(self.find_share(cell, number) * self.plan.section.budget)
        folder = self.folder / run_folder.SEARCH / cell.name
        goes_on = not self.plays_whole(cell)
        after, played = before, self.count_played(cell, before)
        while after["failure"] is None and (goes_on or after is before):
            more = (share - after["gradients"]) // after["highest_cost"]
            rounds = min(self.plan.most_rounds, played + max(0, more))
            is_even = after["gradients"] == played * after["highest_cost"]
            if goes_on and not (is_even and played > 1):
                rounds = min(rounds, 2 * played)
            if rounds == played:
                break
            part = f"{name_step(number)},rounds={rounds}"
            known = self.read_result(cell, part)
            if known is None:
                place = f"{where}, up to round {rounds}"
                _print_line(f"{cell.name}: {place}: {cell.candidate.description}")
                known = yield from self.play_up_to(cell, folder, rounds, after)
                self.keep(cell, part, known)
            after, played = known, rounds
        if after["failure"] is None and (not played or after["gradients"] > share):
            failure = f"needs more than {share:,} gradients of training"
            after = after | {"score": None, "rank": None, "failure": failure}
        return after

    def measure_cost(self, cell: Cell) -> Steps[Result]:
        """Measure the cost of a run's first rounds; of only one under a hard cap.

        The run itself begins with these rounds. A run that cannot continue has a
        separate run for them.
        """
        known = self.read_result(cell, COST)
        if known is not None:
            return known
        every = self.plan.make_config(cell.candidate, cell.seed, 1).evaluation.every
        least = halving.count_measured_rounds(every)
        rounds = min(self.plan.most_rounds, 1 if self.plan.section.is_capped else least)
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
        after = yield from self.play_up_to(cell, folder, rounds, nothing)
        self.keep(cell, COST, after)
        return after

    def refuse_overspending(self) -> Steps[None]:
        """Measure all trials before the first rung and check the budget.

        The search continues from the measured rounds. If they exceed the budget, they
        stay in the folder for the same command with a larger one.

        Raises:
            RunFailure: If the first rounds of methods exceed the budget; a line for
                each such method is printed before.
        """
        if not tune_folder.is_unchecked(self.folder):
            return
        refused = []
        if not self.plan.section.overspend:
            for search in self.plan.searches:
                player = replace(self, plan=search)
                for method in search.section.methods:
                    spent = yield from player.measure_trials(method)
                    refused.append(plan.describe_refusal(search, method, spent))
        refused = [line for line in refused if line]
        for line in refused:
            output.complain(escape(line))
        if refused:
            raise RunFailure(
                f"{self.folder}: keeps the measured rounds, from which the same command "
                "continues after one of these changes"
            )
        tune_folder.mark_checked(self.folder)

    def measure_trials(self, method: str) -> Steps[int]:
        """Return the gradients of the first rounds of all trials of a method."""
        spent = 0
        for candidate in self.plan.list_trials(method):
            for seed in self.plan.section.search_seeds:
                cost = yield from self.measure_cost(Cell(candidate, seed))
                spent += cost["gradients"]
        return spent

    def plays_whole(self, cell: Cell) -> bool:
        """Return whether a run cannot continue with more rounds."""
        candidate = cell.candidate
        if candidate in self.plan.list_references(candidate.method):
            return self.plan.make_config(candidate, cell.seed, 1).needs_rounds
        return self.plan.plays_whole(candidate.method)

    def play_up_to(
        self, cell: Cell, folder: Path, rounds: int, before: Result
    ) -> Steps[Result]:
        """Play a run up to ``rounds`` rounds and return its result.

        Args:
            cell: Run.
            folder: Folder of the run.
            rounds: Number of rounds at the end.
            before: Result of the previous step.
        """
        since = self.count_played(cell, before)
        experiment = self.plan.make_config(cell.candidate, cell.seed, rounds)
        failure = yield Step(folder, experiment)
        run = loading.load_run(folder)
        after = before | {"rounds": rounds, "failure": failure}
        if failure is not None:
            _print_line(f"{cell.name}: diverged and does not continue")
            return self.charged(after | {"score": None, "rank": None}, run, since)
        of_rounds, final = count_gradients(run)
        if len(of_rounds) > rounds:
            raise UserError(
                f"{folder}: has {len(of_rounds)} rounds, but no file in "
                f"{self.folder / tune_folder.RESULTS} has the result of its first "
                f"{rounds}; delete the run's folder and repeat the command"
            )
        if before["rounds"] == 0 and not self.plan.section.is_capped:
            left = self.plan.section.budget - final
            every = experiment.evaluation.every
            most = self.plan.most_rounds
            after["whole"] = halving.count_rounds_within(left, of_rounds, every, most)
        score = metric_values.read_value(run, metric_values.VALIDATION, "tail").value
        is_number = math.isfinite(score)
        after["score"] = score if is_number else None
        after["rank"] = run.measure.orient(score) if is_number else None
        return self.charged(after, run, since) if rounds > since else after

    def charged(self, result: Result, run: Run, since: int) -> Result:
        """Return a result that includes the gradients of a run's rounds after ``since``."""
        of_rounds, final = count_gradients(run)
        spent = sum(of_rounds[since:]) + final
        section = self.plan.section
        if not section.is_capped:
            return result | {"gradients": result["gradients"] + spent}
        of_scores, _ = count_gradients(run, SCORING_GRADIENTS)
        training = [
            every - scored for every, scored in zip(of_rounds, of_scores, strict=True)
        ]
        more = sum(training[since:])
        paid = result["gradients"] + more
        highest = halving.find_highest_cost(training or [0])
        rounds = len(training) + max(0, (section.budget - paid) // highest)
        return result | {
            "gradients": paid,
            "whole": min(self.plan.most_rounds, max(1, rounds)),
            "scoring": result.get("scoring", 0) + spent - more,
            "highest_cost": highest,
        }

    def keep(self, cell: Cell, step: str, result: Result) -> None:
        """Write the result of a run's step."""
        tune_folder.keep(self.folder, cell.name, step, result)

    # The final runs

    def play_finals(self, sweep: str, cells: list[Cell]) -> Steps[None]:
        """Play final runs of a method unless they are complete.

        A diverged run is left out of the outcome.

        Args:
            sweep: FINAL for the chosen, UNTUNED for the untuned configuration; also the
                folder of the runs.
            cells: Runs.
        """
        candidate = cells[0].candidate
        choose = self.find_untuned if sweep == run_folder.UNTUNED else self.choose
        choice = choose(candidate.method)
        if choice is None:
            _print_line(f"{candidate.name}: not played, no run finished the last rung")
            return
        name = f"{self.plan.base.get('name', 'experiment')}-{candidate.name}"
        for cell in cells:
            experiment = self.plan.make_final_config(
                choice.candidate, cell.seed, choice.rounds
            )
            experiment = experiment.model_copy(update={"name": name})
            failure = yield Step(self.folder / sweep / cell.name, experiment)
            if failure is not None:
                _print_line(f"{cell.name}: {failure}")

    def write_choice(self, method: str) -> str:
        """Write the file of a method's chosen configuration and return a line on it."""
        choice = self.choose(method)
        if choice is None:
            return (
                f"{method}: no run finished the last rung without diverging and within "
                "the budget; raise tune.budget or change tune.search"
            )
        text = outcome.write_chosen(self.plan, choice)
        name = f"{make_file_name(method)},{self.plan.prefix}".rstrip(",")
        path = self.folder / tune_folder.CHOSEN / f"{name}.toml"
        atomic.write(path, text.encode())
        return f"{method}: chosen: {choice.candidate.description}"

    def write_outcome(self) -> None:
        """Write the outcome to files and print it."""
        for search in self.plan.searches:
            for method in search.section.methods:
                replace(self, plan=search).write_choice(method)
        outcome.write_outcome(self.plan, self.folder)


def play_steps(steps: Steps[Any], communicator: Communicator) -> None:
    """Play the runs that rank 0 yields, on all ranks. Collective.

    Args:
        steps: Generator of runs, advanced on rank 0; it receives the error of each run
            that diverged, else None.
        communicator: Communicator of all ranks.

    Raises:
        UserError, RunFailure, Interrupted: From the generator or a run; on all ranks.
    """
    failure: str | None = None
    while True:
        asked = None
        with agreed(communicator):
            if communicator.is_server:
                with suppress(StopIteration):
                    asked = steps.send(failure).as_json()
        asked = communicator.bcast(asked)
        if asked is None:
            return
        folder, name, table = asked
        experiment = config.parse(table).model_copy(update={"name": name})
        failure = None
        try:
            run(experiment, Path(folder), communicator)
        except Diverged as error:
            failure = str(error)


def _print_line(text: str) -> None:
    output.say(escape(text))
