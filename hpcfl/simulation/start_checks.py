"""Checks before round 1 that need the schedule.

``add_notes`` adds notes on clients that never train and on short rounds.
``refuse_other_decisions`` compares the decisions of the preflight, which change the
last bits, with the decisions in the checkpoint of a run that continues.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from hpcfl.clients.batch_plan import find_fewest_samples
from hpcfl.errors import UserError
from hpcfl.simulation.hooks import call_hook
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.round_schedule import RoundSchedule

INPUTS = "inputs"  # entry of a checkpoint with the checksums ``Prepared.inputs``
TRAINING = "clients train"
ONE_BY_ONE = "one after the other"
SIDE_BY_SIDE = "side by side"
GRADIENT = 6  # operations per sample and parameter of a linear layer for a gradient
# Number of operations of a round below which one process is faster than a server and
# two workers. With 20 clients and a hidden layer of 64 it was faster at 0.4 billion
# operations, and slower at 1.5 billion.
SHORT_ROUND = 5e8


def add_notes(prepared: Prepared, schedule: RoundSchedule) -> Prepared:
    """Return the experiment with notes on idle clients and on short rounds.

    Raises:
        UserError: No client ever takes a step.
    """
    return note_short_rounds(note_idle_clients(prepared, schedule))


def note_idle_clients(prepared: Prepared, schedule: RoundSchedule) -> Prepared:
    """Return the experiment with notes on clients that never take a step.

    Methods without training are skipped.

    Raises:
        UserError: No client ever takes a step.
    """
    if not prepared.findings.trainings:
        return prepared
    clients, rounds = prepared.setup.clients, prepared.config.rounds
    steps = find_stepping(prepared)
    present = find_participants(prepared, schedule)
    if not present.any():
        raise UserError(
            f"no client takes part in any of the {rounds} rounds: raise "
            "participation.fraction or time.deadline, lower time.least, or lengthen the "
            "clients' availability"
        )
    if not (steps[:clients] & present).any():
        raise UserError(f"no client ever takes a step: {explain_idleness(prepared)}")
    notes = []
    if few := clients - int(steps[:clients].sum()):
        notes.append(
            f"{few} of {clients} clients never take a step: {explain_idleness(prepared)}"
        )
    if absent := clients - int(present.sum()):
        notes.append(
            f"{absent} of {clients} clients never train: they take part in none of the "
            f"{rounds} rounds"
        )
    newcomers = steps[clients:]
    if prepared.config.newcomers.epochs and (few := int((~newcomers).sum())):
        notes.append(
            f"{few} of {len(newcomers)} newcomers take no step: "
            f"{explain_idleness(prepared)}"
        )
    return prepared.add_notes(*notes)


def note_short_rounds(prepared: Prepared) -> Prepared:
    """Return the experiment with a note if one process would be faster than ranks.

    Ranks wait for each other in every round, which dominates short rounds on CPUs. The
    estimate covers only models of linear layers, whose operations follow from their
    size.
    """
    on_gpu = prepared.resources.device.type == "cuda"
    if prepared.placement.size == 1 or on_gpu:
        return prepared
    for part in prepared.resources.kernel.module.modules():
        has_parameters = any(True for _ in part.parameters(recurse=False))
        if has_parameters and not isinstance(part, nn.Linear):
            return prepared
    setup = prepared.setup
    cohort = prepared.config.participation.count(setup.clients)
    samples = cohort * float(setup.samples.sum()) / setup.clients
    epochs = sum(asked.epochs * asked.share for asked in prepared.findings.trainings)
    operations = GRADIENT * setup.layout.width * samples * epochs
    if operations > SHORT_ROUND:
        return prepared
    return prepared.add_notes(
        f"a round has only about {operations / 1e9:.1g} billion operations, for which "
        "one process is faster than several ranks; start it without mpiexec or srun"
    )


def find_stepping(prepared: Prepared) -> np.ndarray:
    """Return which clients have enough samples for a step, bool [clients and
    newcomers].
    """
    training = prepared.setup.training
    fewest = find_fewest_samples(training, prepared.resources.buffers.width > 0)
    distinct, position = np.unique(prepared.data.sizes, return_inverse=True)
    enough = []
    for count in distinct.tolist():
        takes_step = [
            asked.takes_step(count, training.batch_size, fewest)
            for asked in prepared.findings.trainings
        ]
        enough.append(any(takes_step))
    found: np.ndarray = np.array(enough)[position]
    return found


def find_participants(prepared: Prepared, schedule: RoundSchedule) -> np.ndarray:
    """Return a mask of the clients that train in some round, bool [clients].

    All clients count if the selection depends on losses of earlier rounds.
    """
    found = np.zeros(prepared.setup.clients, bool)
    if schedule.reports is not None:
        return ~found
    for number in range(1, prepared.config.rounds + 1):
        found[schedule.get_cohort(number)] = True
        if found.all():
            break
    return found


def explain_idleness(prepared: Prepared) -> str:
    """Return the reason that a client takes no step, with the values that determine it."""
    trainings, training = prepared.findings.trainings, prepared.setup.training
    name = prepared.method.name
    if not any(asked.epochs for asked in trainings):
        return f"method.name = '{name}' trains for 0 epochs"
    batches = min(asked.batches for asked in trainings)
    most = int(prepared.data.counts.sum(dim=1).max())
    return (
        f"too few training samples for a step, which takes {batches} batches with "
        f"training.batch_size = {training.batch_size} and training.drop_last = "
        f"{str(training.drop_last).lower()}; the largest client has {most} training "
        "samples"
    )


def describe_decisions(prepared: Prepared, schedule: RoundSchedule) -> dict[str, Any]:
    """Return the preflight's decisions that change a run's last bits, by subject.

    Every checkpoint stores them. The entry ``asked`` has the settings that they depend
    on.
    """
    resources, config = prepared.resources, prepared.config
    further: dict[str, str] = {}
    for overlay in prepared.hooks.overlays:
        further |= call_hook(overlay, "list_decisions", dict)
    if resources.privacy is not None and config.needs_rounds:
        from hpcfl.updates.sample_level import describe_noise

        further |= describe_noise(resources.privacy)
    return {
        "asked": [resources.device.type, config.runtime.lanes],
        TRAINING: ONE_BY_ONE if prepared.findings.unbatched else SIDE_BY_SIDE,
        **schedule.list_decisions(),
        **further,
    }


def refuse_other_decisions(
    prepared: Prepared,
    schedule: RoundSchedule,
    meta: Mapping[str, Any],
    folder: Path,
) -> None:
    """Compare decisions and frozen values with a checkpoint of the run that continues.

    Runs of earlier versions stored no decisions and are skipped. So are runs with
    another device or ``runtime.lanes``, because the user requested other decisions.

    Args:
        prepared: experiment.
        schedule: schedule of the rounds.
        meta: entries of a checkpoint of the run.
        folder: folder of the run.

    Raises:
        UserError: A decision or a frozen value differs.
    """
    refuse_other_frozen(prepared, meta, folder)
    for change in list_changed_decisions(
        meta.get("decisions"), describe_decisions(prepared, schedule)
    ):
        raise UserError(
            f"{folder}: {change} when the run began; restore the code and the package versions "
            "with which it began, or choose another --out or --fresh"
        )


def list_changed_decisions(before: object, now: object) -> list[str]:
    """Return a text for each decision that differs between two starts.

    Starts with other settings are not compared.

    Args:
        before: decisions of the checkpoint.
        now: current decisions.
    """
    if not isinstance(before, Mapping) or not isinstance(now, Mapping):
        return []
    if before.get("asked") != now.get("asked"):
        return []
    return [
        f"{subject} {decision} now, and {before[subject]}"
        for subject, decision in now.items()
        if before.get(subject, decision) != decision
    ]


def list_changed_inputs(
    inputs: Mapping[str, str | int], meta: Mapping[str, Any]
) -> list[str]:
    """Return the names of the inputs that differ from those of a checkpoint.

    Inputs that the checkpoint does not have are left out.

    Args:
        inputs: current ``Prepared.inputs``.
        meta: entries of the checkpoint.
    """
    before = meta.get(INPUTS, inputs)
    return [name for name in inputs if before.get(name, inputs[name]) != inputs[name]]


def refuse_other_frozen(
    prepared: Prepared, meta: Mapping[str, Any], folder: Path
) -> None:
    """Raise UserError if the model's frozen values differ from the run's frozen values.

    Args:
        prepared: experiment.
        meta: entries of a checkpoint of the run that describe it.
        folder: folder of the run.
    """
    began, now = meta.get("frozen"), prepared.fixed_digest
    if began == now:
        return
    model = prepared.config.model
    file = prepared.config.adapter.base or model.init
    where = f", read from {file}," if file else ""
    raise UserError(
        f"{folder}: the frozen or given parameters of model.name = '{model.name}'{where} have "
        f"changed since the run began (SHA-256 {began}, now {now}); restore the file from which "
        "they are read, or choose another --out or --fresh"
    )
