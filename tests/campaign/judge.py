"""Error lines about the end of a run, about the reports of commands, and about its
final state.
"""

import json
import re
import signal
import time

import numpy as np
from job import PAUSE, Job, Output
from scene import FINISH, ROUNDS, Scene

from hpcfl.storage import lock
from hpcfl.storage.results import Results

VARIES = ("seconds/", "bytes_")  # metrics that may differ between two runs
SHOWN = 300  # characters of an output
RELEASE = 5  # maximal seconds until the locks of killed ranks are free


def killed(code: int | None) -> list[str]:
    """Check that a killed job ends, and with no code of another end; 0 if the kill came
    too late.
    """
    return [] if code not in (None, 2, 75) else [f"killed, it ended with code {code}"]


def failed(code: int | None, output: str, reason: str) -> list[str]:
    """Check that a failure ends the job with 1, or with 2 before it began, and with a
    message; 0 if the failure had no effect.
    """
    if code == 0:
        return []
    if code not in (1, 2):
        return [f"failed, it ended with code {code}: {output[-SHOWN:]}"]
    return (
        []
        if reason in output
        else [f"nothing said about '{reason}': {output[-SHOWN:]}"]
    )


def stopped(
    code: int | None, number: signal.Signals, times: int, early: bool, ranks: int
) -> list[str]:
    """Check that a first signal ends with 75, and a second one at once; 0 if it came
    too late, and the signal if too early.
    """
    allowed = {0, 75} | ({1, 255} if times > 1 else set())  # mpiexec returns 255
    allowed |= {-number, int(number), 128 + number} if early else set()
    if number == signal.SIGINT and times > 1:
        allowed.add(130)  # Ctrl-C after the last round
    return (
        []
        if code in allowed
        else [f"code {code} after {number.name} × {times} on {ranks} ranks"]
    )


def refused(code: int | None, job: Job | Output) -> list[str]:
    """Check for code 2 and one line."""
    right = code == 2 and _one_line(job.err)
    return (
        []
        if right
        else [f"code {code}, not refused in one line: {job.output[-SHOWN:]}"]
    )


def looked(code: int | None, job: Job | Output) -> list[str]:
    """Check that a reading command ends with 0, or with 2 and one line."""
    return [] if code == 0 and "Traceback" not in job.output else refused(code, job)


def unchanged(before: dict, after: dict) -> list[str]:
    """Check that two stamps of a scene are equal."""
    changed = sorted(
        name
        for name in before.keys() | after.keys()
        if before.get(name) != after.get(name)
    )
    return [f"changed {', '.join(changed)}"] if changed else []


def twice(scene: Scene, codes: list[int | None], jobs: list[Job]) -> list[str]:
    """Check that one of two starts wins and the other is refused or finds the run
    complete. Both are refused if no state is left.
    """
    if 0 not in codes and not scene.lost():
        output = " / ".join(job.err[-SHOWN:] for job in jobs)
        return [f"neither of two starts came through: {codes}: {output}"]
    return [
        line
        for code, job in zip(codes, jobs, strict=True)
        if code != 0
        for line in refused(code, job)
    ]


def story(scene: Scene, code: int | None) -> list[str]:
    """Check that ``show``, ``status``, ``table``, the disk, and the ``code`` of a run
    that has just ended report the same and change nothing.
    """
    _wait_for_release(scene)
    before, wrong, folder = scene.stamp(), [], str(scene.folder)
    looks = {
        command: scene.look(command, folder, *options)
        for command, *options in (("show", "--json"), ("status",), ("table",))
    }
    for command, (ended, job) in looks.items():
        wrong += [f"{command}: {line}" for line in looked(ended, job)]
    wrong += [f"looking {line}" for line in unchanged(before, scene.stamp())]
    if looks["show"][0] != 0:
        lost = f"nothing to show of a run with a checkpoint: {looks['show'][1].err}"
        return wrong + ([lost] if scene.manifests() else [])
    shown = json.loads(looks["show"][1].out)
    state = re.findall(r"^1 (\w+)$", looks["status"][1].out, re.MULTILINE)
    return wrong + _agreed(
        scene, code, shown, state[0] if state else "(nothing)", looks["table"][0]
    )


def _wait_for_release(scene: Scene):
    """Wait for the locks of killed ranks: the kernel releases them when the last thread
    has ended, some milliseconds after the main thread. The commands find a lock that is
    held longer.
    """
    deadline = time.monotonic() + RELEASE
    while lock.is_held(scene.folder) and time.monotonic() < deadline:
        time.sleep(PAUSE)


