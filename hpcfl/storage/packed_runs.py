"""Reading of packed runs: many runs in one file, which is read like a folder.

``trained/packed.py`` writes these files and documents their content.
"""

import lzma
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from hpcfl.errors import UserError
from hpcfl.files import atomic, scratch, untrusted_files
from hpcfl.storage.forms import NAME_BYTES
from hpcfl.storage.results import MERGED
from hpcfl.storage.run_folder import RUN

SUFFIX = ".tar.xz"
# limits that protect disk and memory from untrusted files
MOST_FILES = 100_000
MOST_BYTES = 1 << 30
MEMORY = 1 << 28  # bytes for decompression; xz needs at most 65 MB by default
PART = 1 << 20  # bytes that are decompressed at once
NAME_LETTERS = 80  # characters shown of a name in an error


def is_packed(path: Path) -> bool:
    """Return whether a path is a file of packed runs."""
    return path.name.endswith(SUFFIX) and path.is_file()


@contextmanager
def unpack(path: Path) -> Iterator[Path]:
    """Yield a temporary folder with the runs in a file, in the layout of a sweep.

    Raises UserError for a damaged file or another format, RunFailure if the folder
    cannot be written.
    """
    with scratch.make_temporary_folder() as folder:
        try:
            with (
                untrusted_files.open_user_file(path) as source,
                tempfile.TemporaryFile(dir=folder) as content,
            ):
                _decompress(source, content)
                content.seek(0)
                with tarfile.open(fileobj=content, mode="r:") as archive:
                    _extract(archive, folder)
        except (OSError, lzma.LZMAError, tarfile.TarError, ValueError) as error:
            raise UserError(
                f"{path}: cannot be read as packed runs ({error})"
            ) from None
        yield folder


def _decompress(source: BinaryIO, target: BinaryIO) -> None:
    """Write the content of an xz file to ``target``. Raises ValueError or LZMAError."""
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
    left = MOST_BYTES
    while not unpacker.eof:
        packed = source.read(PART) if unpacker.needs_input else b""
        if unpacker.needs_input and not packed:
            raise ValueError("it is incomplete")
        part = unpacker.decompress(packed, PART)
        left -= len(part)
        if left < 0:
            raise ValueError(f"it holds more than {MOST_BYTES:,} bytes")
        with atomic.explain_errors(scratch.find_folder()):
            target.write(part)
    if unpacker.unused_data or source.read(1):
        raise ValueError("it has data after its end")


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Write an archive's files below a folder.

    Raises ValueError for an archive that ``hpcfl pack`` does not write.
    """
    written = set()
    for entry in archive:
        name = entry.name
        shown = repr(name[:NAME_LETTERS])
        parts = PurePosixPath(name).parts
        known = len(parts) == 2 and parts[1] in (RUN, MERGED) and entry.isreg()
        if not known or parts[0] in ("..", "/") or entry.issparse() or "\0" in name:
            raise ValueError(f"{shown} is not a file of a run")
        if len(parts[0].encode()) > NAME_BYTES:
            raise ValueError(f"{shown} is too long")
        if name in written:
            raise ValueError(f"{shown} occurs twice")
        written.add(name)
        content = archive.extractfile(entry)
        if len(written) > MOST_FILES or content is None:
            raise ValueError(f"it holds more than {MOST_FILES:,} files")
        target = folder.joinpath(*parts)
        with atomic.explain_errors(folder):
            target.parent.mkdir(exist_ok=True)
            with target.open("wb") as file:
                shutil.copyfileobj(content, file)
        if target.stat().st_size != entry.size:
            raise ValueError("it ends too early")
    if not written:
        raise ValueError("it holds no run")
    for place in folder.iterdir():
        if len(list(place.iterdir())) < 2:
            raise ValueError(f"{place.name[:NAME_LETTERS]!r} lacks {RUN} or {MERGED}")
