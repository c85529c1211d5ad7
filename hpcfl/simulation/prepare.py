"""Preparation of a rank before round 1: data, model, placement and initial state.

``prepare`` and ``prepare_together`` return a ``Prepared``. They write no files.
"""

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients.batch_plan import TrainingRequest
from hpcfl.clients.execution import choose_kernel
from hpcfl.clients.fleet import Fleet, Scoring, name_buffers
from hpcfl.clients.lane_memory import POOL_SHARE, STATE_SHARE
from hpcfl.clients.resources import (
    LaneChoice,
    Resources,
    Stopwatch,
    make_head_kernel,
)
from hpcfl.clients.samples import Samples
from hpcfl.clients.setup import Setup
from hpcfl.communication import exchange
from hpcfl.communication.communicator import (
    Communicator,
    Process,
    agreed,
    require_equal,
)
from hpcfl.communication.exchange import Placement
from hpcfl.errors import UserError
from hpcfl.experiment import measures, plugins, user_code
from hpcfl.experiment.config import Config
from hpcfl.files.scratch import Scratch, keep_freed_memory
from hpcfl.methods.base import Audience, Cohort, Method, Overlay, OwnOverlay, State
from hpcfl.methods.options import refuse_without_effect
from hpcfl.rows import layout, mixing
from hpcfl.scores.base import Score
from hpcfl.scores.metric_names import Measure
from hpcfl.simulation import torch_settings
from hpcfl.simulation.device import (
    Device,
    choose_device,
    list_device_notes,
    share_device_facts,
)
from hpcfl.simulation.hooks import Hooks
from hpcfl.simulation.prepared_data import (
    ClientData,
    list_data_notes,
    prepare_data,
)
from hpcfl.simulation.prepared_model import ModelAdapter, PreparedModel, prepare_model
from hpcfl.storage import provenance
from hpcfl.storage.clients import ClientStore, digest_tensors

if TYPE_CHECKING:
    from hpcfl.clients.sample_privacy import SamplePrivacy


@dataclass(frozen=True)
class Findings:
    """Findings of the preflight, which later steps use.

    Attributes:
        trainings: local trainings that the method requests in a round.
        dependent: names of the operators called whose last bits for a client depend on
            other clients.
        unbatched: one line on code that cannot be batched over clients; "" if all can.
        upload_kinds: kinds of a client's upload, as in ``exchange.Header``.
        is_idle: whether the server's step has assigned no tensor.
    """

    trainings: tuple[TrainingRequest, ...] = ()
    dependent: tuple[str, ...] = ()
    unbatched: str = ""
    upload_kinds: Mapping[str, exchange.Kind] = field(default_factory=dict)
    is_idle: bool = False


