"""Settings of matplotlib for all figures, and the colour, dashes and mark of each line."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

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


@dataclass(frozen=True)
class Look:
    """A line's colour, dashes and mark, as matplotlib takes them."""

    color: Any
    linestyle: Any
    marker: str


def look(number: int) -> Look:
    """Return the look of the line with a number, such as a class."""
    colours = palette()
    return Look(
        colours[number % len(colours)],
        DASHES[number % len(DASHES)],
        MARKS[number % len(MARKS)],
    )


def looks(methods: Mapping[str, str]) -> dict[str, Look]:
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
        chosen[label] = look(place + len(order) * lines[method])
        if len(order) > 1:
            chosen[label] = replace(chosen[label], color=look(place).color)
        lines[method] += 1
    return chosen


def palette() -> list[Any]:
    """Return Okabe and Ito's eight colours and 60 more that matplotlib has.

    "tab20b" has five hues in four shades: all hues come in one shade before the next
    shade does, and the darkest, which a dark page hides, is not the first.
    """
    from matplotlib import color_sequences

    shades = color_sequences["tab20b"]
    hues = [colour for shade in (1, 2, 0, 3) for colour in shades[shade::4]]
    return [*OKABE_ITO, *hues, *color_sequences["tab20"], *color_sequences["tab20c"]]
