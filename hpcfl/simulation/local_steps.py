"""Clients that never take a step in a run, found before round 1."""

from dataclasses import replace

import numpy as np

from hpcfl.clients.batch_plan import fewest_samples
from hpcfl.errors import UserError
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.round_schedule import RoundSchedule


def note_idle_clients(prepared: Prepared, schedule: RoundSchedule) -> Prepared:
    """Return the experiment with notes on clients that never take a step.

    Raises UserError where no client ever does. A method that asks for no training is
    left alone.
    """
    if not prepared.tried.trainings:
        return prepared
    clients = prepared.setup.clients
    steps = find_stepping(prepared)
    present = find_participants(prepared, schedule)
    _refuse_idle_run(prepared, steps[:clients], present)
    notes = []
    if small := clients - int(steps[:clients].sum()):
        notes.append(
            f"{small} of {clients} clients never take a step: {_explain(prepared)}"
        )
    if absent := clients - int(present.sum()):
        notes.append(
            f"{absent} of {clients} clients never train: they take part in none of the "
            f"{prepared.config.rounds} rounds"
        )
    newcomers = steps[clients:]
    if prepared.config.newcomers.epochs and (small := int((~newcomers).sum())):
        notes.append(
            f"{small} of {len(newcomers)} newcomers take no step: {_explain(prepared)}"
        )
    return replace(prepared, notes=[*prepared.notes, *notes])


def find_stepping(prepared: Prepared) -> np.ndarray:
    """Return which clients and newcomers have enough samples for a step, bool [clients
    and newcomers].
    """
    samples = prepared.data.counts.sum(dim=1).long().numpy()
    fewest = fewest_samples(
        prepared.setup.training, prepared.resources.buffers.width > 0
    )
    size = prepared.setup.training.batch_size
    distinct, position = np.unique(samples, return_inverse=True)
    enough = [
        any(
            training.takes_step(count, size, fewest)
            for training in prepared.tried.trainings
        )
        for count in distinct.tolist()
    ]
    found: np.ndarray = np.array(enough)[position]
    return found


def find_participants(prepared: Prepared, schedule: RoundSchedule) -> np.ndarray:
    """Return which clients train in some round, bool [clients].

    All of them count where the losses of earlier rounds decide.
    """
    found = np.zeros(prepared.setup.clients, bool)
    if schedule.reports is not None:
        return ~found
    for number in range(1, prepared.config.rounds + 1):
        found[schedule.cohort(number)] = True
        if found.all():
            break
    return found


def _refuse_idle_run(
    prepared: Prepared, steps: np.ndarray, present: np.ndarray
) -> None:
    """Raise UserError where no client both takes part and takes a step."""
    if not present.any():
        raise UserError(
            f"no client takes part in any of the {prepared.config.rounds} rounds: set a longer "
            "time.deadline, or less of time.least and time.availability"
        )
    if (steps & present).any():
        return
    most = int(prepared.data.counts[: len(steps)][present].sum(dim=1).max())
    clients = "client" if present.all() else "client that takes part"
    raise UserError(
        f"no {clients} ever takes a step: {_explain(prepared)}; the largest of them has "
        f"{most} training samples"
    )


def _explain(prepared: Prepared) -> str:
    """Return why a client with few samples takes no step, and the keys that decide it."""
    training, method = prepared.setup.training, prepared.method.name
    if not any(asked.epochs for asked in prepared.tried.trainings):
        return f"method.name = '{method}' trains for 0 epochs"
    batches = min(asked.batches for asked in prepared.tried.trainings)
    reasons = []
    if training.drop_last:
        reasons.append(
            "training.drop_last = true leaves out batches of fewer than training.batch_size = "
            f"{training.batch_size} samples"
        )
    elif prepared.resources.buffers.width:
        reasons.append("batch norm needs 2 samples in a batch")
    if batches > 1:
        reasons.append(f"a step of method.name = '{method}' takes {batches} batches")
    return ", and ".join(reasons)
