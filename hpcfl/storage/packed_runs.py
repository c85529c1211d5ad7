"""Packed runs: many runs in one file, read like a folder.

``trained/packed.py`` writes such files and documents their content.
"""

import lzma
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from hpcfl.errors import UserError
from hpcfl.files import atomic, scratch, user_files
from hpcfl.files.untrusted_files import JSON_LIMIT
from hpcfl.storage.forms import LONGEST
from hpcfl.storage.results import MERGED
from hpcfl.storage.run_folder import RUN

SUFFIX = ".tar.xz"
# limits of an archive, which protect disk and memory from untrusted files
MOST_FILES = 100_000
MOST_BYTES = 1 << 30
LONGEST_NAME = 4096  # bytes of the extended header with a long name
MEMORY = 1 << 28  # bytes for unpacking; xz itself uses at most 65 MB by default
PART = 1 << 20  # bytes that are unpacked at once
SHOWN = 80  # letters of a name in an error


def is_packed(path: Path) -> bool:
    """Return whether a path names such a file."""
    return path.name.endswith(SUFFIX) and path.is_file()


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Yield a temporary folder with the runs of a file, like that of a sweep.

    Raises UserError for a damaged or different file, RunFailure if the folder cannot be
    written.
    """
    with scratch.temporary_folder() as folder:
        try:
            with user_files.opened(path) as source:
                _extract(_Unpacked(source), folder)
        except (OSError, lzma.LZMAError, tarfile.TarError, ValueError) as error:
            raise UserError(
                f"{path}: cannot be read as packed runs ({error})"
            ) from None
        yield folder


class _Unpacked:
    """The content of an xz file, read once from beginning to end."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
        self._left = MOST_BYTES

    def parts(self, size: int) -> Iterator[bytes]:
        """Yield the next ``size`` bytes in parts. Raises ValueError if there are fewer."""
        while size:
            part = self._part(min(size, PART))
            if not part and self._unpacker.eof:
                raise ValueError("it ends too early")
            size -= len(part)
            yield part

    def read(self, size: int) -> bytes:
        """Return the next ``size`` bytes. Raises ValueError if there are fewer."""
        return b"".join(self.parts(size))

    def finish(self) -> None:
        """Read the remaining zeros and the checksum at the file's end. Raises
        ValueError.
        """
        while not self._unpacker.eof:
            if self._part(PART).strip(b"\0"):
                raise ValueError("more follows its end")
        if self._unpacker.unused_data or self._source.read(1):
            raise ValueError("more follows its end")

    def _part(self, most: int) -> bytes:
        """Return at most so many bytes; none at the end, or if more must be read first."""
        if self._unpacker.eof:
            return b""
        packed = b""
        if self._unpacker.needs_input:
            packed = self._source.read(PART)
            if not packed:
                raise ValueError("it is cut off")
        part = self._unpacker.decompress(packed, most)
        self._left -= len(part)
        if self._left < 0:
            raise ValueError("it holds more than packed runs may")
        return part


def _extract(archive: _Unpacked, folder: Path) -> None:
    """Write an archive's files below a folder.

    Raises ValueError or tarfile.TarError for an archive that ``hpcfl pack`` does not
    make,
    RunFailure if the folder cannot be written.
    """
    written = set()
    for name, size in _files(archive):
        parts = PurePosixPath(name).parts
        known = len(parts) == 2 and parts[1] in (RUN, MERGED)
        if not known or parts[0] in ("..", "/") or "\0" in name:
            raise ValueError(f"{name[:SHOWN]!r} is no file of a run")
        if len(parts[0].encode()) > LONGEST or (parts[1] == RUN and size > JSON_LIMIT):
            raise ValueError(f"{name[:SHOWN]!r} is too long")
        if name in written:
            raise ValueError(f"{name[:SHOWN]!r} is in it twice")
        written.add(name)
        if len(written) > MOST_FILES:
            raise ValueError("it holds more than packed runs may")
        target = folder.joinpath(*parts)
        with atomic.explained(folder):
            target.parent.mkdir(exist_ok=True)
            with target.open("wb") as file:
                for part in archive.parts(size):
                    file.write(part)
        archive.read(-size % tarfile.BLOCKSIZE)
    if not written:
        raise ValueError("it holds no run")
    for place in folder.iterdir():
        if len(list(place.iterdir())) < 2:
            raise ValueError(f"{place.name[:SHOWN]!r} lacks {RUN} or {MERGED}")
    archive.finish()


def _files(archive: _Unpacked) -> Iterator[tuple[str, int]]:
    """Yield the name and size of each file in an archive.

    The caller reads each file's content before the next. Only the headers that ``hpcfl
    pack`` writes are read: plain files and long names. Raises ValueError or
    tarfile.TarError.
    """
    long_name = ""
    while True:
        block = archive.read(tarfile.BLOCKSIZE)
        if not block.strip(b"\0"):
            return
        entry = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        if entry.type == tarfile.XHDTYPE and 0 < entry.size <= LONGEST_NAME:
            long_name = _long_name(archive.read(entry.size))
            archive.read(-entry.size % tarfile.BLOCKSIZE)
            continue
        if entry.type != tarfile.REGTYPE:
            raise ValueError(f"{entry.name[:SHOWN]!r} is no file of a run")
        if not 0 <= entry.size <= MOST_BYTES:
            raise ValueError("it holds more than packed runs may")
        yield long_name or entry.name, entry.size
        long_name = ""


def _long_name(header: bytes) -> str:
    """Return the name in an extended header, a line ``LENGTH path=NAME``. Raises
    ValueError.
    """
    length, _, entry = header.decode().partition(" ")
    key, _, name = entry.removesuffix("\n").partition("=")
    if length != str(len(header)) or key != "path":
        raise ValueError("it has a header that packed runs do not have")
    return name
