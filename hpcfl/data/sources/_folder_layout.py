"""Images by class, part and client, from the names of folders."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from hpcfl.errors import UserError
from hpcfl.files import atomic, wording

PARTS = ["test", "train"]
# Names that folders of a part have elsewhere; as a class or client they are refused.
OTHER_PARTS = {*PARTS, "testing", "training", "val", "valid", "validation"}
SYSTEM_FILES = ("Thumbs.db", "desktop.ini")
# The formats that are read, as torchvision has them.
EXTENSIONS = (
    ".jpg",
    ".jpeg",
    ".png",
    ".ppm",
    ".bmp",
    ".pgm",
    ".tif",
    ".tiff",
    ".webp",
)


class Image(NamedTuple):
    """An image file: the name of its class, its client ("" for none), and whether it is
    in test/.
    """

    path: Path
    word: str
    client: str
    tested: bool


def find_images(root: Path, by_client: bool) -> list[Image]:
    """Find all images, those of training first. Raises UserError where the folders can
    be understood in two ways or class names do not match.
    """
    images = _find_clients(root) if by_client else _find_parts(root, client="")
    if not any(not image.tested for image in images):
        raise UserError(f"{root}: holds no image to train on")
    _refuse_other_classes(root, images)
    return sorted(images, key=lambda image: image.tested)


def describe_untested(root: Path, images: list[Image]) -> tuple[str, ...]:
    """Return a note on classes without an image in test/, where there is a test/."""
    trained = {image.word for image in images if not image.tested}
    tested = {image.word for image in images if image.tested}
    missing = sorted(trained - tested)
    if not tested or not missing:
        return ()
    return (f"{root}: test/ has no image of {wording.list_names(missing)}",)


def _find_clients(root: Path) -> list[Image]:
    """Find the images in a folder of clients."""
    folders = _list_folders(root)
    if _are_parts(folders):
        raise UserError(
            f"{root}: data.clients = 'folder' needs a folder for each client; train/ and "
            "test/ must be in the clients' folders"
        )
    images = []
    split: dict[bool, str] = {}  # a client's name, by whether it has train/ and test/
    for folder in folders:
        own = _find_parts(folder, client=folder.name)
        split.setdefault(any(image.tested for image in own), folder.name)
        images += own
    if len(split) > 1:
        raise UserError(
            f"{root}: client '{split[True]}' has images in test/, client "
            f"'{split[False]}' has none; all clients must be alike"
        )
    return images


def _find_parts(folder: Path, client: str) -> list[Image]:
    """Find the images below a folder of classes, or of train/ and test/."""
    folders = _list_folders(folder)
    if not _are_parts(folders):
        return _find_classes(folder, client, tested=False)
    names = [path.name for path in folders]
    if names != PARTS:
        raise UserError(
            f"{folder}: holds the folders {wording.list_names(names)}; it must be train "
            "and test alone, or classes alone"
        )
    images = []
    for part in ("train", "test"):
        images += _find_classes(folder / part, client, tested=part == "test")
    return images


def _are_parts(folders: list[Path]) -> bool:
    """Return whether one of the folders has the name of a part."""
    return any(wording.fold(folder.name) in OTHER_PARTS for folder in folders)


def _find_classes(folder: Path, client: str, tested: bool) -> list[Image]:
    """Find the images in a folder of classes, by torchvision."""
    for path in _list_folders(folder):
        deeper = [inner.name for inner in path.iterdir() if inner.is_dir()]
        if deeper:
            raise UserError(
                f"{path}: is a class by its place, but holds the folder '{deeper[0]}'; "
                "put images into the folders of classes, and where the first folders are "
                "clients set data.clients = 'folder'"
            )
    # torchvision takes a second to import and is needed here only.
    from hpcfl.data.vision import torchvision

    may_be_empty = tested or client != ""
    try:
        found = torchvision.datasets.ImageFolder(
            str(folder), is_valid_file=_is_image, allow_empty=may_be_empty
        )
    except FileNotFoundError as error:
        raise UserError(f"{folder}: {atomic.reason(error)}") from None
    images = []
    for path, number in found.samples:
        images.append(Image(Path(path), found.classes[number], client, tested))
    return images


def _list_folders(folder: Path) -> list[Path]:
    """List the folders in a folder, by name. Raises UserError where there is none, or
    an image beside them.
    """
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        raise UserError(
            f"{folder}: cannot be read as a folder of images ({atomic.reason(error)})"
        ) from None
    folders = [path for path in paths if path.is_dir()]
    loose = [path for path in paths if path.suffix.lower() in EXTENSIONS]
    if loose:
        raise UserError(f"{loose[0]}: is an image in no folder of a class")
    hidden = [path for path in folders if path.name.startswith((".", "__"))]
    if hidden:
        raise UserError(f"{hidden[0]}: would be a class or client; remove it")
    if not folders:
        raise UserError(f"{folder}: must hold a folder for each class; it holds none")
    return folders


def _is_image(path: str) -> bool:
    """Return whether a file is an image, not one of a file browser's own. Raises
    UserError for a format that is not read.
    """
    file = Path(path)
    if file.name.startswith(".") or file.name in SYSTEM_FILES:
        return False
    if file.suffix.lower() not in EXTENSIONS:
        raise UserError(
            f"{path}: is in no format that is read ({', '.join(EXTENSIONS)}); convert it, "
            "or move it out of the folder"
        )
    return True


def _refuse_other_classes(root: Path, images: list[Image]) -> None:
    """Raise UserError for a class of test/ alone, or one that is spelled in two ways."""
    trained = sorted({image.word for image in images if not image.tested})
    tested = sorted({image.word for image in images if image.tested})
    untrained = sorted(set(tested) - set(trained))
    if untrained:
        raise UserError(
            f"{root}: no image to train on has the class {wording.list_names(untrained)}; "
            f"classes in train/: {wording.list_names(trained)}; in test/: "
            f"{wording.list_names(tested)}"
        )
    _refuse_two_spellings(root, trained)


def _refuse_two_spellings(root: Path, words: Iterable[str]) -> None:
    """Raise UserError for two names that differ in case or spaces alone."""
    by_spelling: dict[str, str] = {}
    for word in words:
        other = by_spelling.setdefault(wording.fold(word), word)
        if other != word:
            raise UserError(
                f"{root}: the classes '{other}' and '{word}' differ in case or spaces "
                "alone; give one class one name"
            )
