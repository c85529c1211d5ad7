"""Camelyon17-WILDS (Bandi et al. 2018; Koh et al. 2021): 455,954 patches 3×32×32 of
lymph nodes, with or without a tumour in the centre, from 5 hospitals, as PNG files.

With ``partition.scheme = "by-client"`` each hospital is a client, or each of the 50
slides with ``clients = "slide"`` (heterogeneity.md D9). WILDS trains on hospitals 0, 3
and 4; here each client's patches are split as in other schemes. Patches are reduced
from 96×96, each pixel the mean of its area, because the originals would take 12.6 GB of
memory.

``hpcfl data download`` decodes the files once into one file, which the ranks of a node
map into memory. It does not download them, because the archive has 10 GB.
"""

import io
import re
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from pydantic import Field

from hpcfl.data.datasets import Dataset, number_owners
from hpcfl.data.sources import pictures
from hpcfl.data.sources.pictures import DecodedPictures
from hpcfl.errors import UserError
from hpcfl.files import untrusted_files

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
# Patterns of the metadata columns that are read.
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


class Camelyon17(DecodedPictures):
    licence = "CC0"
    home = "https://wilds.stanford.edu/datasets/#camelyon17"
    folder = FOLDER, METADATA
    record = RECORD

    looked_for = (
        f"{FOLDER}/{METADATA}",
        f"{FOLDER}/patches/patient_P_node_N/patch_patient_P_node_N_x_X_y_Y.png",
    )

    def read(
        self,
        name: str,
        root: Path,
        *,
        clients: Annotated[
            Literal["hospital", "slide"],
            Field(description="clients of the patches: hospitals or slides"),
        ] = "hospital",
    ) -> Dataset:
        table = self.read_records(name, root)
        return Dataset.from_arrays(
            name,
            table["image"],
            table["tumor"],
            classes=2,
            owners=number_owners(table[clients]),
        )

    def list_entries(self, folder: Path) -> list[_Entry]:
        """Return the entries of all patches in the order of the metadata."""
        path = folder / METADATA
        entries = []
        for patient, node, x, y, tumor, slide, hospital in _read_rows(path):
            place = f"patient_{patient}_node_{node}"
            file = folder / "patches" / place / f"patch_{place}_x_{x}_y_{y}.png"
            entries.append(_Entry(file, int(tumor), int(hospital), int(slide)))
        hospitals = {entry.hospital for entry in entries}
        slides = {entry.slide for entry in entries}
        found = len(entries), len(hospitals), len(slides)
        if found != (PATCHES, HOSPITALS, SLIDES):
            raise UserError(
                f"{path}: must name {PATCHES:,} patches of {HOSPITALS} hospitals and {SLIDES} "
                f"slides; it names {found[0]:,} of {found[1]} and {found[2]}"
            )
        return entries

    def decode(self, entry: _Entry) -> tuple[np.ndarray, int, int, int]:
        """Return the record of a patch."""
        image = pictures.read(
            entry.path,
            "PNG",
            size=(SIDE, SIDE),
            resized=(SHRUNK, SHRUNK),
            by_area=True,
        )
        return image, entry.tumor, entry.hospital, entry.slide


def _read_rows(path: Path) -> list[Any]:
    """Return the columns of the metadata as texts [rows][7], because patient numbers
    begin with zeros. Raises UserError.
    """
    import pandas  # the import takes a second, and only this function needs it

    with untrusted_files.refuse_unreadable(path, "csv"):
        content = untrusted_files.read_user_file(path, METADATA_BYTES)
        frame = pandas.read_csv(
            io.BytesIO(content), dtype=str, usecols=list(COLUMNS), na_filter=False
        )
    for column, pattern in COLUMNS.items():
        wrong = np.flatnonzero(~frame[column].str.fullmatch(pattern, flags=re.ASCII))
        if len(wrong):
            text = frame[column][wrong[0]]
            raise UserError(
                f"{path}: row {wrong[0] + 1}: {column} = {text!r:.60} is not a valid number"
            )
    rows: list[Any] = frame[list(COLUMNS)].to_numpy(object).tolist()
    return rows


plugin = Camelyon17()
