"""Local optimisers on stacked lanes: SGD, Adam and AdamW with clipping, weight decay and a proximal term.

Every tensor is ``[L, *shape]``, and each lane is optimised for itself. A step concerns some lanes: a slice,
which gives views, or indices, whose rows are written back. Every training begins with fresh state, so it is
reset each round (methods-1.md §2).
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from hpcfl.experiment.sections import Training
from hpcfl.fleet.losses import Lanes, Tensors

TensorList = tuple[Tensor, ...] | list[Tensor]  # what torch's _foreach_ functions take and give


@dataclass(frozen=True)
class Proximal:
    """The proximal term (strength/2)·‖w − anchor‖²; its gradient strength·(w − anchor) joins the step."""

    strength: float
    anchor: Tensors  # [L, *shape] by name


@dataclass
class Optimizer:
    """The update w ← w − lr·direction(∇F + weight_decay·w + strength·(w − anchor)), with ∇F clipped first.

    AdamW decays the weights themselves, w ← (1 − lr·weight_decay)·w, before its step (Loshchilov & Hutter,
    ICLR 2019).

    training: which optimiser and its constants. lr: the round's learning rate.
    """

    training: Training
    lr: float
    proximal: Proximal | None = None
    _state: dict[str, Tensors] = field(default_factory=dict)

    def step(self, tensors: Tensors, lanes: Lanes, gradients: Tensors) -> None:
        """Change ``tensors`` [L, …] in place on the selected lanes, whose gradients are [a, …]."""
        names = list(gradients)
        weights = [tensors[name][lanes] for name in names]
        strength, anchors = self._anchors(names, lanes)
        plain = self.training.optimizer == "sgd" and not self.training.momentum
        directions: TensorList = self._regularised(list(gradients.values()), weights)
        if anchors and not plain:
            directions = torch._foreach_add(directions, torch._foreach_sub(weights, anchors), alpha=strength)
        if self.training.optimizer == "adamw":
            torch._foreach_mul_(weights, 1 - self.lr * self.training.weight_decay)
        if self.training.optimizer != "sgd":
            self._adam(names, tensors, lanes, weights, directions)
        else:
            if self.training.momentum:
                directions = self._momentum(names, tensors, lanes, directions)
            if anchors and plain:  # w − lr·strength·(w − anchor) in one pass over memory
                torch._foreach_lerp_(weights, anchors, self.lr * strength)
            torch._foreach_add_(weights, directions, alpha=-self.lr)
        _write_back(tensors, names, lanes, weights)

    def _regularised(self, directions: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
        """The gradients ``directions`` after clipping and with weight decay added, unless it is AdamW's.

        They are not changed in place: autograd may hand out expanded views, or one tensor for two leaves.
        """
        directions = self.clipped(directions)
        if self.training.weight_decay and self.training.optimizer != "adamw":
            directions = list(torch._foreach_add(directions, weights, alpha=self.training.weight_decay))
        return directions

    def proximal_term(self, tensors: Tensors, names: list[str]) -> Tensor | None:
        """(strength/2)·‖w − anchor‖² of all lanes [L], over the parameters ``names``; None without one."""
        strength, anchors = self._anchors(names, slice(None))
        if not anchors:
            return None
        apart = torch._foreach_sub([tensors[name] for name in names], anchors)
        norms = torch.stack([torch.linalg.vector_norm(part.flatten(1), dim=1) for part in apart], dim=1)
        return strength / 2 * norms.square().sum(dim=1)

    def clipped(self, directions: list[Tensor]) -> list[Tensor]:
        """Each lane's whole gradient scaled to a norm of at most ``training.clip``, where that is set."""
        return directions if self.training.clip is None else _clipped(directions, self.training.clip)

    def _anchors(self, names: list[str], lanes: Lanes) -> tuple[float, list[Tensor]]:
        """The strength of the proximal term and the lanes' anchors; none where there is no such term."""
        if self.proximal is None or not self.proximal.strength:
            return 0.0, []
        return self.proximal.strength, [self.proximal.anchor[name][lanes] for name in names]

    def _moments(self, kind: str, names: list[str], tensors: Tensors) -> Tensors:
        """The optimiser's state of one kind, by name, in the shapes of ``tensors``; at first zero."""
        state = self._state.setdefault(kind, {})
        for name in names:
            if name not in state:
                state[name] = torch.zeros_like(tensors[name])
        return state

    def _momentum(self, names: list[str], tensors: Tensors, lanes: Lanes,
                  directions: TensorList) -> list[Tensor]:
        """Heavy ball without dampening, as ``torch.optim.SGD``: v ← m·v + g."""
        state = self._moments("momentum", names, tensors)
        velocities = [state[name][lanes] for name in names]
        torch._foreach_mul_(velocities, self.training.momentum)
        torch._foreach_add_(velocities, directions)
        _write_back(state, names, lanes, velocities)
        return velocities

    def _adam(self, names: list[str], tensors: Tensors, lanes: Lanes, weights: list[Tensor],
              directions: TensorList) -> None:
        """Adam with β = (0.9, 0.999), ε = 1e-8 (Kingma & Ba, ICLR 2015); AdamW has decayed the weights.

        The bias is corrected by each lane's own count of steps.
        """
        first, second = self._moments("first", names, tensors), self._moments("second", names, tensors)
        counts = self._state.setdefault("adam",
                                        {"steps": tensors[names[0]].new_zeros(tensors[names[0]].shape[0])})
        steps = counts["steps"][lanes] + 1
        counts["steps"][lanes] = steps
        means, squares = [first[name][lanes] for name in names], [second[name][lanes] for name in names]
        torch._foreach_lerp_(means, directions, 0.1)
        torch._foreach_mul_(squares, 0.999)
        torch._foreach_addcmul_(squares, directions, directions, 0.001)
        _write_back(first, names, lanes, means)
        _write_back(second, names, lanes, squares)
        rate, root = self.lr / (1 - 0.9 ** steps), (1 - 0.999 ** steps).sqrt()
        per_lane = [(-1, *[1] * (weight.dim() - 1)) for weight in weights]
        spread = torch._foreach_div(torch._foreach_sqrt(squares), [root.view(shape) for shape in per_lane])
        torch._foreach_add_(spread, 1e-8)
        moved = torch._foreach_mul(means, [rate.view(shape) for shape in per_lane])
        torch._foreach_sub_(weights, torch._foreach_div(moved, spread))


def moments(training: Training) -> int:
    """How many tensors of a model's size the optimiser keeps for each lane."""
    return int(training.momentum > 0) if training.optimizer == "sgd" else 2


def _clipped(directions: TensorList, largest: float) -> list[Tensor]:
    """Each lane's whole gradient scaled to a norm of at most ``largest``, as ``clip_grad_norm_`` of torch."""
    norms = torch.stack([torch.linalg.vector_norm(d.flatten(1), dim=1) for d in directions], dim=1)
    factor = (largest / (torch.linalg.vector_norm(norms, dim=1) + 1e-6)).clamp(max=1.0)
    return [direction * factor.view(-1, *[1] * (direction.dim() - 1)) for direction in directions]


def _write_back(tensors: Tensors, names: list[str], lanes: Lanes, changed: list[Tensor]) -> None:
    """Copy the changed rows of ``lanes`` into ``tensors``; with a slice they are views and there already."""
    if isinstance(lanes, Tensor):
        for name, value in zip(names, changed, strict=True):
            tensors[name].index_copy_(0, lanes, value)
