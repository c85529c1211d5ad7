"""The schedule of an experiment's rounds, selected by ``[time]``.

The modules of virtual time are imported only if an experiment uses them.
"""

from typing import TYPE_CHECKING

from hpcfl.communication.communicator import Communicator, agreed
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.round_schedule import RoundSchedule, make_untimed

if TYPE_CHECKING:
    from hpcfl.clock.calendar import Calendar
    from hpcfl.clock.workload import Workload


def make_schedule(prepared: Prepared, communicator: Communicator) -> RoundSchedule:
    """Return the schedule of an experiment after a rehearsal of its rounds. Collective.

    Raises UserError, the same on all ranks.
    """
    mode = prepared.config.time.mode
    if mode == "none":
        return make_untimed(prepared, communicator)
    from hpcfl.clock.clients import note_files, share_workload

    mixes = False
    if mode == "asynchronous":
        from hpcfl.clock.asynchronous.trial import try_asynchronous

        mixes = try_asynchronous(prepared, communicator)
    load = share_workload(prepared, communicator)
    with agreed(communicator):
        calendar = _make_calendar(prepared, load, mixes)
        rehearsed = calendar
        if calendar.reports is not None:
            # A calendar that reads losses cannot be played after its rehearsal.
            rehearsed = _make_calendar(prepared, load, mixes)
        rehearsed.rehearse()
        calendar.notes += note_files(prepared)
    return calendar


def _make_calendar(prepared: Prepared, load: "Workload", mixes: bool) -> "Calendar":
    """Return the calendar of an experiment.

    Args:
        prepared: prepared experiment.
        load: workload of a client in a round.
        mixes: Whether clients that start from different models can form one fleet.
    """
    from hpcfl.clock.clients import describe_clients

    clients = describe_clients(prepared, load)
    if prepared.config.time.mode == "asynchronous":
        from hpcfl.clock.asynchronous.rounds import AsynchronousCalendar

        return AsynchronousCalendar(prepared, clients, mixes)
    from hpcfl.clock.calendar import Calendar
    from hpcfl.clock.synchronous import SynchronousTimetable

    return Calendar(prepared, clients, SynchronousTimetable(clients))
