"""From a configuration to everything that a rank needs before the first round.

Nothing is written: bad input that shows here has changed nothing.
"""

import hashlib
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from hpcfl import models
from hpcfl.clients.batch_plan import AskedTraining
from hpcfl.clients.execution import choose
from hpcfl.clients.fleet import Fleet, buffer_name
from hpcfl.clients.heads import head_kernel
from hpcfl.clients.losses import convolves
from hpcfl.clients.resources import STATE_SHARE, Resources, Stopwatch, most_lanes
from hpcfl.clients.samples import Samples
from hpcfl.clients.setup import INITIAL, Setup
from hpcfl.communication import placement
from hpcfl.communication.agreement import agreed, require_equal
from hpcfl.communication.communicator import Communicator, Process
from hpcfl.communication.placement import Placement
from hpcfl.data import datasets, partition
from hpcfl.data.datasets import Dataset
from hpcfl.data.partition import Split
from hpcfl.data.partitions.base import Scheme
from hpcfl.data.validation import hold_out
from hpcfl.errors import UserError
from hpcfl.experiment import measures, plugins, user_code
from hpcfl.experiment.config import MIXED, Config
from hpcfl.files import scratch
from hpcfl.methods.base import Audience, Cohort, Method, Overlay, State
from hpcfl.methods.options import refuse_without_effect
from hpcfl.models import usable
from hpcfl.models.replaced import replace_layers
from hpcfl.rows import constants, layout, mixing, randomness
from hpcfl.scores.base import Score
from hpcfl.scores.metric_names import Measure
from hpcfl.simulation import torch_settings
from hpcfl.simulation.device import Device, choose_device, found
from hpcfl.simulation.hooks import Hooks
from hpcfl.storage import digest, provenance
from hpcfl.storage.clients import ClientStore

if TYPE_CHECKING:
    from hpcfl.data.shifted import Shifts

NAMED = 5  # classes of a note
CLIENT_KEYS = ("client", "clients", "owners")  # of [data], of all sources


@dataclass(frozen=True)
class Prepared:
    """State of a rank before round 1: constants of the run, and the initial state.

    store: private state of this rank's clients, the one thing here that rounds change.
    newcomers: the same of its newcomers, which nobody changes.
    counts, test_counts: training and test samples of round 1, float64 [clients and
        newcomers, classes].
    held: the samples that each client trains on, their numbers in the data set.
    shifts: what sets clients apart beside their labels, if anything.
    frozen: the digest of the values of what the model freezes; None where it freezes
        nothing.
    samples_crc32: of all samples of the data set, on a rank beside others.
    trainings: the local trainings of a round, which the preflight finds; empty before it
        and for a method that trains nothing.
    unbatched: whether the preflight found that the model cannot be batched over clients.
    """

    config: Config
    method: Method
    hooks: Hooks  # of the method, with its overlays
    setup: Setup
    split: Split
    counts: Tensor
    test_counts: Tensor
    held: list[np.ndarray]
    placement: Placement
    resources: Resources
    store: ClientStore
    newcomers: ClientStore
    server: State  # before round 1; empty on workers
    notes: list[str]  # lines that a user should read before round 1
    gpus: tuple[str, ...]  # types and libraries, of all ranks
    measure: Measure  # the number that `best` is about
    data: Dataset  # without its samples
    frozen: str | None = None
    shifts: "Shifts | None" = None
    samples_crc32: int | None = None
    trainings: tuple[AskedTraining, ...] = ()
    unbatched: bool = False

    def counts_in(self, round: int) -> Tensor:
        """Training samples of each class as clients know them in a round, float64
        [clients and newcomers, classes].
        """
        if self.shifts is None or not self.shifts.relabels_later:
            return self.counts
        counts = self.shifts.train_counts(self.held, self.setup.classes, round)
        return torch.from_numpy(counts).double()

    def resources_in(self, round: int) -> Resources:
        """Return the resources with the samples of a round."""
        samples = self.resources.samples.select_round(round)
        if samples is self.resources.samples:
            return self.resources
        return replace(self.resources, samples=samples)

    def audience(self, ids: np.ndarray, round: int) -> Audience:
        """Return the method's view of the clients ``ids`` [n] that the server sends
        to.
        """
        return Audience(ids, self.setup, round)

    def cohort(self, ids: np.ndarray, round: int) -> Cohort:
        """Return the method's view of the clients ``ids`` [n] whose uploads the server
        receives.
        """
        return Cohort(
            ids=ids,
            counts=self.counts_in(round)[ids],
            setup=self.setup,
            round=round,
            uniform=self.method.weights == "uniform",
        )

    def fleet(
        self,
        ids: np.ndarray,
        round: int,
        scored: bool,
        fleet_type: Callable[..., Fleet] = Fleet,
    ) -> Fleet:
        """Those of the clients ``ids`` that live on this rank, with copies of their
        private state.
        """
        local_ids = ids[self.store.hosts(ids)]
        state = self.store.get(local_ids.tolist(), self.resources.device)
        return fleet_type(
            ids=local_ids,
            state=state,
            counts=self.counts_in(round)[local_ids],
            rounds=np.full(len(local_ids), round),
            scored=scored,
            loss=self.method.training_loss(),
            resources=self.resources_in(round),
            tune_epochs=self.config.evaluation.tune_epochs,
        )

    @property
    def newcomer_ids(self) -> np.ndarray:
        """The ids of the clients that are never trained with, which follow those of the
        others.
        """
        return np.arange(self.setup.clients, len(self.counts))

    def new_fleet(self, fleet_type: Callable[..., Fleet] = Fleet) -> Fleet:
        """Return the newcomers of this rank in their own round 1, with
        ``newcomers.epochs`` epochs.

        The warm-up of the learning rate is for hardly trained models, so newcomers skip
        it.
        """
        ids = np.array(self.newcomers.ids, np.int64)
        training = self.setup.training.model_copy(
            update={"epochs": self.config.newcomers.epochs, "warmup": 0}
        )
        # their samples are as they are once everybody else has trained
        after = self.config.rounds + 1
        resources = replace(
            self.resources_in(after), setup=replace(self.setup, training=training)
        )
        return fleet_type(
            ids=ids,
            state=self.newcomers.get(ids.tolist(), resources.device),
            counts=self.counts_in(after)[ids],
            rounds=np.ones(len(ids), np.int64),
            scored=True,
            loss=self.method.training_loss(),
            resources=resources,
        )


