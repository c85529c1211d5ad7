"""Owner of a results folder; an unusable folder is refused in one line before any
change.
"""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
import tiny
from playing import stamp
from refusals import expect_refusal

from hpcfl.errors import RunFailure, UserError
from hpcfl.storage import run_folder
from hpcfl.trained.loading import list_runs, load_run

CONFIG = tiny.parse("fedavg")


def claim(folder, configuration=CONFIG, fresh=False):
    with run_folder.claim(folder, configuration, fresh) as ours:
        ours.begin()
        return sorted(path.name for path in folder.iterdir())


def test_a_new_folder_is_made_with_parents_and_configuration(tmp_path):
    folder = tmp_path / "a path with spaces" / "run"
    assert run_folder.read(folder) is None
    assert claim(folder) == [".lock", "run.json"]
    assert run_folder.read(folder)["config"] == CONFIG.resolved()
    assert claim(folder) == [".lock", "run.json"]


def test_a_folder_of_another_configuration_is_refused_with_all_differences(tmp_path):
    claim(tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_bytes()
    other = tiny.parse({"name": "fedprox", "mu": 0.5}, seed=4)
    with expect_refusal() as refusal:
        claim(tmp_path / "run", other)
    for difference in (
        "method.name: fedavg there, fedprox here",
        "method.mu: (missing) there, 0.5 here",
        "seed: 3 there, 4 here",
        "--fresh",
    ):
        assert difference in str(refusal.value)
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_fresh_keeps_a_link_to_a_folder_on_another_disk(tmp_path):
    target, link = tmp_path / "disk" / "run", tmp_path / "run"
    target.mkdir(parents=True)
    link.symlink_to(target)
    claim(link)
    claim(link, fresh=True)
    assert link.resolve() == target
    assert len([*target.parent.glob("run.*")]) == 1
    assert not [*tmp_path.glob("run.*")]


@pytest.mark.parametrize("name", ["run", "é" * 127])
def test_fresh_moves_the_old_run_aside_twice_in_a_second(tmp_path, name):
    folder = tmp_path / name
    claim(folder)
    for moved in (1, 2):
        (folder / "metrics.h5").write_text(f"old {moved}")
        assert claim(folder, fresh=True) == [".lock", "run.json"]
        assert len(list(tmp_path.iterdir())) == 1 + moved
    assert {path.read_text() for path in tmp_path.glob("*.*/metrics.h5")} == {
        "old 1",
        "old 2",
    }


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    for fresh in (False, True):
        with expect_refusal(r"'thesis.tex'.* --out"):
            claim(tmp_path, fresh=fresh)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_the_folder_of_a_sweep_is_refused(tmp_path):
    run_folder.record_cells(tmp_path, ["seed=0", "seed=1"])
    claim(tmp_path / "seed=0")
    before = stamp(tmp_path)
    for fresh in (False, True):
        with expect_refusal(rf"^{tmp_path}: .* --out or name$"):
            claim(tmp_path, fresh=fresh)
    assert stamp(tmp_path) == before


def test_a_file_in_the_folders_place(tmp_path):
    (tmp_path / "run").write_text("")
    with expect_refusal(rf"^{tmp_path / 'run'}: .* --out$"):
        claim(tmp_path / "run")


@pytest.mark.parametrize(
    "text", ["{", "[1]", "{}", '{"format": 3, "config": {}}', "[" * 5000, None]
)
def test_a_damaged_or_deleted_description_is_made_again(tmp_path, text):
    claim(tmp_path / "run")
    path = tmp_path / "run" / "run.json"
    before = path.read_bytes()
    path.unlink() if text is None else path.write_text(text)
    assert claim(tmp_path / "run") == [".lock", "run.json"]
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "left",
    [
        [],
        [".lock"],
        [".lock", ".run.json.0a1b.tmp"],
        [".lock", "jobs"],
        [".lock", "run.json"],
        ["metrics.h5"],
        ["partition.h5", ".partition.h5.0a1b.tmp"],
        ["failure.txt"],
    ],
)
@pytest.mark.parametrize("fresh", [False, True])
def test_remains_of_a_killed_start_can_be_claimed(tmp_path, left, fresh):
    folder = tmp_path / "run"
    folder.mkdir()
    for name in left:
        (folder / name).write_text("")
    assert {".lock", "run.json"} <= set(claim(folder, fresh=fresh))
    assert not list(folder.glob(".*.tmp"))


@pytest.mark.parametrize("inside", ["run", "a/b/run"])
def test_a_claim_without_a_beginning_leaves_no_file(tmp_path, inside):
    with run_folder.claim(tmp_path / inside, CONFIG, False):
        pass
    with (
        expect_refusal("refused"),
        run_folder.claim(tmp_path / inside, CONFIG, False),
    ):
        raise UserError("refused")
    assert not list(tmp_path.iterdir())