@dataclass(frozen=True)
class Prepared:
    """State of a rank before round 1: constants of the run, and the initial state.

    Attributes:
        config: configuration of the experiment.
        data: samples of the clients, without the samples of the data set.
        hooks: hooks of the method, with its overlays.
        setup: facts that methods may use.
        placement: rank of each client.
        resources: kernel, samples and device of this rank.
        store: private state of this rank's clients, the only part that rounds change.
        newcomers: private state of this rank's newcomers, which does not change.
        is_server: whether this rank is the server.
        notes: notes for the user before round 1.
        gpus: GPU types and libraries of all ranks.
        fixed_digest: as in ``PreparedModel``.
        inputs: checksums of the data set and of the user's files, by their names.
        findings: findings of the preflight.
        fleet_type: function that makes fleets for the method from the fields of a
            fleet.
    """

    config: Config
    data: ClientData
    hooks: Hooks
    setup: Setup
    placement: Placement
    resources: Resources
    store: ClientStore
    newcomers: ClientStore
    is_server: bool
    notes: list[str]
    gpus: tuple[str, ...]
    fixed_digest: str | None
    inputs: dict[str, str | int]
    findings: Findings = field(default_factory=Findings)
    fleet_type: Callable[..., Fleet] = Fleet

    @property
    def method(self) -> Method:
        """The method of the experiment."""
        return self.hooks.method

    @cached_property
    def initial_server_state(self) -> State:
        """The server's state before round 1, computed at first use; empty on workers.

        It may be as large as the models of all clients.

        Raises:
            UserError: The state has other values than tensors.
        """
        if not self.is_server:
            return {}
        with user_code.locate_errors(), torch_settings.unchanged("your module"):
            return self.hooks.make_initial_state("server_state", self.setup)

    @property
    def column(self) -> str:
        """The column of scored models that chooses the best round."""
        score = self.config.evaluation.score
        return self.method.primary if score == "method" else score

    @property
    def measure(self) -> Measure:
        """The metric that chooses the best round."""
        return measures.find_measure(self.config.evaluation, self.resources.scores)

    def select_resources(self, round: int) -> Resources:
        """Return the resources with the samples of a round."""
        samples = self.resources.samples.select_round(round)
        if samples is self.resources.samples:
            return self.resources
        return replace(self.resources, samples=samples)

    def keep_few_samples(self) -> "Prepared":
        """Return the experiment without most of its samples, for a trial without a run.

        A model on the CPU loses its values as well, because a trial builds its own
        model.
        """
        few = self.resources.samples.keep_few()
        if self.resources.device.type == "cpu":
            self.resources.kernel.module.to_empty(device="meta")
        return replace(self, resources=replace(self.resources, samples=few))

    def add_notes(self, *notes: str) -> "Prepared":
        """Return the experiment with further notes for the user."""
        return replace(self, notes=[*self.notes, *notes])

    def make_audience(self, ids: np.ndarray, round: int) -> Audience:
        """Return the method's view of the receivers of a message.

        Args:
            ids: ids of the clients [n].
            round: number of the round.
        """
        return Audience(ids, self.setup, round)

    def make_cohort(self, ids: np.ndarray, round: int) -> Cohort:
        """Return the method's view of the clients that uploaded.

        Args:
            ids: ids of the clients [n].
            round: number of the round.
        """
        return Cohort(
            ids=ids,
            class_counts=self.data.count_in_round(round)[ids],
            setup=self.setup,
            round=round,
            uniform=self.method.weights == "uniform",
        )

    def make_fleet(self, ids: np.ndarray, round: int, is_scored: bool) -> Fleet:
        """Return the fleet of this rank's clients among ``ids``.

        It has copies of their private state.

        Args:
            ids: ids of clients on any rank.
            round: number of the round.
            is_scored: whether models are scored.
        """
        local_ids = ids[self.store.is_hosted(ids)]
        state = self.store.get(local_ids.tolist(), self.resources.device)
        return self.fleet_type(
            ids=local_ids,
            state=state,
            class_counts=self.data.count_in_round(round)[local_ids],
            rounds=np.full(len(local_ids), round),
            scoring=Scoring(is_scored, self.config.evaluation.tune_epochs),
            loss=self.method.training_loss(),
            resources=self.select_resources(round),
        )

    @property
    def newcomer_ids(self) -> np.ndarray:
        """The ids of the newcomers, which follow the ids of the other clients."""
        return np.arange(self.setup.clients, len(self.data.counts))

    def make_newcomers(self) -> Fleet:
        """Return the newcomers of this rank in their own round 1.

        They train for ``newcomers.epochs`` epochs.

        The warm-up of the learning rate is meant for untrained models, so newcomers
        skip it.
        """
        ids = np.array(self.newcomers.ids, np.int64)
        training = self.setup.training.model_copy(
            update={"epochs": self.config.newcomers.epochs, "warmup": 0}
        )
        # Newcomers have the samples of the round after the last.
        after = self.config.rounds + 1
        resources = replace(
            self.select_resources(after), setup=replace(self.setup, training=training)
        )
        return self.fleet_type(
            ids=ids,
            state=self.newcomers.get(ids.tolist(), resources.device),
            class_counts=self.data.count_in_round(after)[ids],
            rounds=np.ones(len(ids), np.int64),
            scoring=Scoring(is_due=True),
            loss=self.method.training_loss(),
            resources=resources,
        )


def prepare_together(
    config: Config, communicator: Communicator, adapter: ModelAdapter | None = None
) -> Prepared:
    """Prepare the experiment on every rank. Collective call.

    The ranks first compare their GPUs.

    Args:
        config, adapter: as for ``prepare``.
        communicator: communicator of all ranks.

    Raises:
        UserError: The experiment is invalid, or ranks have different data or code. All
            ranks raise the same error.
    """
    with agreed(communicator):
        device = choose_device(config.runtime, communicator.local_rank)
    rank_device = share_device_facts(device, communicator, config.runtime.precision)
    with agreed(communicator):
        prepared = prepare(config, communicator, adapter, rank_device)
    require_equal(
        communicator,
        _compute_checksums(prepared),
        "data and code must be the same on all hosts, and a plugin must draw random "
        "numbers only by hpcfl's keys",
    )
    return prepared.add_notes(*_note_other_processors(communicator))


