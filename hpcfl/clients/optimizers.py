"""Local optimisers on stacked lanes: SGD, Adam and AdamW.

They support clipping, weight decay and a proximal term.

Every tensor is ``[L, *shape]``, and each lane is optimised separately. A step updates
some lanes: a slice of them, which gives views, or indices, whose rows are written back.
Every training begins with new optimiser state, so the state is reset each round
(methods-1.md §2).

torch has no public functions that update a list of tensors in one call. The functions
``_foreach_…`` belong to torch's own optimisers, which do not accept gradients by lanes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hpcfl.clients.losses import Lanes, Tensors
from hpcfl.experiment.sections import Training
from hpcfl.rows import mixing

# Arguments and results of torch's _foreach_ functions.
TensorList = tuple[Tensor, ...] | list[Tensor]
# Lists of tensors ``[a, …]`` that a step reads and changes, by kind: "weights",
# "anchors" with a proximal term, and the optimiser's state.
Parts = dict[str, list[Tensor]]
CHANGED = "weights", "velocities", "means", "squares", "steps"


@dataclass
class Optimizer:
    """An optimiser with clipping, weight decay and a proximal term.

    The update is w ← w − lr·direction(∇F + weight_decay·w + strength·(w − anchor)),
    with ∇F clipped first.

    AdamW instead applies the decay to the weights, w ← (1 − lr·weight_decay)·w, before
    its step (Loshchilov & Hutter, ICLR 2019).

    Attributes:
        training: name and constants of the optimiser.
        lr: learning rate of the round.
        weights: trained parameters, ``[L, …]`` by name.
        strength: factor of the proximal term (strength/2)·‖w − anchor‖², whose gradient
            strength·(w − anchor) is added to the step.
        anchors: reference weights of the proximal term, ``[L, …]`` by name in the order
            of ``weights``; empty without the term.
    """

    training: Training
    lr: float
    weights: Tensors
    strength: float
    anchors: Tensors

    def step(self, lanes: Lanes, gradients: Tensors) -> None:
        """Update the weights of some lanes in place.

        Args:
            lanes: lanes to update.
            gradients: gradients ``[a, …]`` by name, in the order of ``weights``.
        """
        parts = {
            kind: [tensor[lanes] for tensor in tensors]
            for kind, tensors in self._whole.items()
        }
        self._update(parts, list(gradients.values()))
        if isinstance(lanes, Tensor):
            # Indices gave copies, which are written back; a slice gave views.
            for kind in self._whole.keys() & CHANGED:
                for tensor, part in zip(self._whole[kind], parts[kind], strict=True):
                    mixing.index_copy(tensor, lanes, part)

    def compute_proximal_term(self) -> Tensor | None:
        """Return (strength/2)·‖w − anchor‖² of all lanes [L]; None without the term."""
        if not self.anchors:
            return None
        # One difference at a time: allocating memory for all of them takes longer.
        gaps = (self.weights[name] - anchor for name, anchor in self.anchors.items())
        return self.strength / 2 * _compute_norms(gaps).square().sum(dim=1)

    def clip(self, directions: list[Tensor]) -> list[Tensor]:
        """Scale each lane's whole gradient to a norm of at most ``training.clip``.

        The result equals ``clip_grad_norm_`` of torch. Without that key it is
        ``directions``.

        Args:
            directions: gradients of the lanes, ``[a, …]`` each.
        """
        largest = self.training.clip
        if largest is None:
            return directions
        norm = torch.linalg.vector_norm(_compute_norms(directions), dim=1)
        factor = (largest / (norm + 1e-6)).clamp(max=1.0)
        return [
            direction * _expand_lanes(factor, direction) for direction in directions
        ]

    @cached_property
    def _whole(self) -> Parts:
        """The tensors of all lanes that steps read and change.

        The optimiser's state is allocated, with zeros, at the first step.
        """
        weights = list(self.weights.values())
        parts = {"weights": weights}
        if self.anchors:
            parts["anchors"] = list(self.anchors.values())
        for slot in list_slots(self.training):
            parts[slot] = [torch.zeros_like(tensor) for tensor in weights]
        if self.training.optimizer != "sgd":
            parts["steps"] = [weights[0].new_zeros(len(weights[0]))]
        return parts

    def _update(self, parts: Parts, gradients: list[Tensor]) -> None:
        """Take a step: update ``parts`` with gradients ``[a, …]``.

        Gradients are never changed in place: autograd may return expanded views, or the
        same tensor for two parameters.
        """
        training = self.training
        weights = parts["weights"]
        anchors = parts.get("anchors")
        plain = training.optimizer == "sgd" and not training.momentum
        directions: TensorList = self.clip(gradients)
        if training.weight_decay and training.optimizer != "adamw":
            directions = torch._foreach_add(
                directions, weights, alpha=training.weight_decay
            )
        if anchors and not plain:
            gaps = torch._foreach_sub(weights, anchors)
            directions = torch._foreach_add(directions, gaps, alpha=self.strength)
        if training.optimizer == "adamw":
            torch._foreach_mul_(weights, 1 - self.lr * training.weight_decay)
        if training.optimizer != "sgd":
            _step_adam(parts, directions, self.lr)
            return
        if training.momentum:
            # Heavy ball without dampening, as ``torch.optim.SGD``: v ← m·v + g.
            velocities = parts["velocities"]
            torch._foreach_mul_(velocities, training.momentum)
            torch._foreach_add_(velocities, directions)
            directions = velocities
        if anchors and plain:
            # This computes w − lr·strength·(w − anchor) in one pass over memory.
            torch._foreach_lerp_(weights, anchors, self.lr * self.strength)
        torch._foreach_add_(weights, directions, alpha=-self.lr)


def _step_adam(parts: Parts, directions: TensorList, lr: float) -> None:
    """Take a step of Adam with β = (0.9, 0.999), ε = 1e-8 (Kingma & Ba, ICLR 2015).

    The bias correction uses each lane's own number of steps. The decay of AdamW has
    already been applied.
    """
    weights, means, squares = parts["weights"], parts["means"], parts["squares"]
    (steps,) = parts["steps"]
    steps += 1
    torch._foreach_lerp_(means, directions, 0.1)
    torch._foreach_mul_(squares, 0.999)
    torch._foreach_addcmul_(squares, directions, directions, 0.001)
    rate = (1 - 0.9**steps).reciprocal() * -lr
    root = (1 - 0.999**steps).sqrt()
    spread = torch._foreach_sqrt(squares)
    torch._foreach_div_(spread, [_expand_lanes(root, square) for square in squares])
    torch._foreach_add_(spread, 1e-8)
    updates = torch._foreach_mul(means, [_expand_lanes(rate, mean) for mean in means])
    torch._foreach_div_(updates, spread)
    torch._foreach_add_(weights, updates)


def _compute_norms(tensors: Iterable[Tensor]) -> Tensor:
    """Return each lane's norms of the ``tensors`` [a, …], one column per tensor."""
    norms = []
    for tensor in tensors:
        norms.append(torch.linalg.vector_norm(tensor[:, None].flatten(1), dim=1))
    return torch.stack(norms, dim=1)


def _expand_lanes(numbers: Tensor, like: Tensor) -> Tensor:
    """Return numbers [a] in a shape that broadcasts over ``like`` [a, …]."""
    return numbers.view(-1, *[1] * (like.dim() - 1))


def list_slots(training: Training) -> list[str]:
    """Return the names of the optimiser's states that have the size of a model."""
    if training.optimizer != "sgd":
        return ["means", "squares"]
    return ["velocities"] if training.momentum else []
