"""The manifest of a checkpoint: which files it consists of. Its rename is the commit."""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcfl.storage import atomic
from hpcfl.storage.atomic import Damaged
from hpcfl.storage.shards import Shard

FORMAT = 1
PATTERN = "manifest-*.json"


@dataclass(frozen=True)
class Manifest:
    """A committed checkpoint: the state after ``round``, its digest, the caller's ``meta`` and the files."""

    round: int
    digest: str
    meta: dict[str, Any]
    files: list[Shard]

    @property
    def name(self) -> str:
        """The file's name; names sort by round."""
        return f"manifest-{self.round:08d}.json"

    def write(self, folder: Path) -> None:
        """Commit. Raises RunFailure."""
        body = {"format": FORMAT, **asdict(self)}
        document = {"sha256": _checksum(body), "manifest": body}
        atomic.write(folder / self.name, json.dumps(document, indent=1).encode())

    def verify(self, folder: Path) -> None:
        """Raises Damaged for the first file that is missing or not what was written."""
        for shard in self.files:
            shard.verify(folder)


def read(path: Path) -> Manifest:
    """A manifest whose checksum of its own content is right. Raises Damaged."""
    try:
        document = json.loads(path.read_bytes())
        body = document["manifest"]
        if document["sha256"] != _checksum(body):
            raise Damaged("its content does not have the checksum it was written with")
        if body.pop("format") != FORMAT:
            raise Damaged("written in another format by another version of hpcfl")
        return Manifest(**{**body, "files": [Shard(**shard) for shard in body["files"]]})
    except OSError as error:
        raise Damaged(atomic.reason(error)) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Damaged("not a complete manifest") from error


def newest_first(folder: Path) -> list[Path]:
    """The manifests in a folder, damaged ones too; none when there is no folder. Raises RunFailure."""
    with atomic.explained(folder):
        return sorted(folder.glob(PATTERN), reverse=True)


def _checksum(body: dict[str, Any]) -> str:
    """SHA-256 of the content, the same before and after a trip through JSON."""
    return hashlib.sha256(json.dumps(body).encode()).hexdigest()
