"""The corruptions of CIFAR-C, Tiny-ImageNet-C and ImageNet-C (Hendrycks & Dietterich,
"Benchmarking neural network robustness to common corruptions", ICLR 2019;
heterogeneity.md H3).

Those are left out that need picture files, ImageMagick or OpenCV. Each works on float32
images [n, channels, height, width] in [0, 1], all of one severity.
"""

import io
from collections.abc import Callable
from typing import Any

import numpy as np

from hpcfl.data.shifts._pixels import in_hsv

# c of severities 1 to 5, by size: of images up to 32 pixels, up to 64, larger ones
Constants = tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]
SIZES = (32, 64)

CONSTANTS: dict[str, Constants] = {
    "gaussian-noise": (
        (0.04, 0.06, 0.08, 0.09, 0.10),
        (0.04, 0.08, 0.12, 0.15, 0.18),
        (0.08, 0.12, 0.18, 0.26, 0.38),
    ),
    "shot-noise": (
        (500, 250, 100, 75, 50),
        (250, 100, 50, 30, 15),
        (60, 25, 12, 5, 3),
    ),
    "impulse-noise": (
        (0.01, 0.02, 0.03, 0.05, 0.07),
        (0.01, 0.02, 0.05, 0.08, 0.14),
        (0.03, 0.06, 0.09, 0.17, 0.27),
    ),
    "speckle-noise": (
        (0.06, 0.10, 0.12, 0.16, 0.20),
        (0.15, 0.20, 0.25, 0.30, 0.35),
        (0.15, 0.20, 0.35, 0.45, 0.60),
    ),
    "gaussian-blur": (
        (0.4, 0.6, 0.7, 0.8, 1.0),
        (0.5, 0.75, 1.0, 1.25, 1.5),
        (1.0, 2.0, 3.0, 4.0, 6.0),
    ),
    "defocus-blur": (
        ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1)),
        ((0.5, 0.6), (1.0, 0.1), (1.5, 0.1), (2.5, 0.01), (3.0, 0.1)),
        ((3.0, 0.1), (4.0, 0.5), (6.0, 0.5), (8.0, 0.5), (10.0, 0.5)),
    ),
    "contrast": (
        (0.75, 0.5, 0.4, 0.3, 0.15),
        (0.4, 0.3, 0.2, 0.1, 0.05),
        (0.4, 0.3, 0.2, 0.1, 0.05),
    ),
    "brightness": (
        (0.05, 0.1, 0.15, 0.2, 0.3),
        (0.1, 0.2, 0.3, 0.4, 0.5),
        (0.1, 0.2, 0.3, 0.4, 0.5),
    ),
    "saturate": (
        ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
        ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)),
        ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    ),
    "jpeg": (
        (80, 65, 58, 50, 40),
        (65, 58, 50, 40, 25),
        (25, 18, 15, 10, 7),
    ),
    "pixelate": (
        (0.95, 0.9, 0.85, 0.75, 0.65),
        (0.9, 0.8, 0.7, 0.6, 0.5),
        (0.6, 0.5, 0.4, 0.3, 0.25),
    ),
}
COLOURED = {"saturate"}  # of images with three channels
OF_BYTES = {"brightness", "saturate", "jpeg", "pixelate"}
# (purpose, number of a sample) → its random numbers
Draw = Callable[[str, int], np.random.Generator]


def constant(name: str, severity: int, shape: tuple[int, ...]) -> Any:
    """The constant of a corruption at a severity from 1 to 5 for images of a shape."""
    column = int(np.searchsorted(SIZES, max(shape[1:])))
    return CONSTANTS[name][column][severity - 1]


def apply(
    name: str, c: Any, draw: Draw, x: np.ndarray, numbers: np.ndarray
) -> np.ndarray:
    """The images x [n, channels, height, width] with these ``numbers`` [n], corrupted."""
    if name in _DRAWN:
        corrupt = _DRAWN[name]
        images = zip(x, numbers.tolist(), strict=True)
        return np.stack(
            [corrupt(image, c, draw(name, number)) for image, number in images]
        )
    corrupted: np.ndarray = _FIXED[name](x, c)
    return corrupted


def _gaussian_noise(x: np.ndarray, c: float, random: np.random.Generator) -> np.ndarray:
    noisy: np.ndarray = x + c * random.standard_normal(x.shape, np.float32)
    return noisy


