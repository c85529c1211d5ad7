"""Dictionaries of tensors with a fixed set of names, and detection of in-place changes.

The server's state, the clients' state, variables and messages are such dictionaries.
In-place changes of a tensor are detected without a copy or a checksum: autograd counts
changes, and raises an error when it returns a saved tensor that was changed.
"""

from collections import UserDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor

from hpcfl.errors import UserError, suggest

# Types of floating-point numbers in files; NumPy lacks the others.
STORED_FLOATS = torch.float16, torch.float32, torch.float64


class MisusedTensor(UserError):
    """Error of a hook that reads, assigns or changes a tensor in a wrong way."""


class UnknownName(MisusedTensor, KeyError):
    """Error for an unknown name, or for a value of another type or shape."""


class NamedTensors(UserDict[str, Any]):
    """Tensors by name. Reading an unknown name raises UnknownName with all names.

    Attributes:
        place: name of the dictionary in a method, such as ``inbox``.
    """

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self.data = dict(values)
        self.place = place

    def __missing__(self, name: str) -> Any:
        raise UnknownName(
            f"{self.place}['{name}'] is unknown{suggest(name, self.data)}"
        )

    def __or__(self, other: Mapping[str, Any]) -> "NamedTensors":  # type: ignore[override]
        return NamedTensors({**self.data, **other}, self.place)

    def __ror__(self, other: Mapping[str, Any]) -> "NamedTensors":  # type: ignore[override]
        return NamedTensors({**other, **self.data}, self.place)

    def copy(self) -> dict[str, Any]:  # type: ignore[override]
        """Return a plain dictionary of the same tensors."""
        return dict(self.data)


class FixedTensors(NamedTensors):
    """Tensors by name that a hook may read but not assign."""

    def __setitem__(self, name: str, value: Any) -> None:
        raise UnknownName(f"{self.place}['{name}'] may be assigned only in 'aggregate'")

    def __delitem__(self, name: str) -> None:
        raise UnknownName(f"{self.place}['{name}'] cannot be deleted")

    def __ior__(self, other: Mapping[str, Any] | Iterable[Any]) -> Self:  # type: ignore[override]
        self.update(other)
        return self


class DeclaredTensors(FixedTensors):
    """Tensors by name, each with a fixed type and shape.

    Attributes:
        source: hook that declares the names.
        varying: names that may be added, or whose shapes may change. An empty tensor
            may always change its shape.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        place: str,
        source: str,
        varying: Collection[str] = (),
    ) -> None:
        super().__init__(values, place)
        self.source, self.varying = source, varying

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self.data:
            self._refuse_other(name, value, self.data[name])
        elif name not in self.varying:
            raise UnknownName(
                f"{self.place}['{name}'] was not declared by {self.source}"
                f"{suggest(name, self.data)}"
            )
        self.data[name] = value

    def _refuse_other(self, name: str, value: Any, declared: Tensor) -> None:
        """Raise UnknownName for a value of another type or shape than declared."""
        free = name in self.varying or not declared.numel()
        alike = isinstance(value, Tensor) and value.dtype == declared.dtype
        if alike and (free or value.shape == declared.shape):
            return
        raise UnknownName(
            f"{self.place}['{name}'] became {describe_form(value)}; {self.source} "
            f"declared {describe_form(declared)}"
        )


def refuse_other_than_tensors(state: Any, hook: str) -> None:
    """Raise UserError if a hook has declared anything except tensors by name.

    Args:
        state: result of the hook.
        hook: name of the hook.
    """
    if not isinstance(state, Mapping):
        raise UserError(
            f"'{hook}' returns {describe_form(state)}; expected tensors by name"
        )
    for name, value in state.items():
        if not isinstance(name, str):
            raise UserError(
                f"'{hook}' returns the name {name!r}; expected a text: '{name}'"
            )
        if not isinstance(value, Tensor):
            raise UserError(
                f"'{hook}' returns '{name}' as {describe_form(value)}; expected a tensor, "
                f"such as torch.tensor({value!r})"
            )
        if value.is_floating_point() and value.dtype not in STORED_FLOATS:
            raise UserError(
                f"'{hook}' returns '{name}' as {describe_form(value)}, which checkpoints "
                "cannot store; declare it as float32"
            )


def describe_form(value: object) -> str:
    """Return the type and shape of a tensor, or the type of any other object."""
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    kind = str(value.dtype).removeprefix("torch.")
    return f"{kind} {list(value.shape)}"


class Saved(torch.autograd.Function):
    """A function without a gradient, for which autograd saves a tensor."""

    @staticmethod
    def forward(ctx: Any, number: Tensor, tensor: Tensor) -> Tensor:
        ctx.save_for_backward(tensor)
        return number.clone()


class Watch:
    """Detection of in-place changes of tensors, without copies.

    Tensors of ``torch.inference_mode`` are skipped, because autograd cannot save them.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._results: dict[str, Tensor] = {}
        with torch.enable_grad():
            number = torch.zeros((), requires_grad=True)
            for name, tensor in tensors.items():
                if not tensor.is_inference():
                    self._results[name] = Saved.apply(number, tensor)  # type: ignore[no-untyped-call]

    def end(self) -> list[str]:
        """Release the tensors, and return the names of those that changed in place.

        Changes through a view are detected. Changes through NumPy or ``Tensor.data``
        are not.
        """
        results, self._results = self._results, {}
        changed = []
        for name, result in results.items():
            saved: Any = result.grad_fn
            try:
                _ = saved.saved_tensors
            except RuntimeError:
                changed.append(name)
        return changed


@contextmanager
def refuse_changes(tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Raise MisusedTensor if a tensor changes in place in the block.

    Args:
        tensors: tensors by the names that messages show.
    """
    watch = Watch(tensors)
    yield
    for name in watch.end():
        raise MisusedTensor(
            f"a hook changes {name} in place; change a copy, {name}.clone()"
        )
