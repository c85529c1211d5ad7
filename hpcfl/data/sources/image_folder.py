"""Images in torchvision's ``ImageFolder`` layout: a folder (``data.file``) that
contains a folder for each class.

| folders in ``data.file`` | keys |
|---|---|
| CLASS | none |
| train/CLASS and test/CLASS | none |
| CLIENT/CLASS, or CLIENT/train/CLASS and CLIENT/test/CLASS | ``data.clients = "folder"`` |

Alternatively ``data.owners`` names a CSV file with the columns ``file`` (relative to
``data.file``) and ``client``, and a row for each image. Classes are matched by name and
numbered alphabetically. All images must have one size, or ``data.size`` resizes them.
All must be grey or all coloured, or ``data.channels`` converts them.
"""

from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import Field

from hpcfl.data import checks
from hpcfl.data.datasets import DataDescription, Dataset, Owners, number_owners
from hpcfl.data.sources import csv, pictures
from hpcfl.data.sources.base import Source
from hpcfl.errors import UserError
from hpcfl.files import untrusted_files, wording

KINDS = ("PNG", "JPEG", "PPM", "BMP", "TIFF", "WEBP")  # Pillow's names
MODES = {None: None, 1: "L", 3: "RGB"}  # by ``data.channels``
COLUMNS = ["client", "file"]
PARTS = ["test", "train"]
# Common names of folders of parts, which are refused as names of classes or clients.
OTHER_PARTS = {*PARTS, "testing", "training", "val", "valid", "validation"}
SYSTEM_FILES = ("Thumbs.db", "desktop.ini")

Pixels = Annotated[int, Field(ge=1, le=4096)]
Size = Pixels | Annotated[list[Pixels], Field(min_length=2, max_length=2)]


class Image(NamedTuple):
    """An image file.

    Attributes:
        path: the file.
        word: name of its class.
        client: name of its client; "" without clients.
        is_test: Whether the image is in test/.
    """

    path: Path
    word: str
    client: str
    is_test: bool


class ImageFolder(Source):
    own_file = True
    looked_for = ("CLASS/*.png", "or train/CLASS/*.png and test/CLASS/*.png")

    def read(
        self,
        name: str,
        root: Path,
        *,
        clients: Annotated[
            Literal["folder"] | None,
            Field(
                description="folder: data.file holds client folders with class folders"
            ),
        ] = None,
        owners: Annotated[
            str | None,
            Field(description="CSV file with the columns file and client"),
        ] = None,
        size: Annotated[
            Size | None,
            Field(description="side in pixels, or [height, width], of resized images"),
        ] = None,
        channels: Annotated[
            Literal[1, 3] | None,
            Field(description="1: convert all images to grey, 3: to RGB"),
        ] = None,
    ) -> Dataset:
        if clients is not None and owners is not None:
            raise UserError("data.clients and data.owners: set only one of them")
        find = _find_parts if clients is None else _find_clients
        images = find(root)
        images.sort(key=lambda image: image.is_test)
        words, notes = _list_classes(root, images)
        if clients is not None:
            owned = number_owners(np.array([image.client for image in images]))
        elif owners is not None:
            owned = _read_owners(Path(owners).expanduser(), root, images)
        else:
            owned = None
        height, width = size if isinstance(size, list) else (size, size)
        resized = (width, height) if width and height else None
        x = _decode(images, resized, MODES[channels])
        tested = sum(image.is_test for image in images)
        return Dataset.from_arrays(
            root.name,
            x,
            np.array([words.index(image.word) for image in images]),
            len(words),
            official_test=tested,
            statistics=_compute_statistics(x[: len(x) - tested]),
            owners=owned,
            notes=notes,
            description=DataDescription(
                features=("image",),
                label="the name of the folder",
                client="the first folder" if clients else owners or "",
                classes=tuple(words),
            ),
        )


def _find_clients(root: Path) -> list[Image]:
    """Return the images in a folder of clients. Raises UserError."""
    folders = _list_folders(root)
    if _has_parts(folders):
        raise UserError(
            f"{root}: data.clients = 'folder' needs a folder for each client; move train/ and "
            "test/ into the clients' folders"
        )
    images = []
    split: dict[bool, str] = {}  # a client's name, by whether it has train/ and test/
    for folder in folders:
        own = _find_parts(folder, client=folder.name)
        split.setdefault(any(image.is_test for image in own), folder.name)
        images += own
    if len(split) > 1:
        raise UserError(
            f"{root}: client '{split[True]}' has images in test/, client "
            f"'{split[False]}' has none; either all clients or no client must have test/"
        )
    return images


def _find_parts(folder: Path, client: str = "") -> list[Image]:
    """Return the images in a folder of classes, or in its folders train/ and test/."""
    folders = _list_folders(folder)
    if not _has_parts(folders):
        return _find_classes(folder, client, is_test=False)
    names = [path.name for path in folders]
    if names != PARTS:
        raise UserError(
            f"{folder}: holds the folders {wording.list_names(names)}; it must hold only train "
            "and test, or only classes"
        )
    train = _find_classes(folder / "train", client, is_test=False)
    return train + _find_classes(folder / "test", client, is_test=True)


def _has_parts(folders: list[Path]) -> bool:
    """Return whether one of the folders has the name of a part."""
    return any(wording.fold(folder.name) in OTHER_PARTS for folder in folders)


