"""Local optimisers on stacked lanes: SGD, Adam and AdamW with clipping, weight decay
and a proximal term.

Every tensor is ``[L, *shape]``, and each lane is optimised for itself. A step concerns
some lanes: a slice, which gives views, or indices, whose rows are written back. Every
training begins with fresh state, so it is reset each round (methods-1.md §2).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hpcfl.experiment.sections import Training
from hpcfl.fleet.losses import Lanes, Tensors
from hpcfl.rows import pinned, places

TensorList = (
    tuple[Tensor, ...] | list[Tensor]
)  # what torch's _foreach_ functions take and give
# What a step reads and changes, by kind, lists of tensors ``[a, …]``: "weights",
# "anchors" if there is a proximal term, and the optimiser's state; on a GPU one tensor
# of "factors" [a, 4], in the order of FACTORS.
Parts = dict[str, list[Tensor]]
CHANGED = "weights", "velocities", "means", "squares", "steps"
FACTORS = "descent", "pull", "strength", "decay"
Factor = float | Tensor  # or one for each lane, [a]


@dataclass(frozen=True)
class Proximal:
    """The proximal term (strength/2)·‖w − anchor‖²; its gradient strength·(w − anchor)
    joins the step.
    """

    strength: float
    anchor: Tensors  # [L, *shape] by name


class Optimizer:
    """The update w ← w − lr·direction(∇F + weight_decay·w + strength·(w − anchor)),
    with ∇F clipped first.

    AdamW decays the weights themselves, w ← (1 − lr·weight_decay)·w, before its step
    (Loshchilov & Hutter, ICLR 2019). On a GPU the numbers that change from round to
    round are tensors: a graph would keep them.

    training: which optimiser and its constants. lr: the round's learning rate.
    weights: what is trained, ``[L, …]`` by name.
    settle: of (kind, tensors by name): these tensors, where they lie until the training
        ends.
    """

    def __init__(
        self,
        training: Training,
        lr: float,
        weights: Tensors,
        proximal: Proximal | None = None,
        settle: Callable[[str, Tensors], Tensors] = lambda kind, tensors: tensors,
    ):
        self.training, self._weights, self._settle = training, weights, settle
        strength = proximal.strength if proximal else 0.0
        self._factors = {
            "descent": -lr,
            "pull": lr * strength,
            "strength": strength,
            "decay": 1 - lr * training.weight_decay,
        }
        self._anchors = (
            settle("anchors", {name: proximal.anchor[name] for name in weights})
            if proximal and strength
            else {}
        )

    def step(self, lanes: Lanes, gradients: Tensors) -> None:
        """Change the weights of the selected lanes in place; their gradients are ``[a,
        …]``.
        """
        parts = self.parts(lanes)
        update(self.training, parts, list(gradients.values()), self._factors)
        if isinstance(
            lanes, Tensor
        ):  # indices gave copies; a slice gave views, which have changed
            for kind in self._whole.keys() & CHANGED:
                for whole, part in zip(self._whole[kind], parts[kind], strict=True):
                    places.put(whole, lanes, part)

    def parts(self, lanes: Lanes) -> Parts:
        """What a step of some lanes reads and changes: views of it, or copies where
        lanes are indices.
        """
        return {
            kind: [whole[lanes] for whole in wholes]
            for kind, wholes in self._whole.items()
        }

    def proximal_term(self) -> Tensor | None:
        """(strength/2)·‖w − anchor‖² of all lanes [L]; None without one."""
        if not self._anchors:
            return None
        apart = torch._foreach_sub(
            list(self._weights.values()), list(self._anchors.values())
        )
        norms = torch.stack(
            [torch.linalg.vector_norm(part.flatten(1), dim=1) for part in apart], dim=1
        )
        return self._factors["strength"] / 2 * norms.square().sum(dim=1)

    def clipped(self, directions: list[Tensor]) -> list[Tensor]:
        """Each lane's whole gradient scaled to a norm of at most ``training.clip``,
        where that is set.
        """
        return _clipped(directions, self.training.clip)

    @cached_property
    def _whole(self) -> Parts:
        """All lanes' ``parts``; the state is zero at first, and made when a step asks
        for it.
        """
        weights = self._weights
        first = next(iter(weights.values()))
        parts = {"weights": weights, "anchors": self._anchors}
        for kind in moments(self.training):
            parts[kind] = self._settle(
                kind, {name: torch.zeros_like(one) for name, one in weights.items()}
            )
        if self.training.optimizer != "sgd":
            parts["steps"] = self._settle("steps", {"": first.new_zeros(len(first))})
        if first.is_cuda:
            factors = torch.tensor([list(self._factors.values())], dtype=first.dtype)
            parts["factors"] = self._settle(
                "factors",
                {"": pinned.on_device(factors, first.device).expand(len(first), -1)},
            )
        return {
            kind: list(tensors.values()) for kind, tensors in parts.items() if tensors
        }


def update(
    training: Training,
    parts: Parts,
    gradients: list[Tensor],
    numbers: Mapping[str, float],
) -> None:
    """A step of the optimiser as a function of tensors alone: changes ``parts`` by
    gradients ``[a, …]``.

    numbers: the FACTORS by name, for ``parts`` that do not have them.
    """
    weights, anchors = parts["weights"], parts.get("anchors")
    factors: Mapping[str, Factor] = numbers
    if "factors" in parts:
        factors = dict(zip(FACTORS, parts["factors"][0].unbind(dim=1), strict=True))
    plain = training.optimizer == "sgd" and not training.momentum
    # Never changed in place: autograd may hand out expanded views, or one tensor for
    # two leaves.
    directions: TensorList = _clipped(gradients, training.clip)
    if training.weight_decay and training.optimizer != "adamw":
        directions = torch._foreach_add(
            directions, weights, alpha=training.weight_decay
        )
    if anchors and not plain:
        directions = _plus(
            directions, torch._foreach_sub(weights, anchors), factors["strength"]
        )
    if training.optimizer == "adamw":
        _scale(weights, factors["decay"])
    if training.optimizer != "sgd":
        _adam(parts, directions, factors["descent"])
        return
    if training.momentum:
        directions = _momentum(parts["velocities"], directions, training.momentum)
    if anchors and plain:  # w − lr·strength·(w − anchor) in one pass over memory
        _pull(weights, anchors, factors["pull"])
    _add(weights, directions, factors["descent"])


def _momentum(
    velocities: list[Tensor], directions: TensorList, momentum: float
) -> list[Tensor]:
    """Heavy ball without dampening, as ``torch.optim.SGD``: v ← m·v + g."""
    torch._foreach_mul_(velocities, momentum)
    torch._foreach_add_(velocities, directions)
    return velocities


def _adam(parts: Parts, directions: TensorList, descent: Factor) -> None:
    """Adam with β = (0.9, 0.999), ε = 1e-8 (Kingma & Ba, ICLR 2015); AdamW has decayed
    the weights.

    The bias is corrected by each lane's own count of steps. descent: −lr.
    """
    weights, means, squares, (steps,) = (
        parts[kind] for kind in ("weights", "means", "squares", "steps")
    )
    steps += 1
    torch._foreach_lerp_(means, directions, 0.1)
    torch._foreach_mul_(squares, 0.999)
    torch._foreach_addcmul_(squares, directions, directions, 0.001)
    rate, root = (1 - 0.9**steps).reciprocal() * descent, (1 - 0.999**steps).sqrt()
    spread = torch._foreach_sqrt(squares)
    torch._foreach_div_(spread, [_per_lane(root, one) for one in squares])
    torch._foreach_add_(spread, 1e-8)
    moved = torch._foreach_mul(means, [_per_lane(rate, mean) for mean in means])
    torch._foreach_div_(moved, spread)
    torch._foreach_add_(weights, moved)


def _per_lane(numbers: Tensor, like: Tensor) -> Tensor:
    """Numbers [a] in the shape in which they spread over ``like`` [a, …]."""
    return numbers.view(-1, *[1] * (like.dim() - 1))


def _add(tensors: list[Tensor], others: TensorList, factor: Factor) -> None:
    """tensors ← tensors + factor·others; a factor for each lane gives the same bits as
    a number.
    """
    if isinstance(factor, Tensor):
        torch._foreach_addcmul_(
            tensors, others, [_per_lane(factor, tensor) for tensor in tensors]
        )
    else:
        torch._foreach_add_(tensors, others, alpha=factor)


def _plus(tensors: TensorList, others: TensorList, factor: Factor) -> TensorList:
    """tensors + factor·others, as ``_add`` in new tensors."""
    if isinstance(factor, Tensor):
        return torch._foreach_addcmul(
            tensors, others, [_per_lane(factor, tensor) for tensor in tensors]
        )
    return torch._foreach_add(tensors, others, alpha=factor)


def _pull(tensors: list[Tensor], others: list[Tensor], factor: Factor) -> None:
    """tensors ← tensors + factor·(others − tensors)."""
    if isinstance(factor, Tensor):
        for tensor, other in zip(tensors, others, strict=True):
            tensor.lerp_(other, _per_lane(factor, tensor))
    else:
        torch._foreach_lerp_(tensors, others, factor)


def _scale(tensors: list[Tensor], factor: Factor) -> None:
    """tensors ← factor·tensors."""
    torch._foreach_mul_(
        tensors,
        [_per_lane(factor, tensor) for tensor in tensors]
        if isinstance(factor, Tensor)
        else factor,
    )


def moments(training: Training) -> list[str]:
    """What the optimiser keeps for each lane that has a model's size."""
    if training.optimizer != "sgd":
        return ["means", "squares"]
    return ["velocities"] if training.momentum else []


def _clipped(directions: list[Tensor], largest: float | None) -> list[Tensor]:
    """Each lane's whole gradient scaled to a norm of at most ``largest``, as
    ``clip_grad_norm_`` of torch.

    Without a ``largest`` norm these are the directions themselves.
    """
    if largest is None:
        return directions
    norms = torch.stack(
        [torch.linalg.vector_norm(d.flatten(1), dim=1) for d in directions], dim=1
    )
    factor = (largest / (torch.linalg.vector_norm(norms, dim=1) + 1e-6)).clamp(max=1.0)
    return [direction * _per_lane(factor, direction) for direction in directions]
