"""Files that a user names: opened only if they are plain files, so that no pipe keeps a reader waiting."""

import os
import stat
from pathlib import Path
from typing import BinaryIO


def opened(path: str | Path) -> BinaryIO:
    """A regular file to read from, also through links. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("not a regular file")
    return open(descriptor, "rb")


def read_bytes(path: str | Path, limit: int) -> bytes:
    """The content of a regular file of at most ``limit`` bytes. Raises OSError."""
    with opened(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(f"longer than {limit:,} bytes")
    return content