def _agreed(
    scene: Scene, code: int | None, shown: dict, state: str, table: int | None
) -> list[str]:
    newest = next((one.round for _, one in scene.manifests()), 0)
    finished, there = shown["finished"], scene.finished()
    checks = {
        f"finished is {finished}, round {ROUNDS + 1} and its state on the disk: {there}": finished
        == there,
        f"finished is {finished}, status says {state}": finished
        == (state == "finished"),
        f"finished is {finished}, table ends with {table}": finished == (table == 0),
        f"finished is {finished}, the run ended with {code}": finished
        if code == 0
        else not (finished and code == 75),
        f"status says {state}, show {shown['state']}": shown["state"] == state,
        f"status says {state} of a run that nobody runs": state != "running",
        f"status says {state} after code 75": code != 75 or state == "stopped",
        f"{shown['rounds']} rounds shown, a checkpoint of round {newest}": shown[
            "rounds"
        ]
        >= newest
        or lossy(scene),
    }
    return [what for what, right in checks.items() if not right]


def continued(scene: Scene, code: int | None, job: Job, before: dict) -> list[str]:
    """Check that the same command ends with 0; or with 2 and without a change, if no
    state is left.
    """
    if code == 0:
        return ["a traceback"] if "Traceback" in job.output else []
    if scene.manifests():
        return [
            f"not continued from an intact checkpoint, code {code}: {job.output[-SHOWN:]}"
        ]
    return refused(code, job) + unchanged(before, scene.stamp())


def complete(scene: Scene) -> list[str]:
    """Check that the same command on other ranks completes the run, and finds it
    complete when repeated.
    """
    before = scene.stamp()
    job = scene.start(scene.ranks())
    code = job.end(FINISH)
    wrong = continued(scene, code, job, before)
    if code != 0:
        job = scene.start(scene.ranks(), None, "--fresh")
        if (code := job.end(FINISH)) != 0:
            return [*wrong, f"--fresh ends with code {code}: {job.output[-SHOWN:]}"]
        scene.damaged.clear()
    before = scene.stamp()
    if (code := scene.start(0).end(FINISH)) != 0:
        wrong.append(f"complete, yet the same command ends with {code}")
    return (
        wrong
        + unchanged(before, scene.stamp())
        + equal(scene)
        + story(scene, 0)
        + _left(scene)
    )


def equal(scene: Scene) -> list[str]:
    """Check that the digest and every recorded metric equal those of the undisturbed
    run.
    """
    expected, found, wrong = scene.undisturbed, scene.recorded(), []
    newest = next((one.digest for _, one in scene.manifests()), None)
    # then its scores count
    if newest != expected.digest and not (newest is None and scene.damaged):
        wrong.append(f"digest {newest}, not the undisturbed one")
    rows = np.flatnonzero(np.isin(expected.results.rounds, found.rounds))
    if len(rows) < len(expected.results.rounds) and not (
        lossy(scene) and _notes(scene)
    ):
        wrong.append(f"rounds {found.rounds.tolist()} recorded, no note of the others")
    if len(found.rounds) != len(rows):
        return [*wrong, f"rounds {found.rounds.tolist()} recorded"]
    return wrong + _differences(expected.results, found, rows)


def _differences(expected: Results, found: Results, rows: np.ndarray) -> list[str]:
    names = sorted(
        name
        for name in expected.values.keys() | found.values.keys()
        if not name.startswith(VARIES)
    )
    wrong = []
    for name in names:
        unknown = np.array(np.nan)  # only a number of lost rounds
        numbers = found.values.get(name, unknown)
        undisturbed = expected.values.get(name, unknown)
        if undisturbed.ndim:
            undisturbed = undisturbed[rows]
        numbers, undisturbed = np.broadcast_arrays(numbers, undisturbed)
        if not np.array_equal(undisturbed, numbers, equal_nan=True):
            wrong.append(f"{name} is not that of the undisturbed run")
    static = expected.static.keys() | found.static.keys()
    wrong += [
        f"{name} differs"
        for name in sorted(static)
        if not np.array_equal(expected.static.get(name, 0), found.static.get(name, 0))
    ]
    return wrong + [
        f"{key} differs"
        for key in ("config", "primary")
        if expected.header[key] != found.header.get(key)
    ]


def lossy(scene: Scene) -> bool:
    """Return whether a file of metrics was damaged, so that rounds may be lost."""
    return any(what in ("metrics", "rounds") for what in scene.damaged)


def _notes(scene: Scene) -> list[str]:
    return json.loads(scene.look("show", str(scene.folder), "--json")[1].out).get(
        "notes", []
    )


def _left(scene: Scene) -> list[str]:
    return [f"left behind: {path.name}" for path in scene.folder.rglob("*.tmp")]


def _one_line(text: str) -> bool:
    return len(text.strip().splitlines()) == 1
