"""Reading of files that a user names: only regular files, because pipes and devices can
block a reader.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO


def descriptor(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor, which the caller closes.

    flags: as for ``os.open``; links are followed unless the flags forbid it. Raises
    OSError.
    """
    if "\0" in str(path):
        raise OSError("a NUL in its name")
    file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError("not a regular file")
    return file


def opened(path: str | Path) -> BinaryIO:
    """Open a regular file for reading and follow links. Raises OSError."""
    return open(descriptor(path), "rb")


def read_bytes(path: str | Path, limit: int) -> bytes:
    """Return the content of a regular file of at most ``limit`` bytes. Raises OSError."""
    with opened(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(f"longer than {limit:,} bytes")
    return content
