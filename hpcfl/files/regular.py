"""Files that a user names: opened only if they are plain files, so that no pipe or device keeps
a reader waiting."""

import os
import stat
from pathlib import Path
from typing import BinaryIO


def descriptor(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """A regular file, opened also through links unless the flags say otherwise, for a caller who closes it.
    Raises OSError."""
    found = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise OSError("not a regular file")
    return found


def opened(path: str | Path) -> BinaryIO:
    """A regular file to read from, also through links. Raises OSError."""
    return open(descriptor(path), "rb")


def read_bytes(path: str | Path, limit: int) -> bytes:
    """The content of a regular file of at most ``limit`` bytes. Raises OSError."""
    with opened(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(f"longer than {limit:,} bytes")
    return content
