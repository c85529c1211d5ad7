"""Archives of packed runs, the only archives that are read."""

import io
import lzma
import random
import tarfile

import pytest
from made_up import folder
from playing import call
from refusals import expect_refusal

from hpcfl.trained import loading, packed


def as_archive(*members):
    """Return the bytes of an archive of members (name, content, type)."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:xz") as archive:
        for name, data, kind in members:
            entry = tarfile.TarInfo(name)
            entry.type, entry.size = kind, len(data)
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def forged(size, kind=tarfile.REGTYPE):
    """Return an archive whose header states a size, with 12 bytes."""
    entry = tarfile.TarInfo("a/run.json")
    entry.type = kind
    header = bytearray(entry.tobuf(tarfile.USTAR_FORMAT))
    header[124:136] = size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    return lzma.compress(bytes(header) + b"{}".ljust(512, b"\0"))


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    """Return the bytes of an archive of one run, and its members."""
    place = tmp_path_factory.mktemp("archive")
    packed.write([loading.load_run(folder(place / "one"))], place / "x.tar.xz")
    with tarfile.open(place / "x.tar.xz") as read:
        members = [
            (entry.name, read.extractfile(entry).read(), entry.type) for entry in read
        ]
    return (place / "x.tar.xz").read_bytes(), members


HOSTILE = {
    "empty": lambda whole, members: as_archive(),
    "nothing": lambda whole, members: b"",
    "text": lambda whole, members: b"no archive",
    "cut": lambda whole, members: whole[:-40],
    "twice": lambda whole, members: whole + whole,
    "duplicate": lambda whole, members: as_archive(*members, members[0]),
    "no metrics": lambda whole, members: as_archive(members[0]),
    "no run.json": lambda whole, members: as_archive(members[1]),
    "other metrics": lambda whole, members: as_archive(
        members[0], (members[1][0], b"x" * 999, members[1][2])
    ),
    "long name": lambda whole, members: as_archive(
        ("x" * 300 + "/run.json", b"{}", tarfile.REGTYPE)
    ),
    "negative size": lambda whole, members: forged(b"\xff" * 12),
    "huge size": lambda whole, members: forged(b"\x80" + b"\x7f" * 11),
    "huge header": lambda whole, members: forged(b"07777777777\0", tarfile.XHDTYPE),
    "above": lambda whole, members: as_archive(("../run.json", b"{}", tarfile.REGTYPE)),
    "at the root": lambda whole, members: as_archive(
        ("/x/run.json", b"{}", tarfile.REGTYPE)
    ),
    "code": lambda whole, members: as_archive(("x/evil.py", b"{}", tarfile.REGTYPE)),
    "deep": lambda whole, members: as_archive(("x/y/run.json", b"{}", tarfile.REGTYPE)),
    "link": lambda whole, members: as_archive(("x/run.json", b"", tarfile.SYMTYPE)),
    "zeros": lambda whole, members: lzma.compress(bytes(1 << 24)),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_archive_is_refused_in_one_line(tmp_path, capsys, archive, kind):
    path = tmp_path / "x.tar.xz"
    path.write_bytes(HOSTILE[kind](*archive))
    assert call("table", path) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert f"{path}: " in captured.err
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.tar.xz"]


def test_flipped_bits_are_refused(tmp_path, archive):
    path = tmp_path / "x.tar.xz"
    whole, _ = archive
    for place in random.Random(7).sample(range(len(whole)), 100):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        with expect_refusal(rf"^{path}: "):
            loading.load_runs_below([path])
