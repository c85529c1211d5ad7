"""Clients of an experiment with virtual time, from which a calendar starts."""

from dataclasses import dataclass
from fractions import Fraction
from typing import cast

import numpy as np

from hpcfl.clock import traces
from hpcfl.clock.availability import Availability, make_availability
from hpcfl.clock.durations import Duration, Work, draw_devices
from hpcfl.clock.workload import Workload, count_workload
from hpcfl.communication.communicator import Communicator, agreed
from hpcfl.experiment.sections import Time
from hpcfl.selection.base import LossReports, Selection
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.round_schedule import Draws, list_epoch_samples


@dataclass(frozen=True)
class Clients:
    """Clients of an experiment, as timetables use them.

    Attributes:
        time: section ``[time]``.
        draws: selection of clients and its inputs.
        duration: working time of each client.
        availability: online periods of each client.
    """

    time: Time
    draws: Draws
    duration: Duration
    availability: Availability


def describe_clients(prepared: Prepared, load: Workload) -> Clients:
    """Return the clients of an experiment. Raises UserError."""
    config, clients = prepared.config, prepared.setup.clients
    table = draw_devices(config.time, clients, config.seed, load.sample_ms)
    duration = Duration(table, load.work, list_epoch_samples(prepared))
    samples = np.array(duration.samples)
    ticks = None
    if config.participation.by_time:
        epochs = load.work.epochs
        ticks = np.array(
            [duration.count_ticks(client, epochs) for client in range(clients)]
        )
    draws = Draws(
        participation=cast(Selection, config.participation),
        clients=clients,
        seed=config.seed,
        samples=samples,
        ticks=ticks,
        reports=LossReports(samples),
    )
    online = make_availability(config.time, clients, config.seed)
    return Clients(config.time, draws, duration, online)


def share_workload(prepared: Prepared, communicator: Communicator) -> Workload:
    """Return the workload of a client in a round, the same on all ranks. Collective."""
    own = None
    with agreed(communicator):
        if prepared.store.ids:
            load = count_workload(prepared)
            work = load.work
            numbers = [work.passes, work.epochs, work.floats_down, work.floats_up]
            own = [*map(str, numbers), load.sample_ms.hex()]
    counted = communicator.allgather(own)
    passes, epochs, down, up, sample_ms = next(filter(None, counted))
    work = Work(Fraction(passes), int(epochs), Fraction(down), Fraction(up))
    return Workload(work, float.fromhex(sample_ms))


def note_files(prepared: Prepared) -> list[str]:
    """Return notes on the files of devices and of availability."""
    time, names = prepared.config.time, prepared.data.split.names
    paths = []
    if time.devices == "file":
        paths.append(time.file)
    if time.availability == "file":
        paths.append(time.availability_file)
    notes = []
    for path in paths:
        if path is not None:
            notes += traces.note_rows(path, prepared.setup.clients, names)
    return notes
