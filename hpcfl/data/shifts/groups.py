"""Groups of a shift's clients, and the concepts of clients that drift (heterogeneity.md
H0, H7, H8).

Newcomers are counted among themselves, so that every group has some.
"""

from pathlib import Path

import numpy as np

from hpcfl.data.shifts.base import Facts, Shift
from hpcfl.experiment.sections import CELLS
from hpcfl.files import untrusted_files

ROUNDING = 1e-9  # a share of clients may be a little too small a number
MOST_BYTES = 1 << 28  # of a table


def list_places(shift: Shift, facts: Facts) -> list[np.ndarray]:
    """Return the place of each client among all, and of each newcomer among these,
    int64.

    Groups are dealt out along it: the clients' own order for blocks, else a random one.
    """
    if shift.assign != "random":
        return [np.arange(facts.clients), np.arange(facts.newcomers)]
    clients = facts.generator("groups").permutation(facts.clients)
    newcomers = facts.generator("groups of newcomers").permutation(facts.newcomers)
    return [clients, newcomers]


def deal_to_all(shift: Shift, facts: Facts, groups: int) -> np.ndarray:
    """Return the group of each client, newcomers last: ⌊i·k/M⌋ of the i-th of M in k
    groups.
    """
    clients, newcomers = list_places(shift, facts)
    return np.concatenate([_spread(clients, groups), _spread(newcomers, groups)])


def deal_to_share(shift: Shift, facts: Facts, share: float, groups: int) -> np.ndarray:
    """Return the group of each client where a share of them is in groups 1, 2, …,
    evenly, and the rest in group 0; ``groups`` counts that one.
    """
    dealt = []
    for places in list_places(shift, facts):
        most = int(share * len(places) + ROUNDING)
        dealt.append(_deal_changed(places, places < most, groups))
    return np.concatenate(dealt)


def deal_cells(shift: Shift, facts: Facts) -> list[np.ndarray]:
    """Return the cell of each client, and of each newcomer, as positions in ``CELLS``.

    A cell has ⌊share·M⌋ clients; those that are left are plain.
    """
    assert shift.cells is not None
    dealt = []
    for places in list_places(shift, facts):
        counts = []
        for cell in CELLS:
            counts.append(int(shift.cells[cell] * len(places) + ROUNDING))
        counts[0] += len(places) - sum(counts)
        dealt.append(np.repeat(np.arange(len(CELLS)), counts)[places])
    return dealt


def deal_within_cells(
    shift: Shift,
    facts: Facts,
    cells: list[np.ndarray],
    own: str,
    groups: int,
) -> np.ndarray:
    """Return the group of each client by its cell: within each cell that a shift
    changes its groups 1, 2, … are of equal size.

    cells: as ``deal_cells`` gives them. own: the cell that this shift alone changes.
    """
    dealt = []
    for places, cell in zip(list_places(shift, facts), cells, strict=True):
        alone = _deal_changed(places, cell == CELLS.index(own), groups)
        in_both = _deal_changed(places, cell == CELLS.index("both"), groups)
        dealt.append(alone + in_both)
    return np.concatenate(dealt)


def _deal_changed(places: np.ndarray, changed: np.ndarray, groups: int) -> np.ndarray:
    """Return group 0 but for the ``changed`` clients, which are dealt over the others."""
    dealt = np.zeros(len(places), np.int64)
    rank = places[changed].argsort().argsort()  # the place among the changed clients
    dealt[changed] = 1 + _spread(rank, groups - 1)
    return dealt


def _spread(places: np.ndarray, groups: int) -> np.ndarray:
    return places * groups // max(1, len(places))


def list_steps(shift: Shift, facts: Facts, concepts: int) -> np.ndarray:
    """Return the concept of each client at the beginning and from each of the rounds
    ``at`` on, int64 [steps, clients and newcomers].

    Without a table all clients begin in concept 0. Clients that drift go on to the next
    concept at each of the rounds and after the last to 0 again; where they are
    staggered, each goes to one of the others, once.
    """
    if shift.table is not None:
        return _read_table(shift, shift.table, facts, concepts)
    step = np.arange(len(shift.at) + 1)[:, None]
    if shift.who == "staggered":
        block = deal_to_all(shift, facts, len(shift.at))
        reached = 1 + block % max(1, concepts - 1)
        return np.where(step > block, reached, 0)
    share = 1.0 if shift.who == "all" else shift.who
    drifts = deal_to_share(shift, facts, share, groups=2)
    followed: np.ndarray = step % concepts * drifts
    return followed


def _read_table(shift: Shift, path: str, facts: Facts, concepts: int) -> np.ndarray:
    """Read the steps in a file; newcomers have the columns from the first on."""
    with untrusted_files.refuse_unreadable(
        path, "rows of a whole number for each client"
    ):
        content = untrusted_files.read_user_file(Path(path).expanduser(), MOST_BYTES)
        lines = content.decode().replace(",", " ").splitlines()
        rows = [line.split() for line in lines if line.strip()]
        table = np.array(rows).astype(np.int64)
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
