"""Changes of tensors in place, found without a copy or a checksum.

Autograd counts changes of a tensor in place. It refuses to return a tensor that it has
saved for a gradient and that was changed since.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


class Saved(torch.autograd.Function):
    """A function without a gradient, for which autograd saves a tensor."""

    @staticmethod
    def forward(ctx: Any, number: Tensor, tensor: Tensor) -> Tensor:
        ctx.save_for_backward(tensor)
        return number.clone()


class Watch:
    """Tensors that must not change; none of them is copied."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        with torch.enable_grad():
            number = torch.zeros((), requires_grad=True)
            self._results: dict[str, Tensor] = {
                name: Saved.apply(number, tensor)  # type: ignore[no-untyped-call]
                for name, tensor in tensors.items()
            }

    def find_changed(self) -> list[str]:
        """Return the names of tensors that an operation of torch has changed in place
        since, also by a view.

        Changes of their memory by NumPy or by ``Tensor.data`` are not counted.
        """
        changed = []
        for name, result in self._results.items():
            saved: Any = result.grad_fn
            try:
                _ = saved.saved_tensors
            except RuntimeError:
                changed.append(name)
        return changed
