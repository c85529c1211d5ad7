"""Images in torchvision's ``ImageFolder`` layout: a folder (``data.file``) with a folder
for each class.

| folders in ``data.file`` | keys |
|---|---|
| CLASS | none |
| train/CLASS and test/CLASS | none |
| CLIENT/CLASS, or CLIENT/train/CLASS and CLIENT/test/CLASS | ``data.clients = "folder"`` |

``data.owners`` names a CSV file with the columns ``file`` (below ``data.file``) and
``client``, a row for each image. Classes are matched by name and numbered in the order of
their names. All images have one size, or are brought to ``data.size``; all are grey or
all are coloured, or ``data.channels`` says it.
"""

import csv
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field

from hpcfl.data.datasets import DataDescription, Dataset, Owners, number_owners
from hpcfl.data.sources import _folder_layout, _images
from hpcfl.data.sources._folder_layout import Image
from hpcfl.data.sources.base import Source
from hpcfl.errors import UserError
from hpcfl.files import atomic, wording

KINDS = ("PNG", "JPEG", "PPM", "BMP", "TIFF", "WEBP")  # Pillow's names
MODES = {None: None, 1: "L", 3: "RGB"}  # by ``data.channels``
COLUMNS = ["client", "file"]

Pixels = Annotated[int, Field(ge=1, le=4096)]
Size = Pixels | Annotated[list[Pixels], Field(min_length=2, max_length=2)]


class _Form(NamedTuple):
    """The form that images are brought to; None leaves theirs."""

    size: tuple[int, int] | None  # width and height
    channels: Literal[1, 3] | None


class ImageFolder(Source):
    own_file = True

    @property
    def looked_for(self) -> list[str]:
        return ["CLASS/*.png", "or train/CLASS/*.png and test/CLASS/*.png"]

    def read(
        self,
        name: str,
        root: Path,
        *,
        clients: Annotated[
            Literal["folder"] | None,
            Field(description="folder: the first folders are clients, classes in them"),
        ] = None,
        owners: Annotated[
            str | None,
            Field(description="CSV file with the columns file and client"),
        ] = None,
        size: Annotated[
            Size | None,
            Field(description="pixels of a side, or [height, width], to resize to"),
        ] = None,
        channels: Annotated[
            Literal[1, 3] | None,
            Field(description="1: make all images grey, 3: coloured"),
        ] = None,
    ) -> Dataset:
        if clients is not None and owners is not None:
            raise UserError("data.clients and data.owners: set only one of them")
        images = _folder_layout.find_images(root, by_client=clients is not None)
        if clients is not None:
            owned = number_owners(np.array([image.client for image in images]))
        elif owners is not None:
            owned = _read_owners(Path(owners).expanduser(), root, images)
        else:
            owned = None
        words = sorted({image.word for image in images})
        numbers = {word: number for number, word in enumerate(words)}
        x = _decode(images, _Form(_width_and_height(size), channels))
        tested = sum(image.tested for image in images)
        return Dataset(
            root.name,
            torch.from_numpy(x),
            torch.tensor([numbers[image.word] for image in images]),
            len(words),
            official_test=tested,
            statistics=_compute_statistics(x[: len(x) - tested]),
            owners=owned,
            notes=_folder_layout.describe_untested(root, images),
            description=DataDescription(
                features=("image",),
                label="the name of the folder",
                client="the first folder" if clients else owners or "",
                classes=tuple(words),
            ),
        )


def _width_and_height(size: int | list[int] | None) -> tuple[int, int] | None:
    """Return ``data.size`` in Pillow's order."""
    if size is None:
        return None
    if isinstance(size, int):
        return size, size
    height, width = size
    return width, height


def _decode(images: list[Image], form: _Form) -> np.ndarray:
    """Decode all images, uint8 [n, channels, height, width]. Raises UserError where two
    differ in form.
    """
    first = _decode_one(images[0], form)
    pixels = np.empty((len(images), *first.shape), np.uint8)
    for position, image in enumerate(images):
        own = _decode_one(image, form)
        if own.shape != first.shape:
            raise UserError(_describe_difference(images[0], first, image, own))
        pixels[position] = own
    return pixels


def _decode_one(image: Image, form: _Form) -> np.ndarray:
    """Decode an image, uint8 [channels, height, width]. Raises UserError."""
    mode = MODES[form.channels]
    return _images.read(image.path, *KINDS, mode=mode, resized=form.size)


def _describe_difference(
    one: Image, first: np.ndarray, other: Image, own: np.ndarray
) -> str:
    """Return a message on two images of different form, with the key that helps."""
    parts = []
    for image, pixels in ((one, first), (other, own)):
        channels, height, width = pixels.shape
        kind = "grey" if channels == 1 else "coloured"
        parts.append(f"{image.path} is {kind}, {height}×{width} pixels")
    if len(first) != len(own):
        remedy = "set data.channels = 1 (grey) or 3 (coloured)"
    else:
        remedy = "set data.size to the height and width that all are brought to"
    return f"{parts[0]}, and {parts[1]}; {remedy}"


def _compute_statistics(
    x: np.ndarray,
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the standard deviation of each channel of images
    [n, channels, height, width], on the scale 0 … 1.
    """
    values = np.arange(256) / 255
    means = []
    deviations = []
    for channel in range(x.shape[1]):
        counts = np.bincount(x[:, channel].reshape(-1), minlength=256)
        mean = float(counts @ values / counts.sum())
        variance = float(counts @ (values - mean) ** 2 / counts.sum())
        means.append(mean)
        deviations.append(variance**0.5 or 1.0)  # of one value, which becomes 0
    return tuple(means), tuple(deviations)


def _read_owners(path: Path, root: Path, images: list[Image]) -> Owners:
    """Read the client of each image. Raises UserError where an image has none, or two."""
    by_file = _read_rows(path)
    files = [image.path.relative_to(root).as_posix() for image in images]
    unowned = [file for file in files if file not in by_file]
    unknown = sorted(set(by_file) - set(files))
    if unowned:
        raise UserError(
            f"{path}: names no client of {len(unowned):,} of {len(files):,} images: "
            f"{wording.list_names(unowned)}"
        )
    if unknown:
        raise UserError(
            f"{path}: names files that are no images in {root}: "
            f"{wording.list_names(unknown)}"
        )
    return number_owners(np.array([by_file[file] for file in files]))


def _read_rows(path: Path) -> dict[str, str]:
    """Read the client of each file in a CSV file. Raises UserError."""
    by_file: dict[str, str] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, strict=True)
            if rows.fieldnames is None or sorted(rows.fieldnames) != COLUMNS:
                raise UserError(
                    f"{path}: the first line must be 'file,client'; it has "
                    f"{wording.list_names(rows.fieldnames or []) or 'nothing'}"
                )
            for row in rows:
                name = row["file"]
                client = row["client"]
                where = f"{path}: line {rows.line_num}"
                if None in row or not name or not client:
                    raise UserError(f"{where}: must have a file and a client")
                if client != client.strip():
                    raise UserError(f"{where}: {client!r} begins or ends with a space")
                if name in by_file:
                    raise UserError(f"{where}: '{name}' stands twice")
                by_file[name] = client
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read ({atomic.reason(error)})") from None
    return by_file


plugin = ImageFolder()
