"""Selection of candidates: pure functions of the files that the runs of earlier rungs
wrote.
"""

from dataclasses import dataclass
from pathlib import Path

from hpcfl.errors import RunFailure
from hpcfl.storage import tune_folder
from hpcfl.storage.tune_folder import Result
from hpcfl.tuning import halving
from hpcfl.tuning import plan as plans
from hpcfl.tuning.plan import Candidate, Cell, Plan


@dataclass(frozen=True)
class Choice:
    """The configuration that a method was tuned to.

    Attributes:
        candidate: The chosen candidate.
        rounds: The rounds of its final runs: the least number that the budget allowed
            on the search's partitions.
        score: The score on held-out samples of the search's partitions, at the tail.
    """

    candidate: Candidate
    rounds: int
    score: float


def name_step(rung: int) -> str:
    """Return the part of file names that denotes a rung."""
    return f"rung={rung}"


def results(plan: Plan, folder: Path, candidate: Candidate, rung: int) -> list[Result]:
    """Return a candidate's results in a rung, by search seed.

    Raises:
        RunFailure: one of them has not ended.
    """
    found = []
    for seed in plan.section.search_seeds:
        cell = Cell(candidate, seed)
        of_cell = tune_folder.result(folder, cell.name, name_step(rung))
        if of_cell is None:
            raise RunFailure(
                f"{cell.name}: rung {rung + 1} has not ended; the hpcfl tune or hpcfl submit "
                "that began it, typed again, goes on with it"
            )
        found.append(of_cell)
    return found


def select_candidates(
    plan: Plan, folder: Path, method: str, rung: int
) -> list[Candidate]:
    """Return the candidates of a method that are played in a rung, best first.

    Raises:
        RunFailure: a run of the rung before has not ended.
    """
    if rung == 0:
        return plan.trials(method)
    count = plan.rungs(method)[rung].trials
    if plan.section.is_capped:
        count = min(count, _affordable(plan, folder, method, rung))
    return _best(plan, folder, method, rung - 1, count)


def _affordable(plan: Plan, folder: Path, method: str, rung: int) -> int:
    """Return how many configurations can go on to a rung with the budget that is left."""
    rungs = plan.rungs(method)
    spent, _ = sum_gradients(plan, folder, method, rung)
    share = rungs[rung].share - rungs[rung - 1].share
    of_one = share * plan.section.budget * len(plan.section.search_seeds)
    left = plans.search_budget(plan) - spent
    return max(0, int(left / of_one))


def choose(plan: Plan, folder: Path, method: str) -> Choice | None:
    """Return the configuration that a method was tuned to; None if no run came to an
    end.

    Raises:
        RunFailure: a run of the search has not ended.
    """
    last = len(plan.rungs(method)) - 1
    best = _best(plan, folder, method, last, count=1)
    return choice(plan, folder, best[0], last) if best else None


def find_untuned(plan: Plan, folder: Path, method: str) -> Choice | None:
    """Return the method's untuned configuration with the score of the last rung that it
    reached; None if its runs did not come to an end.

    Raises:
        RunFailure: one of them has not been played yet.
    """
    candidate = plan.untuned(method)
    first = Cell(candidate, plan.section.search_seeds[0]).name
    reached = [
        rung
        for rung in range(len(plan.rungs(method)))
        if tune_folder.result(folder, first, name_step(rung)) is not None
    ]
    return choice(plan, folder, candidate, max(reached, default=0))


def choice(plan: Plan, folder: Path, candidate: Candidate, rung: int) -> Choice | None:
    """Return a candidate with its results in a rung; None if a run did not come to an
    end.
    """
    found = results(plan, folder, candidate, rung)
    score = halving.mean([one["score"] for one in found])
    if score is None:
        return None
    return Choice(candidate, min(one["whole"] for one in found), score)


def sum_gradients(
    plan: Plan, folder: Path, method: str, before: int | None = None
) -> tuple[int, int]:
    """Return the sample gradients of a method's search: those that its budget pays, and
    those of scorings that are counted apart.

    before: a rung, to count only the rungs before it.
    """
    paid = apart = 0
    for candidate in plan.trials(method):
        for seed in plan.section.search_seeds:
            last = find_last_result(plan, folder, Cell(candidate, seed), before)
            if last is not None:
                paid += last["gradients"]
                apart += last.get("scoring", 0)
    return paid, apart


def find_last_result(
    plan: Plan, folder: Path, cell: Cell, before: int | None = None
) -> Result | None:
    """Return the result of a run's last step in the search; None before its first.

    before: a rung, to look only at the rungs before it.
    """
    rungs = plan.rungs(cell.candidate.method)[:before]
    for rung in reversed(range(len(rungs))):
        found = tune_folder.result(folder, cell.name, name_step(rung))
        if found is not None:
            return found
    return None


def _best(
    plan: Plan,
    folder: Path,
    method: str,
    rung: int,
    count: int,
) -> list[Candidate]:
    """Return the ``count`` best candidates of a rung, by the mean over the search's
    seeds.
    """
    played = select_candidates(plan, folder, method, rung)
    by_name = {candidate.name: candidate for candidate in played}
    ranks = {}
    for name, candidate in by_name.items():
        found = results(plan, folder, candidate, rung)
        ranks[name] = halving.mean([one["rank"] for one in found])
    return [by_name[name] for name in halving.best(ranks, count)]
