"""Faults before round 1: a failure in the preflight, a rank with another configuration,
a rank that leaves before the ranks connect.
"""

import errno
import os
import time
from pathlib import Path

import judge
from faults import GRACE, Fault, Outcome, at_rest
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
    before, begun = scene.stamp(), time.monotonic()
    job = scene.start(ranks, strike)
    code = job.end(GRACE)
    wrong = judge.failed(code, job.said, os.strerror(strike.errno))
    if code != 0:
        wrong += judge.unchanged(before, scene.stamp())
    if code == 2:
        wrong.append(f"a failure of the machine is bad input: {job.said[-300:]}")
    detail = f"call {strike.number} on {job.ranks} ranks"
    return Outcome(MOMENT, detail, code, job.said, time.monotonic() - begun, wrong)


def differ(scene: Scene) -> Outcome:
    """Give a rank another configuration."""
    state = at_rest(scene)
    ranks = scene.chance.randint(2, max(2, scene.most_ranks))
    strike = Strike("", rank=scene.chance.randrange(ranks), act="differ")
    before, begun = scene.stamp(), time.monotonic()
    job = scene.start(ranks, strike)
    code = job.end(GRACE)
    wrong = judge.refused(code, job) + judge.unchanged(before, scene.stamp())
    if "training.lr" not in job.err:
        wrong.append(f"the key is not named: {job.err}")
    detail = f"rank {strike.rank} of {ranks}"
    return Outcome(
        f"at rest, {state}", detail, code, job.said, time.monotonic() - begun, wrong
    )


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
    before, begun = scene.stamp(), time.monotonic()
    arguments = [str(scene.file), str(scene.folder)]
    job = Job(scene.zygote, ranks, arguments, strike, program=SCRIPT)
    code = job.end(GRACE)
    wrong = judge.killed(code) + judge.unchanged(before, scene.stamp())
    if code == 0 or "not all ranks have connected" not in job.err:
        wrong.append(f"code {code}, nothing said: {job.said[-300:]}")
    detail = f"rank {strike.rank} of {ranks}"
    return Outcome(
        f"at rest, {state}", detail, code, job.said, time.monotonic() - begun, wrong
    )


ALL: dict[str, Fault] = {
    "failure in the preflight": fail_in_preflight,
    "another configuration on a rank": differ,
    "rank leaves before the run": leave,
}
