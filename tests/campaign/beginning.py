"""Faults before round 1: a failure in the preflight, a rank with another configuration,
a rank that leaves before the ranks connect.
"""

import errno
import os
from pathlib import Path

import judge
from faults import Fault, Outcome, at_rest, end
from inside import Strike
from job import Job
from scene import Scene

SCRIPT = Path(__file__).with_name("script.py")
CALLS = 12_000  # approximate number of Python's calls in a preflight
FAILURES = (errno.ENOMEM, errno.ESTALE, errno.EIO)
MOMENT = "before round 1"


def fail_in_preflight(scene: Scene) -> Outcome:
    """Raise an error of the system once, at some moment of the preflight."""
    ranks = scene.ranks()
    strike = Strike(
        "",
        rank=max(0, ranks - 1),
        number=scene.chance.randint(1, CALLS),
        act="fail in the preflight",
        errno=scene.chance.choice(FAILURES),
    )
    before = scene.stamp()
    job = scene.start(ranks, strike)
    outcome = end(job, MOMENT, f"call {strike.number} on {job.ranks} ranks")
    code, reason = outcome.code, os.strerror(strike.errno)
    outcome.wrong += judge.failed(code, job.said, reason)
    if code != 0:
        outcome.wrong += judge.unchanged(before, scene.stamp())
    if code == 2:
        said = job.said[-300:]
        outcome.wrong.append(f"a failure of the machine is bad input: {said}")
    return outcome


def differ(scene: Scene) -> Outcome:
    """Give a rank another configuration."""
    state = at_rest(scene)
    ranks = scene.chance.randint(2, max(2, scene.most_ranks))
    strike = Strike("", rank=scene.chance.randrange(ranks), act="differ")
    before = scene.stamp()
    job = scene.start(ranks, strike)
    outcome = end(job, state, f"rank {strike.rank} of {ranks}")
    outcome.wrong += judge.refused(outcome.code, job)
    outcome.wrong += judge.unchanged(before, scene.stamp())
    if "training.lr" not in job.err:
        outcome.wrong.append(f"the key is not named: {job.err}")
    return outcome


def leave(scene: Scene) -> Outcome:
    """Let a rank of a script leave before ``hpcfl.run``."""
    state = at_rest(scene)
    ranks = scene.chance.randint(2, max(2, scene.most_ranks))
    strike = Strike(
        str(scene.folder),
        rank=scene.chance.randrange(ranks),
        act="leave",
        errno=scene.chance.choice([0, 1]),
    )
    before = scene.stamp()
    arguments = [str(scene.file), str(scene.folder)]
    job = Job(scene.zygote, ranks, arguments, strike, program=SCRIPT)
    outcome = end(job, state, f"rank {strike.rank} of {ranks}")
    code = outcome.code
    outcome.wrong += judge.killed(code) + judge.unchanged(before, scene.stamp())
    if code == 0 or "not all ranks have connected" not in job.err:
        outcome.wrong.append(f"code {code}, nothing said: {job.said[-300:]}")
    return outcome


ALL: dict[str, Fault] = {
    "failure in the preflight": fail_in_preflight,
    "another configuration on a rank": differ,
    "rank leaves before the run": leave,
}
