"""Decisions of the preflight that change the last bits of a run.

Every checkpoint stores them. A run that continues makes the same decisions or is
refused.
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


def describe(prepared: Prepared, schedule: RoundSchedule) -> dict[str, Any]:
    """Return the decisions as text by subject, and under ``asked`` the settings that they
    depend on.
    """
    resources, config = prepared.resources, prepared.config
    return {
        "asked": [resources.device.type, config.runtime.lanes],
        TRAINING: ONE_BY_ONE if prepared.tried.unbatched else SIDE_BY_SIDE,
        **schedule.decisions(),
    }


def refuse_others(
    prepared: Prepared,
    schedule: RoundSchedule,
    meta: Mapping[str, Any],
    folder: Path,
) -> None:
    """Raise UserError if a run would continue with other decisions than it began with.

    A run of an earlier version stored none. If the device or ``runtime.lanes`` is
    another one, the user has asked for other decisions.

    meta: the entries of a checkpoint of the run in ``folder``.
    """
    for change in changes(meta.get("decisions"), describe(prepared, schedule)):
        raise UserError(
            f"{folder}: {change} when the run began; put back the code and the versions of "
            "packages that it began with, or choose another --out or --fresh"
        )


def changes(before: object, now: object) -> list[str]:
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
