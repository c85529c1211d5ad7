"""How every figure looks: sizes that a paper's column bears, and each line's colour,
dashes and mark.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from math import lcm
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
# Seven kinds of lines and eleven marks, which have no common factor, make 77 pairs: in
# grey, too, the built-in methods stay apart. Where there are no marks, any seven do
# that follow one another in their list.
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
CLASSES = lcm(len(OKABE_ITO), len(DASHES))
PALE = "#e4e4e4"
HOUSE: dict[
    Any, Any
] = {  # new versions of matplotlib have a type for these keys, which older ones lack
    "font.size": TEXT,
    "axes.titlesize": TEXT,
    "axes.labelsize": TEXT,
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
    "legend.fontsize": SMALL,
    "legend.title_fontsize": SMALL,
    "figure.titlesize": TEXT,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "grid.color": PALE,
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.2,
    "legend.frameon": False,
    "image.cmap": "cividis",
    "savefig.dpi": 200,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,  # TrueType, as publishers ask
    "svg.hashsalt": "hpcfl",
}  # the same picture is the same file


@dataclass(frozen=True)
class Look:
    """A line's colour, dashes and mark, as matplotlib takes them."""

    color: Any
    linestyle: Any
    marker: str


def of_class(number: int) -> Look:
    """The look of what belongs to a class of samples, another one for each of the first
    ``CLASSES``.
    """
    return _look(OKABE_ITO[number % len(OKABE_ITO)], number)


def looks(methods: Mapping[str, str]) -> dict[str, Look]:
    """The looks of a figure's lines, or of all lines on a page.

    The same lines have the same looks in whatever order they come. A line has its
    method's colour; further lines of a method have other dashes and another mark. Where
    all lines are of one method, each has a colour of its own.

    Args:
        methods: By the label of each line its method.

    Returns:
        By label the look.
    """
    colours = palette()
    order = sorted(set(methods.values()))
    one_method = len(order) == 1
    further = count(len(order))
    drawn = set()
    chosen = {}
    for label in sorted(methods):
        method = methods[label]
        place = order.index(method)
        pair = next(further) if method in drawn else place
        drawn.add(method)
        colour = pair if one_method else place
        chosen[label] = _look(colours[colour % len(colours)], pair)
    return chosen


def palette() -> list[Any]:
    """Okabe and Ito's eight colours, then Mike Bostock's twenty "category20b",
    Tableau's twenty and Bostock's "category20c", as matplotlib has them.

    The second list has five hues in four shades each: all hues come in one shade before
    the next shade does, and the darkest, which a dark page hides, is not the first.
    """
    from matplotlib import color_sequences

    shades = color_sequences["tab20b"]
    hues = [colour for shade in (1, 2, 0, 3) for colour in shades[shade::4]]
    further = [*color_sequences["tab20"], *color_sequences["tab20c"]]
    return [*OKABE_ITO, *hues, *further]


def _look(colour: Any, pair: int) -> Look:
    return Look(colour, DASHES[pair % len(DASHES)], MARKS[pair % len(MARKS)])
