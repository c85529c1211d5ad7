"""Reading files that a user names: regular files only, so that no pipe or device keeps
a reader waiting.
"""

import os
import stat
from pathlib import Path
from typing import BinaryIO


def descriptor(path: str | Path, flags: int = os.O_RDONLY) -> int:
    """A file descriptor of a regular file, for the caller to close.

    flags: of ``os.open``; links are followed unless they say otherwise. Raises OSError.
    """
    if "\0" in str(path):
        raise OSError("a NUL in its name")
    file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError("not a regular file")
    return file


def opened(path: str | Path) -> BinaryIO:
    """A regular file, open for reading, also through links. Raises OSError."""
    return open(descriptor(path), "rb")


def read_bytes(path: str | Path, limit: int) -> bytes:
    """The content of a regular file. Raises OSError, also for more than ``limit``
    bytes.
    """
    with opened(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(f"longer than {limit:,} bytes")
    return content
