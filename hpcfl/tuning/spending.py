"""The budget of a search, and the least that its first rounds cost. Pure functions."""

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


def first_rounds(plan: Plan, method: str, of_a_run: int) -> int:
    """Return the gradients that the first rounds of all trials take on one partition.

    of_a_run: what the first rounds of one run take. A run that cannot go on plays them
    twice, once to measure its cost.
    """
    times = 2 if plan.plays_whole(method) else 1
    return times * len(plan.trials(method)) * of_a_run


def refusal(plan: Plan, method: str, of_a_run: int) -> str:
    """Return why a search cannot keep its budget, "" if it can.

    of_a_run: as for ``first_rounds``.
    """
    needed = first_rounds(plan, method, of_a_run)
    seeds = len(plan.section.search_seeds)
    budget = search_budget(plan)
    if plan.section.overspend or needed * seeds <= budget:
        return ""
    enough = math.ceil(needed / whole_runs(plan))
    return (
        f"{plan.source}: tune.budget = {plan.section.budget}: the first rounds of all "
        f"trials of {method} take {needed * seeds:,} gradients of samples, its search "
        f"may take {budget:,}; set tune.budget = {enough} or more, or tune.overspend = true"
    )
