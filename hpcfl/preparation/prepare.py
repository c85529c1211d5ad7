"""From a configuration to everything a rank needs before the first round. Nothing is written; all bad
input shows here."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from hpcfl import models
from hpcfl.communication import placement
from hpcfl.communication.agreement import agreed
from hpcfl.communication.communicator import Communicator, Process
from hpcfl.communication.placement import Placement
from hpcfl.data import datasets, partition
from hpcfl.data.datasets import Dataset
from hpcfl.data.partition import Split
from hpcfl.data.partitions.base import Scheme
from hpcfl.data.validation import hold_out
from hpcfl.errors import UserError
from hpcfl.experiment import blame, measures
from hpcfl.experiment.config import Config
from hpcfl.files import scratch
from hpcfl.fleet import Fleet, Resources, buffer_name, memory
from hpcfl.fleet.kernels import choose, convolves
from hpcfl.fleet.samples import Samples
from hpcfl.fleet.setup import Setup
from hpcfl.fleet.stopwatch import Stopwatch
from hpcfl.methods._averaged_buffers import AveragedBuffers
from hpcfl.methods.base import Audience, Cohort, Method, State
from hpcfl.preparation.device import Device, choose_device, found
from hpcfl.rows import layout, mixing, randomness
from hpcfl.scores._described import Measure
from hpcfl.scores.base import Score
from hpcfl.storage.clients import ClientStore


@dataclass(frozen=True)
class Prepared:
    """What does not change during a run, and this rank's store of private client state."""

    config: Config
    method: Method
    setup: Setup
    split: Split
    test_counts: Tensor  # [clients, classes]
    placement: Placement
    resources: Resources
    store: ClientStore
    server: State  # before round 1; empty on workers
    notes: list[str]  # what a user should know before round 1
    gpus: tuple[str, ...]  # types and libraries, of all ranks
    measure: Measure  # the score that `best` is about

    def audience(self, ids: np.ndarray, round: int) -> Audience:
        """What the method's server side knows of clients that it sends to."""
        return Audience(ids, self.setup, round, self.resources.beat)

    def cohort(self, ids: np.ndarray, round: int) -> Cohort:
        """What the method's server side knows of clients that it hears from."""
        return Cohort(ids, self.setup.counts[ids], self.setup, round, self.method.weights == "uniform",
                      self.resources.beat)

    def fleet(self, ids: np.ndarray, round: int, scored: bool) -> Fleet:
        """Those of ``ids`` that live on this rank, with their private state."""
        own = ids[np.isin(ids, self.store.ids)]
        state = self.store.get(own.tolist(), self.resources.device)
        return Fleet(own, state, self.setup.counts[own], round, scored, self.method.objective, self.resources)


def prepare_together(config: Config, communicator: Communicator) -> Prepared:
    """Collective. ``prepare`` on every rank, once they know who shares a GPU. Raises UserError,
    the same on all ranks."""
    with agreed(communicator):
        device = choose_device(config.runtime, communicator.local_rank)
    seat = found(device, communicator, config.runtime.precision)
    with agreed(communicator):
        return prepare(config, communicator, seat)


