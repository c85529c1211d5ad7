"""Camelyon17-WILDS (Bandi et al. 2018; Koh et al. 2021): 455,954 patches 3×32×32 of lymph
nodes, with a tumour in the centre or not, from 5 hospitals, as PNG files.

Hospitals are the clients of ``partition.scheme = "by-client"``, or with ``clients =
"slide"`` the 50 slides (heterogeneity.md D9). WILDS trains on the hospitals 0, 3 and 4; here
the patches of a client are cut as in other schemes. They are shrunk from 96×96, each pixel
the mean of its area, because all of them would take 12.6 GB.

``hpcfl data download`` decodes the files once into one file, which the ranks of a node map
into memory, but does not fetch them: the archive has 10 GB.
"""

import io
import re
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field

from hpcfl.data.datasets import Dataset, number_owners
from hpcfl.data.sources import _decoded, _images
from hpcfl.data.sources.base import Source
from hpcfl.errors import UserError
from hpcfl.files import atomic, user_files

FOLDER = "camelyon17_v1.0"
METADATA = "metadata.csv"
METADATA_BYTES = 1 << 28
SIDE, SHRUNK = 96, 32
PATCHES, HOSPITALS, SLIDES = 455_954, 5, 50
RECORD = np.dtype(
    [
        ("image", "u1", (3, SHRUNK, SHRUNK)),
        ("tumor", "u1"),
        ("hospital", "u1"),
        ("slide", "u1"),
    ]
)
# The pattern of each column of the metadata; the first five make a file's name.
COLUMNS = {
    "patient": r"\d{1,4}",
    "node": r"\d{1,2}",
    "x_coord": r"\d{1,6}",
    "y_coord": r"\d{1,6}",
    "tumor": "[01]",
    "slide": r"\d{1,2}",
    "center": r"\d",
}


class _Entry(NamedTuple):
    path: Path
    tumor: int
    hospital: int
    slide: int


class Camelyon17(Source):
    licence = "CC0"
    home = "https://wilds.stanford.edu/datasets/#camelyon17"

    @property
    def looked_for(self) -> list[str]:
        patch = "patch_patient_P_node_N_x_X_y_Y.png"
        return [
            f"{FOLDER}/{METADATA}",
            f"{FOLDER}/patches/patient_P_node_N/{patch}",
        ]

    def read(
        self,
        name: str,
        root: Path,
        *,
        clients: Annotated[
            Literal["hospital", "slide"],
            Field(description="whose the patches are"),
        ] = "hospital",
    ) -> Dataset:
        folder = root / FOLDER
        table = _decoded.table(
            name, root, folder, RECORD, lambda: _entries(name, folder), _decode
        )
        return Dataset(
            name,
            torch.from_numpy(table["image"]),
            torch.from_numpy(table["tumor"].astype(np.int64)),
            classes=2,
            owners=number_owners(table[clients]),
        )

    def download(self, name: str, root: Path) -> None:
        """Decode the images, which a user has fetched, into one file."""
        folder = root / FOLDER
        _decoded.write(folder, RECORD, _entries(name, folder), _decode)


def _entries(name: str, folder: Path) -> list[_Entry]:
    """List all patches in the order of the metadata. Raises UserError."""
    path = folder / METADATA
    rows = _rows(name, path)
    entries = []
    for patient, node, x, y, tumor, slide, hospital in rows:
        place = f"patient_{patient}_node_{node}"
        file = folder / "patches" / place / f"patch_{place}_x_{x}_y_{y}.png"
        entries.append(_Entry(file, int(tumor), int(hospital), int(slide)))
    hospitals = {entry.hospital for entry in entries}
    slides = {entry.slide for entry in entries}
    found = (len(entries), len(hospitals), len(slides))
    if found != (PATCHES, HOSPITALS, SLIDES):
        raise UserError(
            f"{path}: must name {PATCHES:,} patches of {HOSPITALS} hospitals and {SLIDES} "
            f"slides; it names {found[0]:,} of {found[1]} and {found[2]}"
        )
    return entries


def _rows(name: str, path: Path) -> list[Any]:
    """Read the columns of the metadata as texts, because patients' numbers begin with
    zeros, [rows][7]. Raises UserError.
    """
    import pandas  # takes a second to import and is needed here only

    try:
        content = user_files.read_bytes(path, METADATA_BYTES)
        frame = pandas.read_csv(
            io.BytesIO(content), dtype=str, usecols=list(COLUMNS), na_filter=False
        )
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file; hpcfl datasets {name} says what is needed and where it "
            "is fetched"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path}: cannot be read as csv ({atomic.reason(error)})"
        ) from None
    rows: list[Any] = frame[list(COLUMNS)].to_numpy(object).tolist()
    for position, row in enumerate(rows, start=1):
        for (column, pattern), text in zip(COLUMNS.items(), row, strict=True):
            if re.fullmatch(pattern, text, re.ASCII) is None:
                raise UserError(
                    f"{path}: row {position}: {column} = {text!r:.60} is no such number"
                )
    return rows


def _decode(entry: _Entry) -> tuple[np.ndarray, int, int, int]:
    """Decode the record of a patch. Raises UserError."""
    image = _images.read(
        entry.path, "PNG", size=(SIDE, SIDE), resized=(SHRUNK, SHRUNK), by_area=True
    )
    return image, entry.tumor, entry.hospital, entry.slide


plugin = Camelyon17()
