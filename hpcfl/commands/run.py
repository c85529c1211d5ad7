"""Run an experiment from start to end: prepare, claim the folder, restore the newest
checkpoint, play the remaining rounds.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcfl.adapters import make_adapter
from hpcfl.clock.schedule import make_schedule
from hpcfl.communication.communicator import Communicator, agreed, require_equal
from hpcfl.communication.connection import read_world_size
from hpcfl.data.partition import Split
from hpcfl.errors import Interrupted, RunFailure, UserError
from hpcfl.experiment import experiment_file, measures, plugins, user_code
from hpcfl.experiment.config import Config
from hpcfl.experiment.experiment_file import PATHS
from hpcfl.files import output
from hpcfl.methods.base import State
from hpcfl.report.progress import Progress
from hpcfl.simulation import preflight, start_checks, torch_settings
from hpcfl.simulation.device import list_ranks
from hpcfl.simulation.federation import BestRound, Federation, resume
from hpcfl.simulation.prepare import Prepared, prepare_together
from hpcfl.simulation.prepared_data import list_groups
from hpcfl.simulation.round import Result
from hpcfl.simulation.round_schedule import RoundSchedule
from hpcfl.simulation.signals import StopRequest
from hpcfl.simulation.start_checks import INPUTS
from hpcfl.storage import manifest, provenance, results, run_folder
from hpcfl.storage.checkpoint import Checkpoints, Restored
from hpcfl.storage.forms import AnotherRun, check_run
from hpcfl.storage.metrics import ResultsWriter
from hpcfl.storage.run_folder import CHECKPOINTS, PARTITION, REMOVE_OTHERS, Claim
from hpcfl.tracking.base import Tracking
from hpcfl.tracking.base import check as check_trackers

# Function that rank 0 calls for each recorded round, with the run's name, the round and
# the numbers by name.
OnRound = Callable[[str, int, dict[str, Any]], None]

# Keys that may differ between ranks: paths on a host and settings that change no results.
HOST_KEYS = (
    *(f"{section}.{key}" for section, key in PATHS),
    "runtime.memory",
    "runtime.track",
    "runtime.hang_after",
)

# End of the note on the first diverged clients of a run.
EXCLUDED = "left out by training.on_divergence = 'exclude', as in any later round"
# Minimum seconds of silence to allow before round 1, because imports send no heartbeats.
PREPARING = 15.0
# Keys of ``ClaimedRun.describe``: settings that affect the last bits of results.
LAST_BITS = (
    "versions",
    "processor",
    "arithmetic",
    "threads",
    "kernel",
    "gpus",
    "ranks",
)
# Seconds between writes of the metrics file; one write takes as long as a short round.
PUBLISH_EVERY = 1.0


def run(
    config: Config,
    folder: Path,
    communicator: Communicator,
    fresh: bool = False,
    on_round: OnRound | None = None,
) -> bool:
    """Start or continue the run in a folder. Collective.

    Nothing in the folder changes before ``Claim.begin``, and a UserError is raised only
    before it; later mistakes are RunFailures.

    Args:
        config: Configuration of the run.
        folder: Folder of the run.
        communicator: Communicator of all ranks.
        fresh: Whether to start over if the folder has results.
        on_round: Function that rank 0 calls after each round.

    Returns:
        False if the run is complete already, else True.

    Raises:
        UserError, RunFailure, Interrupted: On all ranks.
    """

    def end_at_once() -> None:
        """End all ranks after a second signal."""
        if communicator.is_server:
            without = " without --fresh" if fresh else ""
            output.complain(
                f"ended by a second signal; the same command{without} continues"
            )
        communicator.abort(1)

    communicator.watch(find_allowed_silence([config]))
    require_same_settings(communicator, {"": config}, folder, fresh)
    with StopRequest(end_at_once) as request, ExitStack() as stack:
        complete, folder_errors = _examine(communicator, config, folder, fresh)
        if complete:
            return False
        prepared = _prepare(config, communicator, folder_errors)
        prepared = preflight.run(prepared, communicator)
        schedule = make_schedule(prepared, communicator)
        prepared = start_checks.add_notes(prepared, schedule)
        hosted = prepared.placement.list_clients(communicator.rank).tolist()
        ranks = list_ranks(communicator, prepared.resources.device, hosted)
        new_ranks = communicator.introduce(ranks)
        claim = None
        with agreed(communicator):
            if communicator.is_server:
                claiming = run_folder.claim(folder, config, fresh)
                claim = stack.enter_context(claiming)
        # Another process may have completed the run since ``_examine``.
        if communicator.bcast(communicator.is_server and claim is None):
            return False
        checkpoints = Checkpoints(
            folder / CHECKPOINTS,
            communicator,
            keep=config.checkpoint.keep,
            run=config.fingerprint(),
            limits=manifest.make_limits(config),
        )
        stack.callback(checkpoints.close)
        restored = None if fresh else checkpoints.restore(prepared.store)
        _refuse_stopped(communicator, config, restored, request)
        claimed = ClaimedRun(
            communicator=communicator,
            prepared=prepared,
            schedule=schedule,
            checkpoints=checkpoints,
            restored=restored,
            claim=claim,
        )
        federation, notes = claimed.start()
        done = restored.round if restored else 0
        reporting = _report_rounds(
            federation=federation,
            folder=folder,
            done=done,
            new_ranks=new_ranks,
            notes=notes,
            on_round=on_round,
        )
        with _raise_as_failure(), reporting:
            federation.run(done, request)
    return True


@contextmanager
def _raise_as_failure() -> Iterator[None]:
    """Raise RunFailure instead of UserError in a block, because the folder has changed."""
    try:
        yield
    except UserError as error:
        raise RunFailure(str(error)) from error


@dataclass(frozen=True)
class ClaimedRun:
    """A run that owns its folder, before its first round.

    Attributes:
        communicator: Communicator of all ranks.
        prepared: Prepared experiment.
        schedule: Schedule of the rounds.
        checkpoints: Checkpoints in the folder.
        restored: Newest checkpoint; None before round 1.
        claim: Claim of the folder on rank 0; None on other ranks.
    """

    communicator: Communicator
    prepared: Prepared
    schedule: RoundSchedule
    checkpoints: Checkpoints
    restored: Restored | None
    claim: Claim | None

    def start(self) -> tuple[Federation, list[str]]:
        """Record the run in its folder and prepare the remaining rounds. Collective.

        Returns:
            Federation that plays the remaining rounds, and notes to show first.

        Raises:
            UserError: If an error occurs before anything in the folder changes.
            RunFailure: If an error occurs later.
        """
        server = resume(self.prepared, self.schedule, self.communicator, self.restored)
        notes: list[str] = []
        with agreed(self.communicator):
            if self.claim is not None:
                notes = self.begin_folder(self.claim)
        with _raise_as_failure():
            writer = None
            with agreed(self.communicator):
                if self.claim is not None:
                    writer = self.make_writer(self.claim)
            return self.make_federation(server, writer), notes

    def begin_folder(self, claim: Claim) -> list[str]:
        """Record the run in its folder, on rank 0, and return notes for the user.

        Args:
            claim: Claim of the folder.

        Raises:
            UserError: If the stored partition belongs to another run or to other data,
                the preflight has decided differently, or the folder cannot be written.
            RunFailure: If the folder cannot be written.
        """
        prepared, restored = self.prepared, self.restored
        notes = [*prepared.notes, *self.schedule.notes]
        if claim.note:
            notes.append(claim.note)
        partition, split = claim.folder / PARTITION, prepared.data.split
        run = prepared.config.fingerprint()
        saved = None if claim.fresh else _read_saved_split(partition, run, notes)
        if restored is not None and saved is not None and not saved.equals(split):
            raise UserError(
                f"{partition}: was drawn from other data than those in place now; restore "
                "the data of the run, or choose another --out or --fresh"
            )
        if restored is not None:
            start_checks.refuse_other_decisions(
                prepared, self.schedule, restored.meta, claim.folder
            )
        claim.begin()
        if restored is None or saved is None:
            replace(split, run=run).save(partition)
        if restored is None:
            return notes
        return [*notes, *restored.notes, *_list_changes(restored, self.describe())]

    def make_federation(
        self, server: State, writer: ResultsWriter | None
    ) -> Federation:
        """Return the federation that plays the remaining rounds.

        Args:
            server: State of the server before these rounds.
            writer: Writer of results on rank 0; None on other ranks.
        """
        self.communicator.watch(self.prepared.config.runtime.hang_after)
        limits = self.restored.meta.get("lanes") if self.restored else None
        if limits and len(limits) == self.communicator.size:
            # The number of lanes changes the last bits on a GPU, whose memory may limit it
            # further.
            self.prepared.resources.limit_lanes(limits[self.communicator.rank])
        return Federation(
            communicator=self.communicator,
            prepared=self.prepared,
            server=server,
            schedule=self.schedule,
            checkpoints=self.checkpoints,
            writer=writer,
            meta=self.describe(),
            best=_make_best_round(self.prepared, self.restored),
        )

    def make_writer(self, claim: Claim) -> ResultsWriter:
        """Return the writer of results on rank 0. Its header describes the run."""
        origin = provenance.collect_header()
        starts: list[dict[str, Any]] = []
        with suppress(UserError):
            recorded = results.read(claim.folder, self.prepared.config.fingerprint())
            starts = recorded.header.get("starts", [])
        start = {
            "after": self.restored.round if self.restored else 0,
            "time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            "ranks": self.communicator.size,
            "commit": origin["commit"],
            "failure": claim.failure,
            INPUTS: self.prepared.inputs,
        }
        header = {
            results.RUN: self.prepared.config.fingerprint(),
            "config": self.prepared.config.resolved(),
            "ranks": self.communicator.size,
            **origin,
            "starts": [*starts, start],
            "gpus": list(self.prepared.gpus),
            "clients": self.prepared.data.split.names,
            "primary": self.prepared.method.primary,
            "scores": measures.describe(self.prepared.resources.scores),
            "decisions": start_checks.describe_decisions(self.prepared, self.schedule),
        }
        static = {
            "train_counts": self.prepared.data.counts.long().numpy(),
            "test_counts": self.prepared.data.test_counts.long().numpy(),
            **self.schedule.get_constants(),
        }
        groups = list_groups(self.prepared.config, self.prepared.data)
        if groups is not None:
            static[results.GROUP], header["groups"] = groups
        rounds = self.prepared.config.rounds
        return ResultsWriter(claim.folder, header, static, PUBLISH_EVERY, rounds)

    def describe(self) -> dict[str, Any]:
        """Return the description of the run that a checkpoint stores.

        On a GPU the last bits of results depend on the number of lanes, and therefore on
        the number of ranks. On a CPU they do not.
        """
        config, kernel = self.prepared.config, self.prepared.resources.kernel
        on_gpu = self.prepared.resources.device.type == "cuda"
        return {
            "run": config.fingerprint(),
            "rounds": config.rounds,
            "frozen": self.prepared.fixed_digest,
            "decisions": start_checks.describe_decisions(self.prepared, self.schedule),
            "versions": provenance.collect_versions(),
            "processor": provenance.read_processor(),
            "arithmetic": provenance.digest_arithmetic(),
            "threads": config.runtime.threads,
            "kernel": [
                str(self.prepared.resources.device.type),
                config.runtime.lanes,
                *([kernel.widest] if on_gpu else []),
                *([kernel.form] if kernel.form != "grouped" else []),
            ],
            "gpus": list(self.prepared.gpus) or None,
            "ranks": self.communicator.size if self.prepared.gpus else None,
            INPUTS: self.prepared.inputs,
        }


def _examine(
    communicator: Communicator, config: Config, folder: Path, fresh: bool
) -> tuple[bool, list[str]]:
    """Return the state of the run's folder. Collective.

    Args:
        communicator: Communicator of all ranks.
        config: Configuration of the run.
        folder: Folder of the run.
        fresh: Whether to start over if the folder has results.

    Returns:
        Whether the folder holds the complete run, and error lines if the folder cannot
        be used.
    """
    complete, folder_errors = False, list[str]()
    with agreed(communicator):
        check_world(communicator)
        if communicator.is_server:
            try:
                complete = run_folder.examine(folder, config, fresh)
            except run_folder.OtherLength as error:
                folder_errors = [*error.args, *_describe_cost(config, error.begun_for)]
            except UserError as error:
                folder_errors = list(error.args)
            if complete:
                run_folder.tidy(folder)
    complete, folder_errors = communicator.bcast([complete, folder_errors])
    return complete, folder_errors


def _describe_cost(config: Config, begun_for: int) -> list[str]:
    """Return a line on the ε that ``config.rounds`` rounds would spend.

    Args:
        config: Configuration of the run; without a target ε there is no line.
        begun_for: Number of rounds for which the noise was computed.
    """
    if config.privacy is None or config.privacy.epsilon is None:
        return []
    if not config.hides_clients:
        return ["privacy.epsilon is spent by then; further rounds would exceed it"]
    from hpcfl.updates.privacy_setup import describe_cost

    return [describe_cost(config, begun_for)]


def _prepare(
    config: Config, communicator: Communicator, folder_errors: list[str]
) -> Prepared:
    """Return a rank's state before round 1. Collective.

    Args:
        config: Configuration of the run.
        communicator: Communicator of all ranks.
        folder_errors: Error lines of a folder that cannot be used. They are raised
            together with the errors of the experiment.

    Raises:
        UserError: If the folder cannot be used or the experiment is invalid.
    """
    try:
        with agreed(communicator):
            if communicator.is_server:
                check_trackers(config.runtime.track)
            adapter = make_adapter(config.adapter)
        prepared = prepare_together(config, communicator, adapter)
    except UserError as error:
        raise UserError(*folder_errors, *error.args) from error.__cause__
    if folder_errors:
        raise UserError(*folder_errors)
    return prepared


def _read_saved_split(path: Path, run: str, notes: list[str]) -> Split | None:
    """Read the partition of a run.

    Args:
        path: File of the partition.
        run: Fingerprint of the run.
        notes: Notes for the user; a damaged file adds one.

    Returns:
        Partition; None if there is no file or it is damaged.

    Raises:
        UserError: If the partition belongs to another run.
    """
    if not path.exists():
        return None
    try:
        saved = Split.load(path)
    except UserError as error:
        notes.append(f"{error}; it is written again")
        return None
    try:
        check_run(saved.run, run)
    except AnotherRun as error:
        raise UserError(f"{path}: {error}; {REMOVE_OTHERS}") from None
    return saved


def _refuse_stopped(
    communicator: Communicator,
    config: Config,
    restored: Restored | None,
    request: StopRequest,
) -> None:
    """Raise Interrupted if any rank received a stop signal. Collective."""
    if not any(communicator.allgather(request.received is not None)):
        return
    if restored is None:
        raise Interrupted(
            "stopped before round 1; the same command starts the run", begun=False
        )
    raise Interrupted(
        f"stopped after round {restored.round} of {config.rounds}; "
        "the same command continues"
    )


@contextmanager
def _report_rounds(
    federation: Federation,
    folder: Path,
    done: int,
    new_ranks: list[str],
    notes: list[str],
    on_round: OnRound | None,
) -> Iterator[None]:
    """Show the progress of a run on rank 0 while a block plays its rounds.

    Args:
        federation: Federation; it has a writer only on rank 0.
        folder: Folder of the run.
        done: Number of rounds that were played before.
        new_ranks: Names of ranks that were not shown yet.
        notes: Notes to show before the first round.
        on_round: Function to call after each round.
    """
    writer, prepared = federation.writer, federation.prepared
    if writer is None:
        yield
        return
    config = prepared.config
    history = _read_history(folder, done)
    divergences: list[str] = []
    tracking = Tracking(config.runtime.track, folder, config.resolved(), history)
    with Progress(folder, federation.communicator, prepared) as progress:

        def announce(result: Result) -> None:
            number = result.plan.number
            progress.round(number, result.values)
            if result.divergence and not divergences:
                divergences.append(result.divergence)
                progress.tell([f"{result.divergence}; {EXCLUDED}"])
            tracking.round(number, result.values)
            progress.tell(tracking.notes)
            if on_round is not None:
                clients = result.numbers.clients
                of_clients = {name: clients[name][0] for name in clients}
                values = result.values | of_clients
                _call_user(on_round, config.name, number, values)

        federation.announce = announce
        progress.start(done, new_ranks, [*notes, *writer.notes])
        try:
            with tracking:
                yield
        finally:
            progress.tell(tracking.notes)
            output.keep_note(folder)


def _call_user(
    on_round: OnRound, name: str, round: int, values: dict[str, Any]
) -> None:
    """Call the user's function for a round.

    An exception becomes a UserError with the line of the user's code. Settings of torch
    are restored after the call.
    """
    try:
        with torch_settings.restored():
            on_round(name, round, values)
    except (Exception, SystemExit) as error:
        where = user_code.locate(error, on_round)
        raise UserError(
            f"{where}on_round raised {user_code.describe_error(error)}"
        ) from error


def _read_history(folder: Path, done: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rounds up to ``done`` with their recorded values, ascending.

    Nothing is yielded if the results are lost.
    """
    with suppress(UserError):
        recorded = results.read(folder)
        for row, round in enumerate(recorded.rounds.tolist()):
            if round > done:
                continue
            values = {}
            for name in recorded.names:
                if not name.of_clients:
                    values[str(name)] = recorded.get_series(name)[row]
            yield round, values


