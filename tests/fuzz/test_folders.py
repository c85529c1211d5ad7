"""Folders of results with changed files: commands answer, and commands that only read
or refuse change nothing.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import checked_calls
import numpy as np
import pytest
import strange
from hypothesis import given
from hypothesis import strategies as st
from playing import stamp

import hpcfl
from hpcfl.errors import UserError
from hpcfl.files import hdf5
from hpcfl.report import figures

pytestmark = pytest.mark.slow


@pytest.fixture
def empty_drawings(monkeypatch):
    """Replace the drawings of a page, which ``test_forged.py`` tests and which would
    take most of the time.
    """
    monkeypatch.setattr(
        figures, "encode_svg", lambda figure, name: b'<svg viewBox="0 0 1 1"/>'
    )


@pytest.mark.usefixtures("empty_drawings")
@given(st.data())
def test_commands_that_read_a_changed_folder_change_nothing(finished, data):
    with _copy(finished) as place:
        _mutate(data.draw, place / "run")
        before = stamp(place)
        for command in ("show", "status", "table"):
            checked_calls.answer(command, place / "run")
        checked_calls.answer("show", place / "run", "--json")
        checked_calls.answer(
            "report", place / "run", "--out", place.with_name("report.html")
        )
        with suppress(UserError):
            hpcfl.load(place / "run")
        assert stamp(place) == before


@given(st.data())
def test_the_command_repeated_on_a_changed_folder(finished, data):
    with _copy(finished) as place:
        _mutate(data.draw, place / "run")
        command = ("run", place / "file.toml", "--out", place / "run")
        # A folder in place of a checkpoint's file is found when the file is written
        # again, and fails the run.
        blocked = any(
            path.is_dir() for path in (place / "run" / "checkpoints").iterdir()
        )
        before = stamp(place)
        code = checked_calls.answer(*command, codes=(0, 1, 2) if blocked else (0, 2))
        if code == 2:
            assert stamp(place) == before
        if code != 0:
            # A folder whose lock is a link, or no lock, must not be moved aside.
            lock = place / "run" / ".lock"
            no_lock = lock.is_symlink() or lock.is_dir()
            assert checked_calls.answer(*command, "--fresh") == (2 if no_lock else 0)


@contextmanager
def _copy(finished: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(shutil.copytree(finished, Path(name) / "place"))


def _mutate(draw, folder: Path):
    """Change one to three files."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in draw(
        st.lists(
            st.sampled_from(files),
            min_size=1,
            max_size=3,
            unique=True,
        )
    ):
        draw(st.sampled_from(MUTATIONS))(draw, path, files)


def _bytes(draw, path: Path, files: list[Path]):
    path.write_bytes(strange.damaged(draw, path.read_bytes()))


def _another_file(draw, path: Path, files: list[Path]):
    other = draw(st.sampled_from(files))
    path.write_bytes(other.read_bytes() if other.is_file() else b"")


def _folder(draw, path: Path, files: list[Path]):
    path.unlink()
    path.mkdir()


def _gone(draw, path: Path, files: list[Path]):
    path.unlink()


def _link(draw, path: Path, files: list[Path]):
    target = path.with_name(draw(st.sampled_from(["nowhere", path.name, "metrics.h5"])))
    path.unlink()
    path.symlink_to(target)


def _content(draw, path: Path, files: list[Path]):
    """Draw other content of the correct form, with a correct checksum."""
    if path.suffix == ".json":
        path.write_text(json.dumps(strange.changed(draw, json.loads(path.read_text()))))
    elif path.suffix == ".h5" and path.read_bytes().startswith(b"hpcfl "):
        kind = path.read_bytes().split()[1].decode()
        arrays, attributes = hdf5.decode(hdf5.unseal(kind, path.read_bytes()))
        name = draw(st.sampled_from(sorted(arrays)))
        arrays[name] = strange.array(draw, np.asarray(arrays[name]))
        path.write_bytes(hdf5.seal(kind, hdf5.encode(arrays, attributes)))


MUTATIONS = [_bytes, _another_file, _folder, _gone, _link, _content, _content]
