import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import expect_refusal

from hpcfl.errors import RunFailure
from hpcfl.files import atomic


@pytest.mark.parametrize(
    "name", ["plain", "with space", "[brackets]*?", "ünï 東京", "100%s", "new\nline"]
)
def test_writes_and_replaces_in_strange_folders(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    atomic.write(folder / "file", b"old")
    atomic.write(folder / "file", b"new", durable=False)
    assert (folder / "file").read_bytes() == b"new"
    assert os.listdir(folder) == ["file"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT])
def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch, call, number):
    def fail(*arguments):
        raise OSError(number, os.strerror(number))

    atomic.write(tmp_path / "file", b"old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(RunFailure) as caught:
        atomic.write(tmp_path / "file", b"new")
    advice = (
        "; free some space and repeat the command"
        if number in (errno.ENOSPC, errno.EDQUOT)
        else ""
    )
    assert str(caught.value) == f"{tmp_path / 'file'}: {os.strerror(number)}{advice}"
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_missing_folder_is_a_failure_in_one_line(tmp_path):
    with pytest.raises(RunFailure, match=r"gone/file: No such file or directory$"):
        atomic.write(tmp_path / "gone" / "file", b"data")


def test_full_disk_leaves_the_old_file(small_disk):
    atomic.write(small_disk / "file", b"old")
    with pytest.raises(RunFailure, match="No space left on device"):
        atomic.write(small_disk / "file", bytes(2 << 20))
    assert os.listdir(small_disk) == ["file"]
    assert (small_disk / "file").read_bytes() == b"old"


def test_removes_only_temporaries(tmp_path):
    for name in (".file.123.tmp", "file.tmp", ".hidden"):
        (tmp_path / name).touch()
    atomic.remove_temporaries(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".hidden", "file.tmp"]


@pytest.mark.parametrize("made", [False, True])
def test_a_folder_is_whole_or_not_there(tmp_path, monkeypatch, made):
    folder = tmp_path / "new" / "out"
    if made:
        folder.mkdir(parents=True)

    def unchanged():
        return not list(tmp_path.rglob(".*")) and not (
            any(folder.iterdir()) if made else folder.exists()
        )

    with (
        pytest.raises(ValueError, match="second"),
        atomic.write_folder(folder) as place,
    ):
        atomic.write(place / "first", b"1")
        raise ValueError("second")
    assert unchanged()

    def full(self, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", full)
        with (
            pytest.raises(RunFailure, match="No space left on device"),
            atomic.write_folder(folder) as place,
        ):
            for name in ("first", "second"):
                atomic.write(place / name, b"1")
    assert unchanged()
    with atomic.write_folder(folder) as place:
        for name in ("first", "second"):
            atomic.write(place / name, b"1")
        assert not (folder / "first").exists()
    assert sorted(os.listdir(folder)) == ["first", "second"]
    assert not list(tmp_path.rglob(".*"))


KILLED = """
import os, signal, sys
from pathlib import Path
from hpcfl.files import atomic
with atomic.write_folder(Path(sys.argv[1])) as place:
    (place / "first").write_text("half")
    print("begun", flush=True)
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def half_done(tmp_path):
    """Start a process that is writing the folder ``out``, and is killed when its input
    ends.
    """
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path / "out"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout.readline() == b"begun\n"
        yield process
        process.kill()


def test_temporaries_are_removed_only_after_their_writers_death(tmp_path, half_done):
    [rest] = tmp_path.iterdir()
    atomic.remove_temporaries(tmp_path)
    assert list(tmp_path.iterdir()) == [rest]  # another process is writing it
    half_done.stdin.close()
    half_done.wait()
    with atomic.write_folder(tmp_path / "other"):
        pass
    assert rest.exists()  # of another folder
    atomic.remove_temporaries(tmp_path)
    assert os.listdir(tmp_path) == ["other"]


def test_writing_a_folder_removes_a_killed_writers_remains(tmp_path, half_done):
    half_done.stdin.close()
    half_done.wait()
    with atomic.write_folder(tmp_path / "out") as place:
        atomic.write(place / "whole", b"1")
    assert os.listdir(tmp_path) == ["out"] and os.listdir(tmp_path / "out") == ["whole"]


def test_checks_accept_writable_paths_and_create_nothing(tmp_path):
    (tmp_path / "old").write_text("old")
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    for name in ("new", "new/below", "there", "link", "ünï 東京"):
        atomic.check_folder(tmp_path / name)
    for name in ("new", "old", "link/new"):
        atomic.check_file(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["link", "old", "there"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("file", "file"),
        ("file/below", "file"),
        ("dangling", "dangling"),
        ("dangling/below", "below"),
        ("pipe", "pipe"),
        ("x" * 256, "x" * 200),
        ("/".join(["x" * 200] * 20), "x" * 200),
        ("/".join(["d"] * 1500), "d/d.* 100 "),
        (os.fsdecode(b"\xff"), r"\\"),
        ("a\0b", "a.*b"),
        ("/", "/"),
    ],
)
def test_an_impossible_folder_is_refused(tmp_path, name, shown):
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    with expect_refusal(rf"{shown}.* --out$") as caught:
        atomic.check_folder(tmp_path / name)
    assert str(caught.value).encode()


@pytest.mark.parametrize("path", ["folder", "link", "dangling", "pipe", "/dev/null"])
def test_folders_links_and_devices_are_not_replaced(tmp_path, path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    with expect_refusal(rf"^{tmp_path / path}: .* --out$"):
        atomic.check_file(tmp_path / path)


def test_a_report_and_a_figure_leave_a_device_as_it_is(tmp_path):
    """Both commands check it before they read any run."""
    from hpcfl.report import figures, page

    for name in ("out.html", "out.png"):
        os.mkfifo(tmp_path / name)
    with expect_refusal(r"out\.html: .* --out$"):
        page.write([tmp_path], tmp_path / "out.html")
    with expect_refusal(r"out\.png: .* --out$"):
        figures.plot([tmp_path], "curves", 7.0, tmp_path / "out.png", {})
    assert all(Path(tmp_path / name).is_fifo() for name in ("out.html", "out.png"))


def test_a_deleted_working_folder_is_refused(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with expect_refusal("No such file or directory"):
        atomic.check_working_folder()
