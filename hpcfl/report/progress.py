"""Progress line of a run: round, primary metric, seconds per round, time left."""

import math
import statistics
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from rich.table import Column

from hpcfl.communication.communicator import Communicator
from hpcfl.files import output
from hpcfl.report.text import (
    escape,
    format_duration,
    is_in_notebook,
    literal,
    make_console,
)
from hpcfl.scores.metric_names import Measure, MetricName

if TYPE_CHECKING:
    from hpcfl.simulation.prepare import Prepared

PLAIN_INTERVAL = 60.0  # seconds between lines if the output is not a terminal
LINE_INTERVAL = 0.2  # seconds between updates of a notebook's line


class Progress:
    """Progress display of a run on rank 0.

    A terminal shows a bar, a notebook one line that is updated, and other outputs get a
    line at intervals. Under mpiexec the bar needs the environment variable
    ``TTY_COMPATIBLE=1``.
    """

    def __init__(
        self, folder: Path, communicator: Communicator, prepared: "Prepared"
    ) -> None:
        config = prepared.config
        self._config, self._folder = config, folder
        self._console = make_console()
        self._measure = prepared.measure
        self._column = str(MetricName(self._measure.recorded, prepared.column))
        self._workers = f"{max(1, communicator.size - 1)} worker{'s' if communicator.size > 2 else ''}"
        self._device = prepared.resources.device
        self._seconds: deque[float] = deque(maxlen=50)  # of the latest rounds
        self._reached = ""  # latest primary metric, formatted
        self._scored_round = 0  # round of that metric
        in_notebook = is_in_notebook() and not output.is_quiet()
        self._line = NotebookLine() if in_notebook else None
        self._last_line = 0.0  # time at which the latest line was shown
        self._unsaid = ""  # newer state that was not shown yet
        shortened = Column(overflow="ellipsis")  # for narrow terminals
        name = TextColumn("{task.description}", markup=False, table_column=shortened)
        state = TextColumn("{task.fields[state]}", table_column=Column(no_wrap=True))
        self._bar = Bar(
            name,
            BarColumn(10),
            state,
            console=self._console,
            disable=output.is_quiet() or not self._console.is_terminal,
        )

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()
        if self._line is not None and self._unsaid:
            self._show_line()

    def tell(self, notes: list[str]) -> None:
        """Print notes during the run, and remove them from the list."""
        while notes:
            self._say(f"note: {notes.pop(0)}")

    def start(self, done: int, ranks: list[str], notes: list[str]) -> None:
        """Print the ranks, the run and its notes, and show the bar.

        Args:
            done: Number of rounds that are finished already.
            ranks: Descriptions of ranks that were not printed yet; an earlier cell of a
                sweep may have printed them.
            notes: Notes to print.
        """
        config = self._config
        for rank in ranks:
            self._say(rank)
        method = config.method.name
        self._say(
            f"{config.name}: {method} on {config.data.dataset}, "
            f"{config.partition.clients} clients, {self._workers}, {self._device} → {self._folder}"
            + (f"; continues after round {done}" if done else "")
        )
        self.tell(notes)
        name = escape(self._folder.name)
        self._task = self._bar.add_task(
            name, total=config.rounds, completed=done, state=""
        )
        self._begun = time.perf_counter()

    def round(self, round: int, values: dict[str, Any]) -> None:
        """Show a finished round.

        Args:
            round: Number of the round; the final scoring is round R + 1.
            values: Recorded numbers of the round by name.
        """
        now = time.perf_counter()
        self._seconds.append(now - self._begun)
        self._begun = now
        rounds = self._config.rounds
        number = values.get(self._column)
        if number is not None:
            self._reached = describe_number(self._measure, number)
            self._scored_round = round
        reached = self._reached
        if reached and self._scored_round < round:
            reached += f" in round {self._scored_round}"
        if round > rounds:
            state = f"after {rounds} rounds  {reached}"
        else:
            pace = compute_pace(self._seconds)
            left = format_duration(pace * (rounds - round))
            state = (
                f"round {round}/{rounds}  {reached}  {pace:.3g} s/round  {left} left"
            )
        self._bar.update(self._task, completed=min(round, rounds), state=state)
        if self._console.is_terminal:
            return
        self._unsaid = f"{self._config.name}: {state}"
        interval = PLAIN_INTERVAL if self._line is None else LINE_INTERVAL
        if now - self._last_line > interval or round >= rounds:
            self._show_line()
            self._last_line = now

    def _show_line(self) -> None:
        """Show the latest state if the output is not a terminal."""
        if self._line is None:
            self._say(self._unsaid)
        else:
            self._line.show(escape(self._unsaid))
        self._unsaid = ""

    def _say(self, line: str) -> None:
        self._console.print(literal(line), soft_wrap=True)


def describe_number(measure: Measure, number: float) -> str:
    """Return a metric with its name and unit; NaN if no client has a number."""
    if math.isnan(number):
        return f"{measure.name}: no client has a number"
    return f"{measure.name} {measure.format(number)} {measure.unit}".rstrip()


def compute_pace(seconds: Iterable[float]) -> float:
    """Return the mean seconds per round.

    The oldest round is left out if there are others, because the first round of a run is
    slower.
    """
    oldest, *later = seconds
    return statistics.fmean(later or [oldest])


class NotebookLine:
    """A line of text below a notebook cell that can be updated."""

    def __init__(self) -> None:
        self._display: Any = None  # handle from IPython for updates

    def show(self, text: str) -> None:
        """Show a text in place of the previous one."""
        from IPython.display import display

        content = {"text/plain": text}
        if self._display is None:
            self._display = display(content, raw=True, display_id=True)
        else:
            self._display.update(content, raw=True)
