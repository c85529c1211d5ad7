"""Changed pixels: corruptions, noise by client, rotated hues and tints
(heterogeneity.md H3).

All are computed in float32 on the scale 0 … 1.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from hpcfl.data.shifts import corruptions
from hpcfl.data.shifts.base import Concept, Facts, Shift, Transform, to_range
from hpcfl.data.shifts.corruptions import COLOURED, CONSTANTS, OF_BYTES, corrupt

Name = Literal[
    "gaussian-noise",
    "shot-noise",
    "impulse-noise",
    "speckle-noise",
    "gaussian-blur",
    "defocus-blur",
    "contrast",
    "brightness",
    "saturate",
    "jpeg",
    "pixelate",
]
# (pixels float32 [n, *shape], sample numbers [n]) → changed pixels.
OfPixels = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Corruption(Shift):
    """Corrupted images: noise, blur, contrast, brightness or compression with a
    severity from 1 to 5, by group or by client (heterogeneity.md H3).

    Operations and constants are those of CIFAR-C, Tiny-ImageNet-C or ImageNet-C,
    depending on the size of the images (``corruptions.py``). The noise of a sample
    depends only on its number, so all clients with the sample see the same noise. FedRC
    (Guo et al., ICML 2024) gives 20 % of the clients a random corruption of random
    severity: ``corruption = "random"``, ``severity = "random"``, ``groups =
    "clients"``, ``share = 0.2``.
    """

    kind: str = "corruption"
    corruption: Name | Literal["random"] = Field(
        "gaussian-noise", description="corruption of images; random: drawn by group"
    )
    severity: Annotated[int, Field(ge=0, le=5)] | Literal["random"] = Field(
        3, description="severity, 0 for none; random: 1 to 5, drawn by group"
    )
    among: list[Name] = Field(
        default_factory=list,
        description="corruptions from which random draws; default: all that fit the images",
    )
    groups: PositiveInt | Literal["clients"] = Field(
        1, description="number of groups; clients: one group per client"
    )

    untouched = "clean"
    is_absolute = True
    readers = {"corruption": {"random": ("among",)}}

    def concepts(self, facts: Facts) -> list[Concept]:
        facts.require_images(self.kind)
        groups = facts.clients if self.groups == "clients" else self.groups
        return [self._make_concept(group, facts) for group in range(groups)]

    def _make_concept(self, group: int, facts: Facts) -> Concept:
        severity = self.severity
        if severity == "random":
            severity = int(facts.generator("severity", group).integers(1, 6))
        if not severity:
            return Concept(self.untouched)
        name: str = self.corruption
        if name == "random":
            possible = self.among or _list_possible(facts)
            drawn = facts.generator("corruption", group).integers(len(possible))
            name = possible[int(drawn)]
        if name in COLOURED:
            require_colour(facts, "corruption", name)
        if name in OF_BYTES:
            require_bytes(facts, "corruption", name)
        if name == "jpeg" and facts.shape[0] not in (1, 3):
            raise facts.make_error("corruption", "'jpeg' needs one or three channels")
        c = corruptions.get_constant(name, severity, facts.shape)
        change = partial(corrupt, name, c, facts.generator)
        return Concept(f"{name} {severity}", transform_pixels(change, facts))


def _list_possible(facts: Facts) -> list[str]:
    """Return the corruptions that fit the number of channels and the type."""
    channels = facts.shape[0]
    impossible = set() if facts.dtype == torch.uint8 else set(OF_BYTES)
    if channels != 3:
        impossible |= COLOURED
    if channels not in (1, 3):
        impossible.add("jpeg")
    return [name for name in CONSTANTS if name not in impossible]


class NoiseLevel(Shift):
    """Noise that increases by client: client i of M has normal noise of standard
    deviation noise·i/(M − 1) on values in [0, 1] (heterogeneity.md H3).

    Li et al., "Federated learning on non-IID data silos: an experimental study", ICDE
    2022, with noise = 0.1 and ten clients. Their code uses it as standard deviation, as
    here, though their README calls it variance. Their code draws noise at every access;
    here it is drawn once.
    """

    kind: str = "noise-level"
    noise: float = Field(
        0.1, ge=0, le=100, description="standard deviation of the last client's noise"
    )

    untouched = "noise 0"
    is_absolute = True

    def concepts(self, facts: Facts) -> list[Concept]:
        facts.require_values(self.kind)
        concepts = []
        for client in range(facts.clients):
            std = self.noise * client / max(1, facts.clients - 1)
            add = partial(corrupt, "gaussian-noise", std, facts.generator)
            changed = Concept(f"noise {std:.6g}", transform_pixels(add, facts))
            concepts.append(changed if std else Concept(self.untouched))
        return concepts


class Hue(Shift):
    """Rotated hues: group g of k rotates colours by 360°·g/k (heterogeneity.md H3); no
    paper states numbers.
    """

    kind: str = "hue"
    groups: int = Field(2, ge=2, le=360, description="number of groups")

    untouched = "hue + 0°"

    def concepts(self, facts: Facts) -> list[Concept]:
        facts.require_images(self.kind)
        require_colour(facts, "kind", self.kind)
        concepts = [Concept(self.untouched)]
        for group in range(1, self.groups):
            turn = partial(_turn_hue, group / self.groups)
            name = f"hue + {360 * group / self.groups:g}°"
            concepts.append(Concept(name, transform_pixels(turn, facts)))
        return concepts


def _turn_hue(share: float, x: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    hsv = corruptions.to_hsv(x)
    hsv[..., 0] = (hsv[..., 0] + share) % 1
    return corruptions.from_hsv(hsv)


class Tint(Shift):
    """Tinted images: each group multiplies each channel by a factor drawn from [1 − c,
    1 + c] (heterogeneity.md H3); no paper states numbers.
    """

    kind: str = "tint"
    c: float = Field(0.5, ge=0, le=1, description="largest deviation of factors from 1")
    groups: int = Field(2, ge=1, le=1000, description="number of groups")

    untouched = "no tint"

    def concepts(self, facts: Facts) -> list[Concept]:
        facts.require_images(self.kind)
        concepts = []
        for group in range(self.groups):
            random = facts.generator("tint", group)
            factors = random.uniform(1 - self.c, 1 + self.c, facts.shape[0])
            change = partial(_multiply, factors.astype(np.float32)[:, None, None])
            concepts.append(Concept(f"tint {group}", transform_pixels(change, facts)))
        return concepts


def _multiply(factors: np.ndarray, x: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    tinted: np.ndarray = x * factors
    return tinted


def transform_pixels(change: OfPixels, facts: Facts) -> Transform:
    """Return a transformation of raw samples that applies a change of pixels."""

    def transform(x: Tensor, numbers: np.ndarray) -> Tensor:
        pixels = x.float().div(facts.scale).numpy()
        changed = np.ascontiguousarray(change(pixels, numbers), np.float32)
        return to_range(torch.from_numpy(changed), facts.dtype, facts.scale)

    return transform


def require_bytes(facts: Facts, key: str, name: str) -> None:
    """Raise UserError if samples are not uint8, whose black and white are known.

    Args:
        facts: facts about the data.
        key: key of the shift, for the message.
        name: name of the transformation, for the message.
    """
    if facts.dtype != torch.uint8:
        problem = f"'{name}' needs uint8 images; these are {facts.dtype}"
        raise facts.make_error(key, problem)


def require_colour(facts: Facts, key: str, name: str) -> None:
    """Raise UserError if images do not have three channels. Arguments as in
    ``require_bytes``.
    """
    require_bytes(facts, key, name)
    channels = facts.shape[0]
    if channels != 3:
        problem = f"'{name}' needs three channels; these images have {channels}"
        raise facts.make_error(key, problem)


plugins = {
    "corruption": Corruption,
    "hue": Hue,
    "noise-level": NoiseLevel,
    "tint": Tint,
}
