"""Memory and disk space that an experiment needs, computed without training."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, isinf, prod
from numbers import Real

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients import lane_memory
from hpcfl.clients.optimizers import list_slots
from hpcfl.clients.samples import count_samples
from hpcfl.communication.communicator import Communicator
from hpcfl.communication.message import (
    Entry,
    Field,
    Mean,
    Mixture,
    Pool,
    name_dtype,
    wrap_entries,
)
from hpcfl.experiment.config import Config
from hpcfl.files import scratch
from hpcfl.report.text import escape
from hpcfl.rows import constants, mixing
from hpcfl.rows.layout import Layout
from hpcfl.simulation import dry_round, message_trial, score_check
from hpcfl.simulation.hooks import call_hook
from hpcfl.simulation.lane_choice import count_concurrent
from hpcfl.simulation.prepare import Prepared
from hpcfl.storage import manifest, server_state
from hpcfl.storage.manifest import Part

Sent = Tensor | Field | Pool | Mixture | Mean
FLOAT = 4  # bytes
# float64 numbers per client and round in addition to its scores: losses, floats sent,
# divergence
NUMBERS = 4
# Bytes per number for sums over ranks: rank 0's sum, to which the other ranks' sums are
# added piece by piece, and the magnitude and unit of the column.
SUMS = 12
COLUMNS = 2  # number of columns that most methods score: pre and post
LOCKED_COPIES = 4  # page-locked blocks at a time: two of a product, in both directions
# headings of the table of memory
HEADINGS = (
    "rank",
    "clients",
    "samples",
    "state",
    "rows",
    "lanes",
    "file",
    "server",
    "sum",
)
CELL = 10  # width of a cell in letters


@dataclass(frozen=True)
class RankNeeds:
    """Memory of one rank in bytes without activations, and its number of clients."""

    clients: int  # number of clients that the rank hosts
    samples: int
    client_state: int  # state of all its clients, as far as runtime.memory permits
    rows: int  # models and state of the clients that take part in a round
    # models, gradients and optimizer state of the clients that train at the same time
    lanes: int
    # two copies of the largest file of clients in a checkpoint; they lie in $TMPDIR if
    # they have more than scratch.LARGE bytes each
    file: int


@dataclass(frozen=True)
class ServerNeeds:
    """Bytes that rank 0 needs as the server.

    Attributes:
        memory: State and messages, as far as ``runtime.memory`` permits, and the metrics
            of the run.
        files: State and messages beyond ``runtime.memory``, and the largest file of a
            checkpoint; these lie in $TMPDIR.
        state: Server state in each checkpoint.
        parts: Share of ``state`` that the ranks with clients write.
        part_files: Number of files of these parts.
        pools: Models from which each client receives some; each rank holds all of them.
        is_outline: Whether the state is too large to be created for the estimate.
            Messages then count as one model per client.
    """

    memory: int
    files: int
    state: int
    parts: int = 0
    part_files: int = 0
    pools: int = 0
    is_outline: bool = False


@dataclass(frozen=True)
class GpuNeeds:
    """Contents of one rank's GPU while its clients train.

    Attributes:
        clients: Number of clients whose rows are on the GPU at the same time.
        lane_count: Number of clients that train at the same time.
        samples, rows: Bytes of samples and of rows.
        lanes: Bytes of the lanes including activations.
        locked: Maximum bytes of page-locked copies on the host.
        pool: Bytes of a pool of models; 0 for a larger pool, which stays on the host.
    """

    clients: int
    lane_count: int
    samples: int
    rows: int
    lanes: int
    locked: int
    pool: int


@dataclass(frozen=True)
class Needs:
    """Memory and disk space that a job needs.

    Attributes:
        ranks: Needs of each rank.
        server: Additional needs of rank 0 as the server.
        gpus: Contents of each rank's GPU; None for a rank without GPU.
    """

    ranks: list[RankNeeds]
    server: ServerNeeds
    gpus: Sequence[GpuNeeds | None] = ()


def compute_needs(prepared: Prepared, communicator: Communicator) -> Needs | None:
    """Return the needs of all ranks; None on ranks other than 0. Collective."""
    server = gpu = None
    if prepared.store.ids:
        server = vars(compute_server_needs(prepared))
        gpu = compute_gpu_needs(prepared, server["pools"])
    of_ranks = communicator.gather(
        [vars(compute_rank_needs(prepared)), server, gpu and vars(gpu)]
    )
    if of_ranks is None:
        return None
    ranks, servers, gpus = zip(*of_ranks, strict=True)
    return Needs(
        [RankNeeds(**rank) for rank in ranks],
        ServerNeeds(**next(filter(None, servers))),
        [gpu and GpuNeeds(**gpu) for gpu in gpus],
    )


def compute_gpu_needs(prepared: Prepared, pools: int = 0) -> GpuNeeds | None:
    """Return the contents of this rank's GPU; None on a CPU.

    The rank must host clients.

    Args:
        prepared: Prepared experiment.
        pools: Bytes of the models from which each client receives some.
    """
    resources, hosted = prepared.resources, len(prepared.store.ids)
    if resources.device.type == "cpu":
        return None
    module, private = resources.kernel.module, count_state_bytes(prepared)
    clients = min(hosted, resources.clients_on_device)
    lane_count = min(
        clients, count_concurrent_clients(prepared, hosted), resources.kernel.widest
    )
    rows = clients * lane_memory.count_client_bytes(module, private)
    sample, _ = resources.samples.take(np.arange(1))
    lane_bytes = lane_memory.count_lane_bytes(
        module, sample, resources.training, private
    )
    return GpuNeeds(
        clients=clients,
        lane_count=lane_count,
        samples=resources.samples.nbytes,
        rows=rows,
        lanes=lane_count * lane_bytes + constants.count_bytes(module),
        locked=min(rows + pools, LOCKED_COPIES * mixing.LOCKED) + private,
        pool=pools if pools <= resources.pool_bytes else 0,
    )


def compute_rank_needs(prepared: Prepared) -> RankNeeds:
    """Return this rank's needs, without the server's."""
    hosted, samples = len(prepared.store.ids), prepared.resources.samples.nbytes
    return compute_hosting_needs(prepared, hosted, samples)


def forecast_rank_needs(prepared: Prepared) -> list[RankNeeds]:
    """Return the needs of every rank, computed on a single one that hosts clients.

    The bytes of another rank's samples are estimated from their number.
    """
    data, placement = prepared.data, prepared.placement
    hosts = [placement.list_clients(rank) for rank in range(placement.size)]
    counts = [
        count_samples(clients.tolist(), data.assigned, data.shifts) for clients in hosts
    ]
    here = placement.owner[prepared.store.ids[0]]
    of_sample = prepared.resources.samples.nbytes / counts[here]
    of_ranks = []
    for clients, count in zip(hosts, counts, strict=True):
        hosted = int((clients < prepared.config.partition.clients).sum())
        samples = round(count * of_sample)
        of_ranks.append(compute_hosting_needs(prepared, hosted, samples))
    return of_ranks


def compute_hosting_needs(prepared: Prepared, hosted: int, samples: int) -> RankNeeds:
    """Return the needs of a rank, without the server's.

    The estimate assumes the largest possible number of its clients in a round.

    Args:
        prepared: Prepared experiment, on any rank.
        hosted: Number of clients that the rank hosts.
        samples: Bytes of its samples.
    """
    config, resources = prepared.config, prepared.resources
    model, client = FLOAT * prepared.setup.layout.width, count_state_bytes(prepared)
    participants = count_concurrent_clients(prepared, hosted)
    limit = int(config.runtime.memory * 1e6)
    of_optimizer = len(list_slots(config.training))
    lane_count = min(participants, resources.kernel.widest)
    rows = participants * (2 * model + client)
    if config.time.mode == "asynchronous":
        # Finished updates wait for their round, in addition to the clients' start models.
        rows += participants * (model + client) + count_kept_bytes(prepared)
    return RankNeeds(
        clients=hosted,
        samples=samples,
        client_state=min(limit, hosted * client),
        # start rows, trained rows and the state in use
        rows=rows,
        # parameters, gradients and optimizer state; frozen parameters exist once
        lanes=lane_count * (2 + of_optimizer) * model
        + constants.count_bytes(resources.kernel.module),
        file=2 * min(hosted, count_clients_in_file(prepared)) * client,
    )


def count_clients_in_file(prepared: Prepared) -> int:
    """Return the largest number of clients in a file of a checkpoint."""
    limits = manifest.make_limits(prepared.config)
    return limits.count_clients(count_state_bytes(prepared))


def compute_server_needs(prepared: Prepared) -> ServerNeeds:
    """Return the needs of rank 0 as the server.

    They include its state, messages and checkpoint, which lie in files beyond
    ``runtime.memory``, the row and the module of the first model, and the metrics of the
    run, which are held twice while they are merged.

    Messages are taken from a round of a small federation with the same model and scaled
    to all clients. If the state is too large for that, messages count as one model per
    client. The rank must host clients.
    """
    config = prepared.config
    fixed: set[str] = set()
    is_outline = isinf(dry_round.count_bytes(prepared))
    if is_outline:
        messages = message_trial.outline_messages(prepared)
    else:
        fixed = message_trial.find_fixed(prepared)
        _, messages = message_trial.record_two_rounds(prepared)
    few, many = messages.clients, prepared.setup.clients
    # Widths of models in messages that do not belong to clients.
    widths_of_fixed = {messages.server[name].shape[-1] for name in fixed}
    state, parts = count_kept_bytes(prepared), list[Part]()
    for name, tensor in messages.server.items():
        shape = list(tensor.shape)
        if shape and shape[0] == few and name not in fixed:
            shape[0] = many
            widths_of_fixed.discard(shape[-1])
        state += prod(shape) * tensor.itemsize
        parts += make_parts(config, shape, tensor.dtype)
    in_parts = sum(part.size for part in parts)
    cohort = count_concurrent(config, many)
    audience = cohort if config.evaluation.clients == "cohort" else many
    sent = pools = 0
    for entry in messages.sent.values():
        models = many
        if isinstance(entry, Pool | Mixture) and entry.rows.shape[1] in widths_of_fixed:
            models = few
        size = count_sent_bytes(entry, few, models, audience)
        sent += size
        pools += size if isinstance(entry, Pool) else 0
    uploads = wrap_entries(messages.returned)
    received = sum(count_received_bytes(entry, cohort) for entry in uploads.values())
    widths = {name: entry.tensor.shape[-1] for name, entry in uploads.items()}
    for overlay in prepared.hooks.overlays:
        copies = call_hook(overlay, "count_server_bytes", Real, cohort, widths)
        received += int(copies)
    # A checkpoint writes the state while the next round makes a new one.
    held = 2 * state + sent + received
    first = 2 * FLOAT * prepared.setup.layout.width
    in_memory = min(int(config.runtime.memory * 1e6), held)
    # Rank 0 writes parts only if it hosts all clients.
    own_parts = parts if prepared.placement.size == 1 else []
    largest = max([state - in_parts, *(part.size for part in own_parts)])
    encoded = largest if largest > scratch.LARGE else 0
    return ServerNeeds(
        memory=in_memory + first + 2 * count_metrics_bytes(prepared),
        files=held - in_memory + encoded,
        state=state,
        parts=in_parts,
        part_files=len(parts),
        pools=pools,
        is_outline=is_outline,
    )


def make_parts(config: Config, shape: list[int], dtype: torch.dtype) -> list[Part]:
    """Return the parts of a checkpoint that hold a tensor of the server's state.

    A small tensor has no parts.

    Args:
        config: Configuration.
        shape: Shape of the tensor.
        dtype: Type of the tensor.
    """
    limits = manifest.make_limits(config)
    size = prod(shape) * dtype.itemsize
    if not server_state.is_large(shape, size, limits):
        return []
    return server_state.split("", shape, name_dtype(dtype), limits)


def compute_worker_share(needs: Needs) -> int:
    """Return the bytes of the server's state that a rank with clients writes."""
    workers = len(needs.ranks) - 1
    return ceil(needs.server.parts / max(1, workers))


