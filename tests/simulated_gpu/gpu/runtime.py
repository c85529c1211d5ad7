"""Replacement of ``torch.cuda`` while a device is simulated."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from unittest.mock import patch

import torch

from gpu.tape import Tape
from gpu.tensor import host_tensor


@contextmanager
def cuda(gpu):
    """Replace ``torch.cuda`` and ``torch.tensor``, which bypasses the dispatcher, as
    with the device ``gpu``.
    """
    stream = SimpleNamespace(
        wait_stream=lambda other: None,
        synchronize=lambda: gpu.wait("stream.synchronize"),
    )
    properties = SimpleNamespace(
        name="simulated",
        total_memory=int(gpu.memory.capacity),
        multi_processor_count=132,
        major=9,
        minor=0,
        uuid="simulated-0",
    )
    faces = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "set_device": lambda device: None,
        "current_device": lambda: 0,
        "get_device_name": lambda *device: properties.name,
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda *device: torch.empty(0),
        "set_rng_state": lambda state, *device: None,
        "memory_allocated": lambda *device: gpu.memory.used,
        "max_memory_allocated": lambda *device: gpu.memory.peak,
        "reset_peak_memory_stats": lambda *device: gpu.memory.begin() and None,
        "get_device_properties": lambda *device: properties,
        "synchronize": lambda *device: gpu.wait("torch.cuda.synchronize"),
        "empty_cache": lambda: None,
        "Stream": lambda *device: stream,
        "current_stream": lambda *device: stream,
        "stream": lambda one: nullcontext(),
        "CUDAGraph": lambda: Tape(gpu),
        "graph": gpu.capture,
    }
    # A wrapper cannot be moved into an existing Parameter.
    overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with (
            patch.multiple(torch.cuda, **faces),
            patch.object(torch, "tensor", _tensor),
        ):
            yield
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(overwrites)


def _tensor(data, *, dtype=None, device=None, requires_grad=False):
    """Return ``torch.tensor``'s result, made on the host and copied."""
    made = host_tensor(data, dtype=dtype)
    return (made if device is None else made.to(device)).requires_grad_(requires_grad)
