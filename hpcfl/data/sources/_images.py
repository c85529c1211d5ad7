"""Pictures decoded one by one: JPEG and PNG files that a user has."""

import warnings
from pathlib import Path
from typing import BinaryIO

import numpy as np

from hpcfl.errors import UserError
from hpcfl.files import atomic, heartbeat, regular

NAME = r"\w[\w.-]*"  # of a file or folder, without a path
GREY = ("1", "L", "LA")  # Pillow's modes without colours
MOST_PIXELS = 1 << 24  # of one picture, where no size is asked for


def read(
    path: Path,
    kind: str,
    *,
    size: tuple[int, int] | None = None,
    mode: str = "RGB",
    resized: tuple[int, int] | None = None,
    by_area: bool = False,
) -> np.ndarray:
    """The pixels of a file, as ``decoded`` gives them; links are followed."""
    try:
        file = regular.opened(path)
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read as an image ({atomic.reason(error)})"
        ) from None
    with file:
        return decoded(
            file,
            str(path),
            kind,
            size=size,
            mode=mode,
            resized=resized,
            by_area=by_area,
        )


def decoded(
    file: BinaryIO,
    where: str,
    *kinds: str,
    size: tuple[int, int] | None = None,
    mode: str | None = "RGB",
    resized: tuple[int, int] | None = None,
    by_area: bool = False,
) -> np.ndarray:
    """The pixels of a picture, uint8 [channels, height, width].

    Args:
        file: Open for reading.
        where: What names the picture in errors.
        kinds: What it may be, "JPEG" or "PNG".
        size: The width and height that it must have; None for any.
        mode: What it is converted to: "RGB", or "L" for grey; None leaves grey ones
            grey.
        resized: The width and height that it is brought to.
        by_area: Whether each pixel is then the mean of its area; else bicubic.

    Raises:
        UserError: It is no such picture; one of another size is refused before it is
            decoded.
    """
    from PIL import Image  # needed here only

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
                own_mode = "L" if image.mode in GREY else "RGB"
                converted = image.convert(mode or own_mode)
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
