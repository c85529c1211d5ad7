"""The rows that a plug-in of ``updates`` remembers from round to round."""

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

from torch import Tensor

MEMORY = "update."  # the beginning of names in the clients' and the server's state


def memory_name(plugin: int | str, name: str) -> str:
    """Return the name in the state of a row that a plug-in remembers."""
    return f"{MEMORY}{plugin}.{name}"


@contextmanager
def open_memory(
    state: MutableMapping[str, Tensor],
    plugin: int | str,
    names: tuple[str, ...],
    columns: Tensor,
) -> Iterator[dict[str, Tensor]]:
    """Yield the rows that a plug-in remembers, P ``columns`` of those in a state, and
    store them at the end of the block.

    Stored values are rounded to the state's type, float32. After an exception in the
    block the state is as before. Raises KeyError for a further or a deleted name.
    """
    memory = {}
    for name in names:
        stored = state[memory_name(plugin, name)]
        memory[name] = stored[..., columns.to(stored.device)]
    yield memory
    for name in {*names, *memory}:
        stored = state[memory_name(plugin, name)].clone()
        stored[..., columns.to(stored.device)] = memory[name].to(stored.dtype)
        state[memory_name(plugin, name)] = stored
