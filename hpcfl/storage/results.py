"""The results of a run, their HDF5 files, and the merging and reading of these."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcfl.errors import UserError
from hpcfl.files import hdf5, untrusted_files
from hpcfl.files.atomic import Damaged
from hpcfl.scores.metric_names import MetricName
from hpcfl.storage import client_numbers, results_form, run_fingerprint
from hpcfl.storage.client_numbers import ClientNumbers, Positions, Values
from hpcfl.storage.run_fingerprint import AnotherRun, describe_skipped

KIND = "metrics"
MERGED = "metrics.h5"
COPY = "metrics-copy.h5"  # the same, so that damage to one of them loses nothing
# The value that marks round R + 1, the scoring after the last aggregation: 1 then, 0
# in played rounds.
FINAL = "final"
RUN = "run"  # the header entry that names the run, see ``run_fingerprint``
GROUP = results_form.GROUP  # the static array with the group of each client
# in the header of packed runs: the checksum of the final state, which is not packed
DIGEST = "digest"
COMPLETED = "completed"  # the header entry with ``Results.completed``
# the group of packed datasets (see ``encode``), and the attribute that names their
# values
PACKED = "packed"
# The clients of per-client entries (see ``client_numbers``), and the first entry of each
# round. The attribute holds the number of clients.
IDS, STARTS = "entries/client", "entries/starts"
CLIENT_COUNT = "client_count"
ROUNDS = "rounds"  # folder of the rounds that are not merged yet, one file each
ATTEMPTS = 100  # a reader meets a merge in progress at most once per checkpoint


@dataclass(frozen=True)
class Results:
    """The results of a run or of a part of it: T rounds.

    header: JSON-able entries. static: arrays that belong to no round, by name. values:
    arrays by name, [T] or, of clients, [T, clients]; missing ones are NaN (floats) or
    -1 (integers). completed: the numbers of rounds R after which the run was scored as
    round R + 1, ascending; several after prolongations.
    """

    header: dict[str, Any] = field(default_factory=dict)
    static: dict[str, np.ndarray] = field(default_factory=dict)
    rounds: np.ndarray = field(
        default_factory=lambda: np.empty(0, np.int64)
    )  # [T], ascending
    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    completed: list[int] = field(default_factory=list)
    notes: list[str] = field(
        default_factory=list
    )  # one line for each skipped damaged file

    @property
    def played(self) -> np.ndarray:
        """Return whether each round was played, bool [T]; the others are final
        scorings.
        """
        played: np.ndarray = self.values.get(FINAL, np.zeros(len(self.rounds))) != 1
        return played

    @property
    def is_packed(self) -> bool:
        """Return whether the results come from a packed file.

        Such a file has only the rounds that tables read (``report/packed.py``).
        """
        return DIGEST in self.header

    @property
    def clients(self) -> ClientNumbers:
        """Return the per-client metrics in sparse form."""
        return Values.from_arrays(self.values, len(self.rounds)).clients

    def select_rounds(self, positions: Positions) -> "Results":
        """Return the results of the rounds at some positions."""
        values = Values.from_arrays(self.values, len(self.rounds)).select_rounds(
            positions
        )
        return replace(
            self, rounds=self.rounds[np.asarray(positions, int)], values=values
        )

    @property
    def names(self) -> list[MetricName]:
        """Return the names of all values."""
        return [MetricName.parse(text) for text in self.values]

    def series(self, name: MetricName) -> np.ndarray:
        """Return the values of a name, [T] or of clients [T, clients]; NaN [T] if
        missing.
        """
        missing = np.full(len(self.rounds), np.nan)
        return self.values.get(str(name), missing)


def read(folder: str | Path, run: str | None = None) -> Results:
    """Return the results in a run's folder, even while the run is writing.

    run: the fingerprint of the run; by default that of the first file. Raises UserError
    if the folder has none.
    """
    folder = Path(folder)
    for _ in range(ATTEMPTS):
        try:
            return _read_once(folder, run)
        except FileNotFoundError:
            # a round was merged after the listing, so it is in the merged file now
            continue
    raise UserError(f"{folder}: the results keep changing while they are read")


def others(folder: Path, run: str) -> list[str]:
    """Return a line for each file of results in a folder that belongs to another run."""
    lines = []
    for path in (folder / MERGED, folder / COPY, *listed(folder)):
        try:
            run_fingerprint.check(load(path).header.get(RUN), run)
        except AnotherRun as error:
            lines.append(describe_skipped(path, error))
        except (FileNotFoundError, Damaged):
            continue
    return lines


def completed(folder: Path) -> list[int]:
    """Return the numbers of rounds after which a folder's run was scored.

    The result is empty if the folder cannot be read.
    """
    try:
        return read(folder).completed
    except UserError:
        return []


def encode(results: Results, packed: bool = False) -> bytes:
    """Return the bytes of a file; the root group's attributes hold the header as JSON
    texts.

    packed: whether values of the same type and shape share one dataset. This suits
    files that are merged soon: HDF5 takes longer for a dataset than for its numbers.
    """
    attributes = {
        name: json.dumps(value)
        for name, value in {**results.header, COMPLETED: results.completed}.items()
    }
    recorded = Values.from_arrays(results.values, len(results.rounds))
    of_clients = recorded.clients
    attributes[CLIENT_COUNT] = json.dumps(of_clients.clients)
    values = {**recorded.of_rounds, **of_clients.columns}
    datasets = {
        f"partition/{name}": _short(array) for name, array in results.static.items()
    }
    datasets |= {IDS: _short(of_clients.ids), STARTS: _short(of_clients.starts)}
    values = {f"values/{name}": array for name, array in values.items()}
    if packed:
        alike: dict[
            tuple[str, tuple[int, ...]], list[str]
        ] = {}  # names by type and shape
        for name, array in values.items():
            alike.setdefault((array.dtype.str, array.shape), []).append(name)
        attributes[PACKED] = json.dumps(list(alike.values()))
        values = {
            f"{PACKED}/{i}": np.stack([values[name] for name in names])
            for i, names in enumerate(alike.values())
        }
    datasets |= values
    content = hdf5.encode({"rounds": results.rounds, **datasets}, attributes)
    return hdf5.seal(KIND, content)


def load(path: Path) -> Results:
    """Return the results in a file from ``encode``. Raises FileNotFoundError or
    Damaged.
    """
    datasets, attributes = hdf5.decode(
        hdf5.unseal(KIND, untrusted_files.read_bytes(path, results_form.LIMIT))
    )
    try:
        rounds = datasets["rounds"]
        datasets = results_form.unpacked(datasets, attributes.pop(PACKED, "[]"), PACKED)
    except (KeyError, ValueError) as error:
        raise Damaged("not a complete file of results") from error
    header = results_form.header(attributes)
    static = _below("partition/", datasets)
    static = {name: results_form.long(array) for name, array in static.items()}
    recorded = _below("values/", datasets)
    columns = {
        name: results_form.long(recorded.pop(name))
        for name in list(recorded)
        if MetricName.parse(name).of_clients
    }
    clients = results_form.entries(
        rounds.size,
        datasets.get(IDS),
        datasets.get(STARTS),
        columns,
        header.pop(CLIENT_COUNT, None),
    )
    results_form.check(rounds, static, recorded, clients)
    values = Values(recorded, clients)
    return Results(header, static, rounds, values, header.pop(COMPLETED, []))


def merge(parts: Sequence[Results]) -> tuple[np.ndarray, Values]:
    """Return the rounds [T], ascending, and the values of all parts.

    A round in several parts is taken whole from the last of them. Raises UserError for
    parts that cannot belong to one run.
    """
    owners = {
        int(number): (part, row)
        for part in parts
        for row, number in enumerate(part.rounds)
    }
    rounds = np.array(sorted(owners), np.int64)
    # by id of a part: positions in ``rounds`` of the rounds taken from it, and their
    # rows in it
    sources: dict[int, tuple[list[int], list[int]]] = {}
    for position, number in enumerate(rounds.tolist()):
        part, row = owners[number]
        positions, rows = sources.setdefault(id(part), ([], []))
        positions.append(position)
        rows.append(row)
    chosen = [(part, *sources[id(part)]) for part in parts if id(part) in sources]
    recorded = {
        id(part): Values.from_arrays(part.values, len(part.rounds)) for part in parts
    }
    results_form.check_together(
        len(rounds), [(part.static, recorded[id(part)]) for part in parts]
    )
    taken = [(recorded[id(part)], rows, places) for part, places, rows in chosen]
    names = sorted({name for values, _, _ in taken for name in values.of_rounds})
    of_rounds = {name: _merged(name, len(rounds), taken) for name in names}
    of_clients = [(values.clients, rows, places) for values, rows, places in taken]
    return rounds, Values(of_rounds, client_numbers.joined(of_clients, len(rounds)))


def scored_after(parts: Sequence[Results]) -> list[int]:
    """Return ``Results.completed`` of all parts, from their entries and their rounds."""
    known = {number for part in parts for number in part.completed}
    return sorted(
        known
        | {int(round) - 1 for part in parts for round in part.rounds[~part.played]}
    )


def listed(folder: Path) -> list[Path]:
    """Return the paths of unmerged files of rounds, ascending."""
    return sorted((folder / ROUNDS).glob("*.h5"))


def _merged(
    name: str, length: int, taken: list[tuple[Values, list[int], list[int]]]
) -> np.ndarray:
    """Return the array [length] of a round's metric.

    taken: the values of each part, the rows to take, and their places.
    """
    arrays = [
        values.of_rounds[name] for values, _, _ in taken if name in values.of_rounds
    ]
    merged = client_numbers.missing(length, np.result_type(*arrays))
    for values, rows, places in taken:
        if name in values.of_rounds:
            merged[places] = values.of_rounds[name][rows]
    return merged


def _read_once(folder: Path, run: str | None) -> Results:
    """Return the results in a folder. Raises FileNotFoundError during a merge."""
    # The list comes first: a round that is in none of the listed files is then in
    # the merged one.
    paths, notes = listed(folder), list[str]()
    merged = load_merged(folder, notes, run)
    parts: list[Results] = []
    for path in paths:
        first = merged or (parts[0] if parts else Results())
        part = load_or_note(path, notes, run or first.header.get(RUN))
        if part is not None:
            parts.append(part)
    if merged is None and not parts:
        raise UserError("; ".join([f"{folder}: no results here", *notes]))
    merged = merged or Results()
    rounds, values = merge([merged, *parts])
    return Results(
        merged.header,
        merged.static,
        rounds,
        values,
        scored_after([merged, *parts]),
        notes,
    )


def load_merged(
    folder: Path, notes: list[str], run: str | None = None
) -> Results | None:
    """Return the merged results: the file or its copy, whichever has more rounds.

    The result is None without both. run: the fingerprint of their run. notes: gets a
    line for each file that is damaged or of another run.
    """
    merged = from_copy = None
    with suppress(FileNotFoundError):
        merged = load_or_note(folder / MERGED, notes, run)
    if merged is not None and _is_copied(folder):
        return merged
    with suppress(FileNotFoundError):
        run = run or (merged.header.get(RUN) if merged else None)
        from_copy = load_or_note(folder / COPY, notes, run)
    if merged is None and from_copy is not None and notes:
        notes[-1] += "; its copy counts"
    if merged is None or from_copy is None:
        return merged or from_copy
    # A writer killed between the two files leaves a newer copy.
    return from_copy if len(from_copy.rounds) > len(merged.rounds) else merged


def _is_copied(folder: Path) -> bool:
    """Return whether the merged file and its copy have the same bytes.

    The comparison is faster than decoding both.
    """
    try:
        merged = untrusted_files.read_bytes(folder / MERGED, results_form.LIMIT)
        return merged == untrusted_files.read_bytes(folder / COPY, results_form.LIMIT)
    except (FileNotFoundError, Damaged):
        return False


def load_or_note(
    path: Path, notes: list[str], run: str | None = None
) -> Results | None:
    """Return the results in a file, or None for a damaged file or one of another run.

    Such a file adds a line to ``notes``. Raises FileNotFoundError.
    """
    try:
        part = load(path)
        run_fingerprint.check(part.header.get(RUN), run)
    except Damaged as error:
        notes.append(describe_skipped(path, error))
        return None
    return part


def _below(prefix: str, datasets: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the datasets whose path starts with ``prefix``, by the rest of it."""
    return {
        name.removeprefix(prefix): array
        for name, array in datasets.items()
        if name.startswith(prefix)
    }


def _short(array: np.ndarray) -> np.ndarray:
    """Return non-negative whole numbers in the smallest integer type, others unchanged."""
    if array.dtype.kind not in "iu" or not array.size or array.min() < 0:
        return array
    return array.astype(np.min_scalar_type(array.max()))
