"""A dry round: a round and the final scoring of a small federation in this process.

One client with two samples takes part, and another client is scored. Both take part in
the trial of a user's own method. For the aggregation the message of the first client is
repeated for all clients. Model, loss, kernel, messages and stages are the same as in
the experiment.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients.execution import (
    Kernel,
    OperatorObserver,
    SerialKernel,
    Work,
    choose_kernel,
)
from hpcfl.clients.fleet import Fleet
from hpcfl.clients.losses import CROSS_ENTROPY, Batch, Tensors
from hpcfl.clients.resources import Resources, Stopwatch, make_head_kernel
from hpcfl.clients.samples import Samples
from hpcfl.clients.setup import Setup
from hpcfl.clients.training import Task
from hpcfl.communication import exchange
from hpcfl.communication.exchange import Placement
from hpcfl.communication.message import Mean, Mixture, Pool, split, wrap_entries
from hpcfl.errors import RunFailure, is_shortage
from hpcfl.files import heartbeat
from hpcfl.methods.base import State
from hpcfl.rows import constants, mixing, randomness
from hpcfl.rows.declared import MisusedTensor
from hpcfl.simulation import record
from hpcfl.simulation.hooks import Hooks, find_called_hook
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.round import Round
from hpcfl.simulation.stages import (
    COLLECT,
    COMPOSE,
    SEND,
    STORE,
    WORK,
    Stage,
    take_step,
)
from hpcfl.storage.clients import ClientStore

SAMPLES = 2  # number of samples of each client
# Maximum number of floats in the models of all clients. With large models there are
# fewer clients than in the experiment, but at least MIN_CLIENTS.
FLOATS = 1 << 24
MIN_CLIENTS = 2
# Bytes of models and state above which a dry round is skipped if no run follows. The
# process then stays below 1 GB, including torch.
TOO_LARGE = 7e8
SMALL_MODEL = 1 << 20  # floats; a dry round of a smaller model is never too large
# Numbers of models and private states in memory at once while one client trains.
MODELS, STATES = 6, 3
SERVER_HOOKS = (
    "server_state",
    "send",
    "aggregate",
    "send_to_newcomers",
)  # hooks that run on rank 0
HEARTBEATS = 10  # heartbeats of a server step after which it is considered correct


class LargeResult(Exception):
    """Exception that stops the creation of a state that is too large."""


class EnoughHeartbeats(Exception):
    """Exception that ends a long server step early, after it has run without error."""


def train_briefly(task: Task) -> Task:
    """Return a task with at most one epoch."""
    return replace(task, epochs=min(task.epochs, 1))


def repeat_uploads(round: Round) -> None:
    """Deliver the message of the one client as the messages of all clients.

    Its rows are repeated for each client; its own row replaces a mean.
    """
    if not len(round.cohort):
        return
    rows, means = split(round.work.upload)
    arrived = exchange.gather(
        communicator=round.communicator,
        placement=round.prepared.placement,
        ids=round.cohort,
        message=rows,
        headers=[exchange.make_header(rows)],
    )
    clients = round.prepared.setup.clients
    round.uploads = {}
    for name, of_client in (arrived or {}).items():
        round.uploads[name] = of_client.repeat(clients, 1)
    for name, mean in means.items():
        round.uploads[name] = average_one(mean)


def average_one(mean: Mean) -> Tensor:
    """Return the mean of one client's rows, ``[width]`` or ``[k, width]`` on the CPU.

    The exact sums of a real round would need several times the memory.
    """
    [row], [weights] = mean.tensor.detach(), mean.weights
    counts = (weights > 0).to(row.device)[..., None]
    return torch.where(counts, row, torch.nan).cpu()


def aggregate_briefly(round: Round) -> None:
    """Run the server step for all clients, and measure; end a long step early."""
    if round.uploads is None:
        return
    everyone = np.arange(round.prepared.setup.clients)
    with heartbeat.use_listener(limit_heartbeats()):
        take_step(round, everyone, round.uploads)
    recorded = round.collected.numbers.names
    round.prepared.hooks.measure(round.server, round.plan.number, recorded)


def refuse_other_gradients(small: Prepared) -> None:
    """Raise RuntimeError if a model has other gradients in a batch of clients.

    An example is a hook on a gradient, which torch does not call under ``vmap``.
    """
    resources = small.resources
    # A copy of the template has no hooks of parameters.
    with randomness.seeded(small.config.seed, "gradients"):
        module = small.setup.build().to(resources.device)
    own = {**dict(module.named_parameters()), **constants.collect_statistics(module)}
    trained = [name for name, _ in module.named_parameters()]
    x, y = resources.samples.take(np.arange(SAMPLES))
    alone, batched = (
        differentiate(kernel, own, trained, x, y)
        for kernel in (SerialKernel(module), resources.kernel)
    )
    length = torch.cat([gradient.flatten() for gradient in alone]).norm()
    for one, other in zip(alone, batched, strict=True):
        if (one - other).norm() > 0.05 * one.norm() + 0.01 * length:
            raise RuntimeError(
                "the model has other gradients under vmap than alone, as with a hook on a "
                "gradient"
            )


def differentiate(
    kernel: Kernel, own: Tensors, trained: list[str], x: Tensor, y: Tensor
) -> list[Tensor]:
    """Return the gradients of a model's cross-entropy, computed by a kernel.

    Args:
        kernel: kernel, with one lane or more.
        own: parameters and buffers of the model by name.
        trained: names of the parameters.
        x, y: mini-batch.
    """
    count = min(kernel.widest, 2)
    tensors = {name: torch.stack([own[name].detach().float()] * count) for name in own}
    layers = len(kernel.random_layers)
    keys = torch.zeros(count, layers, 2, dtype=torch.int32, device=x.device)
    work = Work(
        kernel.lay_out(tensors),
        trained,
        CROSS_ENTROPY,
        keys=(lambda _: keys) if layers else None,
    )
    batch = Batch(torch.stack([x] * count), torch.stack([y] * count))
    gradients, _ = kernel.begin(work).compute_gradients(slice(0, count), batch, {})
    # In the last lane: some mistakes of vmap spare the first one.
    return [gradients[name][-1] for name in trained]


def list_results(round: Round) -> dict[str, Tensor]:
    """Return the uploads, private state and numbers of clients and the server's state, by
    the names in messages.
    """
    uploads = wrap_entries(round.work.message)
    results = {f"upload '{name}'": entry.tensor for name, entry in uploads.items()}
    for name, tensor in round.work.state.items():
        results[f"fleet.state['{name}']"] = tensor
    for name, tensor in round.server.items():
        results[f"server['{name}']"] = tensor
    for name in record.list_names(round.numbers):
        parts = []
        for ids, numbers in round.numbers:
            parts.append(numbers.get(name, np.zeros(len(ids))))
        results[f"number '{name}'"] = torch.from_numpy(np.concatenate(parts))
    return results


def refuse_other_results(
    together: Mapping[str, Tensor], apart: Mapping[str, Tensor], tolerance: float
) -> None:
    """Raise MisusedTensor if clients have other results together than apart.

    Args:
        together: results of clients in one call of the method's hooks.
        apart: their results in a call for each.
        tolerance: difference that rounding explains, relative to the norm of a result.
    """
    for name, tensor in together.items():
        if not is_close(tensor, apart[name], tolerance):
            raise MisusedTensor(
                f"the {name} of a client depends on the other clients of its rank, so the "
                "number of ranks changes it; a function such as rows.norm() needs dim=1"
            )


def refuse_other_messages(small: Prepared, server: State) -> None:
    """Raise MisusedTensor if the message to a client depends on the other receivers.

    Factors make the server's numbers of all clients differ, which are equal after a dry
    round. Rows of pools and mixtures may be those of the receivers, and are skipped.
    """
    varied = dict(server)
    for name, tensor in server.items():
        if tensor.is_floating_point():
            noise = small.setup.normal(*tensor.shape, key=("trial", name))
            varied[name] = tensor * (1 + noise.to(tensor) / 100)
    both = np.array(small.store.ids)
    together, alone = (
        small.hooks.compose("send", varied, small.make_audience(ids, 2))
        for ids in (both, both[:1])
    )
    entries = wrap_entries(alone)
    for name, entry in wrap_entries(together).items():
        if isinstance(together.get(name), Pool | Mixture) or name not in entries:
            continue
        of_first = entries[name].tensor
        if not is_close(entry.tensor[: len(of_first)], of_first, tolerance=1e-5):
            raise MisusedTensor(
                f"'send' computes '{name}' from all receivers, which are all clients in scored "
                "rounds and else the cohort; 'aggregate' knows the cohort"
            )


def is_close(one: Tensor, other: Tensor | None, tolerance: float) -> bool:
    """Return whether two results differ only by rounding.

    Args:
        one, other: results; None for a missing one.
        tolerance: difference that rounding explains, relative to the norm of the finite
            numbers of ``one``.
    """
    if other is None or other.shape != one.shape:
        return False
    finite = one.double().nan_to_num(nan=0, posinf=0, neginf=0)
    rounding = tolerance * float(finite.norm())
    return torch.allclose(
        one.double(), other.double(), rtol=0, atol=rounding, equal_nan=True
    )


def release_memory(stage: str, round: Round) -> None:
    """Return unused memory to the system after a stage, as an observer."""
    mixing.get_large_memory().release()


REPEAT = Stage("upload", "gather", "uploads", repeat_uploads)
AGGREGATE_BRIEFLY = Stage("aggregate", "aggregate", "aggregation", aggregate_briefly)
# The stage that refuses diverged clients is left to the real rounds.
AFTER_WORK = (COLLECT, REPEAT, STORE, AGGREGATE_BRIEFLY)
DRY = (COMPOSE, SEND, WORK, *AFTER_WORK)


def count_bytes(prepared: Prepared) -> float:
    """Estimate the bytes of models and state that a dry round needs.

    Returns:
        The bytes; infinity if a tensor of the server has more than TOO_LARGE bytes. 0
        for a small model, for the clock and sample-level privacy, which require a dry
        round, and for errors, which a dry round explains.
    """
    setup, config = prepared.setup, prepared.config
    needed = config.time.mode != "none" or config.hides_samples
    if needed or setup.layout.width < SMALL_MODEL:
        return 0
    few = setup.class_counts[: count_clients(prepared)]
    try:
        with OperatorObserver(refuse_large_result):
            server = prepared.hooks.make_initial_state(
                "server_state", replace(setup, class_counts=few)
            )
    except LargeResult:
        return math.inf
    except Exception:
        return 0
    of_server = sum(tensor.nbytes for tensor in server.values())
    of_client = sum(row.nbytes for row in prepared.store.template.values())
    model = setup.layout.width * torch.float32.itemsize
    return of_server + STATES * of_client + MODELS * model


def refuse_large_result(operator: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Raise LargeResult if an operator returns a tensor with more than TOO_LARGE bytes.

    The tensor occupies no memory before it is written to.
    """
    if isinstance(result, Tensor) and result.nbytes > TOO_LARGE:
        raise LargeResult


