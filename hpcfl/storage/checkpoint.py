"""Checkpoints: written while training goes on, committed by one rename, read back by any number of ranks."""

import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from hpcfl.communication.agreement import Ranks, agreed
from hpcfl.errors import UserError
from hpcfl.files import atomic, scratch
from hpcfl.files.atomic import Damaged
from hpcfl.storage import digest, manifest, shards
from hpcfl.storage.clients import ClientStore, Row
from hpcfl.storage.manifest import Manifest
from hpcfl.storage.shards import Shard


@dataclass(frozen=True)
class Restored:
    """What ``restore`` found; the clients' state went into their store."""

    round: int
    server: dict[str, Tensor] | None  # on rank 0
    digest: str
    meta: dict[str, Any]
    notes: list[str]  # one line for each newer checkpoint that is damaged


class Checkpoints:
    """The checkpoints of one run: ``start``, go on training, ``finish``. The last ``keep``
    stay on the disk."""

    def __init__(self, folder: str | Path, communicator: Ranks, keep: int = 2) -> None:
        """``folder`` belongs to this object alone; the first ``start`` makes it where it is missing."""
        self.folder = Path(folder)
        self._communicator = communicator
        self._keep = keep
        self._kept: list[Manifest] = []  # rank 0: the checkpoints that stay, oldest first
        self._committed: dict[tuple[object, ...], Shard] = {}  # what the newest checkpoint holds, by content
        self._pending: tuple[int, dict[str, Any], Future[dict[str, Any]]] | None = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        # seconds that the slowest rank wrote in the background, of the last one finished; rank 0
        self.written_in = 0.0

    def start(self, round: int, server: Mapping[str, Tensor] | None, clients: ClientStore,
              meta: dict[str, Any]) -> None:
        """Take the state as it is now and write this rank's share in the background.

        ``server`` on rank 0 only, tensors of any shape on any device; ``meta`` is JSON-able and
        rank 0's counts.
        """
        if self._pending:
            raise RuntimeError(f"the checkpoint of round {self._pending[0]} is not finished")
        copy = None if server is None else {name: scratch.copy(tensor) for name, tensor in server.items()}
        self._pending = round, deepcopy(meta), self._writer.submit(self._write, copy, clients.snapshot())

    def finish(self) -> str | None:
        """Collective. Wait for all ranks' files and commit; the digest of the run, None when nothing
        was started.

        What failed on any rank is raised on all; the checkpoints before are valid then.
        """
        if self._pending is None:
            return None
        round, meta, future = self._pending
        self._pending = None
        with agreed(self._communicator):
            report = future.result()
        reports = self._communicator.collect(report)
        self.written_in = max(one["seconds"] for one in reports or [report])
        with agreed(self._communicator):
            committed = None if reports is None else self._commit(round, meta, reports)
        self._committed = {shard.content: shard for shard in _shards(report["files"])}
        digest: str | None = self._communicator.share(committed)
        return digest

    def restore(self, clients: ClientStore) -> Restored | None:
        """Collective. Read the newest intact checkpoint, each rank just its own clients; None when
        there is none yet.

        ``clients`` is as new: nothing was put into it. Raises UserError when all checkpoints are damaged
        or the state does not fit ``clients``.
        """
        with agreed(self._communicator):
            found, notes = self._choose() if self._communicator.is_server else (None, [])
        told = self._communicator.share([found and asdict(found), notes])
        if told[0] is None:
            return None
        chosen = Manifest(**{**told[0], "files": _shards(told[0]["files"])})
        with agreed(self._communicator):
            server = self._read(chosen, clients)
        self._committed = {shard.content: shard for shard in chosen.files}
        return Restored(chosen.round, server, chosen.digest, chosen.meta, told[1])

    def _write(self, server: dict[str, Tensor] | None, rows: dict[int, Row]) -> dict[str, Any]:
        """In the background: this rank's files, the hash of every client of it, and the seconds that took."""
        begun = time.perf_counter()
        with atomic.explained(self.folder):
            self.folder.mkdir(exist_ok=True)  # not its parents: a run's folder that vanished is a failure
        files = [self._clients_shard(group, rows) for group in shards.groups(rows)]
        if server is not None:
            files.append(self._server_shard(server))
        return {"files": [asdict(shard) for shard in files], "seconds": time.perf_counter() - begun,
                "clients": [[client, row.digest] for client, row in rows.items()]}

    def _clients_shard(self, ids: list[int], rows: dict[int, Row]) -> Shard:
        known = self._known(ids, [rows[client].digest for client in ids])
        return known or shards.write_clients(self.folder, ids, rows)

    def _server_shard(self, state: dict[str, Tensor]) -> Shard:
        hashed = digest.of_tensors(state)
        return self._known(None, [hashed]) or shards.write_server(self.folder, state, hashed)

    def _known(self, ids: list[int] | None, digests: list[str]) -> Shard | None:
        """A file of the last committed checkpoint that says just this, so that it need not
        be written again."""
        shard = self._committed.get(shards.content(ids, digests))
        return shard if shard and shard.present(self.folder) else None

    def _commit(self, round: int, meta: dict[str, Any], reports: list[dict[str, Any]]) -> str:
        """On rank 0: publish the manifest, then forget what no kept checkpoint needs. The
        digest of the run."""
        files = [shard for report in reports for shard in _shards(report["files"])]
        server = next(shard for shard in files if shard.ids is None)
        hashed = digest.of_run(server.digests[0],
                               dict(pair for report in reports for pair in report["clients"]))
        new = Manifest(round, hashed, meta, files)
        new.write(self.folder)
        # What lies at or beyond this round was damaged or replaced, or the run would not have
        # come here again.
        self._kept = [*(old for old in self._kept if old.round < round), new][-self._keep:]
        self._clean()
        return hashed

    def _clean(self) -> None:
        """Remove files that no kept manifest references and temporaries; no rank is writing now."""
        wanted = {old.name for old in self._kept} | {shard.name for old in self._kept for shard in old.files}
        with atomic.explained(self.folder):
            # Manifests go first: one that a kill leaves behind must not miss its files.
            for pattern in (manifest.PATTERN, "clients-*.h5", "server-*.h5"):
                for path in self.folder.glob(pattern):
                    if path.name not in wanted:
                        path.unlink(missing_ok=True)
        atomic.remove_temporaries(self.folder)

    def _choose(self) -> tuple[Manifest | None, list[str]]:
        """On rank 0: the newest checkpoint that is intact to the last byte, and a line for
        each damaged one."""
        notes: list[str] = []
        paths = manifest.newest_first(self.folder)
        for position, path in enumerate(paths):
            try:
                found = manifest.read(path)
                found.verify(self.folder)
            except Damaged as error:
                notes.append(f"{path}: damaged checkpoint ({error})")
                continue
            self._kept = [*_readable(reversed(paths[position + 1:])), found]
            return found, notes
        if notes:
            raise UserError("no checkpoint is left to continue from, `--fresh` starts over: "
                            f"{'; '.join(notes)}")
        return None, notes

    def _read(self, chosen: Manifest, clients: ClientStore) -> dict[str, Tensor] | None:
        """Put the clients of this rank into their store; the server's state on rank 0."""
        server = None
        hosted = set(clients.ids)
        try:
            for shard in chosen.files:
                if shard.ids is not None:
                    _read_clients(self.folder / shard.name, shard.ids, hosted, clients)
                elif self._communicator.is_server:
                    server = shards.read(self.folder / shard.name, None)
        except (Damaged, ValueError) as error:
            raise UserError(f"{self.folder / chosen.name}: cannot be continued from ({error}), "
                            "`--fresh` starts over") from error
        return server


def latest(folder: str | Path) -> Manifest | None:
    """The newest checkpoint whose manifest is intact and whose files are there, for looking only.
    Raises RunFailure."""
    folder = Path(folder)
    found = _readable(manifest.newest_first(folder))
    return next((one for one in found if all(shard.present(folder) for shard in one.files)), None)


def intact(folder: Path) -> Manifest | None:
    """The newest checkpoint that is intact to the last byte, which takes as long as reading it."""
    for path in manifest.newest_first(folder):
        with suppress(Damaged):
            found = manifest.read(path)
            found.verify(folder)
            return found
    return None


def _read_clients(path: Path, ids: list[int], hosted: set[int], clients: ClientStore) -> None:
    places = [place for place, client in enumerate(ids) if client in hosted]
    if places:
        clients.put([ids[place] for place in places], shards.read(path, places))


def _readable(paths: Iterable[Path]) -> list[Manifest]:
    """The manifests among ``paths`` that are intact in themselves, in the same order."""
    found = []
    for path in paths:
        try:
            found.append(manifest.read(path))
        except Damaged:
            continue
    return found


def _shards(files: list[dict[str, Any]]) -> list[Shard]:
    return [Shard(**file) for file in files]
