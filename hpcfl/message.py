"""Messages: named tensors that travel between the server and the clients."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Field:
    """One named tensor of a message.

    tensor: ``[n, width]``, a row for each client, or ``[width]``, the same for all (it travels once to each rank).
    floats: how many floats it stands for, for each client; default ``width``. A number, or [n] where clients differ
        (FedNH sends prototypes only of classes that the client holds); a bit counts 1/32.
    """

    tensor: Tensor
    floats: float | Tensor | None = None

    @property
    def shared(self) -> bool:
        return self.tensor.dim() == 1

    def logical_floats(self) -> float | Tensor:
        """Floats for each client, a number or [n]."""
        return self.tensor.shape[-1] if self.floats is None else self.floats


Message = Mapping[str, Tensor | Field]


def fields(message: Message) -> dict[str, Field]:
    """A message with every entry as a Field, sorted by name."""
    wrapped = {name: value if isinstance(value, Field) else Field(value) for name, value in sorted(message.items())}
    for name, entry in wrapped.items():
        if entry.tensor.dim() not in (1, 2):
            raise ValueError(f"message field '{name}' has shape {tuple(entry.tensor.shape)}; it must be [n, width] "
                             "or [width]")
    return wrapped
