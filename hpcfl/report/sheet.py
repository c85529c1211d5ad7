"""The sheet that a figure is drawn on, the look of its lines, and the house's settings
of matplotlib.

A kind of figure is a function ``plugin(runs, sheet, *, …)`` that returns a figure of
matplotlib. Its keyword parameters are the options of ``hpcfl plot`` that it takes. It
is called within ``house_style``, and imports matplotlib itself, so that tables need no
matplotlib.
"""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil
from textwrap import fill
from typing import TYPE_CHECKING, Any

from hpcfl.report.text import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

TEXT, SMALL = 8, 7  # points, on paper, at the width that a figure is made for
# Okabe and Ito, "Color Universal Design", 2008: eight colours that are distinct for all
# kinds of colour vision. Yellow, which is pale on white, comes last.
OKABE_ITO = (
    "#000000",
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#E69F00",
    "#F0E442",
)
PLAIN = OKABE_ITO[1]
# Seven kinds of lines and eleven marks, which have no common factor, make 77 pairs: the
# built-in methods stay apart in grey, too.
DASHES = (
    (0, ()),
    (0, (4, 1.5)),
    (0, (1, 1)),
    (0, (5, 1, 1, 1)),
    (0, (9, 2)),
    (0, (1, 2.5)),
    (0, (5, 1, 1, 1, 1, 1)),
)
MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", "*", ">", "p")
# new versions of matplotlib have a type for these keys, which older ones lack
HOUSE: dict[Any, Any] = {
    "font.size": TEXT,
    "axes.titlesize": TEXT,
    "figure.titlesize": TEXT,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.2,
    "legend.frameon": False,
    "image.cmap": "cividis",
    "savefig.dpi": 200,
    "text.parse_math": False,  # a "$" in a name is a "$"
    "pdf.fonttype": 42,  # TrueType, as publishers ask
    "svg.hashsalt": "hpcfl",  # the same picture is the same file
}
NARROWEST = 2.4  # inches of a panel in which a curve is drawn
LINES = 4  # of a title
# The width of a letter and the height of a line of small text, in inches.
LETTER = 0.55 * SMALL / 72
LINE = 1.55 * SMALL / 72


@contextmanager
def house_style() -> Iterator[None]:
    """Let matplotlib draw in the house's style, whatever a ``matplotlibrc`` sets."""
    from matplotlib import style

    with style.context(HOUSE, after_reset=True), warnings.catch_warnings():
        # letters that its font lacks are drawn as boxes
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        yield


@dataclass(frozen=True)
class Look:
    """A line's colour, dashes and mark, as matplotlib takes them."""

    color: Any
    linestyle: Any
    marker: str


def make_look(number: int) -> Look:
    """Return the look of the line with a number, such as a class."""
    colours = list_colours()
    return Look(
        colours[number % len(colours)],
        DASHES[number % len(DASHES)],
        MARKS[number % len(MARKS)],
    )


def choose_looks(methods: Mapping[str, str]) -> dict[str, Look]:
    """Return by label the looks of a figure's lines, or of all lines on a page.

    A line has its method's colour; further lines of a method have other dashes and
    another mark. Where all lines are of one method, each has a colour of its own. The
    order of the lines changes nothing.

    Args:
        methods: By the label of each line its method.
    """
    order = sorted(set(methods.values()))
    lines: Counter[str] = Counter()  # of each method so far
    chosen = {}
    for label in sorted(methods):
        method = methods[label]
        place = order.index(method)
        chosen[label] = make_look(place + len(order) * lines[method])
        if len(order) > 1:
            chosen[label] = replace(chosen[label], color=make_look(place).color)
        lines[method] += 1
    return chosen


def list_colours() -> list[Any]:
    """Return Okabe and Ito's eight colours and 60 more that matplotlib has.

    "tab20b" has five hues in four shades: all hues come in one shade before the next
    shade does, and the darkest is not the first.
    """
    from matplotlib import color_sequences

    shades = color_sequences["tab20b"]
    hues = [colour for shade in (1, 2, 0, 3) for colour in shades[shade::4]]
    return [*OKABE_ITO, *hues, *color_sequences["tab20"], *color_sequences["tab20c"]]


@dataclass
class Sheet:
    """The paper of one figure.

    Attributes:
        width: Inches on paper.
        notes: Lines that the command prints beside the figure.
    """

    width: float
    notes: list[str] = field(default_factory=list)
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

    def title(self, text: object) -> str:
        """Return a panel's title on as many lines as it needs."""
        return _fill(text, self._panel[0] - 0.3)

    def upright(self, text: object) -> str:
        """Return the label of a y axis on as many lines as it needs."""
        return _fill(text, self._panel[1] - 0.5)

    def legend(
        self, figure: "Figure", handles: Sequence[Any], labels: Sequence[str]
    ) -> None:
        """Draw a legend below the panels, in as many columns as fit; the figure grows by
        its height.
        """
        # matplotlib leaves out lines whose label begins with "_"
        most = int((self.width - 0.5) / LETTER)
        texts = [shorten(label, most).lstrip("_") for label in labels]
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


def _fill(text: object, inches: float) -> str:
    letters = max(8, int(inches / LETTER * SMALL / TEXT))
    return fill(shorten(text, LINES * letters), letters)


def whole_numbers(axis: "Axis", most: int = 8) -> None:
    """Let an axis have ticks at whole numbers only, about ``most``."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(
        MaxNLocator(most, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)
    )
