"""Damaged files: one file of a run at rest is changed, and the same command is run
again.
"""

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import judge
from faults import Fault, Outcome, at_rest, end
from scene import Scene

FILES = {
    "manifest": "checkpoints/manifest-*.json",
    "server's state": "checkpoints/server-*.h5",
    "clients' state": "checkpoints/clients-*.h5",
    "metrics": "metrics*.h5",
    "rounds": "rounds/*.h5",
    "run.json": "run.json",
    "partition": "partition.h5",
    "lock": ".lock",
    "reason of a failure": "failure.txt",
}


def list_files(scene: Scene) -> dict[str, list[Path]]:
    """Return the existing files of the run by their kind."""
    there = {}
    for what, pattern in FILES.items():
        if found := sorted(scene.folder.glob(pattern)):
            there[what] = found
    return there


def damage(scene: Scene, how: Callable[[Path, random.Random], None]) -> Outcome:
    state = at_rest(scene)
    there = list_files(scene)
    if not there:
        return Outcome(state, "no file to damage", 0, "", 0.0)
    what = scene.chance.choice(sorted(there))
    how(scene.chance.choice(there[what]), scene.chance)
    scene.damaged.append(what)
    wrong = judge.story(scene, None)
    before = scene.stamp()
    job = scene.start(scene.ranks())
    outcome = end(job, state, what)
    outcome.wrong += wrong + judge.continued(scene, outcome.code, job, before)
    return outcome


def cut(path: Path, chance: random.Random):
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(max(1, len(data)))])


def flip(path: Path, chance: random.Random):
    data = bytearray(path.read_bytes())
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def delete(path: Path, chance: random.Random):
    path.unlink()


def empty(path: Path, chance: random.Random):
    path.write_bytes(b"")


ALL: dict[str, Fault] = {
    "truncated file": partial(damage, how=cut),
    "bit flip in a file": partial(damage, how=flip),
    "deleted file": partial(damage, how=delete),
    "emptied file": partial(damage, how=empty),
}
