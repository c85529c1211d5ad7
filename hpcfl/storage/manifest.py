"""The manifest of a checkpoint, which lists its files and commits the checkpoint."""

import hashlib
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from hpcfl.files import atomic, untrusted_files
from hpcfl.files.atomic import Damaged
from hpcfl.storage.forms import check_run
from hpcfl.storage.shards import Sha256, Shard

FORMAT = 2
PATTERN = "manifest-*.json"
LIMIT = 256 << 20  # bytes, enough for 2,800,000 clients with state


class Document(TypedDict):
    """The content of a manifest's file; ``sha256`` is the checksum of ``manifest``."""

    sha256: str
    manifest: dict[str, Any]


@dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class Manifest:
    """A committed checkpoint: the state after ``round``.

    digest: of the run's whole state. meta: the argument of ``Checkpoints.start``, with
    the run's fingerprint under ``run``. files: one of the server, and any number of
    clients'. best: the stored state before the best round so far, if any. Raises
    ValueError for invalid values.
    """

    round: Annotated[int, Field(ge=0, lt=10**8)]
    digest: Sha256
    meta: dict[str, Any]
    files: list[Shard]
    best: "Manifest | None" = None

    def __post_init__(self) -> None:
        clients = [client for shard in self.files for client in shard.ids or ()]
        if (
            len(clients) != len(set(clients))
            or [shard.ids for shard in self.files].count(None) != 1
        ):
            raise ValueError(
                "the files are not those of one server and different clients"
            )

    @property
    def name(self) -> str:
        return name_after(self.round)

    @property
    def all_files(self) -> list[Shard]:
        """Return its own files and those of the best state."""
        return [*self.files, *(self.best.all_files if self.best else [])]

    def write(self, folder: Path) -> None:
        """Commit the checkpoint: publish the manifest in ``folder``. Raises RunFailure."""
        body = {"format": FORMAT, **asdict(self)}
        if self.best is None:
            del body["best"]
        document = {"sha256": _checksum(body), "manifest": body}
        atomic.write(folder / self.name, json.dumps(document, indent=1).encode())

    def verify(self, folder: Path) -> None:
        """Read its own files in ``folder``. Raises Damaged for a missing or changed
        file.
        """
        for shard in self.files:
            shard.verify(folder)


def name_after(round: int) -> str:
    """Return the name of the manifest's file after a round; names sort by round."""
    return f"manifest-{round:08d}.json"


def read(path: Path, run: str | None = None) -> Manifest:
    """Return the intact manifest in a file; ``verify`` checks its files.

    run: the fingerprint of its run, see ``forms.check_run``. Raises Damaged.
    """
    try:
        document = untrusted_files.read_json(path, Document, LIMIT)
        body = document["manifest"]
        if document["sha256"] != _checksum(body):
            raise Damaged("its content does not have the checksum it was written with")
        if body.pop("format", None) != FORMAT:
            raise Damaged("written in another format by another version of hpcfl")
        manifest = of_table(body)
    except FileNotFoundError as error:
        raise Damaged(atomic.reason(error)) from error
    except (ValueError, KeyError, TypeError) as error:
        raise Damaged("not a complete manifest") from error
    if manifest.name != path.name:
        raise Damaged(f"it is that of round {manifest.round}")
    check_run(manifest.meta.get("run"), run)
    return manifest


def of_table(table: dict[str, Any]) -> Manifest:
    """Return the manifest from the result of ``asdict``.

    Raises ValueError, KeyError or TypeError for other tables.
    """
    best = table.get("best")
    return Manifest(
        **{
            **table,
            "files": [Shard(**shard) for shard in table["files"]],
            "best": None if best is None else of_table(best),
        }
    )


def newest_first(folder: Path) -> list[Path]:
    """Return the paths of a folder's manifests, including damaged ones. Raises
    RunFailure.

    A missing folder has none.
    """
    with atomic.explained(folder):
        return sorted(folder.glob(PATTERN), reverse=True)


def states(folder: Path, run: str) -> dict[int, Manifest]:
    """Return a run's stored states, including best ones, by the last round before them.

    Their files exist; the content is not read.
    """
    found: dict[int, Manifest] = {}
    for newest in readable(newest_first(folder), run):
        for one in (newest, newest.best):
            if one is not None and all(shard.present(folder) for shard in one.files):
                found.setdefault(one.round, one)
    return found


def damaged(folder: Path, run: str) -> dict[str, str]:
    """Return the damage of each unreadable checkpoint by its manifest's name, newest
    first.

    The function reads all files.
    """
    found: dict[str, str] = {}
    for path in newest_first(folder):
        try:
            read(path, run).verify(folder)
        except Damaged as error:
            found[path.name] = f"{path}: damaged, left out ({error})"
    return found


def latest(
    folder: str | Path, run: str | None = None, verified: bool = False
) -> Manifest | None:
    """Return the newest checkpoint with an intact manifest and existing files.

    run: the fingerprint of its run, see ``forms.check_run``. verified: whether to read
    all files of the checkpoint. Raises RunFailure if the folder cannot be listed.
    """
    folder = Path(folder)
    for found in readable(newest_first(folder), run):
        with suppress(Damaged):
            if verified:
                found.verify(folder)
            if all(shard.present(folder) for shard in found.files):
                return found
    return None


def readable(paths: Iterable[Path], run: str | None = None) -> list[Manifest]:
    """Return the intact manifests of a run among ``paths``, in the same order."""
    manifests = []
    for path in paths:
        with suppress(Damaged):
            manifests.append(read(path, run))
    return manifests


def _checksum(body: dict[str, Any]) -> str:
    """Return the SHA-256 of the body, the same before it is written and after it is
    read.
    """
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()
