"""Decode images, and store decoded images of large data sets.

``decode`` reads one image. ``DecodedPictures`` is the base class of data sets of many
small images, which ``hpcfl data download`` decodes once into one file; the ranks of a
node map that file into memory.
"""

import shlex
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

import numpy as np

from hpcfl.data.sources.base import Source, downloading
from hpcfl.errors import UserError
from hpcfl.files import atomic, untrusted_files

if TYPE_CHECKING:
    from PIL.Image import Image as Picture

NAME = r"\w[\w.-]*"  # pattern of a file or folder name without a path
GREY = ("1", "L", "LA")  # Pillow's modes without colours
EIGHT_BITS = (*GREY, "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # supported modes
MOST_PIXELS = 1 << 24  # limit for one image
FILE = "hpcfl-decoded.npy"


def read(path: Path, *kinds: str, **form: Any) -> np.ndarray:
    """Return the pixels of an image file.

    Args:
        path: the file; links are followed.
        kinds: allowed formats, as in ``decode``.
        form: further arguments of ``decode``.
    """
    with (
        untrusted_files.refuse_unreadable(path, "an image"),
        untrusted_files.open_user_file(path) as file,
    ):
        return decode(file, str(path), *kinds, **form)


def decode(
    file: BinaryIO,
    where: str,
    *kinds: str,
    size: tuple[int, int] | None = None,
    mode: str | None = "RGB",
    resized: tuple[int, int] | None = None,
    by_area: bool = False,
) -> np.ndarray:
    """Return the pixels of an image, rotated by its EXIF orientation.

    Args:
        file: file that is open for reading.
        where: name of the image, for messages.
        kinds: Pillow's names of allowed formats, such as "JPEG".
        size: required width and height, or None.
        mode: mode of the result: "RGB", or "L" for grey; None keeps grey images grey.
        resized: width and height of the result, or None.
        by_area: Whether resizing takes the mean of each pixel's area; else it is
            bicubic.

    Returns:
        The pixels, uint8 [channels, height, width].

    Raises:
        UserError: The file is not an image of these formats, has the wrong size, more
            than 8 bits per value, transparent pixels or several frames. The size is
            checked before decoding.
    """
    from PIL import Image, ImageOps  # needed here only

    with (
        untrusted_files.refuse_unreadable(where, "an image"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with Image.open(file, formats=kinds) as image:
            pixels = f"{image.width}×{image.height} pixels"
            if size is not None and image.size != size:
                raise UserError(f"{where}: {pixels}, must be {size[0]}×{size[1]}")
            if image.width * image.height > MOST_PIXELS:
                raise UserError(
                    f"{where}: {pixels}, more than {MOST_PIXELS:,} in total; reduce it"
                )
            _refuse_loss(image, where)
            own_mode = "L" if image.mode in GREY else "RGB"
            converted = ImageOps.exif_transpose(image).convert(mode or own_mode)
            if resized is not None:
                smooth = Image.Resampling.BICUBIC
                resampling = Image.Resampling.BOX if by_area else smooth
                converted = converted.resize(resized, resampling)
            values = np.asarray(converted)
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)


def _refuse_loss(image: "Picture", where: str) -> None:
    """Raise UserError for an image that 8-bit grey or RGB values cannot represent."""
    if image.mode not in EIGHT_BITS:
        raise UserError(
            f"{where}: has the mode '{image.mode}', but only 8-bit values are supported; "
            "scale it to 0 … 255, or save the values in a .npz file"
        )
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":  # MPO is a photo with previews
        raise UserError(f"{where}: has {frames} frames; save each as an image")
    if image.has_transparency_data:
        opacity = np.asarray(image.convert("RGBA").getchannel("A"))
        if opacity.min() < 255:
            raise UserError(
                f"{where}: has transparent pixels; paste it on a background and save it "
                "without an alpha channel"
            )


class DecodedPictures(Source):
    """A data set of many small images, decoded once into one file.

    Attributes:
        folder: folder of the images below the root, and the name of a file or folder in
            it whose existence shows that the data set is present.
        record: NumPy type of an image's record.
        archive: address and MD5 of the archive that ``download`` fetches, and the
            folder below the root into which it is unpacked; None if users fetch it.
    """

    folder: ClassVar[tuple[str, str]]
    record: ClassVar[np.dtype]
    archive: ClassVar[tuple[str, str, str] | None] = None

    @abstractmethod
    def list_entries(self, folder: Path) -> Sequence[Any]:
        """Return the entries of all images. Raises UserError if some are missing."""

    @abstractmethod
    def decode(self, entry: Any) -> tuple[Any, ...]:
        """Return the record of an image. Raises UserError."""

    def read_records(self, name: str, root: Path) -> np.ndarray:
        """Return the records of all images [n].

        The file of ``download`` is mapped, private to this process. Without this file
        the images are decoded now. Raises UserError if an image cannot be read or the
        file has another format.
        """
        place, sign = self.folder
        path = root / place / FILE
        command = f"hpcfl data download {name} --root {shlex.quote(str(root))}"
        try:
            untrusted_files.open_user_file(path).close()
            mapped = np.lib.format.open_memmap(path, mode="c")
            if mapped.dtype == self.record and mapped.ndim == 1:
                return mapped
        except FileNotFoundError:
            if not (root / place / sign).exists():
                advice = f"hpcfl datasets {name} lists the files"
                if self.archive is not None:
                    advice = f"to fetch it: {command}"
                raise UserError(
                    f"{root / place / sign}: no such file; {advice}"
                ) from None
            entries = self.list_entries(root / place)
            return self._fill(np.empty(len(entries), self.record), entries)
        except (OSError, ValueError):
            pass  # the file is refused below
        raise UserError(
            f"{path}: damaged, or not written by hpcfl; to write it again: {command}"
        )

    def download(self, name: str, root: Path) -> None:
        """Download missing images, then decode all into one file in one atomic step."""
        place, sign = self.folder
        if self.archive is not None and not (root / place / sign).exists():
            # importing torchvision takes a second, and only downloads need it
            from hpcfl.data.vision import torchvision

            url, md5, target = self.archive
            fetch = torchvision.datasets.utils.download_and_extract_archive
            with downloading(name, root):
                fetch(url, str(root / target), md5=md5)
        entries = self.list_entries(root / place)
        path = root / place / FILE
        try:
            with atomic.make_temporary_folder(path.parent, FILE) as folder:
                shape = (len(entries),)
                whole = folder / FILE
                mapped = np.lib.format.open_memmap(whole, "w+", self.record, shape)
                self._fill(mapped, entries)
                mapped.flush()
                whole.replace(path)
        except OSError as error:
            raise UserError(
                f"{path}: cannot be written ({atomic.describe_reason(error)})"
            ) from None

    def _fill(self, records: np.ndarray, entries: Sequence[Any]) -> np.ndarray:
        for position, entry in enumerate(entries):
            records[position] = self.decode(entry)
        return records