@blame.blamed()
def prepare(config: Config, process: Process, seat: Device | None = None) -> Prepared:
    """Load the data, draw the partition, build model and method; without ``seat`` on a device of its own.
    Raises UserError."""
    torch.set_num_threads(config.runtime.threads)
    scratch.limit(config.runtime.memory * 1e6)
    method = cast(Method, config.method)
    dataset = datasets.load(config.data)
    split = partition.make(cast(Scheme, config.partition), dataset)
    scores = _scores(config, split)
    labels = dataset.y.numpy()
    train, validation = hold_out(split.train, labels, method.validation_share(), config.partition.seed)
    counts, test_counts = (
        torch.from_numpy(replace(split, train=train).counts(labels, dataset.classes, part)).double()
        for part in ("train", "test"))
    seat = seat or Device(choose_device(config.runtime, process.local_rank))
    device = seat.device
    mixing.on(device)
    module = _build(config, method, dataset)
    with randomness.seeded(config.seed, "template"):
        template = module()
    parameters, buffers = layout.of_parameters(template), layout.of_buffers(template)
    setup = Setup(parameters, counts, config.rounds, config.seed, module, config.training,
                  config.participation.fraction)
    steps = torch.ceil(counts.sum(dim=1) / config.training.batch_size)
    placed = placement.place(steps.tolist(), process.size)
    own = placed.clients_of(process.rank).tolist()
    samples = Samples(dataset, own, train, split.test, device, device.type == "cpu" and convolves(template),
                      validation, config.data.augment, split.global_test)
    method, private = _with_buffers(config, method, setup, buffers, template)
    lanes = _lanes(config, seat, template.to(device), samples, dataset, private)
    kernel = choose(template, device, lanes, config.runtime.replay)
    resources = Resources(setup, samples, kernel, buffers, device, process.beat, Stopwatch(), scores)
    server = method.server_state(setup) if process.is_server else {}
    room = memory.STATE_SHARE * seat.memory if device.type == "cuda" else 0
    store = ClientStore(own, private, config.runtime.memory * 1e6, room)
    notes = [*split.notes, *method.notes(setup)]
    return Prepared(config, method, setup, split, test_counts, placed, resources, store, server, notes,
                    seat.kinds, measures.measure(config.evaluation, scores))


def _scores(config: Config, split: Split) -> dict[str, Score]:
    """The scores that are computed, by name: those by default, where they can be, and those asked for.

    Raises UserError where one that is asked for needs a shared test set and there is none.
    """
    asked = measures.asked(config.evaluation)
    for name, score in asked.items():
        if score.shared_test and not split.global_test:
            key = "scores" if name in config.evaluation.scores else "metric"
            raise UserError(f"evaluation.{key} = '{name}' needs all clients tested on the same samples, as "
                            f"with partition.scheme = 'dirichlet-min'; '{config.partition.scheme}' gives "
                            "each its own")
    unasked = {name: score for name, score in measures.built_in().items()
               if score.by_default and (split.global_test or not score.shared_test)}
    return unasked | asked


def _with_buffers(config: Config, method: Method, setup: Setup, buffers: layout.Layout,
                  template: nn.Module) -> tuple[Method, State]:
    """The method, wrapped where batch-norm statistics are averaged, and a client's private state."""
    private = method.client_state(setup)
    if buffers.width:
        statistics = {buffer_name(model): layout.to_row(buffers, template) for model in method.models}
        private |= statistics
        if config.training.buffers == "average":
            # the one that travels
            shared = {name: row for name, row in statistics.items() if name == buffer_name("model")}
            method = cast(Method, AveragedBuffers(method, shared, layout.floating(buffers, template)))
    return method, private


def _build(config: Config, method: Method, dataset: Dataset) -> Callable[[], nn.Module]:
    """A function that makes one client's model with fresh parameters, adapted to the method."""
    # the samples themselves are not kept
    shape, classes, vocabulary = dataset.shape, dataset.classes, dataset.vocabulary

    def build() -> nn.Module:
        return method.adapt(models.build(config.model, shape, classes, vocabulary))

    return build


def _lanes(config: Config, seat: Device, template: nn.Module, samples: Samples,
           dataset: Dataset, private: State) -> int | str:
    """``auto`` on a GPU: as many as fit into a rank's part of it, the same number on every rank."""
    if config.runtime.lanes != "auto" or samples.device.type != "cuda":
        return config.runtime.lanes
    part = seat.memory - dataset.x.nbytes
    return memory.most_lanes(template, dataset.normalise(dataset.x[:1].to(samples.device)),
                             config.training, part, sum(tensor.nbytes for tensor in private.values()))
