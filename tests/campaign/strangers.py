"""Foreign files in a run's folder: files of another run, models that were exported into
it, links and second names of files elsewhere.
"""

import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import judge
from damage import list_files
from faults import Fault, Outcome, at_rest, end
from inside import Strike
from job import Job
from scene import FINISH, Scene

OF_OTHERS = ("checkpoints", "metrics.h5", "partition.h5")
MODELS = {"client-0.json", "client-0.safetensors", "client.pt2"}
EXPORTING = 40  # approximate number of operations


def others_files(scene: Scene) -> Outcome:
    """Put files of another run of the same shape in place of this run's files."""
    state = at_rest(scene)
    scene.folder.mkdir(exist_ok=True)
    aside = scene.elsewhere() / "own"
    shutil.copytree(scene.folder, aside)
    chosen = scene.chance.sample(OF_OTHERS, scene.chance.randint(1, len(OF_OTHERS)))
    for name in chosen:
        _put(scene.undisturbed.other / name, scene.folder / name)
    before = scene.stamp()
    job = scene.start(scene.ranks())
    outcome = end(job, state, ", ".join(sorted(chosen)))
    if outcome.code != 0:
        outcome.wrong += judge.unchanged(before, scene.stamp())
        outcome.wrong += judge.refused(outcome.code, job)
    # A complete run does not read its partition.
    if chosen != ["partition.h5"] and "by another run" not in job.output:
        outcome.wrong.append(f"nothing said about another run: {job.output}")
    outcome.wrong += _shown_as_own(scene)
    shutil.rmtree(scene.folder)
    aside.rename(scene.folder)
    return outcome


def export_inside(scene: Scene, act: str, number: int = 0) -> Outcome:
    """Export models into the run's folder, with a fault in the export."""
    state = at_rest(scene)
    models, begun = scene.folder / "models", time.monotonic()
    shutil.rmtree(models, ignore_errors=True)
    strike = Strike(
        str(scene.folder),
        number=scene.chance.randint(1, EXPORTING),
        act=act,
        errno=number,
    )
    job = _export(scene, strike)
    code = job.end(FINISH)
    wrong = [] if code in (0, 1, 2, -9) else [f"an export ended with {code}"]
    if act == "fail":
        wrong += judge.failed(code, job.output, "") if code != 2 else []
    wrong += _whole(models, code)
    # the next run or the next export removes the rest that a kill leaves
    if code != 2 and (scene.finished() or scene.chance.random() < 0.5):
        shutil.rmtree(models, ignore_errors=True)
        again = _export(scene, Strike(str(scene.folder)))
        wrong += _whole(models, again.end(FINISH))
        wrong += [] if models.exists() else [f"no second export: {again.output[-300:]}"]
        wrong += [f"left behind: {path}" for path in scene.folder.glob(".models.*")]
    return Outcome(
        state,
        f"operation {strike.number}, code {code}",
        code or None,  # the run has not ended
        job.output,
        time.monotonic() - begun,
        wrong,
    )


def linked(scene: Scene, link: Callable[[Path, Path], None]) -> Outcome:
    """Replace a file of the run by a link to one elsewhere, or give it a second name
    there; the run must not change that file.
    """
    state = at_rest(scene)
    there = list_files(scene)
    if not there:
        return Outcome(state, "no file to link", 0, "", 0.0)
    what = scene.chance.choice(sorted(there))
    path = scene.chance.choice(there[what])
    elsewhere = scene.elsewhere() / path.name
    shutil.copy2(path, elsewhere)
    path.unlink()
    link(path, elsewhere)
    content = elsewhere.read_bytes()
    soft = path.is_symlink()
    if soft:
        scene.damaged.append(what)
    wrong = judge.story(scene, None)
    before = scene.stamp()
    job = scene.start(scene.ranks())
    outcome = end(job, state, what)
    if soft and what == "lock":
        # A complete run needs no lock.
        if outcome.code != 0 or not scene.finished():
            wrong += judge.refused(outcome.code, job)
        wrong += judge.unchanged(before, scene.stamp())
        path.unlink()
    else:
        wrong += judge.continued(scene, outcome.code, job, before)
    if elsewhere.read_bytes() != content:
        wrong.append(f"{path.name}: what lies elsewhere was written to")
    outcome.wrong += wrong
    return outcome


def linked_folder(scene: Scene) -> Outcome:
    """Replace a folder of the run by a link to one elsewhere, in which nothing may
    change.
    """
    state = at_rest(scene)
    scene.folder.mkdir(exist_ok=True)
    name = scene.chance.choice(["rounds", "checkpoints", "jobs"])
    path = scene.folder / name
    elsewhere = scene.elsewhere() / name
    if was_there := path.exists():
        path.rename(elsewhere)
    else:
        elsewhere.mkdir()
    path.symlink_to(elsewhere)
    (elsewhere / ".somebody's.tmp").touch()
    names = sorted(os.listdir(elsewhere))
    before = scene.stamp()
    job = scene.start(scene.ranks())
    outcome = end(job, state, name)
    outcome.wrong += judge.refused(outcome.code, job)
    outcome.wrong += judge.unchanged(before, scene.stamp())
    if sorted(os.listdir(elsewhere)) != names:
        outcome.wrong.append(f"{name}: changed where the link leads")
    path.unlink()
    (elsewhere / ".somebody's.tmp").unlink()
    if was_there:
        elsewhere.rename(path)
    return outcome


def _put(source: Path, target: Path):
    """Put a file in place of one, or the files of a folder among those of another."""
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copyfile(source, target)


def _shown_as_own(scene: Scene) -> list[str]:
    """Return whether ``show`` prints the digest of the other run."""
    code, job = scene.look("show", str(scene.folder), "--json")
    wrong = judge.looked(code, job)
    if code == 0 and json.loads(job.out)["digest"] == scene.undisturbed.others_digest:
        wrong.append("the digest that is shown is the other run's")
    return wrong


def _export(scene: Scene, strike: Strike) -> Job:
    options = ["--client", "0", "--out", str(scene.folder / "models")]
    return Job(
        scene.zygote,
        0,
        ["export", str(scene.folder), *options],
        strike,
        {"TMPDIR": "/tmp"},
    )


def _whole(models: Path, code: int | None) -> list[str]:
    """Return whether the exported files are complete or absent; after code 0 they must
    be complete.
    """
    names = {path.name for path in models.iterdir()} if models.exists() else set()
    if names != MODELS and (names or code == 0):
        return [f"half an export after code {code}: {sorted(names)}"]
    return []


ALL: dict[str, Fault] = {
    "files of another run": others_files,
    "kill -9 of an export inside": partial(export_inside, act="kill"),
    "no space for an export inside": partial(
        export_inside, act="fail", number=errno.ENOSPC
    ),
    "link in the folder": partial(linked, link=lambda path, to: path.symlink_to(to)),
    "hard link in the folder": partial(
        linked, link=lambda path, to: path.hardlink_to(to)
    ),
    "linked folder": linked_folder,
}
