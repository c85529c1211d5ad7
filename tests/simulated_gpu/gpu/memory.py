"""The device's memory: bytes that live, by storage, and the memory pools of graphs."""

import weakref
from collections import Counter
from dataclasses import dataclass

import torch


@dataclass(eq=False)
class Pool:
    """What graphs compute in: set aside at the most that one of them needed, as long as
    one of them lives.
    """

    now: int = 0
    most: int = 0


@dataclass
class _Block:
    tensors: int  # that show it
    bytes: int
    line: str
    pool: Pool | None


class Memory:
    """``capacity`` bytes; ``peak`` is the most that was in use since ``begin``."""

    def __init__(self, capacity: float):
        self.capacity = capacity
        self.live = self.peak = 0
        self.pool: Pool | None = (
            None  # that tensors are made in while a graph is captured
        )
        self._pools = weakref.WeakSet()
        self._blocks: dict[int, _Block] = {}

    @property
    def used(self) -> int:
        return self.live + sum(pool.most for pool in self._pools)

    def begin(self) -> int:
        """Forget the peak. Returns what is in use now."""
        self.peak = self.used
        return self.peak

    def by_line(self) -> Counter:
        """Bytes that live, by the line that made them."""
        found = Counter()
        for block in self._blocks.values():
            found[block.line] += block.bytes
        return found

    def hold(self, tensor, line: str) -> None:
        """A tensor on the device exists from now on. Raises as CUDA does where it is
        one too many.
        """
        storage = tensor.values.untyped_storage()
        key = storage.data_ptr()
        if not key:
            return
        if key not in self._blocks:
            self._blocks[key] = self._new(storage.nbytes(), line)
        self._blocks[key].tensors += 1
        weakref.finalize(tensor, self._let_go, key)

    def holds(self, values) -> bool:
        """Whether a tensor on the device shows this storage."""
        return values.untyped_storage().data_ptr() in self._blocks

    def _new(self, size: int, line: str) -> _Block:
        if self.used + size > self.capacity:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size} bytes at {line}; "
                f"{self.used} of {self.capacity:.0f} are in use"
            )
        if self.pool is None:
            self.live += size
        else:
            self._pools.add(self.pool)
            self.pool.now += size
            self.pool.most = max(self.pool.most, self.pool.now)
        self.peak = max(self.peak, self.used)
        return _Block(0, size, line, self.pool)

    def _let_go(self, key: int) -> None:
        block = self._blocks[key]
        block.tensors -= 1
        if block.tensors:
            return
        if block.pool is None:
            self.live -= block.bytes
        else:
            block.pool.now -= block.bytes
        del self._blocks[key]
