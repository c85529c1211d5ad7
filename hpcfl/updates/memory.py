"""The rows that a plug-in of ``updates`` remembers from round to round."""

from collections.abc import Iterator, MutableMapping

from torch import Tensor

MEMORY = "update."  # the beginning of names in the clients' and the server's state


def memory_name(plugin: int | str, name: str) -> str:
    """Return the name in the state of a row that a plug-in remembers."""
    return f"{MEMORY}{plugin}.{name}"


class Memory(MutableMapping[str, Tensor]):
    """The rows that a plug-in remembers, P columns of those in a state.

    Assigned values are rounded to the state's type, float32.
    """

    def __init__(
        self,
        state: MutableMapping[str, Tensor],
        plugin: int | str,
        names: tuple[str, ...],
        columns: Tensor,
    ) -> None:
        """Set the state, the plug-in and its names, and the P ``columns`` of W."""
        self._state, self._columns = state, columns
        self._names = {name: memory_name(plugin, name) for name in names}

    def __getitem__(self, name: str) -> Tensor:
        stored = self._state[self._names[name]]
        return stored[..., self._columns.to(stored.device)]

    def __setitem__(self, name: str, value: Tensor) -> None:
        stored = self._state[self._names[name]].clone()
        columns = self._columns.to(stored.device)
        stored[..., columns] = value.to(stored.dtype)
        self._state[self._names[name]] = stored

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"memory['{name}'] cannot be deleted")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
