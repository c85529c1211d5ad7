"""State of the plug-ins of ``updates``: rows in the clients' and the server's state."""

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

from torch import Tensor

MEMORY = "update."  # prefix of names in the clients' and the server's state


def name_memory(plugin: int | str, name: str) -> str:
    """Return the name in the state for a plug-in's row."""
    return f"{MEMORY}{plugin}.{name}"


@contextmanager
def open_memory(
    state: MutableMapping[str, Tensor],
    plugin: int | str,
    names: tuple[str, ...],
    columns: Tensor,
) -> Iterator[dict[str, Tensor]]:
    """Yield a plug-in's rows from a state and store them at the end of the block.

    Stored values are rounded to the state's type, float32. An exception in the block
    leaves the state unchanged.

    Args:
        state: The state of the clients or of the server.
        plugin: The plug-in's position in the chain, or "rule".
        names: The names of its rows.
        columns: The columns [P] of the update in the rows of the state.

    Raises:
        KeyError: The block added or deleted a name.
    """
    memory = {}
    for name in names:
        stored = state[name_memory(plugin, name)]
        memory[name] = stored[..., columns.to(stored.device)]
    yield memory
    for name in {*names, *memory}:
        stored = state[name_memory(plugin, name)].clone()
        stored[..., columns.to(stored.device)] = memory[name].to(stored.dtype)
        state[name_memory(plugin, name)] = stored