def is_of_server(error: BaseException | None, hooks: Hooks) -> bool:
    """Return whether a server hook of the method or of an overlay raised an error.

    Failures of the machine are excluded.
    """
    if error is None or isinstance(error, RunFailure) or is_shortage(error):
        return False
    _, _, hook = find_called_hook(error, hooks).rpartition(".")
    return hook in SERVER_HOOKS


def limit_heartbeats() -> Callable[[], None]:
    """Return a listener that raises EnoughHeartbeats after HEARTBEATS heartbeats."""
    numbers = itertools.count(1)

    def listen() -> None:
        if next(numbers) > HEARTBEATS:
            raise EnoughHeartbeats

    return listen


def count_clients(prepared: Prepared) -> int:
    """Return the number of clients of the small federation."""
    affordable = max(MIN_CLIENTS, FLOATS // prepared.setup.layout.width)
    return min(prepared.setup.clients, affordable)


def shrink(prepared: Prepared, most_lanes: int, samples: int = SAMPLES) -> Prepared:
    """Return the experiment with few samples and one epoch per client.

    It has a separate kernel and separate stores.

    Args:
        prepared: experiment.
        most_lanes: maximum number of lanes.
        samples: number of samples of each client.
    """
    mixing.get_large_memory().release()  # memory of an earlier small federation
    resources = prepared.resources
    clients = count_clients(prepared)
    newcomers = [clients] if prepared.config.newcomers.clients else []
    # One client trains; another client, if there are several, is only scored. It has
    # other samples, so that a mean over clients differs from the first client's value.
    taking_part = list(range(min(clients, 2)))
    total = len(resources.samples.y)
    pool = np.arange(min(samples, total))
    pools = dict.fromkeys([*taking_part, *newcomers], pool)
    pools[taking_part[-1]] = (pool + taking_part[-1] * len(pool)) % total
    dealt = resources.samples.redistribute(pools)
    counts = dealt.counts(0).repeat(clients + len(newcomers), 1)
    counts[taking_part[-1]] = dealt.counts(taking_part[-1])
    # The few samples are less than a mini-batch.
    training = prepared.setup.training.model_copy(update={"drop_last": False})
    setup = replace(prepared.setup, class_counts=counts[:clients], training=training)
    private = prepared.hooks.make_initial_state("client_state", setup)
    for name, row in prepared.store.template.items():
        # A row is shared with the experiment unless its shape depends on the number of
        # clients.
        if name not in private or private[name].shape == row.shape:
            private[name] = row
    return replace(
        prepared,
        data=replace(prepared.data, counts=counts, shifts=None),
        setup=setup,
        resources=shrink_resources(resources, setup, dealt, most_lanes),
        store=ClientStore(taking_part, private),
        newcomers=ClientStore(newcomers, private),
        placement=Placement(np.zeros(len(counts), np.int64), 1),
        fleet_type=partial(Fleet, adjust=train_briefly),
    )


def shrink_resources(
    resources: Resources, setup: Setup, samples: Samples, most_lanes: int
) -> Resources:
    """Return resources with separate kernels, without noise and without attackers.

    Args:
        resources: resources of the experiment.
        setup, samples: facts and samples of the small federation.
        most_lanes: maximum number of lanes.
    """
    device, privacy = resources.device, resources.privacy
    module = setup.template().to(device)
    return Resources(
        setup=setup,
        samples=samples,
        kernel=choose_kernel(
            module,
            device,
            most_lanes,
            replay=False,
            computes_sample_gradients=privacy is not None,
            form=resources.kernel.form,
        ),
        buffers=resources.buffers,
        device=device,
        stopwatch=Stopwatch(),
        scores=resources.scores,
        head=make_head_kernel(module, device, most_lanes, False, memory=math.inf),
        privacy=privacy and privacy.without_noise(),
    )
