"""Layers that draw random numbers as functions of a key (adapters.md §1).

A client draws the same numbers alone and together with others, on any device, with and
without CUDA graphs. A number is a function of a key of two words and of its index among
all draws of the layer for ONE client's mini-batch. Each client has separate keys, and
one call draws for all clients.

torch's layers draw from a stream, which ``torch.func.vmap`` does not support.
``replace_layers`` replaces them in the models of clients.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

LOWEST_WORD = -(1 << 31)
LOWEST_SELU = -1.0507009873554805 * 1.6732632423543772


def _shift(words: Tensor, bits: int) -> Tensor:
    """Shift ``words`` to the right and fill with zeros.

    torch's shift of int32 fills with copies of the highest bit.
    """
    kept = (1 << (32 - bits)) - 1
    return torch.bitwise_right_shift(words, bits) & kept


def _mix(words: Tensor) -> Tensor:
    """Apply a permutation of int32 that hides the order of its inputs (Wellons'
    "lowbias32").
    """
    words = words ^ _shift(words, 16)
    words = words * 0x7FEB352D
    words = words ^ _shift(words, 15)
    words = words * (0x846CA68B - (1 << 32))
    return words ^ _shift(words, 16)


def draw_words(key: Tensor, places: Tensor) -> Tensor:
    """Return random words at ``places``, int32 of their shape: mix(mix(place ^ k₀) +
    k₁).

    Both words of a key must be random: consecutive keys give similar masks.

    Args:
        key: The key, int32 [2].
        places: The index of each number among the layer's draws, int32.
    """
    first, second = key.unbind()
    return _mix(_mix(places ^ first) + second)


class RandomLayer(nn.Module):
    """Base class of layers that draw random numbers, such as a user's own stochastic
    depth.

    In the models of clients ``uniform`` is keyed. A module outside of hpcfl draws from
    torch's generator.
    """

    _key: Tensor | None = None  # set during a training step
    _drawn = 0  # the number of draws in this step

    def uniform(self, *shape: int) -> Tensor:
        """Draw uniform numbers in [0, 1), float32 of this shape, of 24 bits each."""
        if self._key is None:
            device = next(self.parameters(), torch.empty(0)).device
            return torch.rand(shape, device=device)
        return _shift(self._draw_words(shape), 8) * 2.0**-24

    def _draw_words(self, shape: Sequence[int]) -> Tensor:
        """Draw the layer's next random words, int32 of this shape.

        A further call in the same step continues after the previous one.
        """
        assert self._key is not None
        count = torch.Size(shape).numel()
        places = torch.arange(
            self._drawn,
            self._drawn + count,
            dtype=torch.int32,
            device=self._key.device,
        )
        self._drawn += count
        return draw_words(self._key, places.view(*shape))

    def _draw_mask(self, shape: Sequence[int], p: float) -> Tensor:
        """Draw the mask of numbers to keep, bool, where each is dropped with
        probability p < 1.
        """
        threshold = round(p * (1 << 32)) + LOWEST_WORD
        return self._draw_words(shape) >= threshold

    def _dropout(self, x: Tensor, p: float) -> Tensor:
        """Apply dropout to ``x`` in training, for layers with dropout inside."""
        if not self.training or not p:
            return x
        if self._key is None:
            return functional.dropout(x, p)
        if p == 1:
            return torch.zeros_like(x)
        return _scale(x, self._draw_mask(x.shape, p), p)


def _scale(x: Tensor, kept: Tensor, p: float) -> Tensor:
    """Set the numbers of ``x`` outside the mask ``kept`` to zero and scale the others
    to keep the mean.
    """
    return torch.where(kept, x, 0) * (1 / (1 - p))


class _Keyed(RandomLayer):
    """Mixin for the class of a dropout layer of torch.

    Outside of training steps of clients the layer computes torch's dropout. It never
    changes its input in place, and dropped values are 0 even if they are not finite.
    """

    p: float

    def forward(self, x: Tensor) -> Tensor:
        if self._key is None or not self.training or not self.p:
            result: Tensor = super().forward(x)
            return result
        if self.p == 1:
            return x.masked_fill(torch.ones_like(x, dtype=torch.bool), 0)
        kept = self._draw_mask(self._get_mask_shape(x), self.p)
        if not x.is_contiguous():
            # The mask has the layout of x, which may be channels-last: torch.where is
            # slow with two layouts, and so is converting its result back.
            kept = torch.zeros_like(x, dtype=torch.bool) | kept
        return self._drop_units(x, kept)

    def _get_mask_shape(self, x: Tensor) -> Sequence[int]:
        """Return the shape of the mask, one entry for each unit that is dropped as a
        whole.
        """
        return x.shape

    def _drop_units(self, x: Tensor, kept: Tensor) -> Tensor:
        return _scale(x, kept, self.p)


class _Channels(_Keyed):
    """Dropout of whole channels of [batch, channels, …], or of one sample [channels, …]
    as in torch.
    """

    unbatched = 0  # dimensions of a single sample

    def _get_mask_shape(self, x: Tensor) -> Sequence[int]:
        leading = 1 if x.dim() == self.unbatched else 2
        return (*x.shape[:leading], *[1] * (x.dim() - leading))


class _Alpha(_Keyed):
    """Dropout that sets values to SELU's lowest value, −λα, and keeps the mean and
    variance (Klambauer et al., NeurIPS 2017).
    """

    def _drop_units(self, x: Tensor, kept: Tensor) -> Tensor:
        scale: float = ((1 - self.p) * (1 + self.p * LOWEST_SELU**2)) ** -0.5
        shift = -scale * LOWEST_SELU * self.p
        return torch.where(kept, x, LOWEST_SELU) * scale + shift


class Dropout(_Keyed, nn.Dropout):
    pass


class Dropout1d(_Channels, nn.Dropout1d):
    unbatched = 2


class Dropout2d(_Channels, nn.Dropout2d):
    pass


class Dropout3d(_Channels, nn.Dropout3d):
    unbatched = 4


class AlphaDropout(_Alpha, nn.AlphaDropout):
    pass


class FeatureAlphaDropout(_Alpha, _Channels, nn.FeatureAlphaDropout):
    pass


def list_random_layers(module: nn.Module) -> list[RandomLayer]:
    """Return the random layers of a model, in the order of ``modules()``."""
    return [layer for layer in module.modules() if isinstance(layer, RandomLayer)]


def derive_sample_keys(keys: Tensor, place: Tensor) -> Tensor:
    """Return the keys of layers for ONE sample, int32 [layers, 2], so that each sample
    of a mini-batch has separate draws.

    Args:
        keys: The keys of the mini-batch, int32 [layers, 2].
        place: The sample's index in the mini-batch, int32.
    """
    places = torch.stack([2 * place, 2 * place + 1])
    return torch.stack([draw_words(key, places) for key in keys.unbind()])


@contextmanager
def keyed(layers: Sequence[RandomLayer], keys: Tensor | None) -> Iterator[None]:
    """Set the keys of random layers inside a ``with`` block.

    Args:
        layers: The random layers of a model.
        keys: Their keys, int32 [layers, 2]; None changes nothing.
    """
    if keys is None:
        yield
        return
    for layer, key in zip(layers, keys.unbind(), strict=True):
        layer._key, layer._drawn = key, 0
    try:
        yield
    finally:
        for layer in layers:
            layer._key = None
