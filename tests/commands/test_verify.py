"""Runs are repeated and compared: equal results are reported as equal, and differences
are found.
"""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import tiny
from recorded import sparse
from refusals import expect_refusal

from hpcfl.api import run
from hpcfl.commands import verify as verifying
from hpcfl.commands.verify import compare, verify
from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import Interrupted, RunFailure
from hpcfl.trained import packed

OWN = ("tiny:blobs", "tiny:Counts")


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Run FedPer, whose clients keep their heads, on the tiny data."""
    folder = tmp_path_factory.mktemp("played") / "fedper"
    return run(tiny.table("fedper"), out=folder)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ask(path, names=(), own=OWN):
    verify(path, 1, names, None, own, OneProcess())


@pytest.mark.slow
def test_an_equal_repetition_is_reported_as_equal(played, here, printed):
    out = here / "x.tar.xz"
    packed.write([played], out)
    ask(out)
    last = printed().splitlines()[-1]
    assert last.startswith("fedper: the same final state, and the same numbers in all")
    assert [path.name for path in here.iterdir()] == ["x.tar.xz"]  # nothing is left


def test_an_interrupted_verification_names_the_run_and_keeps_nothing(
    played, here, monkeypatch
):
    def stop(*arguments, **named):
        raise Interrupted("stopped after round 1 of 2; the same command continues")

    monkeypatch.setattr(verifying, "play", stop)
    with pytest.raises(Interrupted, match="fedper: ") as stopped:
        ask(played.folder)
    assert not stopped.value.begun
    assert not list(here.iterdir())


@pytest.mark.slow
def test_all_runs_with_the_same_name_are_chosen(played, here):
    for place in ("one", "two"):
        shutil.copytree(played.folder, here / place / "a")
    shutil.copytree(played.folder, here / "b")
    chosen, notes = verifying.choose_runs(here, 9, [])
    assert not notes
    assert [run.folder for run in chosen] == [
        here / "b",
        here / "one" / "a",
        here / "two" / "a",
    ]
    [two], _ = verifying.choose_runs(here, 1, ["two/a"])
    assert two.folder == here / "two" / "a"
    # A forged number of rounds leaves a run unfinished.
    stored = here / "b" / "run.json"
    stored.write_text(stored.read_text().replace('"rounds": 3', '"rounds": 2'))
    chosen, [note] = verifying.choose_runs(here, 9, [])
    assert len(chosen) == 2 and note.startswith(f"{here / 'b'}: ") and "3 of 2" in note


def changed(run, header=(), **values):
    """Return the run with other entries of its header, and other metrics."""
    results = replace(
        run.results,
        header={**run.results.header, **dict(header)},
        values=sparse({**run.results.values, **values}),
    )
    return replace(run, results=results)


def test_a_different_final_state_or_number_is_reported(played):
    inputs = {"data.dataset = 'tiny:blobs'": 1}
    starts = [played.results.header["starts"][0] | {"inputs": inputs}]
    other = changed(played, {"starts": starts})
    other = replace(other, status=replace(played.status, digest="0" * 64))
    lines, same = compare(other, played)
    assert not same and f" {'0' * 64} stored" in lines[0]
    assert lines[1].startswith("checksum of data.dataset = 'tiny:blobs': 1 stored, ")
    assert not compare(changed(other, {"arithmetic": "another"}), played)[1]
    losses = played.results.values["pre/loss"]
    moved = changed(played, **{"pre/loss": np.nextafter(losses, np.inf)})
    [line], same = compare(moved, played)
    assert not same and line.endswith(": pre/loss")
    clock = changed(played, **{"seconds/round": losses})
    assert compare(clock, played)[1]


@pytest.mark.slow
def test_a_prolonged_run_is_the_same_although_its_first_end_was_scored(here):

    def play(name, rounds):
        table = tiny.table("fedavg", rounds=rounds, evaluation={"every": 2})
        return run(table, out=here / name)

    play("prolonged", 3)
    prolonged, whole = play("prolonged", 4), play("whole", 4)
    lines, same = compare(prolonged, whole)
    assert same and lines[0].endswith("in all 4 rounds")
    losses = prolonged.results.values["pre/loss"]
    other = changed(prolonged, **{"pre/loss": losses + 1})
    [line], same = compare(other, whole)
    assert not same and line.endswith(": pre/loss")


@pytest.mark.parametrize(
    "elsewhere",
    [{"arithmetic": "another"}, {"gpus": ["NVIDIA H200, precision tf32"]}],
    ids=lambda elsewhere: next(iter(elsewhere)),
)
def test_on_another_arithmetic_only_exact_values_are_compared(played, elsewhere):
    [(key, there)] = elsewhere.items()
    losses = played.results.values["pre/loss"]
    moved = changed(played, elsewhere, **{"pre/loss": losses + 1e-6})
    lines, same = compare(moved, played)
    assert same and f"{key}: {there} stored" in lines[0]
    assert lines[1].startswith("the same clients, samples and floats; pre/weighted")
    floats = played.results.values["floats_down"]
    travelled = changed(played, elsewhere, floats_down=floats + 1)
    lines, same = compare(travelled, played)
    assert not same and lines[1].endswith(": floats_down")


def test_a_repetition_has_the_precision_and_the_lanes_of_the_run(played):
    computed_by = {"precision": "tf32", "lanes": 3, "convolutions": "loop"}
    runtime = {**played.config["runtime"], **computed_by, "hang_after": 5.0}
    run = replace(played, config={**played.config, "runtime": runtime})
    repeated = verifying.make_table(run, None, OWN)["runtime"]
    assert computed_by.items() <= repeated.items() and "hang_after" not in repeated


@pytest.mark.slow
def test_a_failing_check_is_a_failure_of_the_command(played, here, monkeypatch):
    monkeypatch.setattr("hpcfl.commands.verify.compare", lambda *runs: (["no"], False))
    with pytest.raises(RunFailure, match="/fedper: "):
        ask(played.folder)
    assert list(here.iterdir()) == []


def test_runs_that_cannot_be_repeated_are_refused(played, here):
    with expect_refusal(r"'fedpr'; .*'fedper'"):
        ask(played.folder, names=["fedpr"])
    with expect_refusal(r"fedper: .*--own tiny:Counts --own tiny:blobs"):
        ask(played.folder, own=())
    with expect_refusal(rf"^{here}: "):
        ask(here)


@pytest.mark.slow
def test_the_folder_of_a_killed_one_is_removed(played, here):
    left = here / ".hpcfl-verify.0123.tmp"
    left.mkdir()
    (left / "x").write_text("")
    ask(played.folder)
    assert list(here.iterdir()) == []


def test_an_unwritable_working_folder_is_refused(played, monkeypatch):
    monkeypatch.chdir("/proc")
    with expect_refusal("No such file or directory"):
        ask(played.folder)
