"""Sources of data sets: the interface, and files whose checksums are known."""

import hashlib
import http.client
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

MOST_BYTES = 1 << 31  # of a file; the largest, SVHN's further digits, has 1.3 GB


class Source(ABC):
    """One data set.

    Attributes:
        built_in: it needs no files of the user.
        own_file: it reads ``data.file``, a user's own file or folder.
        licence: under which its publishers give it, "" where that is not known or the
            data are the user's.
        home: where a user fetches files that ``download`` does not.
        about: one sentence about it, where its file holds several data sets.
    """

    built_in = False
    own_file = False
    licence: str = ""
    home: str = ""
    about: str = ""

    @property
    def looked_for(self) -> Sequence[str]:
        """List the files that are read, by their paths below ``data.root``, or below
        ``data.file`` where that is a folder.
        """
        return ()

    @abstractmethod
    def read(self, name: str, root: Path) -> Dataset:
        """Read the data set, called ``name``, from the files under ``root`` (with
        ``own_file``: from that).

        Parameters that a subclass adds, with types and defaults, are keys of its own in
        ``[data]``. Raises UserError for missing or damaged files.
        """

    def download(self, name: str, root: Path) -> None:
        """Fetch the files into ``root``. Raises UserError if that fails or there is
        nothing to fetch.
        """
        instead = "it is built in" if self.built_in else "bring your own files"
        if self.home:
            instead = f"fetch it from {self.home}"
        raise UserError(f"'{name}' is not downloaded: {instead}")


@dataclass(frozen=True)
class CheckedFiles(Source):
    """Files whose MD5 is known, read only if it is right.

    Attributes:
        archive: what fetches them, a class in ``torchvision.datasets`` or the address
            of a folder.
        folder: where they lie under the root, the same as torchvision's if it has them.
        checksums: file name → MD5, hexadecimal, in reading order.
        further: the same of files that only a key of the data set asks for; these are
            not downloaded unasked.
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

    def content(self, name: str, root: Path, file: str) -> bytes:
        """Read one file and check it, in this order because a pickle may be replaced.

        Raises UserError where it is missing, cannot be read or has another checksum.
        """
        path = root / self.folder / file
        remedy = f"to fetch it: hpcfl data download {name} --root {root}"
        if file in self.further:
            remedy = f"it is {self.archive}{file}"
        expected = {**self.checksums, **self.further}[file]
        with untrusted_files.refuse_unreadable(path, missing=remedy):
            content = untrusted_files.read_user_file(path, MOST_BYTES)
        checksum = _md5(content)
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
        """Join the parts of a data set, the last of which is the official test split.

        images: in as many parts as ``labels``, or joined already. Raises UserError where
        the numbers of samples to train and to test on are not ``sizes``.
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
        """Fetch through torchvision what is missing or damaged, then check every file."""
        # torchvision takes a second to import and is needed here only.
        from hpcfl.data.vision import torchvision

        folder = root / self.folder
        with downloading(name, root):
            for file, checksum in self.checksums.items():
                path = folder / file
                # torchvision fetches MNIST's files only where they are absent
                if path.exists() and _md5(path.read_bytes()) != checksum:
                    path.unlink()
            if "://" not in self.archive:
                getattr(torchvision.datasets, self.archive)(root, download=True)
            else:
                for file, checksum in self.checksums.items():
                    torchvision.datasets.utils.download_url(
                        self.archive + file, folder, file, checksum
                    )
        for file in self.checksums:
            self.content(name, root, file)


@contextmanager
def downloading(name: str, root: Path) -> Iterator[None]:
    """Raise UserError where a data set cannot be downloaded."""
    try:
        yield
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        raise UserError(
            f"{name} could not be downloaded to {root}: {' '.join(str(error).split())}"
        ) from None


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