def count_sent_bytes(entry: Sent, few: int, many: int, audience: int) -> int:
    """Return the bytes of an entry of the server's message.

    A pool or mixture with a model of each client grows with their number.

    Args:
        entry: Entry in a federation of ``few`` clients.
        few: Number of clients of the small federation.
        many: Number of clients of the experiment.
        audience: Number of clients that receive the message.
    """
    if isinstance(entry, Pool | Mixture):
        models = len(entry.rows)
        return entry.rows[:1].nbytes * (many if models == few else models)
    tensor = entry if isinstance(entry, Tensor) else entry.tensor
    shared = tensor.dim() == 1
    return tensor.nbytes if shared else tensor[:1].nbytes * audience


def count_file_bytes(prepared: Prepared, needs: Needs, rank: int) -> int:
    """Return the bytes in a rank's $TMPDIR.

    These are the private state, the server's state and the messages beyond
    ``runtime.memory`` each, and a large file of a checkpoint.
    """
    limit = int(prepared.config.runtime.memory * 1e6)
    private = max(0, needs.ranks[rank].clients * count_state_bytes(prepared) - limit)
    private += needs.ranks[rank].file - count_file_in_memory(needs.ranks[rank])
    if rank == 0:
        return private + needs.server.files
    received = compute_worker_share(needs) + needs.server.pools
    return private + max(0, received - limit)


