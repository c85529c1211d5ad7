import json

import numpy as np
import pytest
from refusals import expect_refusal

from hpcfl.cluster import status
from hpcfl.report import tables
from hpcfl.storage import results as recorded
from hpcfl.storage.metrics import ResultsWriter
from hpcfl.trained import loading


def test_a_run_without_a_round_shows_nothing_yet(make_run):
    folder = make_run()
    (folder / "metrics.h5").unlink()
    run = loading.load_run(folder)
    assert (run.summary.method, run.summary.rounds, run.summary.best) == (
        "fedavg",
        0,
        None,
    )
    assert "no results here" in run.notes[0]


@pytest.mark.parametrize("name", ["metrics.h5", "run.json"])
def test_damage_is_noted_and_the_rest_is_shown(make_run, name):
    folder = make_run(method="local", primary="post")
    (folder / name).write_bytes(b"{ damaged")
    run = loading.load_run(folder)
    assert run.summary.method == "local"
    assert run.score == "post" or name == "metrics.h5"
    assert name in "".join(run.notes)


def test_unreadable_folders_are_refused_in_one_line(make_run, tmp_path):
    folder = make_run()
    for name in ("metrics.h5", "run.json"):
        (folder / name).write_bytes(b"")
    with expect_refusal(r"run\.json"):
        loading.load_run(folder)
    for empty in (tmp_path / "missing", tmp_path):
        with expect_refusal("nothing: "):
            loading.list_runs(empty / "nothing")


def test_runs_moved_aside_by_fresh_are_skipped_and_named(make_run, tmp_path):
    run, aside = make_run("i"), make_run("i.20260101-120000")
    again = make_run("i.20260101-120000-2")
    for folders in ([tmp_path], [run, aside, again], [run, tmp_path / "."]):
        found, [note] = loading.load_runs_below(folders)
        assert [one.folder for one in found] == [run]
        assert str(tmp_path / "i.20260101-120000") in note
        assert "and 1 more" in note
    assert [one.folder for one in loading.load_runs_below([aside])[0]] == [
        aside
    ]  # only this one is named
    with expect_refusal(r"20260101-120000.*: .*--fresh"):
        loading.load_runs_below([aside, again])
    with expect_refusal("nothing: "):
        loading.load_runs_below([run, tmp_path / "nothing"])


def test_results_on_another_disk_are_found_through_their_links(make_run, tmp_path):
    here = make_run("here/a")
    (tmp_path / "disk" / "tuning").mkdir(parents=True)
    (tmp_path / "disk" / "tuning" / "tune.json").write_text("{}")
    make_run("disk/tuning/search/e")
    for name, there in (
        ("b", make_run("disk/b")),
        ("c", make_run("disk/c/d").parent),
        ("tuning", make_run("disk/tuning/final/e").parent.parent),
    ):
        (tmp_path / "here" / name).symlink_to(there)
    (tmp_path / "here" / "loop").symlink_to(tmp_path / "here")
    found, _ = loading.load_runs_below([tmp_path / "here"])
    places = [str(run.folder.relative_to(here.parent)) for run in found]
    assert places == ["a", "b", "c/d", "tuning/final/e"]


def test_a_folder_moved_aside_by_fresh_may_be_named(make_run, tmp_path):
    cells = [make_run(f"sweep.20260101-120000/{name}") for name in ("a", "b")]
    assert [run.folder for run in loading.load_runs_below(cells)[0]] == cells
    assert len(loading.load_runs_below([tmp_path / "sweep.20260101-120000"])[0]) == 2
    with expect_refusal(r"20260101-120000.*: .*--fresh"):
        loading.load_runs_below([tmp_path])


def test_a_sweep_is_its_runs_without_those_moved_aside(make_run, tmp_path):
    make_run("fedavg")
    make_run("local", method="local", primary="post")
    make_run("local.20260101-120000", method="local")
    found = tables.make_json(tmp_path)
    assert list(found) == ["fedavg", "local"]
    assert found["fedavg"] == tables.make_json(tmp_path / "fedavg")
    assert set(found["local"]) == {
        "method",
        "dataset",
        "rounds",
        "finished",
        "best",
        "last",
        "tail",
        "digest",
        "seconds_per_round",
        "floats_up",
        "floats_down",
        "state",
        "notes",
        "scores",
        "best_by",
        "best_validation",
        "newcomers",
    }
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_rounds_without_metrics_are_noted_every_time(make_run):
    folder = make_run(finished=False)
    (folder / "rounds" / "00000002.h5").write_bytes(b"damaged")
    ResultsWriter(
        folder, {"run": recorded.load(folder / "metrics.h5").header["run"]}, {}
    )
    for _ in range(2):
        found = loading.load_run(folder).summary
        [note] = found.notes
        assert note.startswith(f"{folder}: ") and " 1 of 3 " in note


def test_a_score_that_was_not_recorded_is_an_error(make_run):
    run = loading.load_run(make_run())
    assert np.isnan(run.accuracy("post")).tolist() == [False, False, False, True]
    with expect_refusal(r"/run: 'pro' .*'pre'.*: post, pre$"):
        run.accuracy("pro")


def test_reading_a_run_imports_no_module_of_its_folder(make_run, monkeypatch):
    folder = make_run()
    monkeypatch.chdir(folder)
    (folder / "planted.py").write_text("raise SystemExit('imported')")
    description = (folder / "run.json").read_text()
    planted = description.replace('"fedavg"', '"planted:Method"')
    (folder / "run.json").write_text(planted)
    (folder / "metrics.h5").unlink()
    run = loading.load_run(folder)
    assert (run.summary.method, run.score) == ("planted:Method", "pre")
    assert status.list_statuses(folder)[0].state == "stopped"