def _shot_noise(x: np.ndarray, c: float, random: np.random.Generator) -> np.ndarray:
    lit = np.maximum(x, 0)  # below 0 no photon comes
    noisy: np.ndarray = random.poisson(lit * c) / np.float32(c)
    return noisy


def _impulse_noise(x: np.ndarray, c: float, random: np.random.Generator) -> np.ndarray:
    draws = random.random(x.shape)
    peppered = np.where(draws < c / 2, np.float32(0), x)
    salted: np.ndarray = np.where(draws >= 1 - c / 2, np.float32(1), peppered)
    return salted


def _speckle_noise(x: np.ndarray, c: float, random: np.random.Generator) -> np.ndarray:
    return x + x * c * random.standard_normal(x.shape, np.float32)


def _gaussian_blur(x: np.ndarray, c: float) -> np.ndarray:
    from scipy.ndimage import gaussian_filter

    blurred: np.ndarray = gaussian_filter(x, (0, 0, c, c), mode="nearest")
    return blurred


def _defocus_blur(x: np.ndarray, c: tuple[float, float]) -> np.ndarray:
    from scipy.ndimage import convolve

    blurred: np.ndarray = convolve(x, _disk(*c)[None, None], mode="mirror")
    return blurred


def _disk(radius: float, softness: float) -> np.ndarray:
    """The disk of an unsharp lens, float32 [side, side], which sums to 1; its rim is
    blurred by a normal filter of 3×3 pixels, of 5×5 for large disks.
    """
    from scipy.ndimage import gaussian_filter

    reach = 1 if radius <= 8 else 2
    half = int(radius) + reach
    offsets = np.arange(-half, half + 1)
    within = offsets[:, None] ** 2 + offsets**2 <= radius**2
    disk = within.astype(np.float32) / within.sum()
    soft: np.ndarray = gaussian_filter(disk, softness, radius=reach, mode="constant")
    return soft


def _contrast(x: np.ndarray, c: float) -> np.ndarray:
    mean = x.mean(axis=(2, 3), keepdims=True)
    changed: np.ndarray = (x - mean) * np.float32(c) + mean
    return changed


def _brightness(x: np.ndarray, c: float) -> np.ndarray:
    if x.shape[1] != 3:
        return x + np.float32(c)

    def brighten(hsv: np.ndarray) -> None:
        hsv[..., 2] = np.clip(hsv[..., 2] + c, 0, 1)

    return in_hsv(x, brighten)


def _saturate(x: np.ndarray, c: tuple[float, float]) -> np.ndarray:
    factor, offset = c

    def saturate(hsv: np.ndarray) -> None:
        hsv[..., 1] = np.clip(hsv[..., 1] * factor + offset, 0, 1)

    return in_hsv(x, saturate)


def _jpeg(x: np.ndarray, c: int) -> np.ndarray:
    from PIL import Image

    compressed = []
    for image in _as_bytes(x):
        content = io.BytesIO()
        pixels = image[0] if len(image) == 1 else image.transpose(1, 2, 0)
        Image.fromarray(pixels).save(content, "JPEG", quality=c)
        with Image.open(content) as decoded:
            again = np.asarray(decoded)
        compressed.append(again[None] if len(image) == 1 else again.transpose(2, 0, 1))
    return np.stack(compressed) / np.float32(255)


def _pixelate(x: np.ndarray, c: float) -> np.ndarray:
    from PIL import Image

    height, width = x.shape[2:]
    small = max(1, int(width * c)), max(1, int(height * c))
    box = Image.Resampling.BOX
    result = np.empty(x.shape, np.uint8)
    for place, image in enumerate(_as_bytes(x)):
        for channel, pixels in enumerate(image):
            shrunk = Image.fromarray(pixels).resize(small, box)
            result[place, channel] = np.asarray(shrunk.resize((width, height), box))
    return result / np.float32(255)


def _as_bytes(x: np.ndarray) -> np.ndarray:
    """Pixels in [0, 1] as bytes 0 … 255."""
    return np.round(x * 255).astype(np.uint8)


_DRAWN = {
    "gaussian-noise": _gaussian_noise,
    "shot-noise": _shot_noise,
    "impulse-noise": _impulse_noise,
    "speckle-noise": _speckle_noise,
}
_FIXED: dict[str, Callable[[np.ndarray, Any], np.ndarray]] = {
    "gaussian-blur": _gaussian_blur,
    "defocus-blur": _defocus_blur,
    "contrast": _contrast,
    "brightness": _brightness,
    "saturate": _saturate,
    "jpeg": _jpeg,
    "pixelate": _pixelate,
}
