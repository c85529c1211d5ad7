"""Programs that run their rounds in turn, with the wall and CPU seconds of each round.

A program prints a line at the end of each round. Then all its processes are stopped
(SIGSTOP), and they continue for its next round. So each program starts only once, and
other load on the machine affects all of them. CPU seconds are user and system time of
all processes of a program, as Linux counts them in ``/proc``. Finally a program is
killed, unless it ends by itself.
"""

import os
import re
import signal
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

TICKS = os.sysconf("SC_CLK_TCK")  # of a CPU second in /proc
PATIENCE = 20  # seconds for a program to end by itself
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Seconds:
    """Wall and CPU seconds of a round."""

    wall: float
    cpu: float


class Program:
    """A running program that prints a line with ``mark`` at the end of each round."""

    def __init__(
        self,
        words: Sequence[object],
        mark: re.Pattern[str],
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        ends: bool = False,
    ):
        """Start the command ``words`` in a folder, with further environment variables.

        ends: Whether it ends by itself after the last round.
        """
        self._draw_words, self._mark = [str(word) for word in words], mark
        self._ends = ends
        self.process = subprocess.Popen(
            self._draw_words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
        )
        self._ids = [self.process.pid]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ):
        if self._ends and error is None:
            self._signal(signal.SIGCONT)
            self.process.communicate(timeout=PATIENCE)
        else:
            self._ids = find_processes(self.process.pid)
            self._signal(signal.SIGKILL)
            self.process.communicate()

    def warm_up(self, rounds: int):
        """Run the first rounds, including the start of the program, and stop."""
        for _ in range(rounds):
            self._read_to_mark()
        self._ids = find_processes(self.process.pid)
        self._signal(signal.SIGSTOP)

    def play_round(self) -> Seconds:
        """Continue for a round and stop again; return its seconds."""
        processor, begun = cpu_seconds(self._ids), time.perf_counter()
        self._signal(signal.SIGCONT)
        self._read_to_mark()
        ended = time.perf_counter()
        used = cpu_seconds(self._ids) - processor
        self._signal(signal.SIGSTOP)
        return Seconds(ended - begun, used)

    def _read_to_mark(self):
        lines = []
        for line in self.process.stdout:
            if self._mark.search(line):
                return
            lines.append(line)
        self.process.wait()
        raise RuntimeError(
            f"{' '.join(self._draw_words)}: ended with code {self.process.returncode} before "
            f"the end of a round\n{''.join(lines)}"
        )

    def _signal(self, number: signal.Signals):
        for one in self._ids:
            try:
                os.kill(one, number)
            except ProcessLookupError:
                continue  # it has ended by itself


def find_processes(root: int) -> list[int]:
    """Return the ids of a process and of all its descendants."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdecimal() and (fields := _read_stat(int(place.name))):
            children.setdefault(int(fields[1]), []).append(int(place.name))
    found, waiting = [], [root]
    while waiting:
        one = waiting.pop()
        found.append(one)
        waiting += children.get(one, [])
    return found


def cpu_seconds(processes: Iterable[int]) -> float:
    """Return the user and system time of processes since their start."""
    ticks = 0
    for one in processes:
        if fields := _read_stat(one):
            ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


def _read_stat(process: int) -> list[str]:
    """Return the fields of ``/proc/ID/stat`` after the name, none if the process has
    ended.
    """
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()


def race(
    contenders: Mapping[str, Callable[[], Program]], warm_up: int, rounds: int
) -> dict[str, float]:
    """Return the median seconds of each contender's rounds, which are played in turn.

    Args:
        contenders: functions that start the programs, by name.
        warm_up: rounds of each program that are not counted.
        rounds: counted rounds.

    Returns:
        wall seconds by the name, CPU seconds by the name and " CPU".
    """
    played: dict[str, list[Seconds]] = {name: [] for name in contenders}
    with ExitStack() as stack:
        running = {}
        for name, start in contenders.items():
            running[name] = stack.enter_context(start())
            running[name].warm_up(warm_up)
        for _ in range(rounds):
            for name, program in running.items():
                played[name].append(program.play_round())
    found = {}
    for name, seconds in played.items():
        found[name] = statistics.median(each.wall for each in seconds)
        found[f"{name} CPU"] = statistics.median(each.cpu for each in seconds)
    return found
