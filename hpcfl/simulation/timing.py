"""Calendar of the rounds: participants, and with ``[time]`` their times. It serves
selections other than the uniform one.
"""

from dataclasses import replace
from fractions import Fraction
from typing import cast

import numpy as np

from hpcfl.clients.batch_plan import epoch_length, fewest_samples
from hpcfl.clock import availability, devices, traces
from hpcfl.clock.asynchronous import AsynchronousTimetable
from hpcfl.clock.calendar import Calendar
from hpcfl.clock.devices import Devices
from hpcfl.clock.draws import Draws
from hpcfl.clock.seconds import Duration, Work
from hpcfl.clock.selection.base import LossReports, Selection
from hpcfl.clock.selection.uniform import Uniform
from hpcfl.clock.synchronous import SynchronousTimetable
from hpcfl.communication.agreement import agreed
from hpcfl.communication.communicator import Communicator
from hpcfl.experiment.sections import Time
from hpcfl.simulation import asynchronous, workload
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.workload import Workload

REHEARSED = 3  # rounds, before the first


def timed(prepared: Prepared, communicator: Communicator) -> Prepared:
    """Return the experiment with a calendar if it has ``[time]`` or a selection other
    than the uniform one. Collective call.

    Raises UserError, the same on all ranks.
    """
    config = prepared.config
    if config.time.mode == "none" and isinstance(config.participation, Uniform):
        return prepared
    if config.time.mode == "asynchronous":
        prepared = asynchronous.tried(prepared, communicator)
    load = None
    if config.time.mode != "none":
        load = _load(prepared, communicator)
    with agreed(communicator):
        calendar = calendar_of(prepared, load)
        # so that what is wrong is known before round 1
        if calendar.told is None:
            calendar.step(config.rounds)
        else:
            _rehearse(calendar_of(prepared, load), config.rounds)
        notes = _note_files(config.time, prepared.split.names)
    return replace(prepared, calendar=calendar, notes=[*prepared.notes, *notes])


def _note_files(time: Time, clients: list[str]) -> list[str]:
    """Return notes on the files of devices and of availability."""
    paths = []
    if time.mode != "none" and time.devices == "file":
        paths.append(time.file)
    if time.mode != "none" and time.availability == "file":
        paths.append(time.availability_file)
    notes = []
    for path in paths:
        if path is not None:
            notes += traces.note_order(path, clients)
    return notes


def _load(prepared: Prepared, communicator: Communicator) -> Workload:
    """Return a client's workload in a round, the same on all ranks. Collective call."""
    own = None
    with agreed(communicator):
        if prepared.store.ids:
            own = workload.count_workload(prepared)
    found = communicator.allgather(_encode(own))
    known = next(told for told in found if told is not None)
    return _decode(known)


def _rehearse(calendar: Calendar, rounds: int) -> None:
    """Let clients be chosen for the first rounds as if all told the same loss."""
    for number in range(1, min(rounds, REHEARSED) + 1):
        calendar.hear(np.ones(len(calendar.step(number).jobs)))


def calendar_of(prepared: Prepared, load: Workload | None) -> Calendar:
    """Return the calendar of an experiment. Without a ``load`` all clients take equally
    long, and times are not recorded. Raises UserError.
    """
    config = prepared.config
    time = config.time
    clients = prepared.setup.clients
    training = config.training
    fewest = fewest_samples(training, prepared.resources.buffers.width > 0)
    samples = [
        epoch_length(count, training.batch_size, fewest, None)
        for count in prepared.setup.counts.sum(dim=1).long().tolist()
    ]
    table = Devices([1] * clients, [1] * clients, [1] * clients, 0)
    work = Work(Fraction(0), training.epochs, Fraction(0), Fraction(0))
    if load is not None:
        table = devices.draw(time, clients, config.seed, load.sample_ms)
        work = load.work
    duration = Duration(table, work, samples)
    on = availability.make_availability(time, clients, config.seed)
    draws = _draws(prepared, duration)
    told = draws.told if config.participation.by_losses else None
    made_of = time, draws, duration, on
    if time.mode == "asynchronous":
        return Calendar(AsynchronousTimetable(*made_of), duration)
    return Calendar(SynchronousTimetable(*made_of), duration, told, load is not None)


def _draws(prepared: Prepared, duration: Duration) -> Draws:
    """Return the draws of the experiment, with the inputs of its selection."""
    config = prepared.config
    selection = cast(Selection, config.participation)
    clients = prepared.setup.clients
    samples = np.array(duration.samples)
    ticks = None
    if selection.by_time:
        epochs = duration.work.epochs
        ticks = np.array([duration.ticks(client, epochs) for client in range(clients)])
    return Draws(
        participation=selection,
        clients=clients,
        seed=config.seed,
        samples=samples,
        ticks=ticks,
        told=LossReports(samples),
    )


def _encode(load: Workload | None) -> list[str] | None:
    """Convert a workload to JSON-able values."""
    if load is None:
        return None
    work = load.work
    numbers = [work.passes, work.epochs, work.floats_down, work.floats_up]
    return [*map(str, numbers), load.sample_ms.hex()]


def _decode(told: list[str]) -> Workload:
    """Convert values of ``_encode`` back to a workload."""
    passes, epochs, down, up, sample_ms = told
    work = Work(Fraction(passes), int(epochs), Fraction(down), Fraction(up))
    return Workload(work, float.fromhex(sample_ms))
