"""Selection of candidates by the result files of earlier rungs."""

from dataclasses import dataclass
from pathlib import Path

from hpcfl.errors import RunFailure
from hpcfl.storage import run_folder, tune_folder
from hpcfl.storage.tune_folder import Result
from hpcfl.tuning import halving
from hpcfl.tuning import plan as plans
from hpcfl.tuning.plan import Candidate, Cell, TuningPlan


@dataclass(frozen=True)
class Choice:
    """The chosen configuration of a method.

    Attributes:
        candidate: Chosen candidate.
        rounds: Number of rounds of its final runs: the smallest number that the budget
            allowed on a partition of the search.
        score: Mean score on held-out samples of the search's partitions, at the tail.
    """

    candidate: Candidate
    rounds: int
    score: float


def name_step(rung: int) -> str:
    """Return the part of file names for a rung."""
    return f"rung={rung}"


@dataclass(frozen=True)
class SearchResults:
    """Results of one search so far.

    Attributes:
        plan: Plan of the search.
        folder: Folder of the tuning.
    """

    plan: TuningPlan
    folder: Path

    def read_result(self, cell: Cell, step: str) -> Result | None:
        """Return the result of a run's step; None if the step has not ended."""
        return tune_folder.read_result(self.folder, cell.name, step)

    def read_results(self, candidate: Candidate, rung: int) -> list[Result]:
        """Return a candidate's results in a rung, in the order of the search seeds.

        Raises:
            RunFailure: If a run has not ended the rung.
        """
        found = []
        for seed in self.plan.section.search_seeds:
            cell = Cell(candidate, seed)
            of_cell = self.read_result(cell, name_step(rung))
            if of_cell is None:
                raise RunFailure(
                    f"{cell.name}: rung {rung + 1} has not ended; repeat the hpcfl tune or "
                    "hpcfl submit command that started it"
                )
            found.append(of_cell)
        return found

    def refuse_other_draws(self, cell: Cell) -> None:
        """Raise UserError if a run was begun with another configuration, for example
        because a user's method has declared other ranges since.
        """
        folder = self.folder / run_folder.SEARCH / cell.name
        rounds = self.plan.most_rounds
        experiment = self.plan.make_config(cell.candidate, cell.seed, rounds)
        run_folder.refuse_another(folder, experiment, "choose another --out")

    def select_candidates(self, method: str, rung: int) -> list[Candidate]:
        """Return the candidates of a method that are played in a rung, best first.

        Raises:
            RunFailure: If a run has not ended the previous rung.
        """
        if rung == 0:
            return self.plan.list_trials(method)
        count = self.plan.list_rungs(method)[rung].trials
        if self.plan.section.is_capped:
            count = min(count, self._count_affordable(method, rung))
        return self._select_best(method, rung - 1, count)

    def _count_affordable(self, method: str, rung: int) -> int:
        """Return the number of candidates for which the remaining budget pays a rung."""
        rungs = self.plan.list_rungs(method)
        spent, _ = self.sum_gradients(method, rung)
        share = rungs[rung].share - rungs[rung - 1].share
        section = self.plan.section
        of_one = share * section.budget * len(section.search_seeds)
        left = plans.count_search_budget(self.plan) - spent
        return max(0, int(left / of_one))

    def choose(self, method: str) -> Choice | None:
        """Return the chosen configuration of a method; None if no run has a score.

        Raises:
            RunFailure: If a run of the search has not ended.
        """
        last = len(self.plan.list_rungs(method)) - 1
        best = self._select_best(method, last, count=1)
        return self._make_choice(best[0], last) if best else None

    def find_untuned(self, method: str) -> Choice | None:
        """Return the method's untuned configuration with the score of its last rung.

        The result is None if a run has no score.

        Raises:
            RunFailure: If a run that decides on its last rung has not ended.
        """
        candidate = self.plan.make_untuned(method)
        reached = 0
        if self.plan.section.is_capped:  # the untuned configuration is a trial
            for rung in range(1, len(self.plan.list_rungs(method))):
                if candidate not in self.select_candidates(method, rung):
                    break
                reached = rung
        return self._make_choice(candidate, reached)

    def _make_choice(self, candidate: Candidate, rung: int) -> Choice | None:
        """Return a candidate with its results in a rung; None if a run has no score."""
        found = self.read_results(candidate, rung)
        score = halving.compute_mean([one["score"] for one in found])
        if score is None:
            return None
        for seed in self.plan.section.search_seeds:
            self.refuse_other_draws(Cell(candidate, seed))
        return Choice(candidate, min(one["whole"] for one in found), score)

    def sum_gradients(self, method: str, before: int | None = None) -> tuple[int, int]:
        """Return the sample gradients of a method's search.

        Args:
            method: Entry of ``tune.methods``.
            before: Rung before which to stop; None for all rungs.

        Returns:
            Sample gradients that count towards the budget, and those of scorings that do
            not.
        """
        paid = apart = 0
        for candidate in self.plan.list_trials(method):
            for seed in self.plan.section.search_seeds:
                last = self.find_last(Cell(candidate, seed), before)
                if last is not None:
                    paid += last["gradients"]
                    apart += last.get("scoring", 0)
        return paid, apart

    def find_last(self, cell: Cell, before: int | None = None) -> Result | None:
        """Return the result of a run's last step in the search; None before its first.

        Args:
            cell: Run.
            before: Rung before which to stop; None for all rungs.
        """
        rungs = self.plan.list_rungs(cell.candidate.method)[:before]
        for rung in reversed(range(len(rungs))):
            found = self.read_result(cell, name_step(rung))
            if found is not None:
                return found
        return None

    def _select_best(self, method: str, rung: int, count: int) -> list[Candidate]:
        """Return the ``count`` best candidates of a rung, by the mean over search seeds."""
        by_name, means = {}, {}
        for candidate in self.select_candidates(method, rung):
            found = self.read_results(candidate, rung)
            by_name[candidate.name] = candidate
            means[candidate.name] = halving.compute_mean([one["rank"] for one in found])
        return [by_name[name] for name in halving.select_best(means, count)]
