"""Lane tables: the files of ``runtime.lane_table``, with times of lanes that
``tests/benchmarks/gpu.sh`` measured on a GPU.

A configuration contains the content of the file, and a resolved configuration the rows
for its run, so that a run can be repeated without the file.
"""

import hashlib
from typing import Any

from pydantic import BaseModel, ValidationError

from hpcfl.files import atomic, untrusted_files
from hpcfl.files.atomic import Damaged

MOST_BYTES = 1_000_000  # of a file


def read_content(given: Any) -> Any:
    """Return the content of the file at the path ``given``, with the file's SHA-256;
    return other values unchanged. Raises ValueError with one line.
    """
    if not isinstance(given, str):
        return given
    try:
        text = untrusted_files.read_user_file(given, MOST_BYTES)
        content = untrusted_files.parsed(text)
    except (OSError, Damaged) as error:
        raise ValueError(f"cannot be read ({atomic.describe_reason(error)})") from None
    if isinstance(content, dict):
        content["sha256"] = hashlib.sha256(text).hexdigest()
    return content


def explain(
    error: ValidationError, table: type[BaseModel], row: type[BaseModel]
) -> str:
    """Return a line on the first mistake of a lane table.

    Args:
        error: The mistakes that pydantic found.
        table: The class with the keys of a table.
        row: The class with the keys of a row.
    """
    mistake = error.errors(include_url=False)[0]
    place = ".".join(map(str, mistake["loc"]))
    if mistake["type"] == "extra_forbidden":
        keys = row if len(mistake["loc"]) > 1 else table
        return f"unknown key '{place}'; allowed: {', '.join(keys.model_fields)}"
    if mistake["type"] == "missing":
        return f"'{place}' is missing"
    where = f"{place} = {mistake['input']!r:.80}: " if place else ""
    return f"{where}{mistake['msg']}"
