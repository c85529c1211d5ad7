"""Layout and style of figures: the sheet, the look of lines, settings of matplotlib.

A kind of figure is a function ``plugin(runs, sheet, *, …)`` that returns a figure of
matplotlib. Its keyword parameters are its options in ``hpcfl plot``. The caller enters
``house_style`` first. The function imports matplotlib itself, so that tables work
without matplotlib.
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

TEXT, SMALL = 8, 7  # font sizes in points at the figure's printed width
# Okabe and Ito, "Color Universal Design", 2008: eight colours that are distinct for all
# kinds of colour vision. Yellow is pale on white and comes last.
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
# Seven dash patterns and eleven marks have no common factor and make 77 pairs, so the
# built-in methods are also distinct in greyscale.
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
# New versions of matplotlib have a type for these keys; older ones lack it.
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
NARROWEST = 2.4  # minimum width of a panel in inches
LINES = 4  # maximum number of lines of a title
# Width of a letter and height of a line of small text in inches.
LETTER = 0.55 * SMALL / 72
LINE = 1.55 * SMALL / 72


@contextmanager
def house_style() -> Iterator[None]:
    """Apply hpcfl's style of matplotlib, regardless of the user's ``matplotlibrc``."""
    from matplotlib import style

    with style.context(HOUSE, after_reset=True), warnings.catch_warnings():
        # Letters that the font lacks are drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        yield


@dataclass(frozen=True)
class Look:
    """Colour, dashes and mark of a line, as matplotlib takes them."""

    color: Any
    linestyle: Any
    marker: str


def make_look(number: int) -> Look:
    """Return the look of a line by its number, such as the number of a class."""
    colours = list_colours()
    return Look(
        colours[number % len(colours)],
        DASHES[number % len(DASHES)],
        MARKS[number % len(MARKS)],
    )


def choose_looks(methods: Mapping[str, str]) -> dict[str, Look]:
    """Return the look of each line in a figure, or in all figures of a page.

    Every method has a colour. Further lines of a method have other dashes and another
    mark. If all lines belong to one method, every line has a colour. The look does not
    depend on the order of the lines.

    Args:
        methods: Method of each line by the line's label.

    Returns:
        Look of each line by label.
    """
    order = sorted(set(methods.values()))
    lines: Counter[str] = Counter()  # number of lines of each method so far
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
    """Return the eight colours of Okabe and Ito and 60 colours of matplotlib.

    "tab20b" has five hues in four shades. The list has all hues of one shade before the
    next shade, and does not begin with the darkest shade.
    """
    from matplotlib import color_sequences

    shades = color_sequences["tab20b"]
    hues = [colour for shade in (1, 2, 0, 3) for colour in shades[shade::4]]
    return [*OKABE_ITO, *hues, *color_sequences["tab20"], *color_sequences["tab20c"]]


@dataclass
class Sheet:
    """The area of one figure and the notes to print with it.

    Attributes:
        width: Width in inches.
        notes: Lines that the command prints with the figure.
    """

    width: float
    notes: list[str] = field(default_factory=list)
    _panel: tuple[float, float] = (0.0, 0.0)  # width and height of a panel in inches

    def panels(
        self, count: int, most: int = 0, height: float = 0.0, **shared: Any
    ) -> "tuple[Figure, list[Axes]]":
        """Make a figure with panels.

        Args:
            count: Number of panels.
            most: Maximum number of panels in a row; by default as many as fit.
            height: Height of a row of panels in inches; by default 0.68 of a panel's
                width, at most 3.
            shared: Arguments ``sharex`` and ``sharey`` for matplotlib's ``subplots``.
        """
        # Unlike pyplot, Figure loads no window system.
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
        """Return a panel's title, broken into lines of the panel's width."""
        return _fill(text, self._panel[0] - 0.3)

    def upright(self, text: object) -> str:
        """Return the label of a y axis, broken into lines of the panel's height."""
        return _fill(text, self._panel[1] - 0.5)

    def legend(
        self, figure: "Figure", handles: Sequence[Any], labels: Sequence[str]
    ) -> None:
        """Draw a legend below the panels and make the figure taller by its height.

        Args:
            figure: Figure with panels.
            handles: Handles of the lines for matplotlib.
            labels: Label of each handle.
        """
        # matplotlib leaves out lines whose label begins with "_".
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


def set_whole_ticks(axis: "Axis", most: int = 8) -> None:
    """Place ticks of an axis at whole numbers only, about ``most`` of them."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(
        MaxNLocator(most, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1)
    )
