"""The corruptions of CIFAR-C, Tiny-ImageNet-C and ImageNet-C (Hendrycks & Dietterich,
"Benchmarking neural network robustness to common corruptions", ICLR 2019;
heterogeneity.md H3).

Those are left out that need picture files, ImageMagick or OpenCV. Each works on float32
images [n, channels, height, width] in [0, 1], all of one severity.
"""

import io
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.data.shifts._pixels import in_hsv

# Pixels of a side: constants are given for images up to 32, up to 64, and larger ones.
SIZES = (32, 64)

CONSTANTS: dict[str, list[list[Any]]] = tomllib.loads(
    Path(__file__).with_name("corruptions.toml").read_text()
)
COLOURED = {"saturate"}  # of images with three channels
OF_BYTES = {"brightness", "saturate", "jpeg", "pixelate"}
# (purpose, number of a sample) → its random numbers
Draw = Callable[[str, int], np.random.Generator]


def constant(name: str, severity: int, shape: tuple[int, ...]) -> Any:
    """Return the constant of a corruption at a severity from 1 to 5 for images of a
    shape.
    """
    column = int(np.searchsorted(SIZES, max(shape[1:])))
    return CONSTANTS[name][column][severity - 1]


def apply(
    name: str, c: Any, draw: Draw, x: np.ndarray, numbers: np.ndarray
) -> np.ndarray:
    """Corrupt the images x [n, channels, height, width] with these ``numbers`` [n]."""
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
    """Return the disk of an unsharp lens, float32 [side, side], which sums to 1; its
    rim is blurred by a normal filter of 3×3 pixels, of 5×5 for large disks.
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
    """Return pixels in [0, 1] as bytes 0 … 255."""
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
