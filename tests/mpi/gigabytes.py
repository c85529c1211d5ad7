"""Two ranks exchange rows with more bytes in total than 32 bits can count: ``COUNT`` of
``WIDTH`` bytes each.
"""

import os

import numpy as np

from hpcfl.communication.connection import connect

COUNT, WIDTH = int(os.environ["COUNT"]), int(os.environ["WIDTH"])
ENDS = [0, WIDTH // 2, WIDTH - 1]

world = connect()
rows, owner = None, np.ones(COUNT, np.int64)
marks = (np.arange(COUNT)[:, None] + [1, 2, 3]) % 100
if world.is_server:
    rows = np.zeros((COUNT, WIDTH), np.uint8)
    rows[:, ENDS] = marks
mine = world.scatter_rows(rows, owner, WIDTH, "uint8", np.empty)
del rows
assert mine.shape == ((0, WIDTH) if world.is_server else (COUNT, WIDTH))
mine[:, ENDS] *= 2
doubled = world.gather_rows(mine, owner)
if doubled is not None:
    assert (doubled[:, ENDS] == 2 * marks).all()
world.end(0)