def _note_other_processors(communicator: Communicator) -> list[str]:
    """Return a note if ranks compute different last bits. Collective call."""
    if communicator.size == 1:
        return []
    arithmetics = communicator.allgather(provenance.digest_arithmetic())
    for rank, arithmetic in enumerate(arithmetics):
        if arithmetic != arithmetics[0]:
            return [
                f"the processors of rank {rank} and rank 0 compute different last bits, "
                "so results depend on the placement of clients"
            ]
    return []


def _compute_checksums(prepared: Prepared) -> dict[str, str | int | None]:
    """Return checksums of the parts that each rank prepares separately.

    They must be equal on all ranks.
    """
    split = prepared.data.split
    indices = hashlib.sha256()
    for held in (*split.train, *split.test):
        indices.update(held.tobytes())
    model = f"model.name = '{prepared.config.model.name}'"
    return {
        **prepared.inputs,
        "partition, the samples of each client": indices.hexdigest(),
        f"{model}, frozen or given parameters": prepared.fixed_digest,
        "the initial private state of a client": digest_tensors(
            prepared.store.template
        ),
    }


@user_code.locate_errors()
def prepare(
    config: Config,
    process: Process,
    adapter: ModelAdapter | None = None,
    rank_device: Device | None = None,
) -> Prepared:
    """Load the data, draw the partition, build the model and the state before round 1.

    Args:
        config: configuration of the experiment.
        process: rank and number of ranks.
        adapter: adapter of the experiment; None without one.
        rank_device: device of this rank; by default the device of a single rank.

    Raises:
        UserError: The experiment is invalid.
    """
    rank_device = set_up_process(config, process, rank_device)
    with torch_settings.unchanged("your module"):
        parts = _make_parts(config, process.size, adapter)
        data, model, placement = parts.data, parts.model, parts.placement
        own = placement.list_clients(process.rank)
        samples = Samples(
            data.dataset,
            own.tolist(),
            data.assigned,
            rank_device.device,
            augment=config.data.augment,
            shifts=data.shifts,
        )
        choice = _choose_lanes(parts, rank_device, samples)
        store, newcomers = _make_stores(config, rank_device, own, parts.private)
        return Prepared(
            config=config,
            data=replace(data, dataset=data.dataset.drop_samples()),
            hooks=parts.hooks,
            setup=parts.setup,
            placement=placement,
            resources=_make_resources(parts, rank_device, samples, choice),
            store=store,
            newcomers=newcomers,
            is_server=process.is_server,
            notes=[
                *config.notes,
                *model.notes,
                *list_data_notes(config, data),
                *plugins.describe_edited(config.resolved()),
                *parts.hooks.notes(parts.setup),
                *_note_idle_workers(placement),
                *list_device_notes(rank_device.device, config.runtime),
                *choice.notes,
            ],
            gpus=rank_device.kinds,
            fixed_digest=model.fixed_digest,
            inputs={
                f"data.dataset = '{config.data.dataset}'": data.checksum(),
                **plugins.hash_own_files(config.resolved()),
            },
        )


def set_up_process(
    config: Config, process: Process, rank_device: Device | None = None
) -> Device:
    """Apply the settings of a run to this process and return its device.

    Args:
        config, process, rank_device: as for ``prepare``.
    """
    rank_device = rank_device or Device(
        choose_device(config.runtime, process.local_rank)
    )
    torch.set_num_threads(config.runtime.threads)
    keep_freed_memory()
    memory = Scratch(config.runtime.memory * 1e6)
    mixing.use_device(rank_device.device, _count_blocks(config, process), memory)
    return rank_device


@dataclass(frozen=True)
class Parts:
    """Parts of an experiment that are equal on all ranks.

    Attributes:
        config: configuration of the experiment.
        data: samples of all clients.
        model: model of a client.
        setup: facts that methods may use.
        hooks: hooks of the method, with its overlays.
        placement: rank of each client.
        private: private state of a client before round 1.
        scores: metrics of every scored model, by name.
    """

    config: Config
    data: ClientData
    model: PreparedModel
    setup: Setup
    hooks: Hooks
    placement: Placement
    private: State
    scores: dict[str, Score]


