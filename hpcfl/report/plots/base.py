"""Contract of a kind of figure, and the sheet that it is drawn on.

A kind is a function ``plugin(runs, sheet, *, …)`` that returns a figure of matplotlib.
Its further keyword parameters are the options of ``hpcfl plot`` that it takes. It is
called while the house's style is set, and imports matplotlib where it needs more of it:
many machines that train have none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from textwrap import fill
from typing import TYPE_CHECKING, Any

from hpcfl.report import style
from hpcfl.report.style import SMALL, Look
from hpcfl.report.text import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

NARROWEST = 2.4  # inches of a panel in which a curve is drawn
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
    _panel: tuple[float, float] = (0.0, 0.0)  # inches of a panel

    def panels(
        self, count: int, most: int = 0, height: float = 0.0, **shared: Any
    ) -> "tuple[Figure, list[Axes]]":
        """Make a figure with panels.

        Args:
            count: How many panels.
            most: How many may lie beside each other; by default as many as fit.
            height: Inches of a row of panels; by default 0.68 of a panel's width, at
                most 3.
            shared: ``sharex``, ``sharey``, as for matplotlib's ``subplots``.
        """
        # Unlike pyplot this touches no window system.
        from matplotlib.figure import Figure

        across = min(count, most or max(1, int(self.width / NARROWEST)))
        down = ceil(count / across)
        width = self.width / across
        self._panel = (width, height or min(3.0, 0.68 * width))
        size = (self.width, down * self._panel[1])
        figure = Figure(figsize=size, layout="constrained")
        panels = list(figure.subplots(down, across, squeeze=False, **shared).flat)
        for spare in panels[count:]:
            spare.remove()
        return figure, panels[:count]

    def looks(self, methods: Mapping[str, str]) -> Mapping[str, Look]:
        """Return by label the looks of lines, of which ``methods`` has the methods."""
        return self.page or style.looks(methods)

    def title(self, text: object) -> str:
        """Return a panel's title on as many lines as it needs."""
        return _filled(text, self._panel[0] - 0.3)

    def upright(self, text: object) -> str:
        """Return the label of a y axis on as many lines as it needs."""
        return _filled(text, self._panel[1] - 0.5)

    def beside(self, text: object) -> str:
        """Return a row's label, at most half as wide as the sheet."""
        return literal(text, int(self.width / 2 / LETTER))

    def legend(
        self, figure: "Figure", handles: Sequence[Any], labels: Sequence[str]
    ) -> None:
        """Draw a legend below the panels, in as many columns as fit; the figure grows by
        its height.
        """
        # matplotlib leaves out lines whose label begins with "_"
        most = int((self.width - 0.5) / LETTER)
        texts = [literal(label, most).lstrip("_") for label in labels]
        widest = max(map(len, texts)) * LETTER + 0.6
        columns = max(1, min(len(labels), int(self.width / widest)))
        rows = ceil(len(labels) / columns)
        figure.set_figheight(figure.get_figheight() + rows * LINE + 0.1)
        figure.legend(
            handles,
            texts,
            ncols=columns,
            loc="outside lower center",
            handlelength=2.8,
            columnspacing=1.0,
            labelspacing=0.25,
        )


def literal(text: object, most: int = LONGEST) -> str:
    """Return a text on one line, cut after ``most`` letters."""
    letters = plain(text)
    return letters if len(letters) <= most else f"{letters[: most - 1]}…"


def _filled(text: object, inches: float) -> str:
    letters = max(8, int(inches / LETTER * SMALL / style.TEXT))
    return fill(literal(text, LINES * letters), letters)


def whole_numbers(axis: "Axis", most: int = 8) -> None:
    """Let an axis have ticks at whole numbers only, about ``most``."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(
        MaxNLocator(most, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)
    )
