"""What every kind of figure is made on: a sheet of a given width, with panels and a
legend below them.

A kind is a function ``plugin(runs, sheet, *, …)`` that returns a figure of matplotlib.
Its further keyword parameters are the options of ``hpcfl plot`` that mean something to
it. It is called while the house's style is set, and imports matplotlib where it needs
more of it: many machines that train have none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from textwrap import fill
from typing import TYPE_CHECKING, Any

from hpcfl.report import style
from hpcfl.report.style import SMALL, TEXT, Look
from hpcfl.report.text import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

NARROWEST = 2.4  # inches of a panel in which a curve is drawn
ROW = "row "  # begins the ids of what belongs to a row
LONGEST = 100  # letters of a text
LINES = 4  # of a title
# The width of a letter and the height of a line of small text, in inches.
LETTER = 0.55 * SMALL / 72
LINE = 1.55 * SMALL / 72


@dataclass
class Sheet:
    """The paper of one figure.

    Attributes:
        width: Inches on paper.
        notes: Lines that the command prints beside the figure.
        page: By label the looks of all lines on the page that the figure is for; empty
            for a figure by itself.
    """

    width: float
    notes: list[str] = field(default_factory=list)
    page: Mapping[str, Look] = field(default_factory=dict)
    _across: int = 1  # panels beside each other
    _row: float = 0.0  # inches of a row of panels

    def panels(
        self, count: int, most: int = 0, height: float = 0.0, **shared: Any
    ) -> "tuple[Figure, list[Axes]]":
        """A figure with panels.

        Args:
            count: How many panels.
            most: How many may lie beside each other; by default as many as fit.
            height: Inches of a row of panels; by default 0.68 of a panel's width, at
                most 3.
            shared: ``sharex``, ``sharey``, as for matplotlib's ``subplots``.
        """
        # Unlike pyplot this touches no window system.
        from matplotlib.figure import Figure

        fitting = max(1, int(self.width / NARROWEST))
        across = min(count, most or fitting)
        down = ceil(count / across)
        row = height or min(3.0, 0.68 * self.width / across)
        self._across = across
        self._row = row
        figure = Figure(figsize=(self.width, down * row), layout="constrained")
        panels = list(figure.subplots(down, across, squeeze=False, **shared).flat)
        for spare in panels[count:]:
            spare.remove()
        return figure, panels[:count]

    def looks(self, methods: Mapping[str, str]) -> Mapping[str, Look]:
        """By label the looks of lines, of which ``methods`` has the methods."""
        return self.page or style.looks(methods)

    def title(self, text: object) -> str:
        """A panel's title, letter by letter as it is, on as many lines as it needs."""
        return self._filled(text, self.width / self._across - 0.3)

    def upright(self, text: object) -> str:
        """What stands beside a y axis, likewise."""
        return self._filled(text, self._row - 0.5)

    def beside(self, text: object) -> str:
        """What stands beside a row, at most half as wide as the sheet."""
        return literal(text, int(self.width / 2 / LETTER))

    def _filled(self, text: object, inches: float) -> str:
        letters = max(8, int(inches * SMALL / TEXT / LETTER))
        shown = _cut(text, LINES * letters)
        longest = max(map(len, shown.split()), default=0)
        # A long word stays whole, unless it would leave no room for what is drawn.
        too_long = longest > 2 * letters
        return _escaped(fill(shown, letters, break_long_words=too_long))

    def legend(
        self, figure: "Figure", handles: Sequence[Any], labels: Sequence[str]
    ) -> None:
        """A legend below the panels, in as many columns as fit; the figure grows by its
        height.
        """
        texts = [literal(label, int((self.width - 0.5) / LETTER)) for label in labels]
        longest = max(map(len, texts)) * LETTER + 0.5
        columns = max(1, min(len(labels), int(self.width / longest)))
        rows = ceil(len(labels) / columns)
        figure.set_figheight(figure.get_figheight() + rows * LINE + 0.1)
        # matplotlib leaves out lines whose label begins with "_"
        legend = figure.legend(
            handles,
            [text.lstrip("_") for text in texts],
            ncols=columns,
            loc="outside lower center",
            handlelength=2.8,
            columnspacing=1.0,
            handletextpad=0.5,
            labelspacing=0.25,
            borderaxespad=0.1,
        )
        for entry, text, label in zip(
            legend.legend_handles, legend.get_texts(), labels, strict=True
        ):
            if entry is not None:
                entry.set_gid(row_id(label))
            text.set_gid(row_id(label))


def row_id(label: str) -> str:
    """What marks all that is drawn of a row, or line, in the SVG of a figure."""
    return f"{ROW}{plain(label)}"


def literal(text: object, most: int = LONGEST) -> str:
    """A text that matplotlib shows letter by letter, the first ``most`` of them."""
    return _escaped(_cut(text, most))


def _cut(text: object, most: int) -> str:
    letters = plain(text)
    return letters if len(letters) <= most else f"{letters[: most - 1]}…"


def _escaped(letters: str) -> str:
    """The letters for matplotlib, for which '$' would begin a formula."""
    return letters.replace("$", r"\$")


def whole_numbers(axis: "Axis", most: int = 8) -> None:
    """Let an axis have ticks at whole numbers only, about ``most``."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(
        MaxNLocator(integer=True, nbins=most, steps=[1, 2, 5, 10], min_n_ticks=1)
    )
