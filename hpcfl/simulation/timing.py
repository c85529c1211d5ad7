"""The clients' own time in an experiment with ``[time]``: when each takes part."""

from dataclasses import replace
from fractions import Fraction

from hpcfl.clients.batch_plan import epoch_length, fewest_samples
from hpcfl.clock import availability, devices
from hpcfl.clock.asynchronous import AsynchronousTimetable
from hpcfl.clock.calendar import Calendar
from hpcfl.clock.seconds import Duration, Work
from hpcfl.clock.synchronous import SynchronousTimetable
from hpcfl.communication.agreement import agreed
from hpcfl.communication.communicator import Communicator
from hpcfl.simulation import asynchronous, workload
from hpcfl.simulation.participation import draws_of
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.workload import Workload


def timed(prepared: Prepared, communicator: Communicator) -> Prepared:
    """Collective. The experiment with the calendar of its rounds, if it has ``[time]``.

    Raises UserError, the same on all ranks.
    """
    if prepared.config.time.mode == "none":
        return prepared
    own = None
    with agreed(communicator):
        if prepared.store.ids:
            if prepared.config.time.mode == "asynchronous":
                asynchronous.refuse(prepared)
            own = workload.of(prepared)
    found = communicator.allgather(_told(own))
    known = next(told for told in found if told is not None)
    with agreed(communicator):
        calendar = calendar_of(prepared, _heard(known))
        # so that what is wrong is known before round 1
        calendar.step(prepared.config.rounds)
    return replace(prepared, calendar=calendar)


def calendar_of(prepared: Prepared, load: Workload) -> Calendar:
    """Who takes part in each round, and when. Raises UserError."""
    config = prepared.config
    time = config.time
    clients = prepared.setup.clients
    training = config.training
    fewest = fewest_samples(training, prepared.resources.buffers.width > 0)
    samples = [
        epoch_length(count, training.batch_size, fewest, None)
        for count in prepared.setup.counts.sum(dim=1).long().tolist()
    ]
    table = devices.draw(time, clients, config.seed, load.sample_ms)
    duration = Duration(table, load.work, samples)
    on = availability.of(time, clients, config.seed)
    made_of = time, draws_of(config), duration, on
    if time.mode == "synchronous":
        return Calendar(SynchronousTimetable(*made_of), duration)
    return Calendar(AsynchronousTimetable(*made_of), duration)


def _told(load: Workload | None) -> list[str] | None:
    """A workload as it travels, JSON-able."""
    if load is None:
        return None
    work = load.work
    numbers = [work.passes, work.epochs, work.floats_down, work.floats_up]
    return [*map(str, numbers), load.sample_ms.hex()]


def _heard(told: list[str]) -> Workload:
    """The workload that ``_told`` was given."""
    passes, epochs, down, up, sample_ms = told
    work = Work(Fraction(passes), int(epochs), Fraction(down), Fraction(up))
    return Workload(work, float.fromhex(sample_ms))
