"""Statuses of a run: a refusal changes nothing, and the remains of any fault can be
continued.
"""

import json
import os
import re
import shutil
import signal
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tiny
from playing import play_once, run_alone, run_table, stamp
from recorded import assert_alike
from refusals import expect_refusal

from hpcfl.cluster import status
from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import Interrupted, RunFailure, UserError
from hpcfl.files import atomic
from hpcfl.methods.fedavg import FedAvg
from hpcfl.report import tables
from hpcfl.simulation.federation import Federation
from hpcfl.storage import manifest, results
from hpcfl.storage.metrics import ResultsWriter
from hpcfl.storage.run_folder import FORMAT
from hpcfl.trained import loading


def play(folder, method="cwfedavg", rounds=3, fresh=False, **sections):
    """Run ``run`` and return its result, which is False for a complete run."""
    table = tiny.table(
        method, tiny.FEW, rounds=rounds, checkpoint={"every": 1}, **sections
    )
    return run_alone(table, folder, fresh)


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """Return ``calm(method, rounds)``, which returns the folder of an undisturbed run."""
    return play_once(play, tmp_path_factory.mktemp)


@pytest.fixture
def finished(calm, tmp_path):
    """Return ``finished(method)``, which returns a finished run of three rounds that
    tests may change.
    """

    return lambda *method: copy(calm(*method), tmp_path)


def copy(source: Path, place: Path, name: str = "run") -> Path:
    """Copy a run's folder."""
    return Path(shutil.copytree(source, place / name))


def read_digest(folder: Path) -> str | None:
    return loading.load_run(folder).summary.digest


def read_state(folder: Path) -> str:
    """Return the state of a run, which all readers report."""
    state = tables.make_json(folder)["state"]
    assert status.list_statuses(folder)[0].state == state
    return state


def same(one: Path, other: Path):
    """Assert that digests and metrics are equal, and that all readers report both runs
    as finished.
    """
    assert read_state(one) == read_state(other) == "finished"
    assert read_digest(one) == read_digest(other) is not None
    calm, disturbed = results.read(one), results.read(other)
    assert calm.rounds.tolist() == disturbed.rounds.tolist()
    assert_alike(calm.values, disturbed.values)


NOT_THIS_RUN = {
    "fewer rounds": {"rounds": 2},
    "another seed": {"seed": 9},
}
NOT_AT_ALL = {
    "data that are not there": {"data": {"dataset": "cifar-10", "root": "nowhere"}},
    "a score that needs a global test set": {"evaluation": {"metric": "pm_v"}},
    "no such device": {"runtime": {"device": "cuda:99"}},
}


CASES = [
    *(("a finished run", refused) for refused in NOT_THIS_RUN),
    *(("a stopped run", refused) for refused in (*NOT_THIS_RUN, *NOT_AT_ALL)),
    *(("nothing", refused) for refused in NOT_AT_ALL),
]


ENDS = {
    "a stopped run": ("tiny:Stops", Interrupted),
    "a failed run": ({"name": "tiny:Diverges", "since": 3}, RunFailure),
}


@pytest.fixture(scope="module")
def ended(calm, tmp_path_factory):
    """Return the folder of a run for each of the ends."""
    place = tmp_path_factory.mktemp("ended")
    copy(calm(), place, "a finished run")
    for there, (method, error) in ENDS.items():
        with pytest.raises(error):
            play(place / there, method)
    return place


@pytest.mark.slow
@pytest.mark.parametrize(("there", "refused"), CASES)
def test_a_refused_command_changes_no_byte(ended, tmp_path, there, refused):
    asked = {**NOT_THIS_RUN, **NOT_AT_ALL}[refused]
    if there != "nothing":
        copy(ended / there, tmp_path)
    if there in ENDS:
        method, _ = ENDS[there]
        asked = {"method": method, **asked}
        if "rounds" in asked:
            asked["rounds"] = 1
    before = stamp(tmp_path)
    with pytest.raises(UserError):
        play(tmp_path / "run", **asked)
    assert stamp(tmp_path) == before