def prepare_together(config: Config, communicator: Communicator) -> Prepared:
    """Prepare the experiment on every rank after the ranks have compared their GPUs.
    Collective call.

    Raises UserError, the same on all ranks.
    """
    with agreed(communicator):
        device = choose_device(config.runtime, communicator.local_rank)
    seat = found(device, communicator, config.runtime.precision)
    with agreed(communicator):
        prepared = prepare(config, communicator, seat)
    require_equal(
        communicator,
        _checksums(prepared),
        "data and code must be the same on all hosts, and a plugin draws random numbers "
        "by hpcfl's keys alone",
    )
    return replace(prepared, notes=[*prepared.notes, *_other_processors(communicator)])


def _other_processors(communicator: Communicator) -> list[str]:
    """Return a note if ranks compute with different last bits. Collective call."""
    if communicator.size == 1:
        return []
    arithmetics = communicator.allgather(provenance.arithmetic())
    for rank, arithmetic in enumerate(arithmetics):
        if arithmetic != arithmetics[0]:
            return [
                f"the processor of rank {rank} computes other last bits than that of rank 0, "
                "so results depend on the clients that a rank hosts"
            ]
    return []


def _checksums(prepared: Prepared) -> dict[str, str | int | None]:
    """Return the checksums of what every rank has made for itself and all ranks must
    have alike.
    """
    split = prepared.split
    indices = hashlib.sha256()
    for held in (*split.train, *split.test):
        indices.update(held.tobytes())
    model = f"model.name = '{prepared.config.model.name}'"
    return {
        "data.dataset, the labels": split.labels_sha256,
        "data.dataset, the samples": prepared.samples_crc32,
        "partition, the samples of each client": indices.hexdigest(),
        f"{model}, frozen or given parameters": prepared.frozen,
        "the first private state of a client": digest.of_tensors(
            prepared.store.template
        ),
    }


def refuse_other_frozen(
    prepared: Prepared, meta: Mapping[str, Any], folder: Path
) -> None:
    """Raise UserError where a run's model froze other values than it does now.

    meta: what a checkpoint of the run in ``folder`` says of it.
    """
    began, now = meta.get("frozen"), prepared.frozen
    if began == now:
        return
    model = prepared.config.model
    file = prepared.config.adapter.base or model.init
    where = f", read from {file}," if file else ""
    raise UserError(
        f"{folder}: the frozen or given parameters of model.name = '{model.name}'{where} are not "
        f"those that the run began with (SHA-256 {began}, now {now}); put the file back that "
        "they are read from, or choose another --out or --fresh"
    )


