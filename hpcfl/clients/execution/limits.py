"""Errors of torch that are limits of batching, or of a GPU's memory."""

import torch

# Parts of torch's messages about limits of ``vmap``.
NAMED = (
    "vmap",
    "batching rule",
    "functorch transform",
    "got a batched tensor",
    "batchedtensor",
    "cannot access data pointer of tensor",
)
# Parts of torch's messages about code for one client that writes to a shared tensor, or
# that reads the gradient of a batched tensor.
CONSEQUENCES = (
    "doesn't match the broadcast shape",
    "does not require grad and does not have a grad_fn",
    "a hook on a tensor that doesn't require gradient",
    "stack expects each tensor to be equal size",
    "from the 'sparse",
)
# Parts of the messages of CUDA's libraries about a full GPU. Torch's own allocator raises
# a separate error.
FULL = "out of memory", "ALLOC_FAILED"


def is_batching_limit(error: BaseException) -> bool:
    """Return whether an error is a known limit of ``torch.func.vmap``.

    The list is closed. An unknown error must end a run: training clients one after the
    other instead gives other last bits.
    """
    if type(error) not in (RuntimeError, NotImplementedError):
        return False
    words = str(error).lower()
    return any(phrase in words for phrase in NAMED + CONSEQUENCES)


def is_full(error: BaseException) -> bool:
    """Return whether an error says that a GPU's memory is full."""
    return isinstance(error, torch.OutOfMemoryError) or any(
        words in str(error) for words in FULL
    )