@pytest.mark.slow
def test_a_run_with_exchanged_data_is_refused(tmp_path):
    file, x, y = tmp_path / "own.npz", np.ones((60, 3), np.float32), np.arange(60)
    np.savez(file, x=x, y=y % 3)
    table = {
        "data": {"dataset": "npz", "file": str(file)},
        "model": {"hidden": [4]},
        "rounds": 2,
        "partition": {"scheme": "iid", "clients": 2},
        "method": {"name": "fedavg"},
    }
    run_alone(table, tmp_path / "run")
    np.savez(file, x=x, y=y[::-1] % 3)
    before = stamp(tmp_path)
    with expect_refusal(r"partition\.h5: .* --out or --fresh"):
        run_alone(table | {"rounds": 4}, tmp_path / "run")
    assert stamp(tmp_path) == before


@pytest.mark.slow
def test_a_prolonged_run_is_complete_for_its_first_and_last_number_of_rounds(
    calm, finished
):
    folder = finished()
    assert play(folder, rounds=5)
    before = stamp(folder)
    assert not play(folder, rounds=5) and not play(folder, rounds=3)
    for never_asked in (1, 2, 4):
        with expect_refusal(rf"rounds = {never_asked}"):
            play(folder, rounds=never_asked)
    assert stamp(folder) == before
    same(calm("cwfedavg", 5), folder)


@pytest.mark.slow
def test_a_prolonged_run_that_is_killed_at_once_can_continue(
    calm, finished, monkeypatch
):
    """Until a further round is done, the run is complete for the first number of
    rounds, and continues for the others.
    """
    folder = finished()
    with monkeypatch.context() as patched:
        patched.setattr(Federation, "run", die)
        with pytest.raises(KeyboardInterrupt):
            play(folder, rounds=5)
    shown = loading.load_run(folder).summary
    assert (shown.rounds, shown.finished, shown.state) == (3, False, "stopped")
    assert not play(folder, rounds=3)
    assert play(folder, rounds=5)
    same(calm("cwfedavg", 5), folder)


def die(*arguments, **named):
    raise KeyboardInterrupt


def die_scoring(patched, method):
    kind = type(tiny.parse(method).method)
    finish = kind.finish

    def die_at_the_end(self, fleet, inbox):
        if len(fleet.ids) > 1:  # not in the trial of one client before the run
            die()
        finish(self, fleet, inbox)

    patched.setattr(kind, "finish", die_at_the_end)


def die_merging(patched, method):
    patched.setattr(ResultsWriter, "conclude", lambda *arguments: die())


def die_writing(patched, method, name, after=False):
    """Make the writing of the metrics with round R + 1 fail, before or after the
    rename.
    """
    write, conclude = atomic.write, ResultsWriter.conclude

    def write_or_die(path, *arguments, **named):
        if path.name != name or after:
            write(path, *arguments, **named)
        if path.name == name:
            die()

    def concluding(*arguments):
        patched.setattr(atomic, "write", write_or_die)
        conclude(*arguments)

    patched.setattr(ResultsWriter, "conclude", concluding)


@pytest.fixture(scope="module")
def unscored(tmp_path_factory):
    """Return ``unscored(method)``, which returns the folder of a run that was killed in
    its final scoring.
    """

    def play_and_kill(folder: Path, method: str):
        with pytest.MonkeyPatch.context() as patched:
            die_scoring(patched, method)
            with pytest.raises(KeyboardInterrupt):
                play(folder, method)

    return play_once(play_and_kill, tmp_path_factory.mktemp)


WRITING_MERGED = partial(die_writing, name=results.MERGED)
AFTER_MERGED = partial(die_writing, name=results.MERGED, after=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "kill", "concluded"),
    [
        ("cwfedavg", None, False),  # in the scoring, unchanged since the start
        ("cwfedavg", die_merging, False),
        ("cwfedavg", WRITING_MERGED, False),
        ("cwfedavg", AFTER_MERGED, True),
        # methods with different scoring, whose results are written in the same way
        ("fedbabu", None, False),
        ("local", AFTER_MERGED, True),
    ],
)
def test_the_same_command_completes_a_run_killed_in_its_final_scoring(
    calm, unscored, tmp_path, method, kill, concluded
):
    """A run is finished once round R + 1 is merged. After an earlier kill the same
    command completes it, any number of times.
    """
    folder = copy(unscored(method), tmp_path)
    if kill is not None:
        with pytest.MonkeyPatch.context() as patched:
            kill(patched, method)
            with pytest.raises(KeyboardInterrupt):
                play(folder, method)
    assert read_state(folder) == ("finished" if concluded else "stopped")
    assert tables.make_json(folder)["finished"] is concluded
    assert play(folder, method) is not concluded
    same(calm(method), folder)


