"""Process-wide settings that change numbers, such as torch's default dtype.

A run computes with the settings of a new process, even if a notebook has changed them.
The functions read, reset and restore the settings.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch

from hpcfl.errors import UserError
from hpcfl.rows import mixing

CPU = torch.device("cpu")
SMALL = 1e-40  # a float32 that becomes zero if denormal numbers are flushed
# Replaces the value of a new process for settings that the configuration or the user
# chooses.
KEEP = object()

# Attributes of ``torch.backends`` in a new process; older releases lack some.
BACKENDS = {
    "fp32_precision": "none",
    "mkldnn.fp32_precision": "none",
    "mkldnn.matmul.fp32_precision": "none",
    "mkldnn.conv.fp32_precision": "none",
    "mkldnn.rnn.fp32_precision": "none",
    "mkldnn.enabled": True,
    "mkldnn.deterministic": False,
    "cudnn.enabled": True,
    "cudnn.benchmark": False,
    "cudnn.deterministic": False,
    "cuda.matmul.allow_fp16_reduced_precision_reduction": True,
    "cuda.matmul.allow_bf16_reduced_precision_reduction": True,
}
ERRORS = {"divide": "warn", "over": "warn", "under": "ignore", "invalid": "warn"}

# Settings of torch apply to the whole process, so one thread at a time changes them.
_thread = threading.RLock()


class Setting(NamedTuple):
    """Reader and writer of a setting, and its value in a new process or KEEP."""

    read: Callable[[], Any]
    write: Callable[[Any], object]
    plain: Any


def _make_backend(name: str, plain: Any) -> Setting:
    """Return the setting for an attribute of ``torch.backends``."""
    owner, _, attribute = name.rpartition(".")
    module = attrgetter(owner)(torch.backends) if owner else torch.backends

    def write(value: Any) -> None:
        setattr(module, attribute, value)

    return Setting(lambda: getattr(module, attribute), write, plain)


def _make_autocast(kind: str) -> Setting:
    return Setting(
        lambda: torch.is_autocast_enabled(kind),
        lambda value: torch.set_autocast_enabled(kind, value),
        False,
    )


def _set_device(device: torch.device) -> None:
    torch.set_default_device(None if device == CPU else device)


def _flushes() -> bool:
    small = torch.tensor(SMALL, dtype=torch.float32)
    return not (small * 1).item()


# The default device comes first, because reading other settings creates tensors. The
# precision of products comes after the general precision, which also changes it.
SETTINGS = {
    "torch.set_default_device": Setting(torch.get_default_device, _set_device, CPU),
    "torch.set_default_dtype": Setting(
        torch.get_default_dtype, torch.set_default_dtype, torch.float32
    ),
    "torch.set_grad_enabled": Setting(
        torch.is_grad_enabled, torch.set_grad_enabled, True
    ),
    "torch.autocast('cpu')": _make_autocast("cpu"),
    "torch.autocast('cuda')": _make_autocast("cuda"),
    "torch.set_num_threads": Setting(
        torch.get_num_threads, torch.set_num_threads, KEEP
    ),
    "torch.set_flush_denormal": Setting(_flushes, torch.set_flush_denormal, False),
    "torch.use_deterministic_algorithms": Setting(
        torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 0
    ),
    "torch.autograd.set_detect_anomaly": Setting(
        torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, False
    ),
    **{
        f"torch.backends.{name}": _make_backend(name, plain)
        for name, plain in BACKENDS.items()
    },
    "torch.set_float32_matmul_precision": Setting(
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        "highest",
    ),
    "numpy.seterr": Setting(np.geterr, lambda value: np.seterr(**value), ERRORS),
    "os.chdir": Setting(os.getcwd, os.chdir, KEEP),
    "mixing.use_device": Setting(
        mixing.get_place, lambda place: mixing.use_device(*place), KEEP
    ),
}


def read() -> dict[str, Any]:
    """Return the values of all readable settings by name."""
    values = {}
    for name, setting in SETTINGS.items():
        # Some releases of torch lack some settings. torch raises an error for a
        # precision that was set partly by its old functions.
        with suppress(AttributeError, AssertionError, RuntimeError, OSError):
            values[name] = setting.read()
    return values


def write(values: dict[str, Any]) -> None:
    """Set the settings to these values; settings with equal values are skipped."""
    now = read()
    for name, value in values.items():
        if value is not KEEP and now.get(name) != value:
            SETTINGS[name].write(value)


def set_plain() -> None:
    """Set all settings to the values of a new process.

    Raises:
        UserError: The caller is in a block ``with torch.device`` or
            ``torch.inference_mode``.
    """
    torch.set_default_device(None)
    known = read()
    write({name: SETTINGS[name].plain for name in known})
    torch.set_float32_matmul_precision("highest")
    device = torch.get_default_device()
    if device != CPU or torch.is_inference_mode_enabled():
        raise UserError(
            "hpcfl was called inside a block `with torch.device(…)` or "
            "`with torch.inference_mode()`; call it outside"
        )


@contextmanager
def restored() -> Iterator[None]:
    """Restore all settings at the end of a block.

    One thread of a process at a time can be in the block.

    Raises:
        UserError: Another thread is in the block.
    """
    if not _thread.acquire(blocking=False):
        raise UserError(
            "another thread of this process is training or replaying a round; wait until it ends"
        )
    before = read()
    try:
        with torch.inference_mode(False):
            yield
    finally:
        write(before)
        _thread.release()


@contextmanager
def plain() -> Iterator[None]:
    """Compute with the settings of a new process in a block.

    Raises:
        UserError: As for ``restored`` and ``set_plain``.
    """
    with restored():
        set_plain()
        yield


@contextmanager
def unchanged(place: str) -> Iterator[None]:
    """Check that a user's code in a block does not change settings, and restore them.

    Args:
        place: name of the user's code in the message.

    Raises:
        UserError: A setting has changed.
    """
    before = read()
    try:
        yield
    except Exception as error:
        _put_back(before, place, error)
        raise
    _put_back(before, place, None)


def _put_back(before: dict[str, Any], place: str, failure: Exception | None) -> None:
    """Restore the settings, and raise UserError if one has changed.

    Args:
        before: values before the block.
        place: name of the user's code in the message.
        failure: exception of the block, a probable consequence of the change; None
            without one.
    """
    after = read()
    if after == before:
        return
    write(before)
    name = next(name for name in before if after.get(name) != before[name])
    raise UserError(
        f"{place} leaves {name} at {after.get(name)} instead of {before[name]}; "
        "restore it, or use a with block"
    ) from failure