def _make_parts(config: Config, size: int, adapter: ModelAdapter | None) -> Parts:
    """Return the parts of an experiment on ``size`` ranks. Raises UserError."""
    method = cast(Method, config.method)
    _refuse_unusable_keys(config, method)
    data = prepare_data(config, method)
    scores = _select_scores(config, data)
    model = prepare_model(config, method, data.dataset, adapter)
    setup = Setup(
        layout=model.parameters,
        class_counts=data.counts[: config.partition.clients],
        rounds=config.rounds,
        seed=config.seed,
        build=model.build,
        training=config.training,
        participation=config.participation.fraction,
        build_initial=model.build_initial,
        hides_classes=config.hides_samples,
    )
    hooks = Hooks(method, _make_overlays(config, method, model))
    return Parts(
        config=config,
        data=data,
        model=model,
        setup=setup,
        hooks=hooks,
        placement=_place_clients(data.counts, config, size),
        private=_make_private_state(hooks, setup, model),
        scores=scores,
    )


def _make_privacy(parts: Parts) -> "SamplePrivacy | None":
    """Return the sample-level privacy of local training; None without it."""
    config = parts.config
    if not config.hides_samples:
        return None
    from hpcfl.updates.sample_level import make_sample_privacy

    clients, has_statistics = len(parts.data.counts), parts.model.buffers.width > 0
    return make_sample_privacy(config, parts.hooks.method, clients, has_statistics)


def _make_private_state(hooks: Hooks, setup: Setup, model: PreparedModel) -> State:
    """Return the private state of a client before round 1."""
    private = hooks.make_initial_state("client_state", setup)
    if model.buffers.width:
        for name in hooks.method.models:
            private[name_buffers(name)] = layout.make_row(model.buffers, model.template)
    return private


def _choose_lanes(parts: Parts, rank_device: Device, samples: Samples) -> LaneChoice:
    """Return the choice of lanes for this rank."""
    config, dataset = parts.config, parts.data.dataset
    runtime = config.runtime
    asked = LaneChoice(runtime.lanes, runtime.lanes, runtime.form)
    if rank_device.device.type != "cuda":
        return asked
    from hpcfl.simulation.lane_choice import fit_lanes

    return fit_lanes(
        config=config,
        asked=asked,
        module=parts.model.template,
        sample=dataset.normalise(dataset.x[:1].to(samples.device)),
        memory=rank_device.memory - max(dataset.x.nbytes, samples.x.nbytes),
        private=sum(tensor.nbytes for tensor in parts.private.values()),
        placed=parts.placement,
    )


def _make_resources(
    parts: Parts, rank_device: Device, samples: Samples, choice: LaneChoice
) -> Resources:
    """Return the objects that train and score clients on this rank's device."""
    device, runtime = rank_device.device, parts.config.runtime
    template = parts.model.template.to(device)
    privacy = _make_privacy(parts)
    return Resources(
        setup=parts.setup,
        samples=samples,
        kernel=choose_kernel(
            template,
            device,
            choice.models,
            runtime.replay,
            computes_sample_gradients=privacy is not None,
            form=choice.form,
        ),
        buffers=parts.model.buffers,
        device=device,
        stopwatch=Stopwatch(),
        scores=parts.scores,
        head=make_head_kernel(
            module=template,
            device=device,
            most_lanes=choice.heads,
            replay=runtime.replay,
            memory=1e6 * runtime.memory,
        ),
        attackers=parts.data.attackers,
        privacy=privacy,
        clients_on_device=choice.clients_on_device,
        pool_bytes=int(POOL_SHARE * rank_device.memory),
    )


def _refuse_unusable_keys(config: Config, method: Method) -> None:
    """Raise UserError for keys that the method does not support.

    These are newcomers if the method has no model for them, and options without effect.
    """
    refuse_without_effect(method, config.training)
    if config.newcomers.clients and method.no_newcomers:
        raise UserError(
            f"newcomers.clients = {config.newcomers.clients}: {method.name} has no model for "
            f"clients that did not take part in training, {method.no_newcomers}"
        )


def _make_stores(
    config: Config, rank_device: Device, own: np.ndarray, private: State
) -> tuple[ClientStore, ClientStore]:
    """Return the initial private state of this rank's clients and of its newcomers.

    Args:
        own: ids of clients and newcomers of this rank.
        private: private state of a client before round 1.
    """
    new = own >= config.partition.clients
    return (
        ClientStore(
            own[~new].tolist(),
            private,
            config.runtime.memory * 1e6,
            STATE_SHARE * rank_device.memory,
        ),
        ClientStore(own[new].tolist(), private),
    )


