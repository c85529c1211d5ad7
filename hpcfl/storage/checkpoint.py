"""Checkpoints of a run: written during training, committed by one rename, and readable
on any number of ranks.

Every rank writes data files (``manifest.py``) with the state of its clients and parts
of the server's state (``server_state.py``). Rank 0 then publishes the manifest, which
commits the checkpoint.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from hpcfl.communication.communicator import Communicator, agreed
from hpcfl.errors import RankFailure, RunFailure, UserError
from hpcfl.files import atomic, heartbeat
from hpcfl.files.atomic import Damaged
from hpcfl.rows import mixing
from hpcfl.storage import manifest, server_state
from hpcfl.storage.clients import (
    ClientDigests,
    ClientStore,
    Row,
    Snapshot,
    digest_run,
    digest_tensors,
)
from hpcfl.storage.manifest import FileLimits, Manifest, Part, Shard
from hpcfl.storage.server_state import ReadShare, Share

# Largest share of a run's time that checkpoints with ``every = "auto"`` may take.
SHARE = 0.02
PAUSE = 0.1  # seconds between two looks at the number of written files


@dataclass(frozen=True)
class Restored:
    """The checkpoint that ``restore`` read; the clients' state is already in the store.

    Attributes:
        round: last round before the checkpoint.
        server: server's state on rank 0, None on other ranks.
        digest: digest of the run's whole state.
        meta: argument ``meta`` of ``start``.
        notes: one line for each damaged newer checkpoint.
        best: metric of the best round so far, even if its stored state is damaged; None
            without a best state.
    """

    round: int
    server: dict[str, Tensor] | None
    digest: str
    meta: dict[str, Any]
    notes: list[str]
    best: float | None


@dataclass(frozen=True)
class BestState:
    """The state before the best round so far; its tensors must not change.

    Attributes:
        round: last round before the state.
        number: metric of the best round.
        server: server's state, as in ``Checkpoints.start``.
        rows: state of this rank's clients.
    """

    round: int
    number: float
    server: Mapping[str, Tensor] | None
    rows: Snapshot


@dataclass(frozen=True)
class Pending:
    """A checkpoint that is being written.

    Attributes:
        round: last round before the checkpoint.
        meta: argument ``meta`` of ``start``.
        best: round and metric of a new best state in the checkpoint, or None.
        report: result of ``_write``, available when this rank's files are written.
    """

    round: int
    meta: dict[str, Any]
    best: tuple[int, float] | None
    report: Future[dict[str, Any]]


# The state that one rank writes: its share of the server's state, and its clients.
RankState = tuple[Share, Snapshot]


@dataclass
class Checkpoints:
    """Checkpoints of a run: ``start`` one, continue training, then ``finish`` it.

    Attributes:
        folder: folder of the checkpoints, created when needed; only this object changes
            it.
        communicator: communicator of all ranks.
        keep: number of checkpoints that remain in the folder.
        run: fingerprint of the run; checkpoints of other runs count as damaged.
        limits: limits for files with several clients or several rows of the server's
            state.
    """

    folder: Path
    communicator: Communicator
    keep: int = 2
    run: str | None = None
    limits: FileLimits = manifest.AUTO

    def __post_init__(self) -> None:
        # On rank 0, the checkpoints in the folder, oldest first.
        self._kept: list[Manifest] = []
        # On rank 0, the best state in the newest checkpoint.
        self._best: Manifest | None = None
        # Files of the newest checkpoint by content: those of this rank, or all files
        # after ``restore``.
        self._committed: dict[tuple[object, ...], Shard] = {}
        self._pending: Pending | None = None
        self._files = 0  # number of files of states, written or known, in this process
        # On rank 0, the ids of each rank's clients, which do not change. Ranks send
        # them in the first checkpoint; before it the value is None.
        self._hosted: list[np.ndarray] | None = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        # Seconds in which the last checkpoint was written in the background; on rank 0
        # the maximum over ranks.
        self.written_in = 0.0

    def start(
        self,
        round: int,
        server: Mapping[str, Tensor] | None,
        clients: ClientStore,
        meta: dict[str, Any],
        best: BestState | None = None,
    ) -> None:
        """Copy the current state and begin to write this rank's part in the background.
        Collective.

        Args:
            round: last round before the checkpoint.
            server: server's state on rank 0, None on other ranks: tensors of any shape
                on any device. Large tensors on the CPU are not copied and must not
                change.
            clients: state of this rank's clients.
            meta: JSON-able facts about the checkpoint; the value on rank 0 is stored.
            best: new best state, which replaces the earlier one; None to keep that.

        Raises:
            RuntimeError: The previous checkpoint is not finished.
        """
        if self._pending:
            raise RuntimeError(
                f"the checkpoint of round {self._pending.round} is not finished; call finish"
            )
        if self._hosted is None:
            ids_by_rank = self.communicator.gather(clients.ids) or []
            self._hosted = [np.array(ids, np.int64) for ids in ids_by_rank]
        states = [(self._distribute(server), clients.snapshot())]
        if best is not None:
            states.append((self._distribute(best.server), best.rows))
        self._pending = Pending(
            round,
            deepcopy(meta),
            (best.round, best.number) if best else None,
            self._writer.submit(self._write, states, mixing.copy_beside_training()),
        )

    def finish(self) -> str | None:
        """Wait for all ranks' files and commit the checkpoint; return the digest of the
        run. Collective.

        Without a started checkpoint the result is None. A failure on any rank is raised
        on all ranks; earlier checkpoints remain valid.
        """
        if self._pending is None:
            return None
        pending, self._pending = self._pending, None
        # A heartbeat follows each file: a slow file system must not end the job, and one
        # that no longer answers must end it.
        seen = -1
        while not pending.report.done():
            if self._files != seen:
                seen = self._files
                heartbeat.beat()
            futures.wait([pending.report], PAUSE)
        with agreed(self.communicator):
            report = pending.report.result()
        reports = self.communicator.gather(report)
        self.written_in = max(one["seconds"] for one in reports or [report])
        with agreed(self.communicator):
            committed = None if reports is None else self._commit(pending, reports)
        self._committed = {
            shard.content: shard
            for part in report["states"]
            for shard in _parse_shards(part["files"])
        }
        run_digest: str | None = self.communicator.bcast(committed)
        return run_digest

    def close(self) -> None:
        """End the writing thread after its current task; no further checkpoint can
        start.
        """
        self._writer.shutdown(wait=False)

    def restore(self, clients: ClientStore) -> Restored | None:
        """Read the newest intact checkpoint; return None without a checkpoint.
        Collective.

        Args:
            clients: new store, which receives the state of this rank's clients.

        Raises:
            UserError: All checkpoints are damaged, or the state does not fit
                ``clients``.
            RankFailure: $TMPDIR is full on rank 0.
        """
        newest, notes = self._choose()
        if newest is None:
            return None
        with agreed(self.communicator):
            read = self._read(newest, clients)
        try:
            server = server_state.gather(self.communicator, newest, read)
        except RunFailure as error:  # the other ranks wait in the exchange
            raise RankFailure(str(self.folder / newest.name)) from error
        self._committed = {shard.content: shard for shard in newest.all_files}
        return Restored(
            round=newest.round,
            server=server,
            digest=newest.digest,
            meta=newest.meta,
            notes=notes,
            best=newest.best.meta["number"] if newest.best else None,
        )

    def _write(
        self, states: list[RankState], beside_training: AbstractContextManager[object]
    ) -> dict[str, Any]:
        """Write this rank's files of states, in the background.

        Args:
            states: state of the checkpoint, and state before the best round if it is
                new.
            beside_training: context in which copies from the GPU do not wait for later
                training.

        Returns:
            JSON-able values: seconds of writing; and for each state its shards, the
            digest of clients without own state, and the digests of the other clients.
        """
        begun = time.perf_counter()
        with atomic.explain_errors(self.folder):
            # Parents are not created: a missing run folder is a failure.
            self.folder.mkdir(exist_ok=True)
        with beside_training:
            written = [self._write_state(server, rows) for server, rows in states]
        return {
            "states": written,
            "seconds": time.perf_counter() - begun,
        }

    def _distribute(self, server: Mapping[str, Tensor] | None) -> Share:
        return server_state.distribute(self.communicator, server, self.limits)

    def _write_state(self, server: Share, rows: Snapshot) -> dict[str, Any]:
        files = []
        for shard in self._write_files(server, rows):
            files.append(asdict(shard))
            self._files += 1
        digests = rows.digests
        return {
            "files": files,
            "template": digests.template,
            "clients": [[client, text] for client, text in digests.written.items()],
        }

    def _write_files(self, server: Share, rows: Snapshot) -> Iterator[Shard]:
        """Write the files of a state one by one, and yield each when it is written."""
        for group in manifest.group_clients(rows, self.limits):
            yield self._write_clients(group, rows.written)
        if server.whole is not None:
            yield self._write_server(server.whole, server.small)
        for part, of_part in server.parts:
            yield self._write_part(part, of_part)

    def _write_clients(self, ids: list[int], rows: Mapping[int, Row]) -> Shard:
        digests = [rows[client].digest for client in ids]
        known = self._find_known(manifest.make_content_key(ids, digests))
        return known or manifest.write_clients(self.folder, ids, rows)

    def _write_server(
        self, whole: dict[str, Tensor], small: dict[str, Tensor]
    ) -> Shard:
        server_digest = digest_tensors(whole)
        known = self._find_known(manifest.make_content_key(None, [server_digest]))
        return known or manifest.write_server(self.folder, small, server_digest)

    def _write_part(self, part: Part, rows: np.ndarray) -> Shard:
        shard, data = manifest.encode_part(part, rows)
        if self._find_known(shard.content) is None:
            atomic.write(self.folder / shard.name, data)
            self._committed[shard.content] = shard  # parts with equal rows share a file
        return shard

    def _find_known(self, content: tuple[object, ...]) -> Shard | None:
        """Return the newest checkpoint's file with this content, or None."""
        shard = self._committed.get(content)
        return shard if shard and shard.is_present(self.folder) else None

    def _commit(self, pending: Pending, reports: list[dict[str, Any]]) -> str:
        """Publish the manifest, then remove unneeded files; return the digest of the
        run.

        Only for rank 0.

        Args:
            pending: the checkpoint.
            reports: results of ``_write`` on all ranks.
        """
        # The parts of all ranks, by state.
        parts = list(zip(*(report["states"] for report in reports), strict=True))
        if pending.best is not None:
            round, number = pending.best
            self._best = self._assemble(round, {"number": number}, parts[1], None)
        new = self._assemble(pending.round, pending.meta, parts[0], self._best)
        new.write(self.folder)
        # Existing checkpoints of this round or later ones are damaged, because the run
        # would have continued after an intact one.
        older = [old for old in self._kept if old.round < new.round]
        self._kept = [*older, new][-self.keep :]
        self._clean()
        return new.digest

    def _assemble(
        self,
        round: int,
        meta: dict[str, Any],
        parts: Sequence[dict[str, Any]],
        best: Manifest | None,
    ) -> Manifest:
        """Return the manifest of a state after ``round``. Only for rank 0.

        Args:
            round: last round before the state.
            meta: facts about the checkpoint.
            parts: parts of the state by rank.
            best: manifest of the best state, or None.
        """
        files = [shard for part in parts for shard in _parse_shards(part["files"])]
        files.sort(key=lambda shard: shard.part.begin if shard.part else 0)
        clients = [
            ClientDigests(ids, part["template"], dict(part["clients"]))
            for ids, part in zip(self._hosted or (), parts, strict=True)
        ]
        [server] = [shard for shard in files if shard.is_of_server]
        of_run = digest_run(server.digests[0], clients)
        return Manifest(round=round, digest=of_run, meta=meta, files=files, best=best)

    def _clean(self) -> None:
        """Remove temporary files and files that no kept manifest lists.

        No rank may be writing.
        """
        wanted = {old.name for old in self._kept}
        wanted |= {shard.name for old in self._kept for shard in old.all_files}
        with atomic.explain_errors(self.folder):
            # Manifests are removed first, so that a kill never leaves a manifest
            # without its files.
            for pattern in (manifest.PATTERN, "clients-*.h5", "server-*.h5"):
                for path in self.folder.glob(pattern):
                    if path.name not in wanted:
                        path.unlink(missing_ok=True)
        atomic.remove_temporaries(self.folder)

    def _choose(self) -> tuple[Manifest | None, list[str]]:
        """Return the newest intact checkpoint, and a note on each damaged one.
        Collective.

        The result is (None, []) without checkpoints. Raises UserError if all are
        damaged.
        """
        with agreed(self.communicator):
            found = manifest.list_newest_first(self.folder)
        notes: list[str] = []
        names = self.communicator.bcast([path.name for path in found])
        paths = [self.folder / name for name in names]
        for position, path in enumerate(paths):
            newest, damage = self._examine(path)
            if newest is None:
                notes.append(f"{path}: damaged checkpoint ({damage})")
                continue
            if self.communicator.is_server:
                older = manifest.read_all(reversed(paths[position + 1 :]), self.run)
                self._kept = [*older, newest]
            self._best = newest.best
            # A damaged best state does not prevent the run from continuing.
            if newest.best and (damage := self._find_damage(newest.only_of_best)):
                notes.append(
                    f"{path}: the state before the best round is damaged and ignored ({damage})"
                )
                self._best = None
            return newest, notes
        if notes:
            raise UserError(
                "all checkpoints are damaged, `--fresh` starts over: "
                f"{'; '.join(notes)}"
            )
        return None, notes

    def _examine(self, path: Path) -> tuple[Manifest | None, str | None]:
        """Return a checkpoint and None if it is intact, else None and its damage.
        Collective.

        Raises UserError if a rank does not find the manifest that rank 0 has read.
        """
        found, damage = None, None
        if self.communicator.is_server:
            try:
                found = manifest.read(path, self.run)
            except Damaged as error:
                damage = str(error)
        table, damage = self.communicator.bcast([found and asdict(found), damage])
        if table is None:
            return None, damage
        with agreed(self.communicator):
            if not path.exists():
                raise UserError(
                    f"{path}: missing on a rank's host; the results folder must lie on a "
                    "file system that all hosts share"
                )
        newest = manifest.parse_manifest(table)
        damage = self._find_damage(newest.files)
        return (None if damage else newest), damage

    def _find_damage(self, files: list[Shard]) -> str | None:
        """Return the first damage of files, or None if all are intact. Collective.

        Each rank reads some of the files.
        """
        mine = files[self.communicator.rank :: self.communicator.size]
        damage = manifest.find_damage(self.folder, mine)
        damages = self.communicator.allgather(damage)
        return next(filter(None, damages), None)

    def _read(self, chosen: Manifest, clients: ClientStore) -> ReadShare:
        """Put the state of this rank's clients into ``clients``; return this rank's
        share of the server's state.
        """
        try:
            read_clients(self.folder, chosen, clients)
            return server_state.read_share(self.folder, chosen, self.communicator)
        except (Damaged, ValueError, FileNotFoundError) as error:
            raise UserError(
                f"{self.folder / chosen.name}: the run cannot continue from this checkpoint "
                f"({error}), `--fresh` starts over"
            ) from error