def count_file_in_memory(rank: RankNeeds) -> int:
    """Return the bytes of ``rank.file`` that lie in memory."""
    return 0 if rank.file > 2 * scratch.LARGE else rank.file


def count_received_bytes(entry: Entry, senders: int) -> int:
    """Return the bytes on rank 0 for an entry that ``senders`` clients upload.

    Args:
        entry: Entry of one client.
        senders: Number of clients that upload it.
    """
    if isinstance(entry, Mean):
        numbers = entry.tensor[:1].numel()
        return numbers * (SUMS + entry.tensor.itemsize)
    return entry.tensor[:1].nbytes * senders


def count_concurrent_clients(prepared: Prepared, hosted: int) -> int:
    """Return the largest number of a rank's ``hosted`` clients that train in a round.

    With an asynchronous server, clients with an update that waits for its round count
    as well.
    """
    config, clients = prepared.config, prepared.config.partition.clients
    most = count_concurrent(config, clients)
    if config.time.mode == "asynchronous":
        most += config.participation.count(clients)
    return min(hosted, most)


def count_kept_bytes(prepared: Prepared) -> int:
    """Return the bytes of the old server models that every rank keeps for clients that
    train from them; 0 for a synchronous server.
    """
    config = prepared.config
    if config.time.mode != "asynchronous":
        return 0
    versions = count_concurrent(config, config.partition.clients)
    return versions * FLOAT * prepared.setup.layout.width


