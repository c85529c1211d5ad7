"""Pictures that a user has, decoded one by one; and data sets of many small ones, decoded
once into one file, which the ranks of a node map into memory.
"""

import uuid
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

NAME = r"\w[\w.-]*"  # of a file or folder, without a path
GREY = ("1", "L", "LA")  # Pillow's modes without colours
EIGHT_BITS = (*GREY, "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr")  # modes that are read
MOST_PIXELS = 1 << 24  # of one image, where no size is asked for
FILE = "hpcfl-decoded.npy"


def read(path: Path, *kinds: str, **form: Any) -> np.ndarray:
    """Return the pixels of a file, as ``decode`` does; links are followed."""
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
                    f"{where}: {pixels}, at most {MOST_PIXELS:,} in all are read"
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


class DecodedPictures(Source):
    """A data set of many small pictures.

    Attributes:
        folder: where they lie below the root, and a name in it that is always there.
        record: the type of a picture's record.
        archive: address and MD5 of the archive that ``download`` fetches, and the folder
            below the root that it is unpacked in; None where a user fetches them.
    """

    folder: ClassVar[tuple[str, str]]
    record: ClassVar[np.dtype]
    archive: ClassVar[tuple[str, str, str] | None] = None

    @abstractmethod
    def list_entries(self, folder: Path) -> Sequence[Any]:
        """List all pictures. Raises UserError where some are missing."""

    @abstractmethod
    def decode(self, entry: Any) -> tuple[Any, ...]:
        """Return the record of a picture. Raises UserError."""

    def records(self, name: str, root: Path) -> np.ndarray:
        """Return the records of all pictures [n]: mapped, private to this process, or
        decoded now where ``download`` has not been called yet.

        Raises UserError where a picture cannot be read, or the file is anything else.
        """
        place, sign = self.folder
        path = root / place / FILE
        try:
            untrusted_files.open_user_file(path).close()
            mapped = np.lib.format.open_memmap(path, mode="c")
            if mapped.dtype == self.record and mapped.ndim == 1:
                return mapped
        except FileNotFoundError:
            if not (root / place / sign).exists():
                advice = f"hpcfl datasets {name} says what is needed"
                if self.archive is not None:
                    advice = f"to fetch it: hpcfl data download {name} --root {root}"
                raise UserError(
                    f"{root / place / sign}: no such file; {advice}"
                ) from None
            entries = self.list_entries(root / place)
            return self._fill(np.empty(len(entries), self.record), entries)
        except (OSError, ValueError):
            pass  # it is refused below
        raise UserError(
            f"{path}: damaged, or not what hpcfl writes; to write it again: "
            f"hpcfl data download {name} --root {root}"
        )

    def download(self, name: str, root: Path) -> None:
        """Fetch the pictures where they are missing, then decode them into one file,
        whole or not at all.
        """
        place, sign = self.folder
        if self.archive is not None and not (root / place / sign).exists():
            # torchvision takes a second to import and is needed here only.
            from hpcfl.data.vision import torchvision

            url, md5, target = self.archive
            fetch = torchvision.datasets.utils.download_and_extract_archive
            with downloading(name, root):
                fetch(url, str(root / target), md5=md5)
        entries = self.list_entries(root / place)
        path = root / place / FILE
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
        try:
            shape = (len(entries),)
            mapped = np.lib.format.open_memmap(temporary, "w+", self.record, shape)
            self._fill(mapped, entries)
            mapped.flush()
            temporary.replace(path)
        except OSError as error:
            raise UserError(
                f"{path}: cannot be written ({atomic.describe_reason(error)})"
            ) from None
        finally:
            temporary.unlink(missing_ok=True)

    def _fill(self, records: np.ndarray, entries: Sequence[Any]) -> np.ndarray:
        for position, entry in enumerate(entries):
            records[position] = self.decode(entry)
        return records