def read_clients(folder: Path, chosen: Manifest, clients: ClientStore) -> None:
    """Put the clients' state in a checkpoint into a store.

    Call ``Manifest.verify`` first.

    Args:
        folder: folder of the checkpoint.
        chosen: manifest of the checkpoint.
        clients: store; the state of other clients is not read.

    Raises:
        Damaged: A file is damaged.
        OSError: A file cannot be read.
        ValueError: The state does not fit the store.
    """
    hosted = set(clients.ids)
    for shard in chosen.files:
        ids = shard.ids or []
        rows = [row for row, client in enumerate(ids) if client in hosted]
        if rows:
            state = manifest.read_tensors(folder / shard.name, rows)
            clients.put([ids[row] for row in rows], state)
        heartbeat.beat()


def _parse_shards(files: list[dict[str, Any]]) -> list[Shard]:
    return [manifest.parse_shard(file) for file in files]


class CheckpointSchedule:
    """Schedule of checkpoints: every n rounds, or with "auto" as often as SHARE allows.

    With "auto" a checkpoint is due when the cost of the last one is at most SHARE of
    the time since it finished. The cost is the time that training waited for it, plus
    the whole time of writing in the background.

    Checkpoints do not change results, so every rank uses its own clock. A checkpoint
    begins when it is due on any rank.
    """

    def __init__(
        self, every: int | Literal["auto"], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._every, self._clock = every, clock
        # Cost of the last checkpoint in seconds. It is 0 at first, so that the first
        # round ends with a checkpoint, which measures the cost.
        self._cost = 0.0
        # Seconds that training has waited for the current checkpoint.
        self._waited = 0.0
        self._under_way = False
        self._finished = clock()  # time at which the last checkpoint finished

    def is_planned(self, round: int) -> bool:
        """Return whether a checkpoint is due at the end of ``round`` on all clocks."""
        return self._every != "auto" and round % self._every == 0

    def is_due(self, round: int) -> bool:
        """Return whether a checkpoint is due at the end of ``round``."""
        if self._every != "auto":
            return self.is_planned(round)
        return not self._under_way and self._cost <= SHARE * (
            self._clock() - self._finished
        )

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of the block as time in which training waits for a checkpoint."""
        before = self._clock()
        yield
        self._waited += self._clock() - before

    def record_begin(self) -> None:
        """Record that a checkpoint has begun."""
        self._under_way = True

    def record_end(self, written_in: float) -> bool:
        """Record that the current checkpoint, if any, is finished; return whether there
        was one.

        Args:
            written_in: seconds of writing in the background.
        """
        if not self._under_way:
            return False
        self._cost = self._waited + written_in
        self._waited, self._under_way = 0.0, False
        self._finished = self._clock()
        return True
