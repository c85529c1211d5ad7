"""Where data sets come from: the interface, and files whose checksums are known."""

import hashlib
import http.client
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpcfl.data.datasets import Dataset
from hpcfl.errors import UserError
from hpcfl.files import atomic, regular

MOST_BYTES = 1 << 30  # of a file; the largest, PathMNIST's, has 206 MB


class Source(ABC):
    """One data set.

    built_in: it needs no files of the user. own_file: it reads ``data.file``, a user's
    own file or folder.
    """

    built_in = False
    own_file = False

    @property
    def looked_for(self) -> list[str]:
        """The files that are read, by their paths below ``data.root``."""
        return []

    @abstractmethod
    def read(self, name: str, root: Path) -> Dataset:
        """The data set, called ``name``, from the files under ``root`` (with
        ``own_file``: from that).

        Raises UserError for missing or damaged files.
        """

    def download(self, name: str, root: Path) -> None:
        """Fetch the files into ``root``. Raises UserError if that fails or there is
        nothing to fetch.
        """
        raise UserError(
            f"'{name}' is not downloaded: "
            f"{'it is built in' if self.built_in else 'bring your own files'}"
        )


@dataclass(frozen=True)
class CheckedFiles(Source):
    """Files whose MD5 is known, read only if it is right.

    archive: what fetches them, a class in ``torchvision.datasets`` or the address of a
    folder. folder: where they lie under the root, the same as torchvision's if it has
    them. checksums: file name → MD5, hexadecimal, in reading order.
    """

    archive: str
    folder: str
    checksums: Mapping[str, str]

    @property
    def looked_for(self) -> list[str]:
        return [str(Path(self.folder) / file) for file in self.checksums]

    def content(self, name: str, root: Path, file: str) -> bytes:
        """The bytes of one file, checked: what is parsed is what was checked, which
        matters for pickles.

        Raises UserError where it is missing, cannot be read or has another checksum.
        """
        path = root / self.folder / file
        remedy = f"to fetch it: hpcfl data download {name} --root {root}"
        try:
            content = regular.read_bytes(path, MOST_BYTES)
        except FileNotFoundError:
            raise UserError(f"{path}: no such file; {remedy}") from None
        except OSError as error:
            raise UserError(
                f"{path}: cannot be read ({atomic.reason(error)})"
            ) from None
        checksum = _md5(content)
        if checksum != self.checksums[file]:
            raise UserError(
                f"{path}: damaged, {len(content):,} bytes with MD5 {checksum} instead of "
                f"{self.checksums[file]}; {remedy}"
            )
        return content

    def download(self, name: str, root: Path) -> None:
        """Fetch through torchvision what is missing or damaged, then check every file."""
        from hpcfl.data.vision import (
            torchvision,
        )  # takes a second to import and is needed here only

        try:
            for file in self.checksums:
                self._discard_damaged(root / self.folder / file, self.checksums[file])
            if "://" in self.archive:
                for file, checksum in self.checksums.items():
                    torchvision.datasets.utils.download_url(
                        self.archive + file, root / self.folder, file, checksum
                    )
            else:
                getattr(torchvision.datasets, self.archive)(root, download=True)
        except (OSError, RuntimeError, http.client.HTTPException) as error:
            raise UserError(
                f"{name} could not be downloaded to {root}: "
                f"{' '.join(str(error).split())}"
            ) from None
        for file in self.checksums:
            self.content(name, root, file)

    @staticmethod
    def _discard_damaged(path: Path, checksum: str) -> None:
        """Delete a damaged file, because torchvision fetches MNIST's only if they are
        absent.
        """
        if path.exists() and _md5(path.read_bytes()) != checksum:
            path.unlink()


def _md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()