@user_code.locate_errors()
def prepare(config: Config, process: Process, seat: Device | None = None) -> Prepared:
    """Load the data, draw the partition, build the model and the state before round 1.

    process: which rank this is, of how many. seat: its device; without one, that of a
    rank on its own. Raises UserError.
    """
    seat = take_seat(config, process, seat)
    with torch_settings.unchanged("a module of yours"):
        return _prepare(config, process, seat)


def take_seat(config: Config, process: Process, seat: Device | None = None) -> Device:
    """Give this process the settings of a run; return its device. Arguments as for
    ``prepare``.
    """
    seat = seat or Device(choose_device(config.runtime, process.local_rank))
    torch.set_num_threads(config.runtime.threads)
    mixing.use_device(seat.device, _cores(config, process))
    scratch.limit(config.runtime.memory * 1e6)
    return seat


def _prepare(config: Config, process: Process, seat: Device) -> Prepared:
    """``prepare`` on the device that was chosen."""
    method = cast(Method, config.method)
    _refuse(config, method)
    dataset = datasets.load(config.data)
    scheme, newcomers = cast(Scheme, config.partition), config.newcomers.clients
    shifts = None
    if config.shift:
        from hpcfl.data import shifted  # most experiments have no shift

        shifts = shifted.draw(
            config.shift, dataset, scheme.seed, scheme.clients, newcomers
        )
    replicas = shifts.replicas if shifts else None
    split = partition.make(scheme, dataset, newcomers, replicas, config.data)
    split = replace(split, groups=shifts.groups() if shifts else None)
    dataset = datasets.standardised(dataset, config.data, split.train[: scheme.clients])
    scores = _scores(config, split)
    train, validation, selection = _held_out(config, method, split, dataset.y.numpy())
    counts, test_counts = _counts(replace(split, train=train), dataset, shifts)
    device = seat.device
    build, build_initial, frozen, of_base = _builders(config, method, dataset)
    with randomness.seeded(config.seed, "template"):
        template = build_initial()
    parameters, buffers = layout.of_parameters(template), layout.of_buffers(template)
    _refuse_frozen(config, method, parameters)
    trained = config.partition.clients
    setup = Setup(
        layout=parameters,
        counts=counts[:trained],
        rounds=config.rounds,
        seed=config.seed,
        build=build,
        training=config.training,
        participation=config.participation.fraction,
        build_initial=build_initial,
    )
    placed = _placed(counts, trained, config.training.batch_size, process.size)
    own = placed.clients_of(process.rank)
    samples = Samples(
        dataset=dataset,
        clients=own.tolist(),
        train=train,
        test=split.test,
        device=device,
        channels_last=device.type == "cpu" and convolves(template),
        validation=validation,
        augment=config.data.augment,
        global_test=split.global_test,
        selection=selection,
        shifts=shifts,
    )
    hooks = Hooks(method, _overlays(config, method, buffers, template))
    private = _state("client_state", hooks, setup)
    if buffers.width:
        for model in method.models:
            private[buffer_name(model)] = layout.to_row(buffers, template)
    template = template.to(device)
    lanes = _lanes(
        config=config,
        seat=seat,
        template=template,
        samples=samples,
        dataset=dataset,
        private=private,
        together=_together(config, placed),
    )
    given = template, device, lanes, config.runtime.replay
    resources = Resources(
        setup=setup,
        samples=samples,
        kernel=choose(*given),
        buffers=buffers,
        device=device,
        stopwatch=Stopwatch(),
        scores=scores,
        head=head_kernel(*given, memory=1e6 * config.runtime.memory),
    )
    server: State = {}
    if process.is_server:
        server = _state("server_state", hooks, setup)
    store, newcomers_store = _stores(config, seat, own, private)
    samples_of_all = dataset.x.contiguous().numpy().data
    return Prepared(
        config=config,
        method=method,
        hooks=hooks,
        setup=setup,
        split=split,
        counts=counts,
        test_counts=test_counts,
        held=train,
        placement=placed,
        resources=resources,
        store=store,
        newcomers=newcomers_store,
        server=server,
        notes=[
            *config.notes,
            *of_base,
            *(note for note in dataset.description.notes if note not in split.notes),
            *split.notes,
            *_note_unused_clients(config, dataset, split),
            *_note_untrained(config, dataset, counts, test_counts),
            *method.notes(setup),
            *_idle(placed),
        ],
        gpus=seat.kinds,
        measure=measures.measure(config.evaluation, scores),
        data=dataset.without_samples(),
        frozen=frozen,
        shifts=shifts,
        samples_crc32=zlib.crc32(samples_of_all) if process.size > 1 else None,
    )