def test_a_claim_without_a_beginning_changes_no_run(tmp_path):
    claim(tmp_path / "run")
    before = stamp(tmp_path)
    for fresh in (False, True):
        with (
            expect_refusal("refused"),
            run_folder.claim(tmp_path / "run", CONFIG, fresh),
        ):
            raise UserError("refused")
    assert stamp(tmp_path) == before


def test_only_failures_after_the_beginning_are_recorded(tmp_path):
    with (
        pytest.raises(ValueError, match="first"),
        run_folder.claim(tmp_path / "run", CONFIG, False) as ours,
    ):
        ours.begin()
        raise ValueError("first")
    assert run_folder.read_failure(tmp_path / "run") == "first"
    with (
        pytest.raises(ValueError, match="second"),
        run_folder.claim(tmp_path / "run", CONFIG, False),
    ):
        raise ValueError("second")
    assert run_folder.read_failure(tmp_path / "run") == "first"


def test_a_failure_of_a_moved_run_is_not_that_of_the_next(tmp_path):
    folder = tmp_path / "run"
    with (
        pytest.raises(ValueError, match="moved"),
        run_folder.claim(folder, CONFIG, False) as ours,
    ):
        ours.begin()
        folder.rename(tmp_path / "moved")
        claim(folder)
        raise ValueError("moved")
    assert run_folder.read_failure(folder) is None


def test_a_lock_that_is_a_link_empties_no_other_file(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "thesis.tex")
    with expect_refusal(r"\.lock: .* --out$"):
        claim(tmp_path / "run")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("name", ["rounds", "checkpoints", "jobs"])
def test_links_inside_a_run_are_refused(tmp_path, name):
    claim(tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "elsewhere")
    with expect_refusal(rf"{name}: .* --out$"):
        claim(tmp_path / "run")


def test_fresh_does_not_move_the_working_folder_away(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert claim(Path(), fresh=True) == [".lock", "run.json"]
    before = stamp(tmp_path)
    with expect_refusal(r"^\.: .*--fresh"):
        claim(Path(), fresh=True)
    assert stamp(tmp_path) == before
    claim(folder, fresh=True)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_folder_in_use(tmp_path, monkeypatch):
    monkeypatch.setattr("hpcfl.storage.lock.PATIENCE", 0.1)
    with (
        run_folder.claim(tmp_path / "run", CONFIG, False),
        expect_refusal(rf"^{tmp_path / 'run'}: .*owner"),
    ):
        claim(tmp_path / "run")


def test_a_disk_that_is_full_from_the_start_is_bad_input(small_disk):
    with suppress(OSError), open(small_disk / "filler", "wb", buffering=0) as file:
        while True:
            file.write(bytes(512))
    with expect_refusal(r"No space left on device.* --out"):
        claim(small_disk / "run")
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


@pytest.fixture
def unprivileged_folder():
    """Return a folder of a user without root rights; the test runs with that user's
    rights.
    """
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        before = os.geteuid()
        if before == 0:
            os.seteuid(65534)
        yield Path(folder)
        os.seteuid(before)


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("inside", ["", "run"])
@pytest.mark.parametrize("mode", [0o000, 0o500])
def test_a_folder_that_may_not_be_read_or_written(
    unprivileged_folder, fresh, inside, mode
):
    closed = unprivileged_folder / "closed"
    closed.mkdir()
    closed.chmod(mode)
    try:
        with expect_refusal(r"closed.*Permission denied"):
            claim(closed / inside if inside else closed, fresh=fresh)
    finally:
        closed.chmod(0o700)
    assert not list(closed.iterdir())


@pytest.mark.parametrize("name", ["checkpoints", "rounds"])
def test_a_folder_in_a_run_that_may_not_be_read_is_not_empty(unprivileged_folder, name):
    folder = unprivileged_folder / "run"
    claim(folder)
    inside = folder / name
    inside.mkdir(0o300)
    try:
        with expect_refusal(rf"{name}: Permission denied"):
            claim(folder)
        with pytest.raises(RunFailure, match=rf"{name}: Permission denied"):
            load_run(folder)
    finally:
        inside.chmod(0o700)


def test_an_unreadable_run_is_refused(unprivileged_folder):
    claim(unprivileged_folder / "run")
    (unprivileged_folder / "run").chmod(0)
    try:
        for folder in (unprivileged_folder, unprivileged_folder / "run"):
            with expect_refusal(r"run: .*Permission denied"):
                list_runs(folder)
    finally:
        (unprivileged_folder / "run").chmod(0o700)
