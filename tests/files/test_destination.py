"""Where a user wants something written: what cannot be is one line before any work."""

import os
from pathlib import Path

import pytest

from hpcfl.errors import UserError
from hpcfl.files import destination


def test_what_can_be_written_is_let_through_and_nothing_is_made(tmp_path):
    (tmp_path / "old").write_text("old")
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    for name in ("new", "new/below", "there", "link", "ünï 東京"):
        destination.check_folder(tmp_path / name)
    for name in ("new", "old", "link/new"):
        destination.check_file(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["link", "old", "there"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("file", "a file, not a folder"),
        ("file/below", "file is a file, not a folder"),
        ("dangling", "a link that leads nowhere, not a folder"),
        ("dangling/below", r"No such file or directory"),
        ("pipe", "a device or pipe, not a folder"),
        ("x" * 256, "too long"),
        ("/".join(["x" * 200] * 20), "too long"),
        ("/".join(["d"] * 1500), "more than 100 folders"),
        (os.fsdecode(b"\xff"), "is not UTF-8"),
        ("a\0b", "has a NUL in its name"),
        ("/", "the root of all folders"),
    ],
)
def test_a_folder_that_cannot_be_is_one_line(tmp_path, name, said):
    (tmp_path / "file").write_text("")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=f"{said}.*; choose another --out$") as caught:
        destination.check_folder(tmp_path / name)
    assert str(caught.value).encode() and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("folder", "a folder, not a file"),
        ("link", "a link, not a file"),
        ("dangling", "a link that leads nowhere, not a file"),
        ("pipe", "a device or pipe, not a file"),
        ("/dev/null", "a device or pipe, not a file"),
    ],
)
def test_what_is_no_file_is_not_replaced(tmp_path, path, said):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match=f"{said}; choose another --out"):
        destination.check_file(tmp_path / path)


def test_a_report_and_a_figure_leave_a_device_as_it_is(tmp_path):
    """Both commands ask before they read any run."""
    from hpcfl.report import figures, page

    for name in ("out.html", "out.png"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match="a device or pipe, not a file"):
        page.write([tmp_path], tmp_path / "out.html")
    with pytest.raises(UserError, match="a device or pipe, not a file"):
        figures.plot([tmp_path], "curves", 7.0, tmp_path / "out.png", {})
    assert all(Path(tmp_path / name).is_fifo() for name in ("out.html", "out.png"))


def test_a_working_folder_that_was_deleted_is_one_line(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UserError, match="the working folder cannot be used"):
        destination.check_working_folder()
