"""Corrupted images: noise, blur, contrast, brightness, compression, of a severity from 1
to 5, by group or by client (heterogeneity.md H3).

Operations and constants are those of CIFAR-C, by the size of the images of
Tiny-ImageNet-C or ImageNet-C (``_corruptions.py``). Noise is drawn once for each
sample, keyed by its number, so every client that has the sample sees the same. FedRC
(Guo et al., ICML 2024) gives 20 % of the clients a random corruption of a random
severity each: ``corruption = "random"``, ``severity = "random"``, ``groups =
"clients"``, ``share = 0.2``.
"""

from functools import partial
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from hpcfl.data.shifts._corruptions import (
    COLOURED,
    CONSTANTS,
    OF_BYTES,
    apply,
    constant,
)
from hpcfl.data.shifts._pixels import on_pixels, require_bytes, require_colour
from hpcfl.data.shifts.base import Concept, Facts, Shift

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


class Corruption(Shift):
    kind: str = "corruption"
    corruption: Name | Literal["random"] = Field(
        "gaussian-noise", description="what becomes of images; random: drawn by group"
    )
    severity: Annotated[int, Field(ge=0, le=5)] | Literal["random"] = Field(
        3, description="0 leaves images as they are; random: 1 to 5, drawn by group"
    )
    among: list[Name] = Field(
        default_factory=list,
        description="the corruptions that random draws from; default: all that these images "
        "can have",
    )
    groups: PositiveInt | Literal["clients"] = Field(
        1, description="how many; clients: each client is one of its own"
    )

    untouched = "clean"

    def concepts(self, facts: Facts) -> list[Concept]:
        facts.require_images(self.kind)
        groups = facts.clients if self.groups == "clients" else self.groups
        return [self._of_group(group, facts) for group in range(groups)]

    def _of_group(self, group: int, facts: Facts) -> Concept:
        severity = self.severity
        if severity == "random":
            severity = int(facts.generator("severity", group).integers(1, 6))
        if not severity:
            return Concept(self.untouched)
        name: str = self.corruption
        if name == "random":
            possible = self.among or _possible(facts)
            drawn = facts.generator("corruption", group).integers(len(possible))
            name = possible[int(drawn)]
        if name in COLOURED:
            require_colour(facts, "corruption", f"'{name}'")
        if name in OF_BYTES:
            require_bytes(facts, "corruption", f"'{name}'")
        if name == "jpeg" and facts.shape[0] not in (1, 3):
            raise facts.wrong("corruption", "'jpeg' needs one channel or three")
        c = constant(name, severity, facts.shape)
        corrupt = partial(apply, name, c, facts.generator)
        return Concept(f"{name} {severity}", on_pixels(corrupt, facts))


def _possible(facts: Facts) -> list[str]:
    """List the corruptions that images like these can have."""
    channels = facts.shape[0]
    impossible = set()
    if channels != 3:
        impossible |= COLOURED
    if channels not in (1, 3):
        impossible.add("jpeg")
    return [name for name in CONSTANTS if name not in impossible]


plugin = Corruption
