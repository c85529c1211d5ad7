"""Decisions that change the bits of a run: stored in its checkpoints, and compared when
the run continues.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcfl.errors import UserError
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.round_schedule import RoundSchedule

TRAINING = "clients train"
ONE_BY_ONE = "one after the other"
SIDE_BY_SIDE = "side by side"


def describe_decisions(prepared: Prepared, schedule: RoundSchedule) -> dict[str, Any]:
    """Return the decisions of the preflight that change the last bits of a run, by subject.

    Every checkpoint stores them. ``asked`` has the settings that they depend on.
    """
    resources, config = prepared.resources, prepared.config
    of_overlays: dict[str, str] = {}
    for overlay in prepared.hooks.overlays:
        of_overlays |= overlay.list_decisions()
    if resources.privacy is not None and config.needs_rounds:
        from hpcfl.updates.sample_level import describe_noise

        of_overlays |= describe_noise(resources.privacy)
    return {
        "asked": [resources.device.type, config.runtime.lanes],
        TRAINING: ONE_BY_ONE if prepared.tried.unbatched else SIDE_BY_SIDE,
        **schedule.decisions(),
        **of_overlays,
    }


def refuse_other_decisions(
    prepared: Prepared,
    schedule: RoundSchedule,
    meta: Mapping[str, Any],
    folder: Path,
) -> None:
    """Raise UserError if a run would continue with other decisions than it began with,
    or with other values of what its model freezes.

    A run of an earlier version stored none. If the device or ``runtime.lanes`` is
    another one, the user has asked for other decisions.

    meta: the entries of a checkpoint of the run in ``folder``.
    """
    refuse_other_frozen(prepared, meta, folder)
    for change in list_changed_decisions(
        meta.get("decisions"), describe_decisions(prepared, schedule)
    ):
        raise UserError(
            f"{folder}: {change} when the run began; put back the code and the versions of "
            "packages that it began with, or choose another --out or --fresh"
        )


def list_changed_decisions(before: object, now: object) -> list[str]:
    """Return a text for each decision that differs between two starts with the same
    settings.
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


def refuse_other_frozen(
    prepared: Prepared, meta: Mapping[str, Any], folder: Path
) -> None:
    """Raise UserError where a run's model froze other values than it does now.

    meta: what a checkpoint of the run in ``folder`` says of it.
    """
    began, now = meta.get("frozen"), prepared.frozen
    if began == now:
        return
    model = prepared.config.model
    file = prepared.config.adapter.base or model.init
    where = f", read from {file}," if file else ""
    raise UserError(
        f"{folder}: the frozen or given parameters of model.name = '{model.name}'{where} are not "
        f"those that the run began with (SHA-256 {began}, now {now}); put the file back that "
        "they are read from, or choose another --out or --fresh"
    )
