"""Concepts of clients by round, where clients drift (heterogeneity.md H7)."""

from pathlib import Path

import numpy as np

from hpcfl.data.shifts import _groups
from hpcfl.data.shifts.base import Facts, Shift
from hpcfl.files import atomic, user_files

MOST_BYTES = 1 << 28  # of a table


def steps(shift: Shift, facts: Facts, concepts: int) -> np.ndarray:
    """Return the concept of each client at the beginning and from each of the rounds
    ``at`` on, int64 [steps, clients and newcomers].

    Without a table everybody begins in concept 0. Clients that drift go on to the next
    concept at each of the rounds and after the last to 0 again; where they are
    staggered, each goes to one of the others, once.
    """
    if shift.table is not None:
        return _from_table(shift, shift.table, facts, concepts)
    step = np.arange(len(shift.at) + 1)[:, None]
    if shift.who == "staggered":
        block = _groups.of_all(shift, facts, len(shift.at))
        reached = 1 + block % max(1, concepts - 1)
        return np.where(step > block, reached, 0)
    share = 1.0 if shift.who == "all" else shift.who
    drifts = _groups.of_share(shift, facts, share, groups=2)
    followed: np.ndarray = step % concepts * drifts
    return followed


def _from_table(shift: Shift, path: str, facts: Facts, concepts: int) -> np.ndarray:
    """Read the steps in a file; newcomers have the columns from the first on."""
    try:
        text = user_files.read_bytes(Path(path).expanduser(), MOST_BYTES).decode()
        rows = [line.replace(",", " ").split() for line in text.splitlines()]
        numbers = [[int(word) for word in row] for row in rows if row]
        table = np.array(numbers, np.int64)
    except OSError as error:
        reason = f"cannot be read ({atomic.reason(error)})"
        raise facts.wrong("table", f"{path} {reason}") from None
    except (ValueError, OverflowError):
        reason = "must hold rows of as many whole numbers, a number for each client"
        raise facts.wrong("table", f"{path} {reason}") from None
    wanted = len(shift.at) + 1, facts.clients
    if table.shape != wanted:
        raise facts.wrong(
            "table",
            f"{path} has the shape {list(table.shape)}; expected {list(wanted)}, a row for the "
            "beginning and one for each of the rounds in at, a column for each client",
        )
    if table.min() < 0 or table.max() >= concepts:
        raise facts.wrong("table", f"{path}: its numbers must be 0 … {concepts - 1}")
    columns = np.arange(facts.clients + facts.newcomers) % facts.clients
    return table[:, columns]
