"""A tensor on the simulated device."""

import torch
from torch import Tensor

CUDA = torch.device("cuda", 0)
host_tensor = (
    torch.tensor
)  # the original, for any replacement while a device is simulated


class OnGPU(Tensor):
    """A tensor that reports the device ``cuda:0``; ``values`` has its numbers, a tensor
    on the CPU with the same strides.

    ``gpu`` is the device that executes its operations.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values, gpu):
        made = Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            layout=values.layout,
            device=CUDA,
        )
        made.values, made.gpu = values, gpu
        return made

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        gpu = next(
            item for item in tensors_in((args, kwargs or {})) if isinstance(item, OnGPU)
        ).gpu
        return gpu.run(operation, args, kwargs or {})

    def __repr__(self):
        return f"OnGPU({tuple(self.shape)}, {self.dtype})"

    def __deepcopy__(self, memo):
        return self.detach().clone().requires_grad_(self.requires_grad)

    def data_ptr(self):
        return self.values.data_ptr()

    def untyped_storage(self):
        return self.values.untyped_storage()

    def tolist(self):
        return self.cpu().tolist()

    def new_tensor(self, data, *, dtype=None, device=CUDA):
        """Replace the method, like ``torch.tensor`` in ``runtime.py``, because torch
        would bypass the dispatcher.
        """
        return host_tensor(data, dtype=dtype or self.dtype).to(device)

    @property
    def data(self):
        return self.detach()

    @data.setter
    def data(self, other):
        """Take over the shape and the numbers of another tensor, as torch does."""
        Tensor.data.__set__(self, other)
        self.values = other.values


def each(function, value):
    """Apply ``function`` to all arguments or results of an operation other than lists,
    tuples or dictionaries.

    torch's pytrees take as long as the operations.
    """
    if isinstance(value, dict):
        return {key: each(function, item) for key, item in value.items()}
    if isinstance(value, list):
        return [each(function, item) for item in value]
    return (
        tuple([each(function, item) for item in value])
        if isinstance(value, tuple)
        else function(value)
    )


def tensors_in(value):
    """Return all tensors in arguments or results of an operation."""
    found = []
    _gather(value, found)
    return found


def _gather(value, found):
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, dict):
        for item in value.values():
            _gather(item, found)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _gather(item, found)


def values_of(item):
    """Return the CPU's values: a tensor's numbers, or other values unchanged."""
    return item.values if isinstance(item, OnGPU) else item
