"""Events outside a run: its output cannot be written, another process makes a page of
it, or its folder is renamed.
"""

import errno
import os
import tempfile
import time
from functools import partial
from pathlib import Path

import judge
from faults import GRACE, LATE, Fault, Outcome, end, plan_report, reach
from inside import Strike
from scene import Scene

from hpcfl.files import output
from hpcfl.storage import run_folder

OPERATION = "operation"  # a moment, as in ``faults.MOMENTS``


def lose_output(scene: Scene, to: str) -> Outcome:
    """Make the output of all ranks fail: the run continues and reports it in its
    folder.
    """
    before = scene.stamp()
    job = scene.start(scene.ranks(), Strike("", output=to))
    outcome = end(job, "all along", f"{job.ranks} ranks")
    outcome.wrong += judge.continued(scene, outcome.code, job, before)
    played = outcome.code == 0 and scene.stamp() != before
    if played and not (scene.folder / output.NOTE).exists():
        outcome.wrong.append("no note that its output could not be written")
    return outcome


def make_page(scene: Scene) -> Outcome:
    """Make a report while the run continues; one of the two may be killed meanwhile."""
    struck = scene.chance.choice(["nobody", "the run", "the report"])
    page = Path(tempfile.mkdtemp(dir=scene.zygote.folder)) / "report.html"
    before = scene.stamp()
    job, moment = reach(scene, scene.ranks())
    begun = time.monotonic()
    report = scene.begin("report", str(scene.folder), "--out", str(page))
    if struck != "nobody":
        time.sleep(scene.chance.uniform(0, 0.5))
        (job if struck == "the run" else report).kill()
    ended = report.end(GRACE)
    outcome = end(job, moment, f"killed: {struck}", begun)
    if struck == "the run":
        outcome.wrong += judge.killed(outcome.code)
    else:
        outcome.wrong += judge.continued(scene, outcome.code, job, before)
    if struck != "the report":
        outcome.wrong += [f"report: {line}" for line in judge.looked(ended, report)]
    if page.exists() and not page.read_text().rstrip().endswith("</html>"):
        outcome.wrong.append("half a page")
    return outcome


def move_away(scene: Scene) -> Outcome:
    """Rename the folder while the run continues, and rename it back when the run has
    ended.
    """
    moved = scene.place / "moved"
    job = scene.start(scene.ranks(), plan_report(scene, OPERATION))
    if not job.struck() or not (scene.folder / run_folder.RUN).exists():
        return end(job, LATE, "not moved")
    scene.folder.rename(moved)
    outcome = end(job, OPERATION, "moved")
    outcome.wrong += judge.failed(
        outcome.code, outcome.output, os.strerror(errno.ENOENT)
    )
    if scene.folder.exists():
        outcome.wrong.append(f"made again: {sorted(os.listdir(scene.folder))}")
    else:
        moved.rename(scene.folder)
    return outcome


ALL: dict[str, Fault] = {
    "output on a full disk": partial(lose_output, to="full"),
    "closed output": partial(lose_output, to="closed"),
    "a page under way": make_page,
    "folder renamed": move_away,
}
