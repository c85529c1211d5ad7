"""Assignment of clients to the groups of a shift, and concepts of drifting clients
(heterogeneity.md H0, H7, H8).

Newcomers are assigned separately, so that every group has newcomers.
"""

from pathlib import Path

import numpy as np

from hpcfl.data.shifts.base import Facts, Shift
from hpcfl.experiment.sections import CELLS
from hpcfl.files import untrusted_files

ROUNDING = 1e-9  # corrects whole numbers that rounding makes slightly too small
MOST_BYTES = 1 << 28  # limit for the file of a table


def list_places(shift: Shift, facts: Facts) -> list[np.ndarray]:
    """Return the position of each client among clients, and of each newcomer among
    newcomers, int64.

    Groups are assigned in this order: client order for blocks, else a random order.
    """
    if shift.assign != "random":
        return [np.arange(facts.clients), np.arange(facts.newcomers)]
    clients = facts.generator("groups").permutation(facts.clients)
    newcomers = facts.generator("groups of newcomers").permutation(facts.newcomers)
    return [clients, newcomers]


def deal_to_all(shift: Shift, facts: Facts, groups: int) -> np.ndarray:
    """Return the group of each client, newcomers last: group ⌊i·k/M⌋ for position i of
    M, in k groups.

    Args:
        shift: table ``[[shift]]``.
        facts: facts about the data.
        groups: number k of groups.
    """
    clients, newcomers = list_places(shift, facts)
    of_clients = _spread(clients, groups)
    of_newcomers = _spread(newcomers, groups)
    return np.concatenate([of_clients, of_newcomers])


def deal_to_share(shift: Shift, facts: Facts, share: float, groups: int) -> np.ndarray:
    """Return the group of each client if only a share of clients is changed.

    Changed clients are divided evenly among groups 1, 2, …; the rest is in group 0.

    Args:
        shift: table ``[[shift]]``.
        facts: facts about the data.
        share: share of changed clients.
        groups: number of groups, including group 0.
    """
    dealt = []
    for places in list_places(shift, facts):
        most = int(share * len(places) + ROUNDING)
        dealt.append(_deal_changed(places, places < most, groups))
    return np.concatenate(dealt)


def deal_cells(shift: Shift, facts: Facts) -> list[np.ndarray]:
    """Return the cell of each client, and of each newcomer, as positions in ``CELLS``.

    Each cell has ⌊share·M⌋ clients; remaining clients are plain.
    """
    assert shift.cells is not None
    dealt = []
    for places in list_places(shift, facts):
        counts = []
        for cell in CELLS:
            exact = shift.cells[cell] * len(places)
            counts.append(int(exact + ROUNDING))
        counts[0] += len(places) - sum(counts)
        cells = np.repeat(np.arange(len(CELLS)), counts)
        dealt.append(cells[places])
    return dealt


def deal_within_cells(
    shift: Shift,
    facts: Facts,
    cells: list[np.ndarray],
    own: str,
    groups: int,
) -> np.ndarray:
    """Return the group of each client by its cell.

    In each cell that the shift changes, clients are divided evenly among groups 1, 2,
    ….

    Args:
        shift: table ``[[shift]]``.
        facts: facts about the data.
        cells: result of ``deal_cells``.
        own: cell that only this shift changes.
        groups: number of groups, including group 0.
    """
    dealt = []
    for places, cell in zip(list_places(shift, facts), cells, strict=True):
        alone = _deal_changed(places, cell == CELLS.index(own), groups)
        in_both = _deal_changed(places, cell == CELLS.index("both"), groups)
        dealt.append(alone + in_both)
    return np.concatenate(dealt)


def _deal_changed(places: np.ndarray, changed: np.ndarray, groups: int) -> np.ndarray:
    """Return group 0 for unchanged clients, and divide changed clients among the
    others.
    """
    dealt = np.zeros(len(places), np.int64)
    by_place = places[changed].argsort()
    place_among_changed = by_place.argsort()
    dealt[changed] = 1 + _spread(place_among_changed, groups - 1)
    return dealt


def _spread(places: np.ndarray, groups: int) -> np.ndarray:
    return places * groups // max(1, len(places))


def list_steps(shift: Shift, facts: Facts, concepts: int) -> np.ndarray:
    """Return the concept of each client in each step, int64 [steps, clients and
    newcomers].

    The first step begins in round 1, the others in the rounds ``at``. Without a table
    all clients begin with concept 0. Drifting clients change to the next concept in
    each step, after the last to 0 again. Staggered clients change once, each to one of
    the others.

    Args:
        shift: table ``[[shift]]``.
        facts: facts about the data.
        concepts: number of concepts.
    """
    if shift.table is not None:
        return _read_table(shift, shift.table, facts, concepts)
    step = np.arange(len(shift.at) + 1)[:, None]
    if shift.who == "staggered":
        block = deal_to_all(shift, facts, len(shift.at))
        has_changed = step > block
        concept_after = 1 + block % (concepts - 1)
        return np.where(has_changed, concept_after, 0)
    share = 1.0 if shift.who == "all" else shift.who
    drifts = deal_to_share(shift, facts, share, groups=2)
    concept_of_step = step % concepts
    followed: np.ndarray = concept_of_step * drifts  # 0 for clients that do not drift
    return followed


def _read_table(shift: Shift, path: str, facts: Facts, concepts: int) -> np.ndarray:
    """Read the steps from a file; newcomers reuse the columns from the first on."""
    with untrusted_files.refuse_unreadable(
        path, "rows of a whole number for each client"
    ):
        content = untrusted_files.read_user_file(Path(path).expanduser(), MOST_BYTES)
        lines = content.decode().replace(",", " ").splitlines()
        rows = [line.split() for line in lines if line.strip()]
        table = np.array(rows).astype(np.int64)
    wanted = len(shift.at) + 1, facts.clients
    if table.shape != wanted:
        raise facts.make_error(
            "table",
            f"{path} has the shape {list(table.shape)}; expected {list(wanted)}: a row for round "
            "1, a row for each round in at, and a column for each client",
        )
    if table.min() < 0 or table.max() >= concepts:
        raise facts.make_error(
            "table", f"{path}: its numbers must be 0 … {concepts - 1}"
        )
    columns = np.arange(facts.clients + facts.newcomers) % facts.clients
    return table[:, columns]
