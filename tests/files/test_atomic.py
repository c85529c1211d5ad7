import errno
import os

import pytest

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
def test_failure_is_one_line_and_leaves_the_old_file(
    tmp_path, monkeypatch, call, number
):
    def fail(*arguments):
        raise OSError(number, os.strerror(number))

    atomic.write(tmp_path / "file", b"old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(RunFailure) as caught:
        atomic.write(tmp_path / "file", b"new")
    advice = (
        "; make room and give the same command again"
        if number in (errno.ENOSPC, errno.EDQUOT)
        else ""
    )
    assert str(caught.value) == f"{tmp_path / 'file'}: {os.strerror(number)}{advice}"
    assert os.listdir(tmp_path) == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_vanished_folder_is_one_line(tmp_path):
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
def test_files_that_belong_together_are_all_there_or_none(tmp_path, made):
    folder = tmp_path / "new" / "out"
    if made:
        folder.mkdir(parents=True)
    with pytest.raises(ValueError, match="second"), atomic.together(folder) as place:
        atomic.write(place / "first", b"1")
        raise ValueError("second")
    left = [path for path in tmp_path.rglob("*") if path not in (folder, folder.parent)]
    assert not left and folder.exists() == made
    with atomic.together(folder) as place:
        atomic.write(place / "first", b"1")
        assert not (folder / "first").exists()
    assert [path.name for path in folder.iterdir()] == ["first"] and not list(
        tmp_path.rglob(".*")
    )