def _find_classes(folder: Path, client: str, is_test: bool) -> list[Image]:
    """Return the images in a folder of classes, listed by torchvision."""
    for path in _list_folders(folder):
        deeper = [inner.name for inner in path.iterdir() if inner.is_dir()]
        if deeper:
            raise UserError(
                f"{path}: is read as a class, but holds the folder '{deeper[0]}'; "
                "put images directly into folders of classes, or set "
                "data.clients = 'folder' if the outer folders are clients"
            )
    # importing torchvision takes a second, and only this function needs it
    from hpcfl.data.vision import torchvision

    may_be_empty = is_test or client != ""
    try:
        found = torchvision.datasets.ImageFolder(
            str(folder), is_valid_file=_is_image, allow_empty=may_be_empty
        )
    except FileNotFoundError as error:
        raise UserError(f"{folder}: {error}") from None
    images = []
    for path, number in found.samples:
        images.append(Image(Path(path), found.classes[number], client, is_test))
    return images


def _list_folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted by name.

    Raises UserError if it has no folder, or if an image is in the folder itself.
    """
    with untrusted_files.refuse_unreadable(folder, "a folder of images"):
        paths = sorted(folder.iterdir())
    folders = [path for path in paths if path.is_dir()]
    for path in paths:
        if path in folders and path.name.startswith((".", "__")):
            raise UserError(f"{path}: would be read as a class or client; remove it")
        if path not in folders and path.suffix.lower() in _list_extensions():
            raise UserError(
                f"{path}: is an image outside the folders of classes; move it into one"
            )
    if not folders:
        raise UserError(f"{folder}: must hold a folder for each class; it holds none")
    return folders


def _list_extensions() -> tuple[str, ...]:
    """Return file name extensions of images."""
    from hpcfl.data.vision import torchvision

    extensions: tuple[str, ...] = torchvision.datasets.folder.IMG_EXTENSIONS
    return extensions


def _is_image(path: str) -> bool:
    """Return whether a file is an image; a file browser's system files are ignored.

    Raises UserError for other formats.
    """
    file = Path(path)
    if file.name.startswith(".") or file.name in SYSTEM_FILES:
        return False
    extensions = _list_extensions()
    if file.suffix.lower() not in extensions:
        raise UserError(
            f"{path}: unsupported format, supported are {', '.join(extensions)}; convert it, "
            "or move it out of the folder"
        )
    return True


def _list_classes(root: Path, images: list[Image]) -> tuple[list[str], tuple[str, ...]]:
    """Return the class names, and a note if test/ lacks images of some classes.

    Raises UserError for a class without training images, or with two spellings.
    """
    trained = sorted({image.word for image in images if not image.is_test})
    tested = {image.word for image in images if image.is_test}
    if not trained:
        raise UserError(f"{root}: holds no training image")
    untrained = sorted(tested - set(trained))
    if untrained:
        raise UserError(
            f"{root}: no training image has the class {wording.list_names(untrained)} of test/; "
            f"classes in train/: {wording.list_names(trained)}"
        )
    if spellings := checks.describe_spellings("classes", trained):
        raise UserError(f"{root}: {spellings}; use one spelling")
    untested = [word for word in trained if tested and word not in tested]
    notes = [f"{root}: test/ has no image of {wording.list_names(untested)}"]
    return trained, tuple(notes) if untested else ()


def _decode(
    images: list[Image], resized: tuple[int, int] | None, mode: str | None
) -> np.ndarray:
    """Decode all images.

    Args:
        images: files of the images.
        resized: width and height of the result, or None.
        mode: mode of the result, as in ``pictures.decode``.

    Returns:
        The pixels, uint8 [n, channels, height, width].

    Raises:
        UserError: Two images have different shapes.
    """
    pixels = np.empty(0, np.uint8)
    for position, image in enumerate(images):
        own = pictures.read(image.path, *KINDS, mode=mode, resized=resized)
        if not position:
            pixels = np.empty((len(images), *own.shape), np.uint8)
        if own.shape != pixels.shape[1:]:
            raise UserError(
                f"{images[0].path} is {_describe_form(pixels[0])}, and {image.path} is "
                f"{_describe_form(own)}; set data.channels = 1 (grey) or 3 (coloured), or "
                "set data.size to the height and width of all images"
            )
        pixels[position] = own
    return pixels


def _describe_form(pixels: np.ndarray) -> str:
    """Return a description of the shape of an image [channels, height, width]."""
    channels, height, width = pixels.shape
    kind = "grey" if channels == 1 else "coloured"
    return f"{kind}, {height}×{width} pixels"


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
        deviations.append(variance**0.5 or 1.0)  # a constant channel is normalised to 0
    return tuple(means), tuple(deviations)


def _read_owners(path: Path, root: Path, images: list[Image]) -> Owners:
    """Read the client of each image. Raises UserError if an image has none or two."""
    table = csv.plugin.open(path)
    if sorted(table.names) != COLUMNS:
        raise UserError(f"{path}: the first line must be 'file,client'")
    named = table.read_column("file").tolist()
    checks.refuse_repeated(path, "file", named)
    clients = [str(client) for client in table.read_as_written("client")]
    for client in clients:
        if client != client.strip():
            raise UserError(f"{path}: {client!r} begins or ends with a space")
    by_file = dict(zip(named, clients, strict=True))
    files = [image.path.relative_to(root).as_posix() for image in images]
    differing = sorted(set(files) ^ set(by_file))
    if differing:
        raise UserError(
            f"{path}: must have a row for each image in {root} and no other; the two differ in "
            f"{wording.list_names(differing)}"
        )
    return number_owners(np.array([by_file[file] for file in files]))


plugin = ImageFolder()
