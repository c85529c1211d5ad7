"""The budget of a search, and the least cost of its first rounds. Pure functions."""

import math
from fractions import Fraction

from hpcfl.tuning import halving
from hpcfl.tuning.plan import Plan


def whole_runs(plan: Plan) -> Fraction:
    """Return the cost of a search on one partition, in whole runs."""
    section = plan.section
    return halving.cost(halving.rungs(section.trials, section.eta, section.rungs))


def search_budget(plan: Plan) -> int:
    """Return the gradients of samples that each method's search may take."""
    section = plan.section
    return int(whole_runs(plan) * section.budget) * len(section.search_seeds)


def refusal(plan: Plan, method: str, measured: int) -> str:
    """Return why a method's search cannot keep its budget, "" if it can.

    measured: the gradients of the first rounds of all its trials. A run that cannot go
    on plays them twice, once to measure its cost.
    """
    needed = 2 * measured if plan.plays_whole(method) else measured
    budget = search_budget(plan)
    if needed <= budget:
        return ""
    of_one_seed = Fraction(needed, len(plan.section.search_seeds))
    enough = math.ceil(of_one_seed / whole_runs(plan))
    return (
        f"{plan.source}: tune.budget = {plan.section.budget}: the first rounds of all "
        f"trials of {method} take {needed:,} gradients of samples, its search may take "
        f"{budget:,}; set tune.budget = {enough} or more, or tune.overspend = true"
    )