@pytest.mark.slow
def test_the_same_command_repairs_a_flipped_bit_in_the_last_state(calm, finished):
    folder = finished()
    last = folder / "checkpoints" / "manifest-00000003.json"
    shard = folder / "checkpoints" / manifest.read(last).files[0].name
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    # readers do not read the whole state
    assert tables.make_json(folder)["finished"]
    assert play(folder) and not play(folder)
    manifest.read(last).verify(last.parent)
    same(calm(), folder)


@pytest.mark.slow
def test_a_signal_in_the_last_round_leaves_the_scoring_to_the_same_command(tmp_path):
    with pytest.raises(Interrupted, match="round 2 of 2"):
        play(tmp_path / "run", "tiny:Stops", rounds=2)
    assert loading.load_run(tmp_path / "run").status.stage.name == "PLAYED"
    assert play(tmp_path / "run", "tiny:Stops", rounds=2)
    assert tables.make_json(tmp_path / "run")["finished"]


def test_a_second_signal_during_the_final_scoring_ends_the_run_at_once(
    tmp_path, monkeypatch
):
    ended = []
    clock = [0.0]
    monkeypatch.setattr("hpcfl.simulation.signals.time.monotonic", lambda: clock[0])
    monkeypatch.setattr(OneProcess, "abort", lambda self, code: ended.append(code))

    def finish(self, fleet, inbox):
        if len(fleet.ids) > 1:  # not in the trial of one client before the run
            os.kill(os.getpid(), signal.SIGTERM)
            clock[0] += 10
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(FedAvg, "finish", finish)
    play(tmp_path / "run")
    assert ended == [1]


