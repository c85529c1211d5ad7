"""The results of a run: what they are, how they lie in an HDF5 file, how parts become one,
how they are read."""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.errors import UserError
from hpcfl.files import foreign, hdf5
from hpcfl.files.atomic import Damaged
from hpcfl.storage import results_form

KIND = "metrics"
MERGED = "metrics.h5"
COPY = "metrics-copy.h5"  # the same, so that damage to one of them loses nothing
# the value that marks round R + 1, the state after the last aggregation: 1 there, 0 in rounds
# that were played
FINAL = "final"
# the attribute with the numbers of rounds that the run was played and scored to the end with
COMPLETED = "completed"
PACKED = "packed"  # what lies in one dataset, and the attribute that names it
ROUNDS = "rounds"  # folder of the rounds that are not merged yet, one file each
ATTEMPTS = 100  # a reader loses a race against merging at most once per checkpoint


@dataclass(frozen=True)
class Results:
    """What a run recorded. ``values``: name → array [T, ...]; NaN (floats) or -1 (integers) where
    a round lacks it.

    completed: the numbers of rounds R after which the run was scored as round R + 1; several when it was
    prolonged later.
    """

    header: dict[str, Any] = field(default_factory=dict)
    static: dict[str, np.ndarray] = field(default_factory=dict)
    rounds: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # [T], ascending
    values: dict[str, np.ndarray] = field(default_factory=dict)
    completed: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # one line for each damaged file that was left out

    @property
    def played(self) -> np.ndarray:
        """Which of the rounds were played, bool [T]; the others are states after a last
        aggregation, scored."""
        played: np.ndarray = self.values.get(FINAL, np.zeros(len(self.rounds))) != 1
        return played


def read(folder: str | Path) -> Results:
    """The results in a run's folder, also while the run is writing. Raises UserError where there are none."""
    folder = Path(folder)
    for _ in range(ATTEMPTS):
        try:
            return _read_once(folder)
        except FileNotFoundError:
            continue  # a round was merged after it was listed, so it is in the merged file now
    raise UserError(f"{folder}: the results keep changing while they are read")


def completed(folder: Path) -> list[int]:
    """The numbers of rounds after which the run in a folder was scored; none where nothing can be read."""
    try:
        return read(folder).completed
    except UserError:
        return []


def encode(results: Results, packed: bool = False) -> bytes:
    """The bytes of the file. Every header entry is a JSON text in an attribute of the root group.

    packed: values of the same type and shape are one dataset, for files that are merged soon: HDF5 takes
    longer for a dataset than for its numbers.
    """
    attributes = {name: json.dumps(value)
                  for name, value in {**results.header, COMPLETED: results.completed}.items()}
    datasets = {f"partition/{name}": array for name, array in results.static.items()}
    values = {f"values/{name}": array for name, array in results.values.items()}
    if packed:
        alike: dict[tuple[str, tuple[int, ...]], list[str]] = {}
        for name, array in values.items():
            alike.setdefault((array.dtype.str, array.shape), []).append(name)
        attributes[PACKED] = json.dumps(list(alike.values()))
        values = {f"{PACKED}/{i}": np.stack([values[name] for name in names])
                  for i, names in enumerate(alike.values())}
    datasets |= values
    content = hdf5.encode({"rounds": results.rounds, **datasets}, attributes)
    return hdf5.seal(KIND, content)


def load(path: Path) -> Results:
    """What ``encode`` wrote. Raises FileNotFoundError or Damaged."""
    datasets, attributes = hdf5.decode(hdf5.unseal(KIND, foreign.read_bytes(path, results_form.LIMIT)))
    try:
        rounds = datasets["rounds"]
        datasets = results_form.unpacked(datasets, attributes.pop(PACKED, "[]"), PACKED)
    except (KeyError, ValueError) as error:
        raise Damaged("not a complete file of results") from error
    static, values = _below("partition/", datasets), _below("values/", datasets)
    results_form.check(rounds, static, values)
    header = results_form.header(attributes)
    return Results(header, static, rounds, values, header.pop(COMPLETED, []))


def merge(parts: Sequence[Results]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Rounds [T] and values of all parts; a round of several parts is taken whole from the last of them.

    Raises UserError for parts that cannot be of one run.
    """
    owners = {int(number): (part, row) for part in parts for row, number in enumerate(part.rounds)}
    rounds = np.array(sorted(owners), np.int64)
    sources: dict[int, tuple[list[int], list[int]]] = {}
    for position, number in enumerate(rounds.tolist()):
        part, row = owners[number]
        positions, rows = sources.setdefault(id(part), ([], []))
        positions.append(position)
        rows.append(row)
    chosen = [(part, *sources[id(part)]) for part in parts if id(part) in sources]
    results_form.check_together(len(rounds), [part.values for part, _, _ in chosen])
    names = sorted({name for part, _, _ in chosen for name in part.values})
    return rounds, {name: _column(name, len(rounds), chosen) for name in names}


def scored_after(parts: Sequence[Results]) -> list[int]:
    """The numbers of rounds after which the run was scored as round R + 1, ascending: kept from earlier
    or in these rounds."""
    known = {number for part in parts for number in part.completed}
    return sorted(known | {int(round) - 1 for part in parts for round in part.rounds[~part.played]})


def listed(folder: Path) -> list[Path]:
    """The files of rounds that are not merged yet, ascending."""
    return sorted((folder / ROUNDS).glob("*.h5"))


def _column(name: str, length: int, chosen: list[tuple[Results, list[int], list[int]]]) -> np.ndarray:
    arrays = [part.values[name] for part, _, _ in chosen if name in part.values]
    kind = np.result_type(*arrays)
    column = np.full((length, *arrays[-1].shape[1:]), np.nan if kind.kind == "f" else -1, kind)
    for part, positions, rows in chosen:
        if name in part.values:
            column[positions] = part.values[name][rows]
    return column


def _read_once(folder: Path) -> Results:
    # The list comes first: a round that is merged after it is in the merged file, one merged
    # before it as well.
    paths, notes = listed(folder), list[str]()
    base = load_merged(folder, notes)
    parts = [part for path in paths if (part := load_or_note(path, notes))]
    if base is None and not parts:
        raise UserError("; ".join([f"{folder}: no results here", *notes]))
    base = base or Results()
    rounds, values = merge([base, *parts])
    return Results(base.header, base.static, rounds, values, scored_after([base, *parts]), notes)


def load_merged(folder: Path, notes: list[str]) -> Results | None:
    """What was merged so far, from the file or, where that is missing or damaged, from its copy;
    None without either."""
    for name in (MERGED, COPY):
        with suppress(FileNotFoundError):
            if found := load_or_note(folder / name, notes):
                return found
    return None


def load_or_note(path: Path, notes: list[str]) -> Results | None:
    """What is in the file, or None and one more line in ``notes`` when it is damaged.
    Raises FileNotFoundError."""
    try:
        return load(path)
    except Damaged as error:
        notes.append(f"{path}: damaged, left out ({error})")
        return None


def _below(prefix: str, datasets: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in datasets.items() if name.startswith(prefix)}
