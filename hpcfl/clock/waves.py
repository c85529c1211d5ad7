"""Which trainings run side by side where the server waits for nobody, and which rounds
need no other (time.md §6).

What a client makes is a function of what it starts from, which is there once it starts.
So once somebody has to train, all train who have started and will arrive. With what they
make the server takes its steps until one needs a client that started later.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hpcfl.clock.calendar import Calendar
from hpcfl.clock.timetable import Job


@dataclass(frozen=True)
class Wave:
    """Trainings that run side by side.

    Attributes:
        rounds: which need these trainings and earlier ones alone; the first of them
            begins with the trainings.
        starts: the jobs, by version and client, each with the round that it is part of.
    """

    rounds: range
    starts: list[tuple[int, Job]]


def wave_from(calendar: Calendar, first: int, trained: int, last: int) -> Wave:
    """The wave that begins with round ``first``.

    trained: jobs from versions below it are trained already.
    last: the last round that is played.
    """
    starts = []
    for version in range(trained, first):
        starts += calendar.started(version, first, last)
    end = first + 1
    while end <= last and _is_trained(calendar, end, first):
        end += 1
    return Wave(range(first, end), starts)


def waves(calendar: Calendar, last: int) -> Iterator[Wave]:
    """The waves of all rounds up to ``last``."""
    trained, first = 0, 1
    while first <= last:
        wave = wave_from(calendar, first, trained, last)
        yield wave
        trained, first = first, wave.rounds.stop


def _is_trained(calendar: Calendar, number: int, trained: int) -> bool:
    """Whether all clients of a round started from versions below ``trained``."""
    return all(job.version < trained for job in calendar.step(number).jobs)
