"""The schedule of an experiment's rounds, selected by ``[time]``.

The modules of virtual time are imported only if an experiment uses them.
"""

from hpcfl.communication.communicator import Communicator
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.round_schedule import RoundSchedule, make_untimed


def make_schedule(prepared: Prepared, communicator: Communicator) -> RoundSchedule:
    """Return the schedule of an experiment. Collective.

    Raises UserError, the same on all ranks.
    """
    mode = prepared.config.time.mode
    if mode == "none":
        return make_untimed(prepared, communicator)
    if mode == "asynchronous":
        from hpcfl.clock.asynchronous.rounds import make_asynchronous

        return make_asynchronous(prepared, communicator)
    from hpcfl.clock.synchronous import make_synchronous

    return make_synchronous(prepared, communicator)
