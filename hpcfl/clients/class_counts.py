"""Numbers of samples whose classes a method cannot read (sample-level privacy)."""

from typing import Any, NoReturn

import torch
from torch import Tensor

from hpcfl.errors import UserError


def _refuse(*arguments: Any, **options: Any) -> NoReturn:
    """Raise UserError: a method reads the classes of samples."""
    raise UserError(
        "[privacy] unit = 'sample' does not cover class counts, which the method reads; "
        "numbers of samples alone are public. Take a method that does not read classes, "
        "such as FedAvg, Ditto or MR-MTL"
    )


class HiddenClasses:
    """Class counts [clients, classes] in place of a tensor, of which a method can read
    the numbers of samples alone: ``sum()``, ``sum(dim=1)``, shape and rows.
    """

    def __init__(self, counts: Tensor) -> None:
        """Hide counts, float64 [clients, classes]."""
        self._counts = counts

    @property
    def shape(self) -> torch.Size:
        """Return the numbers of clients and classes."""
        return self._counts.shape

    def __len__(self) -> int:
        return len(self._counts)

    def __getitem__(self, clients: Any) -> "HiddenClasses":
        """Return the rows of some clients. Raises UserError for columns."""
        if isinstance(clients, tuple):
            _refuse()
        return HiddenClasses(self._counts[clients])

    def sum(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """Return the numbers of samples of clients [clients], with ``dim = 1``, or that
        of all clients. Raises UserError for another ``dim``.

        keepdim: whether the result is [clients, 1].
        """
        if dim is None:
            return self._counts.sum()
        if dim not in (1, -1):
            _refuse()
        return self._counts.sum(dim=1, keepdim=keepdim)

    def reveal(self) -> Tensor:
        """Return the counts themselves, for the engine's scores."""
        return self._counts

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse()

    @classmethod
    def __torch_function__(cls, *arguments: Any, **options: Any) -> NoReturn:
        """Raise UserError for a function of torch."""
        _refuse()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __matmul__ = __rmatmul__ = __pow__ = _refuse
    __gt__ = __ge__ = __lt__ = __le__ = __neg__ = __iter__ = __array__ = _refuse
