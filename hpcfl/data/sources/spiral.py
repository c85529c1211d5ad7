"""FedNH's spiral (protocols.md B7): 6 arms in the plane, 3,000 training and 100 test
points per class, generated.

Angles follow the reference code: the angle of class k runs from 2πk/6 to 2π(k+1)/6
while the radius grows from 1 to 10, plus uniform noise. The formula in the paper gives
class 0 a constant angle, and noise that mixes the arms.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hpcfl.data.datasets import AS_THEY_ARE, Dataset
from hpcfl.data.sources.base import Source
from hpcfl.rows import randomness

CLASSES = 6
SEED = 2022
NOISE = 0.5  # radians


@dataclass(frozen=True)
class Spiral(Source):
    """A spiral data set.

    Attributes:
        train: number of training points of each class; each class has 100 test points.
        about: one-sentence description.
    """

    train: Sequence[int] = (3000,) * CLASSES
    about: str = field(default="", kw_only=True)
    built_in = True

    def read(self, name: str, root: Path) -> Dataset:
        generator = randomness.generator(SEED, "spiral")
        sizes = [*self.train, *[100] * CLASSES]
        classes = [*range(CLASSES), *range(CLASSES)]
        points = np.concatenate(
            [
                _draw_arm(k, size, generator)
                for k, size in zip(classes, sizes, strict=True)
            ]
        )
        return Dataset.from_arrays(
            name,
            points.astype(np.float32),
            np.repeat(classes, sizes),
            CLASSES,
            official_test=100 * CLASSES,
            **AS_THEY_ARE,
        )


def _draw_arm(k: int, points: int, generator: np.random.Generator) -> np.ndarray:
    """Return the points of class ``k`` from the centre outwards, float64 [points, 2]."""
    step = np.linspace(0, 1, points)
    radius = 1 + 9 * step
    noise = NOISE * generator.random(points)
    angle = 2 * np.pi * (k + step) / CLASSES + noise
    return np.stack([radius * np.sin(angle), radius * np.cos(angle)], axis=1)


plugins = {
    "spiral": Spiral(
        about="FedNH's spiral (protocols.md B7): 6 arms in the plane, 3,000 training and "
        "100 test points per class, generated."
    ),
    "spiral-imbalanced": Spiral(
        tuple(3000 // 2**k for k in range(CLASSES)),
        about="FedNH's spiral with long-tailed classes: ⌊3000/2^k⌋ training points of class k.",
    ),
}
