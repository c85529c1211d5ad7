"""Layers that draw random numbers, as functions of a key: the same numbers for one client
alone and beside others, on any device, recorded or not (adapters.md §1).

A number is a function of a key of two words and of its place among all that the layer
draws for ONE client's mini-batch. Clients draw with keys of their own, all in one call.
torch's own layers draw from a stream, which ``torch.func.vmap`` refuses to share; in the
models of clients they are replaced (``_replaced.py``).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

LOWEST_WORD = -(1 << 31)
LOWEST_SELU = -1.0507009873554805 * 1.6732632423543772


def _shift(words: Tensor, bits: int) -> Tensor:
    """``words`` shifted to the right, zeros coming in: torch's own shift of int32 has
    copies of the highest bit come in.
    """
    kept = (1 << (32 - bits)) - 1
    return torch.bitwise_right_shift(words, bits) & kept


def _mix(words: Tensor) -> Tensor:
    """A permutation of int32 that leaves no trace of its order (Wellons' "lowbias32")."""
    words = words ^ _shift(words, 16)
    words = words * 0x7FEB352D
    words = words ^ _shift(words, 15)
    words = words * (0x846CA68B - (1 << 32))
    return words ^ _shift(words, 16)


def words(key: Tensor, places: Tensor) -> Tensor:
    """Random words at ``places``, int32 of their shape: mix(mix(place ^ k₀) + k₁).

    Both words of a key have to be drawn: keys that count up give masks that are alike.

    Args:
        key: int32 [2].
        places: int32, which number of the layer's each is.
    """
    first, second = key.unbind()
    return _mix(_mix(places ^ first) + second)


class RandomLayer(nn.Module):
    """A layer that draws, for subclasses of one's own, such as stochastic depth.

    In the models of clients ``uniform`` is keyed; a module that is used outside of hpcfl
    draws from torch's generator.
    """

    _key: Tensor | None = None  # in a step that trains
    _drawn = 0  # how many numbers of it were drawn in this step

    def uniform(self, *shape: int) -> Tensor:
        """Uniform numbers in [0, 1), float32 of this shape, of 24 bits each."""
        if self._key is None:
            device = next(self.parameters(), torch.empty(0)).device
            return torch.rand(shape, device=device)
        return _shift(self._words(shape), 8) * 2.0**-24

    def _words(self, shape: Sequence[int]) -> Tensor:
        """The layer's next random words, int32 of this shape; a further call in the same
        step goes on where the last one ended.
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
        return words(self._key, places.view(*shape))

    def _kept(self, shape: Sequence[int], p: float) -> Tensor:
        """Which numbers of this shape are kept where each is dropped with probability p
        < 1, bool.
        """
        threshold = round(p * (1 << 32)) + LOWEST_WORD
        return self._words(shape) >= threshold

    def _dropout(self, x: Tensor, p: float) -> Tensor:
        """Dropout of the numbers ``x`` in training, for layers that drop on their way."""
        if not self.training or not p:
            return x
        if self._key is None:
            return functional.dropout(x, p)
        if p == 1:
            return torch.zeros_like(x)
        return _scaled(x, self._kept(x.shape, p), p)


def _scaled(x: Tensor, kept: Tensor, p: float) -> Tensor:
    """The numbers of ``x`` that are ``kept``, scaled so that its mean stays, and zeros."""
    return torch.where(kept, x, 0) * (1 / (1 - p))


class _Keyed(RandomLayer):
    """What joins the class of one of torch's dropout layers, in whose place it comes.

    Outside of a step that trains clients the layer is torch's own. It never changes its
    input in place, and what is dropped is 0 even where it is not finite.
    """

    p: float

    def forward(self, x: Tensor) -> Tensor:
        if self._key is None or not self.training or not self.p:
            result: Tensor = super().forward(x)
            return result
        if self.p == 1:
            return x.masked_fill(torch.ones_like(x, dtype=torch.bool), 0)
        kept = self._kept(self._shape(x), self.p)
        if not x.is_contiguous():
            # In the layout of x, which may be channels-last: of two layouts torch.where
            # is slow, and so is what has to bring its result back into the first.
            kept = torch.zeros_like(x, dtype=torch.bool) | kept
        return self._dropped(x, kept)

    def _shape(self, x: Tensor) -> Sequence[int]:
        """The shape of what is dropped or kept as a whole."""
        return x.shape

    def _dropped(self, x: Tensor, kept: Tensor) -> Tensor:
        return _scaled(x, kept, self.p)


class _Channels(_Keyed):
    """Drops whole channels of [batch, channels, …], or of one sample [channels, …] where
    torch takes it for one.
    """

    unbatched = 0  # dimensions of such a sample

    def _shape(self, x: Tensor) -> Sequence[int]:
        leading = 1 if x.dim() == self.unbatched else 2
        return (*x.shape[:leading], *[1] * (x.dim() - leading))


class _Alpha(_Keyed):
    """Sets what is dropped to SELU's lowest value, −λα, and keeps the mean and variance
    of the whole (Klambauer et al., NeurIPS 2017).
    """

    def _dropped(self, x: Tensor, kept: Tensor) -> Tensor:
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


KEYED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Dropout: Dropout,
    nn.Dropout1d: Dropout1d,
    nn.Dropout2d: Dropout2d,
    nn.Dropout3d: Dropout3d,
    nn.AlphaDropout: AlphaDropout,
    nn.FeatureAlphaDropout: FeatureAlphaDropout,
}


def random_layers(module: nn.Module) -> list[RandomLayer]:
    """The layers of a model that draw by keys, in the order of ``modules()``."""
    return [layer for layer in module.modules() if isinstance(layer, RandomLayer)]


@contextmanager
def keyed(layers: Sequence[RandomLayer], keys: Tensor | None) -> Iterator[None]:
    """A block in which layers draw by their ``keys``, int32 [layers, 2]; without these
    it changes nothing.
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
