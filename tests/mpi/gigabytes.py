"""Two ranks send each other rows that together have more bytes than 32 bits can count."""

import numpy as np

from hpcfl.communication.connection import connect

WIDTH = (1 << 31) // 2 + 4096
ENDS = [0, WIDTH // 2, WIDTH - 1]

world = connect()
rows, owner = None, np.array([1, 1])
if world.is_server:
    rows = np.zeros((2, WIDTH), np.uint8)
    rows[:, ENDS] = [[1, 2, 3], [4, 5, 6]]
mine = world.scatter_rows(rows, owner, WIDTH, "uint8")
assert mine.shape == ((0, WIDTH) if world.is_server else (2, WIDTH))
mine[:, ENDS] *= 2
doubled = world.gather_rows(mine, owner)
if doubled is not None:
    assert doubled[:, ENDS].tolist() == [[2, 4, 6], [8, 10, 12]]
    assert doubled.sum() == 2 * (1 + 2 + 3 + 4 + 5 + 6)
world.end(0)