def _refuse(config: Config, method: Method) -> None:
    """Raise UserError for newcomers of whom the method knows nothing, and options that
    it leaves out.
    """
    refuse_without_effect(method, config.training)
    if config.newcomers.clients and method.no_newcomers:
        raise UserError(
            f"newcomers.clients = {config.newcomers.clients}: {method.name} has no model for a "
            f"client that never took part, {method.no_newcomers}"
        )


def _refuse_frozen(config: Config, method: Method, parameters: layout.Layout) -> None:
    """Raise UserError where the model has frozen what must be trained."""
    if not parameters.frozen:
        return
    adapted = config.adapter.kind != "none"
    how = (
        f"adapter.kind = '{config.adapter.kind}'"
        if adapted
        else "requires_grad = False"
    )
    if not parameters.width:
        raise UserError(
            f"model.name = '{config.model.name}': all its parameters are frozen "
            "(requires_grad = False), so there is nothing to train; leave some of them out"
        )
    for group, why in method.trains.items():
        if not parameters.members([group]):
            raise UserError(
                f"method.name = '{method.name}': all of the model's {group} is frozen "
                f"({how}), so {why}; leave some of it out, or take another method"
            )


def _held_out(
    config: Config, method: Method, split: Split, labels: np.ndarray
) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray] | None]:
    """Each client's samples to train on, those held out for the method, and those to
    choose rounds on.

    The last is None where the experiment holds none out for that. labels: int64, of all
    samples.
    """
    seed, share = config.partition.seed, config.training.validation
    train, selection = hold_out(split.train, labels, share, seed, "selection")
    train, validation = hold_out(train, labels, method.validation_share(), seed)
    return train, validation, selection if share else None


def _stores(
    config: Config, seat: Device, own: np.ndarray, private: State
) -> tuple[ClientStore, ClientStore]:
    """Return the initial private state of this rank's clients and of its newcomers.
    ``own`` has the ids of both.
    """
    new = own >= config.partition.clients
    return (
        ClientStore(
            own[~new].tolist(),
            private,
            config.runtime.memory * 1e6,
            STATE_SHARE * seat.memory,
        ),
        ClientStore(own[new].tolist(), private),
    )


