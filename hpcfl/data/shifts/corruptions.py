"""Corruptions of CIFAR-C, Tiny-ImageNet-C and ImageNet-C (Hendrycks & Dietterich,
"Benchmarking neural network robustness to common corruptions", ICLR 2019;
heterogeneity.md H3).

Corruptions that need image files, ImageMagick or OpenCV are left out. Each function
takes float32 images in [0, 1] and a constant c. Noise takes one image [channels,
height, width], other functions [n, channels, height, width]. torchvision's operations
with the same names differ: its contrast moves pixels to the mean grey, its brightness
is a factor, and its JPEG needs compiled operators.
"""

import io
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

# Sides in pixels: constants exist for images up to 32, up to 64, and larger.
SIZES = (32, 64)
WHITE = np.float32(255)

CONSTANTS: dict[str, list[list[Any]]] = tomllib.loads(
    Path(__file__).with_name("corruptions.toml").read_text()
)
COLOURED = {"saturate"}  # corruptions that need three channels
OF_BYTES = {"brightness", "saturate", "jpeg", "pixelate"}
# (purpose, number of a sample) → generator of its random numbers
Draw = Callable[[str, int], Generator]
Images = np.ndarray


def get_constant(name: str, severity: int, shape: tuple[int, ...]) -> Any:
    """Return the constant of a corruption.

    Args:
        name: name of the corruption.
        severity: severity from 1 to 5.
        shape: shape of an image [channels, height, width].
    """
    column = int(np.searchsorted(SIZES, max(shape[1:])))
    return CONSTANTS[name][column][severity - 1]


def corrupt(name: str, c: Any, draw: Draw, x: Images, numbers: np.ndarray) -> Images:
    """Corrupt images.

    Args:
        name: name of the corruption.
        c: constant of the corruption.
        draw: generators of random numbers by sample.
        x: images [n, channels, height, width].
        numbers: sample numbers of the images [n].
    """
    if name in FIXED:
        return FIXED[name](x, c)
    noisy = []
    for image, number in zip(x, numbers.tolist(), strict=True):
        noisy.append(NOISE[name](image, c, draw(name, number)))
    return np.stack(noisy)


def add_gaussian_noise(image: Images, c: float, random: Generator) -> Images:
    """Add normal noise of standard deviation c."""
    noise = random.standard_normal(image.shape, np.float32)
    noisy: Images = image + c * noise
    return noisy


def add_shot_noise(image: Images, c: float, random: Generator) -> Images:
    """Replace values by Poisson numbers of photons with mean c at white; negative
    values count as black.
    """
    photons = random.poisson(np.maximum(image, 0) * c)
    noisy: Images = photons / np.float32(c)
    return noisy


def add_impulse_noise(image: Images, c: float, random: Generator) -> Images:
    """Set a share c of the values to black or white, half of them each."""
    noisy = image.copy()
    draws = random.random(image.shape)
    noisy[draws < c / 2] = 0
    noisy[draws >= 1 - c / 2] = 1
    return noisy


def add_speckle_noise(image: Images, c: float, random: Generator) -> Images:
    """Add normal noise of standard deviation c times the value."""
    noise = random.standard_normal(image.shape, np.float32)
    return image + image * c * noise


def blur_normally(x: Images, c: float) -> Images:
    """Blur by a Gaussian filter of standard deviation c."""
    from scipy.ndimage import gaussian_filter

    blurred: Images = gaussian_filter(x, (0, 0, c, c), mode="nearest")
    return blurred


def defocus(x: Images, c: tuple[float, float]) -> Images:
    """Blur by a disk, as an unfocused lens.

    The edge of the disk is smoothed by a Gaussian filter of 3×3 pixels, or 5×5 for
    large disks.

    Args:
        x: images.
        c: radius of the disk and standard deviation of its smoothing, in pixels.
    """
    from scipy.ndimage import convolve, gaussian_filter

    radius, softness = c
    reach = 1 if radius <= 8 else 2
    half = int(radius) + reach
    offsets = np.arange(-half, half + 1)
    within = offsets[:, None] ** 2 + offsets**2 <= radius**2
    disk = within.astype(np.float32) / within.sum()
    disk = gaussian_filter(disk, softness, radius=reach, mode="constant")
    blurred: Images = convolve(x, disk[None, None], mode="mirror")
    return blurred


def scale_contrast(x: Images, c: float) -> Images:
    """Scale each channel's deviation from its mean by the factor c."""
    mean = x.mean(axis=(2, 3), keepdims=True)
    changed: Images = (x - mean) * np.float32(c) + mean
    return changed


def brighten(x: Images, c: float) -> Images:
    """Add c to the value (HSV) of coloured images, or to all channels of other images."""
    if x.shape[1] != 3:
        return x + np.float32(c)
    hsv = to_hsv(x)
    hsv[..., 2] = np.clip(hsv[..., 2] + c, 0, 1)
    return from_hsv(hsv)


def saturate(x: Images, c: tuple[float, float]) -> Images:
    """Multiply the saturation (HSV) by the first number of c and add the second."""
    factor, offset = c
    hsv = to_hsv(x)
    hsv[..., 1] = np.clip(hsv[..., 1] * factor + offset, 0, 1)
    return from_hsv(hsv)


def compress(x: Images, c: int) -> Images:
    """Encode images as JPEG of quality c and decode them."""
    from PIL import Image

    result = []
    for image in to_bytes(x):
        content = io.BytesIO()
        is_grey = len(image) == 1
        pixels = image[0] if is_grey else image.transpose(1, 2, 0)
        Image.fromarray(pixels).save(content, "JPEG", quality=c)
        with Image.open(content) as decoded:
            pixels = np.asarray(decoded)
        result.append(pixels[None] if is_grey else pixels.transpose(2, 0, 1))
    return np.stack(result) / WHITE


def pixelate(x: Images, c: float) -> Images:
    """Reduce the sides of images to the share c, then enlarge them."""
    from PIL import Image

    height, width = x.shape[2:]
    small = max(1, int(width * c)), max(1, int(height * c))
    box = Image.Resampling.BOX
    channels = []
    for pixels in to_bytes(x).reshape(-1, height, width):
        shrunk = Image.fromarray(pixels).resize(small, box)
        channels.append(np.asarray(shrunk.resize((width, height), box)))
    return np.stack(channels).reshape(x.shape) / WHITE


def to_bytes(x: Images) -> Images:
    """Return pixels in [0, 1] as bytes 0 … 255."""
    return np.round(x * 255).astype(np.uint8)


def to_hsv(x: Images) -> np.ndarray:
    """Return hue, saturation and value [n, height, width, 3] of images [n, 3, height,
    width].
    """
    from matplotlib.colors import rgb_to_hsv

    return rgb_to_hsv(x.transpose(0, 2, 3, 1))


def from_hsv(hsv: np.ndarray) -> Images:
    """Return images [n, 3, height, width] of hue, saturation and value."""
    from matplotlib.colors import hsv_to_rgb

    coloured: Images = hsv_to_rgb(hsv).transpose(0, 3, 1, 2)
    return coloured


NOISE = {
    "gaussian-noise": add_gaussian_noise,
    "shot-noise": add_shot_noise,
    "impulse-noise": add_impulse_noise,
    "speckle-noise": add_speckle_noise,
}
FIXED: dict[str, Callable[[Images, Any], Images]] = {
    "gaussian-blur": blur_normally,
    "defocus-blur": defocus,
    "contrast": scale_contrast,
    "brightness": brighten,
    "saturate": saturate,
    "jpeg": compress,
    "pixelate": pixelate,
}