def count_state_bytes(prepared: Prepared) -> int:
    """Return the bytes of the private state of one client."""
    return sum(tensor.nbytes for tensor in prepared.store.template.values())


def count_checkpoint_bytes(prepared: Prepared, server: ServerNeeds) -> int:
    """Return the bytes of one checkpoint."""
    clients = prepared.config.partition.clients
    return server.state + clients * count_state_bytes(prepared)


def count_checkpoint_files(prepared: Prepared, workers: int) -> int:
    """Return the largest number of files of a checkpoint.

    Args:
        prepared: Prepared experiment.
        workers: Number of ranks with clients.
    """
    if not count_state_bytes(prepared):
        return 1
    clients = prepared.config.partition.clients
    in_file = count_clients_in_file(prepared)
    # The last file of each rank may have fewer clients.
    return 1 + min(clients, ceil(clients / in_file) + workers - 1)


def count_metrics_bytes(prepared: Prepared) -> int:
    """Return the bytes of the metrics of the whole run."""
    config = prepared.config
    entries = config.rounds * config.participation.count(config.partition.clients)
    if config.evaluation.clients == "all":
        scored = ceil(config.rounds / config.evaluation.every) + 1
        entries = max(entries, scored * config.partition.clients)
    numbers = COLUMNS * len(list_score_names(prepared)) + NUMBERS
    return entries * numbers * 8


def list_score_names(prepared: Prepared) -> set[str]:
    """Return the names of the per-client numbers that scores record in a column."""
    block = score_check.make_block(prepared.setup.classes)
    names: set[str] = set()
    for name, score in prepared.resources.scores.items():
        names |= set(score_check.compute_numbers(name, score, block))
    return names


