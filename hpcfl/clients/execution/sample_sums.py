"""Sums of clipped per-sample gradients, for many lanes in one call.

``torch.func`` computes the gradient of one sample's loss, mapped over the samples of a
mini-batch and over lanes. ``PIECE`` samples are processed at a time. A sample's bits
therefore depend on its position in the mini-batch, but not on the amount of padding.
"""

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from hpcfl.clients.execution.kernel import KEYS, NO_SAMPLE, PIECE, Work
from hpcfl.clients.losses import (
    CROSS_ENTROPY,
    Batch,
    Lane,
    Tensors,
    expand_constants,
    stack_data_term,
    wrap_samples,
)
from hpcfl.errors import UserError
from hpcfl.models.layer_replacements import batching_clients
from hpcfl.models.random import derive_sample_keys, keyed, list_random_layers


class SampleLane(Lane):
    """The variables of ONE client that the loss of a sample may read."""

    def __getattr__(self, name: str) -> Tensor:
        raise UserError(
            f"[privacy] unit = 'sample' does not cover the loss, which reads lane.{name}; "
            "choose a method whose loss reads only samples, or declare the variable in "
            "the method's private_variables"
        )


class SampleSums(nn.Module):
    """Sums of clipped per-sample gradients as a function of tensors only.

    As a module it computes the loss of one sample, and ``functional_call`` can replace
    the model's tensors in it.
    """

    def __init__(self, module: nn.Module, work: Work) -> None:
        """Begin without the tensors of ``work``. Raises ValueError if it has no clip."""
        if work.clip is None:
            raise ValueError(
                "sums of per-sample gradients need a clip (may be infinite)"
            )
        super().__init__()
        self.model = module
        self._loss = work.loss
        self._clip = work.clip
        self._names, self._trained = work.names, len(work.trained)
        self._variable_names = work.variable_names
        self._random_layers = list_random_layers(module)

    def compute_gradients(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Return the sums of the parameters' clipped gradients, ``[a, …]`` each.

        The last tensor has the sums of losses and data terms [a, 2].

        Args:
            given: parameters and buffers, x, y and variables, ``[a, …]`` each.
        """
        x, y, *values = given[len(self._names) :]
        variables = dict(zip(self._variable_names, values, strict=True))
        held = y != NO_SAMPLE
        y = y.clamp(min=0)
        named = dict(zip(self._names, given, strict=False))
        trained = {name: named.pop(name) for name in self._names[: self._trained]}
        others = named | expand_constants(self.model, len(x))
        totals = [torch.zeros_like(tensor) for tensor in trained.values()]
        losses = x.new_zeros(len(x), 2, dtype=torch.float32)
        for start in range(0, y.shape[1], PIECE):
            piece = slice(start, start + PIECE)
            places = torch.arange(start, start + PIECE, device=y.device)
            samples = x[:, piece], y[:, piece], places.int()
            with batching_clients():
                by_name, of_samples = self._map(trained, others, *samples, variables)
            gradients = list(by_name.values())
            self._add(totals, gradients, held[:, piece])
            kept = torch.where(held[:, piece, None], of_samples, 0)
            losses = losses + kept.sum(dim=1)
        return (*totals, losses)

    def _map(
        self,
        trained: Tensors,
        others: Tensors,
        x: Tensor,
        y: Tensor,
        places: Tensor,
        variables: Tensors,
    ) -> tuple[Tensors, Tensor]:
        """Return per-sample gradients ``[a, PIECE, …]`` by name, and losses.

        Losses and data terms are [a, PIECE, 2].
        """
        differentiate = grad(self._evaluate_at, has_aux=True)
        over_samples = vmap(
            differentiate, in_dims=(None, None, 0, 0, 0, None), randomness="error"
        )
        over_lanes = vmap(
            over_samples, in_dims=(0, 0, 0, 0, None, 0), randomness="error"
        )
        found: tuple[Tensors, Tensor] = over_lanes(
            trained, others, x, y, places, variables
        )
        return found

    def _evaluate_at(
        self,
        trained: Tensors,
        others: Tensors,
        x: Tensor,
        y: Tensor,
        place: Tensor,
        variables: Tensors,
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of one sample, and as auxiliary output loss and data term
        [2].
        """
        named = trained | others
        swapped = {f"model.{name}": tensor for name, tensor in named.items()}
        values = functional_call(self, swapped, (x, y, place, variables))
        return values[0], values.detach()

    def forward(
        self, x: Tensor, y: Tensor, place: Tensor, variables: Tensors
    ) -> Tensor:
        """Return the loss and its data term [2] of one sample.

        Args:
            x: sample, [*shape].
            y: its label, a scalar.
            place: its position in the mini-batch, a scalar.
            variables: variables of its lane by name.
        """
        own = dict(variables)
        keys = own.pop(KEYS, None)
        if keys is not None:
            keys = derive_sample_keys(keys, place)
        with keyed(self._random_layers, keys):
            samples, labels = wrap_samples(self.model, x[None]), y[None]
            lane = SampleLane(**own)
            if self._loss != CROSS_ENTROPY:
                loss = self._loss(self.model, Batch(samples, labels), lane)
                return stack_data_term(loss, lane)
            # These operators give bits that do not depend on other lanes.
            log_shares = self.model(samples).log_softmax(dim=1)
            loss = log_shares.gather(1, labels[:, None]).neg()[0, 0]
            return stack_data_term(loss, lane)

    def _add(self, totals: list[Tensor], gradients: list[Tensor], held: Tensor) -> None:
        """Add clipped per-sample gradients ``[a, PIECE, …]`` to ``totals`` [a, …].

        A gradient that is not finite counts as zero. ``torch.where`` applies the mask,
        because 0·NaN is NaN.

        Args:
            totals: sums by parameter, which change in place.
            gradients: gradients by parameter.
            held: mask of positions with a sample, bool [a, PIECE].
        """
        norms = []
        for gradient in gradients:
            norms.append(
                torch.linalg.vector_norm(gradient[:, :, None].flatten(2), dim=2)
            )
        norm = torch.linalg.vector_norm(torch.stack(norms, dim=2), dim=2)
        kept = held & (norm < math.inf)
        for total, gradient in zip(totals, gradients, strict=True):
            shape = *kept.shape, *[1] * (gradient.dim() - 2)
            if self._clip < math.inf:
                factor = self._clip / norm.clamp(min=self._clip)
                gradient = gradient * factor.view(shape)
            of_samples = torch.where(kept.view(shape), gradient, 0)
            total.add_(of_samples.sum(dim=1))
