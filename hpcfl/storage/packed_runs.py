"""Packed runs: many runs in one file, read like a folder.

``report/packed.py`` writes such a file and says what is in it.
"""

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from hpcfl.errors import UserError
from hpcfl.storage.results import MERGED
from hpcfl.storage.run_folder import RUN

SUFFIX = ".tar.xz"
# what an archive may hold, so that one from somebody else fills no disk
MOST_FILES = 100_000
MOST_BYTES = 1 << 30


def is_packed(path: Path) -> bool:
    """Whether a path names such a file."""
    return path.name.endswith(SUFFIX) and path.is_file()


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """A temporary folder with the runs of a file, as those of a sweep.

    Raises UserError where the file is damaged, or holds something else.
    """
    with TemporaryDirectory(prefix="hpcfl-") as temporary:
        folder = Path(temporary)
        try:
            _extract(path, folder)
        except (OSError, tarfile.TarError, EOFError, ValueError) as error:
            raise UserError(
                f"{path}: cannot be read as packed runs ({error})"
            ) from None
        yield folder


def _extract(path: Path, folder: Path) -> None:
    """Write an archive's files below a folder. Raises ValueError for what no packed
    runs have.
    """
    left = MOST_BYTES
    with tarfile.open(path, mode="r:xz") as archive:
        for count, member in enumerate(archive):
            parts = PurePosixPath(member.name).parts
            left -= member.size
            if count >= MOST_FILES or left < 0:
                raise ValueError("it holds more than packed runs may")
            file = archive.extractfile(member) if member.isreg() else None
            known = len(parts) == 2 and parts[1] in (RUN, MERGED)
            if file is None or not known or parts[0] in ("..", "/"):
                raise ValueError(f"{member.name!r} is no file of a run")
            (folder / parts[0]).mkdir(exist_ok=True)
            (folder / parts[0] / parts[1]).write_bytes(file.read())