def _place_clients(counts: Tensor, config: Config, size: int) -> Placement:
    """Place clients on ``size`` ranks by their numbers of local steps.

    Newcomers are placed likewise.

    Clients and newcomers are two groups, each spread evenly over the ranks, because
    they never train at the same time. Clients whose smaller last batches have equal
    sizes are placed together, because a rank processes these batches in one step. Large
    and small last batches are paired, so that ranks with equal numbers of steps also
    have similar numbers of samples.
    """
    trained, batch_size = config.partition.clients, config.training.batch_size
    kinds, costs = [], []
    for count in counts.sum(dim=1).int().tolist():
        tail = count % batch_size
        kinds.append((abs(2 * tail - batch_size), tail))
        costs.append(-(-count // batch_size))
    owners = []
    for group in (slice(trained), slice(trained, None)):
        owners.append(exchange.place(costs[group], size, kinds[group]).owner)
    return Placement(np.concatenate(owners), size)


def _note_idle_workers(placed: Placement) -> list[str]:
    """Return a note if some workers have no client."""
    if not (idle := len(placed.idle)):
        return []
    return [
        f"{idle} of {placed.size - 1} workers have no client; -n {placed.size - idle} is as fast"
    ]


def _select_scores(config: Config, data: ClientData) -> dict[str, Score]:
    """Return the scores to compute, by name: requested scores, and default scores.

    Default scores that cannot be computed are left out.

    Raises:
        UserError: A requested score needs a shared test set or an attack, and the
            experiment has none.
    """
    split, is_attacked = data.split, data.assigned.patched is not None
    asked = measures.find_scores(config.evaluation)
    for name, score in asked.items():
        if score.shared_test and not split.has_global_test:
            key = "scores" if name in config.evaluation.scores else "metric"
            raise UserError(
                f"evaluation.{key} = '{name}' needs a shared test set, as "
                f"with partition.scheme = 'dirichlet-min'; '{config.partition.scheme}' gives "
                "each client a separate one"
            )
        if score.scored_on != "test" and not is_attacked:
            raise UserError(
                f"evaluation.scores = '{name}' needs an attack with a success rate, such as "
                "attack.kind = 'backdoor'"
            )
    always = measures.list_built_in(measures.BY_DEFAULT)
    if split.has_global_test:
        always |= measures.list_built_in(measures.ON_SHARED_TEST)
    if is_attacked:
        always |= measures.list_built_in(measures.ON_ATTACK)
    return always | asked


def _make_overlays(
    config: Config, method: Method, model: PreparedModel
) -> tuple[Overlay, ...]:
    """Return the overlays of a run, innermost first."""
    overlays = list(method.overlays())
    buffers, template = model.buffers, model.template
    if buffers.width and config.training.buffers == "average":
        from hpcfl.methods.overlays.averaged_buffers import AveragedBuffers

        # Clients send only the statistics of their model named "model".
        statistics = layout.make_row(buffers, template)
        averaged = layout.find_floating(buffers, template)
        name = name_buffers("model")
        overlays.append(
            AveragedBuffers(
                name,
                statistics,
                averaged,
                method.shares,
                sends_counters=not config.hides_clients,
            )
        )
    overlays += cast(list[OwnOverlay], config.overlay)
    if config.changes_updates:
        from hpcfl.updates.downloads import list_makers

        for make in list_makers(config):
            inner = Hooks(method, tuple(overlays))
            compose = partial(inner.compose, "send")
            initial = partial(inner.make_initial_state, "server_state")
            overlays.append(make(config, compose, initial))
    if config.hides_samples:
        from hpcfl.updates.sample_level import SampleLevel

        assert config.privacy is not None
        overlays.append(SampleLevel(config.privacy, config.training.batch_size))
    return tuple(overlays)


def _count_blocks(config: Config, process: Process) -> int:
    """Return the number of blocks of a product that this rank computes at once.

    The server uses all its cores, with ``runtime.threads`` threads for each block,
    because other ranks on these cores wait while it works. The other ranks work at the
    same time, so each computes one block.
    """
    if process.rank:
        return 1
    return max(1, len(os.sched_getaffinity(0)) // config.runtime.threads)
