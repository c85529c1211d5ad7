"""Asynchronous server that is simulated event by event: the slow path for comparison
with the rounds of ``clock/asynchronous``.

Every client trains alone when it starts. Its result is stored until the step that uses
it.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from hpcfl.clock.calendar import Calendar, Job
from hpcfl.communication.message import wrap_entries
from hpcfl.rows import sums
from hpcfl.simulation import record
from hpcfl.simulation.prepare import Prepared

ONE = 2**16  # units of 1


@dataclass
class Result:
    """Result of one client."""

    rows: dict[str, torch.Tensor]
    weights: dict[str, float]
    state: dict[str, torch.Tensor]
    numbers: dict[str, float]


@dataclass
class Serial:
    """Final state, and the numbers of each client by round and client."""

    server: dict[str, torch.Tensor]
    clients: dict[str, torch.Tensor]
    numbers: dict[tuple[int, int], dict[str, float]]


def play(prepared: Prepared, calendar: Calendar, units_of) -> Serial:
    """Run an experiment; ``units_of``: (τ) → s(τ) in units of 2^−16."""
    config, method = prepared.config, prepared.method
    server, store = prepared.initial_server_state, prepared.store
    steps = [calendar.step(r) for r in range(1, config.rounds + 1)]
    waiting: dict[tuple[int, int], Result] = {}
    messages: list[dict[str, torch.Tensor]] = []
    numbers: dict[tuple[int, int], dict[str, float]] = {}
    for version, step in enumerate(steps):
        audience = prepared.make_audience(
            np.arange(prepared.setup.clients), step.number
        )
        sent = method.send(server, audience)
        messages.append({name: one.tensor for name, one in wrap_entries(sent).items()})
        for later in steps:
            for job in later.jobs:
                if job.version == version:
                    result = _trained(prepared, job, messages[version])
                    waiting[job.client, version] = result
        results = [waiting.pop((job.client, job.version)) for job in step.jobs]
        for job, result in zip(step.jobs, results, strict=True):
            store.put([job.client], result.state)
            numbers[step.number, job.client] = result.numbers
        uplink = {}
        for name in results[0].rows:
            uplink[name] = _merged(config.time, step, results, name, messages, units_of)
        cohort = prepared.make_cohort(step.cohort, step.number)
        method.aggregate(server, cohort, uplink)
    return Serial(server, store.get(store.ids), numbers)


def _trained(prepared: Prepared, job: Job, message: dict[str, Any]) -> Result:
    """Return the result of a client in a fleet of one."""
    fleet = prepared.make_fleet(np.array([job.client]), job.version + 1, is_scored=True)
    fleet.scoring.scores_starts = False
    if job.share != 1:
        fleet.pace = np.array([job.share])
    inbox = prepared.method.prepare(fleet, dict(message))
    returned = prepared.method.update(fleet, inbox)
    finite = record.find_finite(fleet, returned)
    assert finite.all()
    of_fleet = record.compute_numbers(fleet, returned, finite)
    return Result(
        {name: mean.tensor.clone() for name, mean in returned.items()},
        {name: float(mean.weights) for name, mean in returned.items()},
        {name: rows.clone() for name, rows in fleet.state.items()},
        {name: float(values[0]) for name, values in of_fleet.items()},
    )


def _merged(time, step, results, name, messages, units_of) -> torch.Tensor:
    """Return a_v + λ(x̄ − a_v + Σ_u p_u (a_v − a_u)) of one field, in double precision."""
    current = step.number - 1
    units = [units_of(staleness) for staleness in step.staleness]
    whole = all(one == ONE for one in units)
    weights = torch.tensor(
        [
            result.weights[name] * (1 if whole else one)
            for result, one in zip(results, units, strict=True)
        ]
    ).double()
    mean = sums.compute_mean(
        torch.cat([result.rows[name] for result in results]), weights
    )
    reach = time.alpha if time.rule == "fedasync" else time.server_lr
    rate = float(Fraction(sum(units), len(units) * ONE) * Fraction(reach))
    a_v = messages[current][name]
    stale = {job.version for job in step.jobs if job.version != current}
    if time.rule == "fedasync":
        stale = set()
    if rate == 1 and not stale:
        return mean
    moved = mean.double() - a_v.double()
    for version in sorted(stale):
        of_version = [job.version == version for job in step.jobs]
        part = weights[torch.tensor(of_version)].sum() / weights.sum()
        moved += part * (a_v.double() - messages[version][name].double())
    return (a_v.double() + rate * moved).float()
