"""Groups of a shift's clients (heterogeneity.md H0, H8).

Newcomers are counted among themselves, so that every group has some.
"""

import numpy as np

from hpcfl.data.shifts.base import Facts, Shift
from hpcfl.experiment.sections import CELLS

ROUNDING = 1e-9  # a share of clients may be a little too small a number


def order(shift: Shift, facts: Facts) -> list[np.ndarray]:
    """Return the place of each client among all, and of each newcomer among these,
    int64.

    Groups are dealt out along it: the clients' own order for blocks, else a random one.
    """
    counts = {"groups": facts.clients, "groups of newcomers": facts.newcomers}
    if shift.assign != "random":
        return [np.arange(count) for count in counts.values()]
    return [
        facts.generator(purpose).permutation(count) for purpose, count in counts.items()
    ]


def of_all(shift: Shift, facts: Facts, groups: int) -> np.ndarray:
    """Return the group of each client, newcomers last: ⌊i·k/M⌋ of the i-th of M in k
    groups.
    """
    dealt = [_spread(places, groups) for places in order(shift, facts)]
    return np.concatenate(dealt)


def of_share(shift: Shift, facts: Facts, share: float, groups: int) -> np.ndarray:
    """Return the group of each client where a share of them is in groups 1, 2, …,
    evenly, and the rest in group 0; ``groups`` counts that one.
    """
    dealt = []
    for places in order(shift, facts):
        changed = places < int(share * len(places) + ROUNDING)
        dealt.append(_changed(places, changed, groups))
    return np.concatenate(dealt)


def cells(shift: Shift, facts: Facts) -> list[np.ndarray]:
    """Return the cell of each client, and of each newcomer, as positions in ``CELLS``.

    A cell has ⌊share·M⌋ clients; those that are left are plain.
    """
    assert shift.cells is not None
    shares = [shift.cells[cell] for cell in CELLS]
    dealt = []
    for places in order(shift, facts):
        counts = [int(share * len(places) + ROUNDING) for share in shares]
        counts[0] += len(places) - sum(counts)
        dealt.append(np.repeat(np.arange(len(CELLS)), counts)[places])
    return dealt


def of_cells(
    shift: Shift, facts: Facts, of_clients: list[np.ndarray], first: bool, groups: int
) -> np.ndarray:
    """Return the group of each client by its cell: within each cell that a shift
    changes its groups 1, 2, … are of equal size.

    of_clients: as ``cells`` gives them. first: whether this is the first of the two
    shifts.
    """
    own, both = CELLS.index("first" if first else "second"), CELLS.index("both")
    dealt = []
    for places, cell in zip(order(shift, facts), of_clients, strict=True):
        alone = _changed(places, cell == own, groups)
        dealt.append(alone + _changed(places, cell == both, groups))
    return np.concatenate(dealt)


def _changed(places: np.ndarray, changed: np.ndarray, groups: int) -> np.ndarray:
    """Return group 0 but for the ``changed`` clients, which are dealt over the others."""
    result = np.zeros(len(places), np.int64)
    among_them = places[changed].argsort().argsort()
    result[changed] = 1 + _spread(among_them, groups - 1)
    return result


def _spread(places: np.ndarray, groups: int) -> np.ndarray:
    return places * groups // max(1, len(places))