def test_a_signal_while_the_run_is_prepared_leaves_nothing(tmp_path, monkeypatch):
    from hpcfl.commands import run as running

    prepare = running.prepare_together

    def slowly(*arguments):
        os.kill(os.getpid(), signal.SIGTERM)
        return prepare(*arguments)

    monkeypatch.setattr(running, "prepare_together", slowly)
    with pytest.raises(Interrupted):
        play(tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_mistake_found_after_the_beginning_is_a_failure(tmp_path, monkeypatch):
    def refuse(*arguments):
        raise UserError("a key that only this shows")

    monkeypatch.setattr(Federation, "run", refuse)
    with pytest.raises(RunFailure, match="a key that only this shows"):
        play(tmp_path / "run")
    assert read_state(tmp_path / "run") == "failed"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut", "deleted"])
def test_a_damaged_partition_of_a_stopped_run_is_drawn_again(ended, tmp_path, how):
    damaged = copy(ended / "a stopped run", tmp_path)
    undamaged = copy(ended / "a stopped run", tmp_path, "undamaged")
    path = damaged / "partition.h5"
    path.unlink() if how == "deleted" else path.write_bytes(path.read_bytes()[:-9])
    assert play(damaged, "tiny:Stops") and play(undamaged, "tiny:Stops")
    same(damaged, undamaged)


@pytest.mark.slow
def test_a_lost_final_state_is_recomputed_from_the_checkpoint_before(calm, finished):
    folder = finished()
    max((folder / "checkpoints").glob("manifest-*")).write_bytes(b"damaged")
    assert tables.make_json(folder)["finished"] is False
    assert play(folder)
    same(calm(), folder)


@pytest.mark.slow
def test_a_damaged_final_state_is_reported_as_lost(finished, printed):
    folder = finished()
    for path in (folder / "checkpoints").iterdir():
        path.write_bytes(b"")
    run = loading.load_run(folder, ["tiny:blobs"])
    tables.show(folder, [run])
    assert "state: lost" in printed()
    lost = r"round 4 .* 1 .*manifest-00000003\.json: "
    for ask in (lambda: run.model(0), lambda: run.models.of_server()):
        with expect_refusal(lost):
            ask()


def test_a_finished_run_may_lose_its_checkpoints_to_save_room(finished):
    folder = finished()
    for path in (folder / "checkpoints").iterdir():
        path.unlink()
    shown = loading.load_run(folder).summary
    assert shown.finished and shown.digest is None and not shown.notes
    before = stamp(folder)
    assert not play(folder)
    with expect_refusal(r"rounds = 2.* 3 .*--fresh"):
        play(folder, rounds=2)
    assert stamp(folder) == before


@pytest.mark.slow
def test_a_failing_report_does_not_fail_the_run(tmp_path, monkeypatch, printed):
    from hpcfl.report import tables

    def run():
        run_table(tiny.table("fedavg"), tmp_path / "run")
        return printed()

    with monkeypatch.context() as broken:
        broken.setattr(tables, "show", lambda *given: 1 / 0)
        output = run()
    last_line = output.splitlines()[-1]
    assert "(ZeroDivisionError" in last_line
    assert f"hpcfl show {tmp_path / 'run'}" in last_line
    assert "▸before" in run()


@pytest.mark.slow
def test_every_start_is_recorded_with_the_failure_before_it(ended, tmp_path):
    diverges, _ = ENDS["a failed run"]
    folder = copy(ended / "a failed run", tmp_path)
    with pytest.raises(RunFailure):
        play(folder, diverges)
    first, second = results.read(folder).header["starts"]
    assert (first["after"], first["ranks"], first["failure"]) == (0, 1, None)
    assert second["after"] == 2 and "diverged" in second["failure"]
    assert first["time"] <= second["time"]
    with pytest.raises(RunFailure):
        play(folder, diverges, fresh=True)
    assert len(results.read(folder).header["starts"]) == 1


def test_all_readers_find_a_run_without_its_description(finished):
    folder = finished()
    (folder / "run.json").unlink()
    assert read_state(folder) == "finished"
    place = folder.parent
    assert [run.folder.name for run in loading.load_runs_below([place])[0]] == ["run"]
    assert [cell.name for cell in status.list_statuses(place)] == ["run"]
    assert not play(folder)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """Return another run of the same shape with more rounds."""
    folder = tmp_path_factory.mktemp("two") / "theirs"
    play(folder, "fedavg", rounds=4, seed=7)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("which", ["metrics.h5", "partition.h5"])
def test_files_of_another_run_are_refused(theirs, finished, which):
    ours = finished("fedavg")
    shutil.copyfile(theirs / which, ours / which)
    other = rf"{which}: .* fedavg on tiny:blobs, seed 7, [0-9a-f]{{16}}"
    shown = loading.load_run(ours)
    if which == "metrics.h5":
        assert re.search(other, shown.notes[0])
        assert not shown.results.rounds.size
    if which == "partition.h5":
        with expect_refusal(other):
            loading.load_run(ours, ["tiny:blobs"]).models.model(0)
    before = stamp(ours)
    with expect_refusal(rf"{other}.* --fresh"):
        play(ours, "fedavg", rounds=5)
    assert stamp(ours) == before


@pytest.mark.slow
def test_checkpoints_of_another_run_are_ignored(theirs, calm, finished, printed):
    ours = finished("fedavg")
    shutil.copytree(theirs / "checkpoints", ours / "checkpoints", dirs_exist_ok=True)
    assert play(ours, "fedavg", rounds=5)
    assert "fedavg on tiny:blobs, seed 7" in printed()
    assert read_digest(ours) == read_digest(calm("fedavg", 5))


@pytest.mark.slow
def test_checkpoints_that_are_all_of_another_run_are_refused(theirs, finished):
    ours = finished("fedavg")
    shutil.rmtree(ours / "checkpoints")
    shutil.copytree(theirs / "checkpoints", ours / "checkpoints")
    before = stamp(ours)
    with expect_refusal(r"`--fresh` .*fedavg on tiny:blobs, seed 7"):
        play(ours, "fedavg", rounds=5)
    assert stamp(ours) == before


@pytest.mark.parametrize("place", [".", "checkpoints", "rounds"])
def test_temporary_files_in_a_complete_run_are_removed(finished, place):
    """The writer was killed in its last file, of which a copy existed."""
    folder = finished()
    before = stamp(folder)
    left = folder / place / ".metrics.h5.0123456789abcdef.tmp"
    left.write_bytes(b"half a file")
    assert not play(folder)
    assert stamp(folder) == before


def test_another_format_is_refused_in_one_line(finished):
    folder = finished("fedavg")
    file = folder / "run.json"
    table = json.loads(file.read_text())
    file.write_text(json.dumps(table | {"format": FORMAT + 1}))
    before = stamp(folder)
    refused = f"^{folder}: .* format {FORMAT + 1} .* {FORMAT}; "
    for look in (play, loading.load_run):
        with expect_refusal(refused):
            look(folder)
    assert stamp(folder) == before
