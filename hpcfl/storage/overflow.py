"""Rows of private state in an unnamed file, which disappears however the process ends."""

import os
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO, cast

import torch
from torch import Tensor

from hpcfl.errors import RunFailure
from hpcfl.files import atomic, scratch


@dataclass(eq=False)
class Slot:
    """The place of one row in the file, reused when this object is no longer
    referenced.
    """

    overflow: "Overflow"
    offset: int

    def read(self) -> dict[str, Tensor]:
        """Return the row's tensors by name. Raises RunFailure."""
        data = torch.empty(self.overflow.size, dtype=torch.uint8)
        with atomic.explained(self.overflow.place):
            self._fill(data.numpy().data if data.nbytes else memoryview(b""))
        start, row = 0, {}
        for name, like in self.overflow.template.items():
            row[name] = (
                data[start : start + like.nbytes].view(like.dtype).view(like.shape)
            )
            start += _aligned(like.nbytes)
        return row

    def _fill(self, data: memoryview) -> None:
        """Fill ``data`` from the file. Raises RunFailure if the file is too short.

        Linux reads at most 2 GiB at a time, and less after a signal.
        """
        position = self.offset
        while data:
            count = os.preadv(self.overflow.descriptor, [data], position)
            if not count:
                place = self.overflow.place
                raise RunFailure(f"{place}: the file ended within a client's state")
            data, position = data[count:], position + count

    def read_ahead(self) -> None:
        """Ask the system to load the row into its cache."""
        os.posix_fadvise(
            self.overflow.descriptor,
            self.offset,
            self.overflow.size,
            os.POSIX_FADV_WILLNEED,
        )


class Overflow:
    """A file in $TMPDIR, made for the first row; rows have tensors like ``template``."""

    def __init__(self, template: Mapping[str, Tensor]) -> None:
        self.template = template
        self.size = sum(
            _aligned(tensor.nbytes) for tensor in template.values()
        )  # bytes of a row
        self._file: BinaryIO | None = None
        self._free: list[int] = []  # offsets of unused places
        self._end = 0  # bytes of the file

    @property
    def place(self) -> str:
        """Return the folder of the file. Raises RunFailure."""
        return scratch.folder()

    @property
    def descriptor(self) -> int:
        """Return the open file's descriptor."""
        if self._file is None:
            file = tempfile.TemporaryFile(  # noqa: SIM115
                prefix="hpcfl-", buffering=0, dir=self.place
            )
            self._file = cast(BinaryIO, file)
            weakref.finalize(self, self._file.close)
        return self._file.fileno()

    def write(self, row: Mapping[str, Tensor]) -> Slot:
        """Write a row of contiguous CPU tensors. Raises RunFailure if the file system
        is full.
        """
        offset = self._free.pop() if self._free else self._end
        position = offset
        with atomic.explained(self.place):
            for name, like in self.template.items():
                data = (
                    row[name].reshape(-1).view(torch.uint8).numpy().data
                    if like.nbytes
                    else memoryview(b"")
                )
                while data:
                    written = os.pwrite(self.descriptor, data, position)
                    data, position = data[written:], position + written
                position += _aligned(like.nbytes) - like.nbytes
            if position > self._end:
                os.ftruncate(
                    self.descriptor, position
                )  # padding at the end is never written
        self._end = max(self._end, position)
        slot = Slot(self, offset)
        weakref.finalize(slot, self._free.append, offset)
        return slot


def _aligned(size: int) -> int:
    """Return ``size`` rounded up to a multiple of 16 bytes, the strictest dtype
    alignment.
    """
    return -(-size // 16) * 16
