"""Times of lanes measured on a GPU: the file that ``tests/benchmarks/gpu.sh`` writes, as
``runtime.lane_table`` names it.

A configuration holds the content of the file, and a resolved one the rows that its run
may use. So a run is repeated without the file.
"""

import hashlib
import os
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)

from hpcfl.files import atomic, untrusted_files
from hpcfl.files.atomic import Damaged

MOST_BYTES = 1_000_000  # of a file
# of a convolution over lanes: with a group for each lane, or one lane after the other
Form = Literal["grouped", "loop"]
# by runtime.precision
PRECISIONS = {"exact": "float32", "tf32": "tf32", "bf16": "bf16"}


class LaneRow(BaseModel):
    """A measurement of some lanes side by side."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False
    )

    model: str
    precision: Literal["float32", "tf32", "bf16"]
    lanes: PositiveInt
    form: Form
    seconds_per_sample: PositiveFloat
    peak_bytes: NonNegativeInt


class LaneTable(BaseModel):
    """Measurements on one type of GPU.

    Attributes:
        device: the GPU, as torch names it.
        torch: the version of torch.
        sha256: of the file; None for a table without one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1]
    device: str
    torch: str
    rows: list[LaneRow]
    sha256: str | None = None

    def select(self, model: str, precision: str) -> Self:
        """Return the table with the rows of a model in a ``runtime.precision``."""
        measured = PRECISIONS[precision]
        rows = []
        for row in self.rows:
            if (row.model, row.precision) == (model, measured):
                rows.append(row)
        return self.model_copy(update={"rows": rows})

    def fastest(self, most: int, form: Form | None) -> LaneRow | None:
        """Return the row with the fewest seconds a sample among those with at most
        ``most`` lanes, of equal ones that with the most lanes; None where there is none.

        form: the form of convolutions, None for any.
        """
        rows = []
        for row in self.rows:
            if row.lanes <= most and form in (None, row.form):
                rows.append(row)
        return min(
            rows, key=lambda row: (row.seconds_per_sample, -row.lanes), default=None
        )


def read_lane_table(given: Any) -> LaneTable:
    """Return the table in a file, or of its content as a nested table.

    Raises ValueError with one line.
    """
    if isinstance(given, LaneTable):
        return given
    content = given
    if isinstance(given, str):
        content = _read_file(given)
    try:
        return LaneTable.model_validate(content)
    except ValidationError as error:
        raise ValueError(_explain(error)) from None


def _read_file(path: str | os.PathLike[str]) -> Any:
    """Return the content of a file with its SHA-256. Raises ValueError."""
    try:
        text = untrusted_files.read_user_file(os.fspath(path), MOST_BYTES)
        content = untrusted_files.parsed(text)
    except (OSError, Damaged) as error:
        raise ValueError(f"cannot be read ({atomic.reason(error)})") from None
    if isinstance(content, dict):
        content["sha256"] = hashlib.sha256(text).hexdigest()
    return content


def _explain(error: ValidationError) -> str:
    """Return a line on the first mistake of a table."""
    mistake = error.errors(include_url=False)[0]
    place = ".".join(map(str, mistake["loc"]))
    if mistake["type"] == "extra_forbidden":
        keys = LaneRow if len(mistake["loc"]) > 1 else LaneTable
        return f"unknown key '{place}'; allowed: {', '.join(keys.model_fields)}"
    if mistake["type"] == "missing":
        return f"'{place}' is missing"
    where = f"{place} = {mistake['input']!r:.80}: " if place else ""
    return f"{where}{mistake['msg']}"