def _make_best_round(prepared: Prepared, restored: Restored | None) -> BestRound | None:
    """Return the tracker of the best round if its state is to be saved, else None."""
    config = prepared.config
    if not config.checkpoint.best:
        return None
    chosen = measures.find_chosen_column(config.resolved(), prepared.column)
    return BestRound(chosen, prepared.measure, restored.best if restored else None)


def find_allowed_silence(configs: Iterable[Config]) -> float:
    """Return the seconds of silence to allow a rank before round 1, while it imports and
    prepares.
    """
    return max(PREPARING, *(config.runtime.hang_after for config in configs))


def require_same_settings(
    communicator: Communicator, cells: Mapping[str, Config], folder: Path, fresh: bool
) -> None:
    """Raise UserError on all ranks if their configurations, packages or settings differ.
    Collective.

    Args:
        communicator: Communicator of all ranks.
        cells: Configurations by the prefix of their keys in messages.
        folder: Folder of the results.
        fresh: Whether to start over if the folder has results.
    """
    settings: dict[str, Any] = {"--out": str(folder), "--fresh": fresh}
    if len(cells) > 1:
        settings["[sweep]"] = list(cells)
    for cell, config in cells.items():
        for key, value in list_shared_keys(config).items():
            settings[cell + key] = value
        settings |= plugins.hash_own_files(config.resolved())
    for package, version in provenance.collect_versions().items():
        settings[f"version of {package}"] = version
    require_equal(
        communicator,
        settings | provenance.collect_variables(),
        "all ranks of a job need the same configuration, files, packages and settings; a script "
        "must not draw a value on each rank",
    )


