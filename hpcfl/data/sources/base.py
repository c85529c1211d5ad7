"""Interface of data sets, and base class of data sets in files with known checksums.

hpcfl parses published files itself, in five to twenty lines each, and uses torchvision
only to download them. Every read compares the checksum first and keeps the images in
memory once. torchvision's CIFAR classes would unpickle any object that a file names,
and importing torchvision takes a second on each rank.
"""

import hashlib
import http.client
import shlex
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.data.datasets import Dataset
from hpcfl.errors import UserError
from hpcfl.files import untrusted_files

MOST_BYTES = 1 << 31  # limit for a file; the largest, SVHN's extra digits, has 1.3 GB


class Source(ABC):
    """A data set.

    Attributes:
        built_in: Whether it needs no files of the user.
        own_file: Whether it reads ``data.file``, the user's own file or folder.
        licence: licence of the data; "" if unknown, or for the user's own data.
        home: page from which users fetch files that ``download`` does not fetch.
        about: one-sentence description, if its module has several data sets.
    """

    built_in = False
    own_file = False
    licence: str = ""
    home: str = ""
    about: str = ""

    @property
    def looked_for(self) -> Sequence[str]:
        """Return paths of the files that are read, relative to ``data.root``, or to the
        folder ``data.file``.
        """
        return ()

    @abstractmethod
    def read(self, name: str, root: Path) -> Dataset:
        """Read the data set.

        Keyword parameters that a subclass adds, with types and defaults, become keys of
        ``[data]``.

        Args:
            name: name of the data set.
            root: folder of the files; with ``own_file`` the user's file or folder.

        Raises:
            UserError: Files are missing or damaged.
        """

    def download(self, name: str, root: Path) -> None:
        """Download the files into ``root``.

        Raises UserError if the download fails, or if the data set has no download.
        """
        instead = "it is built in" if self.built_in else "bring your own files"
        if self.home:
            instead = f"fetch it from {self.home}"
        raise UserError(f"'{name}' is not downloaded: {instead}")


@dataclass(frozen=True)
class CheckedFiles(Source):
    """A data set in files with known MD5 checksums, which every read compares.

    Attributes:
        archive: name of a class in ``torchvision.datasets`` that downloads the files,
            or address of their folder.
        folder: folder of the files below the root, as torchvision names it.
        checksums: MD5 by file name, hexadecimal, in the order in which files are read.
        further: MD5 by file name of files that only a key of the data set reads;
            ``download`` does not fetch them.
        licence: licence of the data.
        about: one-sentence description, if its module has several data sets.
    """

    archive: str
    folder: str
    checksums: Mapping[str, str]
    further: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    licence: str = field(default="", kw_only=True)
    about: str = field(default="", kw_only=True)

    @property
    def looked_for(self) -> list[str]:
        files = [*self.checksums, *self.further]
        return [str(Path(self.folder) / file) for file in files]

    def read_verified(self, name: str, root: Path, file: str) -> bytes:
        """Return the content of a file after comparing its checksum.

        The content is read before the comparison, so that the compared bytes are also
        the parsed ones: a pickle could be replaced between comparison and reading.

        Args:
            name: name of the data set, for messages.
            root: folder below which the data set is.
            file: name of the file.

        Raises:
            UserError: The file is missing, unreadable or has another checksum.
        """
        path = root / self.folder / file
        remedy = (
            f"to fetch it: hpcfl data download {name} --root {shlex.quote(str(root))}"
        )
        if file in self.further:
            remedy = f"fetch it from {self.archive}{file}"
        expected = {**self.checksums, **self.further}[file]
        with untrusted_files.refuse_unreadable(path, missing=remedy):
            content = untrusted_files.read_user_file(path, MOST_BYTES)
        checksum = _compute_md5(content)
        if checksum != expected:
            raise UserError(
                f"{path}: damaged, {len(content):,} bytes with MD5 {checksum} instead of "
                f"{expected}; {remedy}"
            )
        return content

    @staticmethod
    def join(
        name: str,
        images: list[np.ndarray],
        labels: list[np.ndarray],
        classes: int,
        sizes: tuple[int, int] | None = None,
        **more: Any,
    ) -> Dataset:
        """Join the parts of a data set; the last part is the official test split.

        Args:
            name: name of the data set.
            images: images of each part of ``labels``, or one array with all images.
            labels: class numbers of each part.
            classes: number of classes.
            sizes: expected numbers of training and test samples, or None.
            more: further fields of ``Dataset``.

        Raises:
            UserError: The numbers of samples differ from ``sizes``.
        """
        joined = images[0] if len(images) == 1 else np.concatenate(images)
        x, y = np.ascontiguousarray(joined), np.concatenate(labels)
        test = len(labels[-1])
        found = len(y) - test, test
        if sizes is not None and found != sizes:
            raise UserError(
                f"'{name}' must have {sizes[0]:,} + {sizes[1]:,} samples; its files have "
                f"{found[0]:,} + {found[1]:,}"
            )
        return Dataset.from_arrays(name, x, y, classes, official_test=test, **more)

    def download(self, name: str, root: Path) -> None:
        """Download missing and damaged files by torchvision, then check every file."""
        # importing torchvision takes a second, and only downloads need it
        from hpcfl.data.vision import torchvision

        folder = root / self.folder
        with downloading(name, root):
            for file, checksum in self.checksums.items():
                path = folder / file
                # torchvision downloads MNIST's files only if they are absent
                if path.exists() and _compute_md5(path.read_bytes()) != checksum:
                    path.unlink()
            if "://" not in self.archive:
                getattr(torchvision.datasets, self.archive)(root, download=True)
            else:
                for file, checksum in self.checksums.items():
                    torchvision.datasets.utils.download_url(
                        self.archive + file, folder, file, checksum
                    )
        for file in self.checksums:
            self.read_verified(name, root, file)


@contextmanager
def downloading(name: str, root: Path) -> Iterator[None]:
    """Turn errors of a download into UserError."""
    try:
        yield
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        raise UserError(
            f"{name} could not be downloaded to {root}: {' '.join(str(error).split())}"
        ) from None


def _compute_md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
