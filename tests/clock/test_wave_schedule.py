"""Which trainings run side by side: by hand (time.md §6)."""

from timetables import Fixed, asynchronous

from hpcfl.clock.calendar import Calendar
from hpcfl.clock.devices import SECOND
from hpcfl.clock.wave_schedule import iterate_waves

S = SECOND


def test_waves_of_two_clients_by_hand():
    """Client 0 arrives every second, client 1 after 2.5 s; each arrival is a step.

    At first both train, of whom client 0 makes step 1. Its jobs from versions 1 and 2
    need what came before, so each is a wave; that from version 1 makes step 2, and step
    3, at 2.5 s, is of client 1, who has trained already. Client 0 starts at 2 s, from
    version 2, and arrives with step 4, which ends the run.
    """
    ticks = [S, int(2.5 * S)]
    calendar = Calendar(asynchronous(ticks, buffer=1), Fixed(ticks))
    found = [
        (list(wave.rounds), [(job.client, job.version) for _, job in wave.starts])
        for wave in iterate_waves(calendar, 4)
    ]
    assert found == [
        ([1], [(0, 0), (1, 0)]),
        ([2, 3], [(0, 1)]),
        ([4], [(0, 2)]),
    ]
