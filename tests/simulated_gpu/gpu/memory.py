"""Memory of the device: allocated bytes by storage, and memory pools of graphs."""

import weakref
from dataclasses import dataclass

import torch


@dataclass(eq=False)
class Pool:
    """Memory of graphs: the largest amount that one of them needed, reserved as long as
    one of them exists.
    """

    now: int = 0
    most: int = 0


@dataclass
class _Block:
    tensors: int  # tensors that use it
    bytes: int
    pool: Pool | None


class Memory:
    """``capacity`` bytes; ``peak`` is the largest use since ``begin``."""

    def __init__(self, capacity: float):
        self.capacity = capacity
        self.live = self.peak = 0
        self.pool: Pool | None = (
            None  # pool of tensors that are created during a capture
        )
        self._pools = weakref.WeakSet()
        self._blocks: dict[int, _Block] = {}

    @property
    def used(self) -> int:
        return self.live + sum(pool.most for pool in self._pools)

    def begin(self) -> int:
        """Reset the peak and return the bytes in use."""
        self.peak = self.used
        return self.peak

    def hold(self, tensor):
        """Register a tensor on the device. Raise CUDA's error if the memory is full."""
        storage = tensor.values.untyped_storage()
        key = storage.data_ptr()
        if not key:
            return
        if key not in self._blocks:
            self._blocks[key] = self._new(storage.nbytes())
        self._blocks[key].tensors += 1
        weakref.finalize(tensor, self._let_go, key)

    def holds(self, values) -> bool:
        """Return whether a tensor on the device uses this storage."""
        return values.untyped_storage().data_ptr() in self._blocks

    def _new(self, size: int) -> _Block:
        if self.used + size > self.capacity:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {size} bytes; "
                f"{self.used} of {self.capacity:.0f} are in use"
            )
        if self.pool is None:
            self.live += size
        else:
            self._pools.add(self.pool)
            self.pool.now += size
            self.pool.most = max(self.pool.most, self.pool.now)
        self.peak = max(self.peak, self.used)
        return _Block(0, size, self.pool)

    def _let_go(self, key: int):
        block = self._blocks[key]
        block.tensors -= 1
        if block.tensors:
            return
        if block.pool is None:
            self.live -= block.bytes
        else:
            block.pool.now -= block.bytes
        del self._blocks[key]