def list_shared_keys(config: Config) -> dict[str, Any]:
    """Return the resolved configuration by dotted key, without HOST_KEYS."""
    keys = experiment_file.flatten(config.resolved())
    for key in HOST_KEYS:
        keys.pop(key, None)
    # Ranks on one host use different devices, such as cuda:0 and cuda:1.
    keys["runtime.device"] = keys["runtime.device"].partition(":")[0]
    return keys


def check_world(communicator: Communicator) -> None:
    """Raise UserError if the ranks do not share one MPI world.

    If ``srun`` uses the interface of another MPI, it starts N worlds of size 1 without
    an error.
    """
    expected = read_world_size()
    if expected is not None and expected != communicator.size:
        raise UserError(
            f"the launcher started {expected} ranks but MPI sees a world of {communicator.size}; "
            "start with `srun --mpi=pmi2` (MPICH), `--mpi=pmix` (Open MPI) or "
            "`--mpi=cray_shasta` (Cray MPICH), or with this MPI's own mpiexec"
        )


def _list_changes(restored: Restored, meta: dict[str, Any]) -> list[str]:
    """Return a line for each of LAST_BITS that differs from the checkpoint, and for each
    input that has changed.

    Args:
        restored: checkpoint.
        meta: current result of ``ClaimedRun.describe``.
    """
    changes = []
    for key in LAST_BITS:
        before, now = restored.meta.get(key), meta[key]
        if before != now:
            changes.append(
                f"continued with other {key} ({before} before, {now} now): the last bits "
                "of results may differ from an undisturbed run"
            )
    for name in start_checks.list_changed_inputs(meta[INPUTS], restored.meta):
        changes.append(
            f"{name} has changed: the rounds up to {restored.round} were computed "
            "with an earlier version; to compute all rounds with this one: --fresh"
        )
    return changes