def _placed(counts: Tensor, trained: int, batch_size: int, size: int) -> Placement:
    """Place clients on ranks by their local steps: the first ``trained`` ones, and the
    newcomers after them.

    Each of the two groups is spread evenly over the ranks, because they never work at
    the same time. Clients whose smaller last batches have one size do them as one step,
    if they live together. Large and small ones go in pairs, so that ranks with as many
    steps also have about as many samples.
    """
    samples = counts.sum(dim=1).int().tolist()
    tails = [count % batch_size for count in samples]
    kinds = [(abs(2 * tail - batch_size), tail) for tail in tails]
    costs = [-(-count // batch_size) for count in samples]
    groups = [
        placement.place(costs[group], size, kinds[group])
        for group in (slice(trained), slice(trained, None))
    ]
    return Placement(np.concatenate([group.owner for group in groups]), size)


def _idle(placed: Placement) -> list[str]:
    """Return a note if there are more ranks than can work."""
    if not (idle := len(placed.idle)):
        return []
    return [
        f"{idle} of {placed.size - 1} workers have no client; -n {placed.size - idle} is as fast"
    ]


def _counts(
    split: Split, dataset: Dataset, shifts: "Shifts | None"
) -> tuple[Tensor, Tensor]:
    """Count the training and test samples of each class of clients in round 1, float64
    [clients, classes] each.
    """
    classes = dataset.classes
    if shifts is not None:
        of_train = shifts.counts("train", split.train, classes, round=1)
        of_test = shifts.counts("test", split.test, classes, round=1)
    else:
        of_train, of_test = (
            split.counts(dataset.y.numpy(), classes, part) for part in ("train", "test")
        )
    return torch.from_numpy(of_train).double(), torch.from_numpy(of_test).double()


def _note_unused_clients(config: Config, dataset: Dataset, split: Split) -> list[str]:
    """Return a note where a key names the clients of a data set and others are drawn."""
    named = [key for key in CLIENT_KEYS if config.data.options.get(key) is not None]
    if not named or dataset.owners is None or split.names:
        return []
    return [
        f"data.{named[0]} names {len(dataset.owners.names):,} clients, but "
        f"partition.scheme = '{config.partition.scheme}' draws others; to use them, set "
        "partition.scheme = 'by-client'"
    ]


def _note_untrained(
    config: Config, dataset: Dataset, counts: Tensor, test_counts: Tensor
) -> list[str]:
    """Return a note on classes that clients are tested on and no client trains on."""
    trained = config.partition.clients
    is_tested = test_counts[:trained].sum(dim=0) > 0
    is_trained = counts[:trained].sum(dim=0) > 0
    untrained = (is_tested & ~is_trained).nonzero().flatten().tolist()
    if not untrained:
        return []
    names = ", ".join(dataset.class_name(number) for number in untrained[:NAMED])
    more = f" and {len(untrained) - NAMED} more" if len(untrained) > NAMED else ""
    return [
        f"{len(untrained)} of {dataset.classes} classes are tested and no client trains on "
        f"them: {names}{more}"
    ]


def _scores(config: Config, split: Split) -> dict[str, Score]:
    """Return the scores to compute, by name: the requested ones, and the default ones
    that can be computed.

    Raises UserError if a requested score needs a shared test set and there is none.

    """
    asked = measures.asked(config.evaluation)
    for name, score in asked.items():
        if score.shared_test and not split.global_test:
            key = "scores" if name in config.evaluation.scores else "metric"
            raise UserError(
                f"evaluation.{key} = '{name}' needs all clients tested on the same samples, as "
                f"with partition.scheme = 'dirichlet-min'; '{config.partition.scheme}' gives "
                "each its own"
            )
    always = measures.built_in(measures.BY_DEFAULT)
    if split.global_test:
        always |= measures.built_in(measures.ON_SHARED_TEST)
    return always | asked


def _state(hook: str, hooks: Hooks, setup: Setup) -> State:
    """Return the state before round 1 that a hook declares.

    Raises UserError with the place of a user's hook.
    """
    try:
        return hooks.initial_state(hook, setup)
    except UserError as error:
        place = user_code.find_definition(getattr(hooks.method, hook))
        raise UserError(f"{place}: {error}" if place else str(error)) from None


def _overlays(
    config: Config, method: Method, buffers: layout.Layout, template: nn.Module
) -> tuple[Overlay, ...]:
    """Return the overlays of a run, the innermost first."""
    overlays = list(method.overlays())
    if buffers.width and config.training.buffers == "average":
        from hpcfl.methods.options.averaged_buffers import AveragedBuffers

        # Only a client's "model" has statistics that travel.
        statistics = layout.to_row(buffers, template)
        averaged = layout.floating(buffers, template)
        name = buffer_name("model")
        overlays.append(AveragedBuffers(name, statistics, averaged, method.shares))
    return tuple(overlays)


def _builders(
    config: Config, method: Method, dataset: Dataset
) -> tuple[Callable[[], nn.Module], Callable[[], nn.Module], str | None, list[str]]:
    """Return builders of a client's model and of the initial model, a digest, and
    notes.

    The first builder makes fresh parameters, adapted to the method. The second may read
    a file. The digest covers values that the seed does not determine: frozen ones, and
    the file's tensors. Notes describe the file.

    Frozen values are those of the draw of the initial model, because trained values may
    be computed from them.
    """
    # taken out here, so that the function does not keep all samples
    shape, classes, vocabulary = dataset.shape, dataset.classes, dataset.vocabulary

    def built() -> nn.Module:
        return models.build(config.model, shape, classes, vocabulary)

    given, notes = _given(config, built)

    def fresh() -> nn.Module:
        return _complete(config, method, built())

    def first() -> nn.Module:
        module = built()
        if given:
            module.load_state_dict(given, strict=False)
        return _complete(config, method, module)

    statistics = _statistics(config, fresh, dataset)

    def of_base(module: nn.Module) -> dict[str, Tensor]:
        adapted = config.adapter.kind != "none"
        values = constants.frozen(module, adapted, statistics)
        if config.runtime.precision != MIXED:
            return values
        from hpcfl.models import mixed

        return mixed.stored(module, values)

    with randomness.seeded(config.seed, *INITIAL):
        frozen = of_base(first())
    for name in frozen:
        given.pop(name, None)  # not twice in memory
    fixed = dict(frozen)
    for name, value in given.items():
        fixed[f"init.{name}"] = value
    # as bytes, because numpy does not know every type of torch
    content = {
        name: value.contiguous().flatten().view(torch.uint8)
        for name, value in fixed.items()
    }
    return (
        lambda: constants.hold(fresh(), frozen),
        lambda: constants.hold(first(), frozen),
        digest.of_tensors(content) if content else None,
        notes,
    )


def _complete(config: Config, method: Method, module: nn.Module) -> nn.Module:
    """Return a built model with its adapter, precision and the method's changes."""
    if config.adapter.kind != "none":
        from hpcfl import adapters

        # The adapter comes first: what a method adds to the model is its own to train.
        module = adapters.adapt(module, config.adapter)
    if config.runtime.precision == MIXED:
        from hpcfl.models import mixed

        # by itself: what a method adds is computed in float32
        module = mixed.mix(replace_layers(module))
    return replace_layers(method.adapt(module))


def _statistics(
    config: Config, build: Callable[[], nn.Module], dataset: Dataset
) -> set[str]:
    """Return the names of a model's own buffers that its forward pass changes.

    Raises UserError where the model cannot be trained as it is.
    """
    name, x = config.model.name, dataset.normalise(dataset.x[:2])
    with randomness.seeded(config.seed, "statistics"):
        module = build()
    try:
        usable.refuse_unusable(module)
        own = ":" in name or any(constants.own_buffers(module))
        if not own:  # built-in models have no state but that of their norms
            return set()
        return usable.find_statistics(module, x, config.seed)
    except UserError:
        raise
    except Exception as error:
        plugin = plugins.find(models.__name__, "model.name", name)
        raise usable.explained(error, name, plugin, x) from error


def _given(
    config: Config, build: Callable[[], nn.Module]
) -> tuple[dict[str, Tensor], list[str]]:
    """Read the initial model's tensors from files, with notes on them. ``build`` makes
    it without an adapter. Raises UserError.
    """
    init, adapter = config.model.init, config.adapter
    if adapter.base is None:
        if adapter.names:
            raise UserError("adapter.names: needs adapter.base, the file that has them")
        if init is None:
            return {}, []
        from hpcfl.models import initial

        with randomness.seeded(config.seed, *INITIAL):
            return initial.read(init, build()), []
    if init is not None:
        raise UserError("model.init and adapter.base exclude each other")
    from hpcfl.adapters import base

    with randomness.seeded(config.seed, *INITIAL):
        of_base = base.read(adapter, build())
    return of_base.tensors, of_base.notes


def _cores(config: Config, process: Process) -> int:
    """Return how many blocks of a product this rank computes at once. The server uses
    all its cores.

    The other ranks, which may share these cores, wait while the server works. They all
    work at the same time.
    """
    return 1 if process.rank else len(os.sched_getaffinity(0)) // config.runtime.threads


def _together(config: Config, placed: Placement) -> int:
    """Return the most clients that may train at the same time on one rank."""
    hosted = np.bincount(placed.owner[: config.partition.clients]).max()
    cohort = config.participation.count(config.partition.clients)
    if config.time.mode == "asynchronous":
        cohort = config.time.concurrency or cohort
    return min(int(hosted), cohort)


def _lanes(
    config: Config,
    seat: Device,
    template: nn.Module,
    samples: Samples,
    dataset: Dataset,
    private: State,
    together: int,
) -> int | str:
    """``runtime.lanes``, where "auto" on a GPU is as many as fit into a rank's share of
    its memory.

    "auto" on the CPU is left to the kernel. together: how many clients take part in a
    round on one rank.
    """
    if config.runtime.lanes != "auto" or samples.device.type != "cuda":
        return config.runtime.lanes
    return most_lanes(
        module=template,
        samples=dataset.normalise(dataset.x[:1].to(samples.device)),
        training=config.training,
        memory=seat.memory - max(dataset.x.nbytes, samples.x.nbytes),
        private=sum(tensor.nbytes for tensor in private.values()),
        clients=together,
    )