def describe_needs(prepared: Prepared, needs: Needs) -> str:
    """Return a table of memory by rank, and lines on $TMPDIR and the disk."""
    lines = [
        *_tabulate_memory(prepared, needs),
        *_list_gpus(needs),
        *_describe_files(prepared, needs),
    ]
    if needs.server.is_outline:
        lines.append("messages: counted as one model to and from each client")
    checkpoint = count_checkpoint_bytes(prepared, needs.server)
    files = count_checkpoint_files(prepared, max(1, prepared.placement.size - 1))
    files += needs.server.part_files
    kept = prepared.config.checkpoint.keep + 1  # includes the one being written
    lines.append(
        f"disk: {format_size(checkpoint)} a checkpoint in at most {files:,} "
        f"file{'s' if files > 1 else ''}, {kept} checkpoints at most; "
        f"metrics {format_size(count_metrics_bytes(prepared))}"
    )
    return "\n".join(lines)


def _tabulate_memory(prepared: Prepared, needs: Needs) -> list[str]:
    """Return the lines of the table of memory, one for each rank."""
    rows: list[Sequence[object]] = [HEADINGS]
    limit = int(prepared.config.runtime.memory * 1e6)
    received = min(limit, compute_worker_share(needs) + needs.server.pools)
    for rank, own in enumerate(needs.ranks):
        sizes = [
            own.samples,
            own.client_state,
            own.rows,
            own.lanes,
            count_file_in_memory(own),
            received if rank else needs.server.memory,
        ]
        texts = map(format_size, [*sizes, sum(sizes)])
        rows.append([rank, own.clients, *texts])
    lines = ["memory, without Python, torch and activations"]
    for row in rows:
        lines.append("".join(f"{cell:>{CELL}}" for cell in row))
    return lines


def _list_gpus(needs: Needs) -> list[str]:
    """Return a line for each rank with a GPU."""
    lines = []
    for rank, gpu in enumerate(needs.gpus):
        if gpu is None:
            continue
        line = f"GPU of rank {rank}: {describe_gpu(gpu, needs.ranks[rank].clients)}"
        if pools := needs.server.pools:
            place = "" if gpu.pool else " on its host, copied in blocks"
            line += f"; pool of models {format_size(pools)}{place}"
        lines.append(line)
    return lines


def _describe_files(prepared: Prepared, needs: Needs) -> list[str]:
    """Return a line on the bytes in $TMPDIR; empty without such bytes."""
    of_server, *of_others = [
        count_file_bytes(prepared, needs, rank) for rank in range(len(needs.ranks))
    ]
    most = max(of_others, default=0)
    if not of_server and not most:
        return []
    others = f" and up to {format_size(most)} of another rank" if most else ""
    return [
        f"$TMPDIR of rank 0: {format_size(of_server)}{others}, beyond runtime.memory = "
        f"{prepared.config.runtime.memory:g}"
    ]


def describe_gpu(gpu: GpuNeeds, hosted: int) -> str:
    """Describe the GPU of a rank that hosts ``hosted`` clients."""
    return (
        f"samples {format_size(gpu.samples)}; rows of {gpu.clients} of {hosted} clients "
        f"at a time {format_size(gpu.rows)}; {gpu.lane_count} clients side by side "
        f"{format_size(gpu.lanes)}; page-locked on its host at most {format_size(gpu.locked)}"
    )


def describe_model(prepared: Prepared) -> str:
    """Return lines on the model's parameters and the scores."""
    name = escape(prepared.config.model.name)
    measure = prepared.measure
    direction = "highest" if measure.better == "up" else "lowest"
    scores = ", ".join(prepared.resources.scores)
    chosen = f"the best round has the {direction} {measure.name}"
    return (
        f"model: {name}, {describe_parameters(prepared.setup.layout)}\n"
        f"scores: {escape(scores)}; {escape(chosen)}"
    )


def describe_parameters(layout: Layout) -> str:
    """Return the numbers of trained and frozen parameters of a model as text."""
    if not layout.frozen:
        return f"{layout.width:,} parameters"
    return (
        f"{layout.width:,} parameters are trained, {layout.frozen:,} are frozen and not "
        "sent"
    )


def format_size(size: float) -> str:
    """Format a number of bytes in a suitable unit, such as ``3.2 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
