"""Images decoded one by one, from files that a user has."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from hpcfl.errors import UserError
from hpcfl.files import atomic, heartbeat, user_files

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

NAME = r"\w[\w.-]*"  # of a file or folder, without a path
GREY = ("1", "L", "LA")  # Pillow's modes without colours
EIGHT_BITS = (*GREY, "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # modes that are read
MOST_PIXELS = 1 << 24  # of one image, where no size is asked for


def read(path: Path, *kinds: str, **form: Any) -> np.ndarray:
    """Return the pixels of a file, as ``decoded`` does; links are followed."""
    try:
        file = user_files.opened(path)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read as an image ({atomic.reason(error)})"
        ) from None
    with file:
        return decoded(file, str(path), *kinds, **form)


def decoded(
    file: BinaryIO,
    where: str,
    *kinds: str,
    size: tuple[int, int] | None = None,
    mode: str | None = "RGB",
    resized: tuple[int, int] | None = None,
    by_area: bool = False,
) -> np.ndarray:
    """Return the pixels of an image, uint8 [channels, height, width], turned as its EXIF
    orientation says.

    Args:
        file: Open for reading.
        where: The name of the image in errors.
        kinds: Pillow's names of the formats that it may have, such as "JPEG".
        size: The width and height that it must have; None for any.
        mode: What it is converted to: "RGB", or "L" for grey; None leaves grey ones
            grey.
        resized: The width and height that it is brought to.
        by_area: Whether each pixel is then the mean of its area; else bicubic.

    Raises:
        UserError: It is no such image, has more than 8 bits a value, transparent pixels
            or several frames; one of another size is refused before it is decoded.
    """
    from PIL import Image, ImageOps  # needed here only

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(file, formats=kinds) as image:
                if size is not None and image.size != size:
                    raise UserError(
                        f"{where}: {image.width}×{image.height} pixels, must be "
                        f"{size[0]}×{size[1]}"
                    )
                if image.width * image.height > MOST_PIXELS:
                    raise UserError(
                        f"{where}: {image.width}×{image.height} pixels, at most "
                        f"{MOST_PIXELS:,} in all are read"
                    )
                _refuse_loss(image, where)
                own_mode = "L" if image.mode in GREY else "RGB"
                converted = ImageOps.exif_transpose(image).convert(mode or own_mode)
                if resized is not None:
                    smooth = Image.Resampling.BICUBIC
                    resampling = Image.Resampling.BOX if by_area else smooth
                    converted = converted.resize(resized, resampling)
                pixels = np.asarray(converted)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(
            f"{where}: cannot be read as an image ({atomic.reason(error)})"
        ) from None
    heartbeat.beat()
    if pixels.ndim == 2:
        return pixels[None]
    return pixels.transpose(2, 0, 1)


def _refuse_loss(image: "Picture", where: str) -> None:
    """Raise UserError for an image of which 8-bit grey values or colours hold a part."""
    if image.mode not in EIGHT_BITS:
        raise UserError(
            f"{where}: has the mode '{image.mode}'; only values of 8 bits are read, so "
            "scale it to 0 … 255, or save the values in a .npz file"
        )
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":  # a photo, with previews after it
        raise UserError(f"{where}: has {frames} frames; save each as an image")
    if image.has_transparency_data:
        opacity = np.asarray(image.convert("RGBA").getchannel("A"))
        if opacity.min() < 255:
            raise UserError(
                f"{where}: has transparent pixels; paste it on a background and save it "
                "without an alpha channel"
            )
