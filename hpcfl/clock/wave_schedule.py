"""Waves of an asynchronous run: client trainings that are simulated together (time.md
§6).

A client's update depends only on inputs that are known when it starts. As soon as one
client has to train, all clients train that have started and will arrive. The server
then takes its steps until one needs a client that started later.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from hpcfl.clock.calendar import Calendar
from hpcfl.clock.timetable import Job


@dataclass(frozen=True)
class Wave:
    """Trainings that are simulated together.

    Attributes:
        rounds: those that need only these trainings and earlier ones; the first begins
            with the trainings.
        starts: the jobs, by version and client, each with its round.
    """

    rounds: range
    starts: list[tuple[int, Job]]


def wave_from(calendar: Calendar, first: int, trained: int, last: int) -> Wave:
    """Return the wave that begins with round ``first``.

    trained: jobs from versions below it are trained already. last: the last round of
    the run.
    """
    starts = []
    for version in range(trained, first):
        starts += calendar.started(version, first, last)
    end = first + 1
    while end <= last and _is_trained(calendar, end, first):
        end += 1
    return Wave(range(first, end), starts)


def iterate_waves(calendar: Calendar, last: int) -> Iterator[Wave]:
    """Yield the waves of all rounds up to ``last``."""
    trained, first = 0, 1
    while first <= last:
        wave = wave_from(calendar, first, trained, last)
        yield wave
        trained, first = first, wave.rounds.stop


def _is_trained(calendar: Calendar, number: int, trained: int) -> bool:
    """Return whether all clients of a round started from versions below ``trained``."""
    return all(job.version < trained for job in calendar.step(number).jobs)
