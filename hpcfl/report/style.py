"""How every figure looks: sizes that a paper's column bears, and each method's colour,
line and mark.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import Any

from hpcfl.report import colours

TEXT, SMALL = 8, 7  # points, on paper, at the width that a figure is made for
# Of what is no method's, such as classes: Okabe and Ito's palette, distinct for all
# kinds of colour vision, without its yellow, which is too pale for lines, and with wine
# and olive of Paul Tol's.
COLOURS = (
    "#000000",
    "#0072B2",
    "#56B4E9",
    "#999933",
    "#D55E00",
    "#CC79A7",
    "#009E73",
    "#882255",
    "#E69F00",
)
PLAIN = COLOURS[1]
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
PAIRS = len(DASHES) * len(MARKS)
CLASSES = lcm(len(COLOURS), len(DASHES))
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

    color: str
    linestyle: Any
    marker: str

    def strokes(self, width: float) -> str:
        """The dashes of a line of so many pixels as SVG takes them; empty for a solid
        one.
        """
        return " ".join(f"{width * length:g}" for length in self.linestyle[1])


def of_class(number: int) -> Look:
    """The look of what belongs to a class of samples, another one for each of the first
    ``CLASSES``.
    """
    return Look(
        COLOURS[number % len(COLOURS)],
        DASHES[number % len(DASHES)],
        MARKS[number % len(MARKS)],
    )


def looks(methods: Sequence[str]) -> list[Look]:
    """The looks of a figure's lines, by each line's method.

    A method has its own colour, line and mark in every figure. Further lines of the
    same method have its colour and a line and a mark that no other has; where all lines
    are of one method, other colours too.
    """
    alone = len(set(methods)) == 1
    taken: set[int] = set()
    chosen: dict[int, int] = {}  # by position: which pair of a line and a mark
    first = {
        method: position for position, method in reversed(list(enumerate(methods)))
    }
    for position in sorted(
        range(len(methods)), key=lambda one: first[methods[one]] != one
    ):
        own = colours.place(methods[position])
        free = (
            place for place in range(own, own + PAIRS) if place % PAIRS not in taken
        )
        chosen[position] = next(free, own)
        taken.add(chosen[position] % PAIRS)
    several = alone and len(methods) > 1
    return [
        Look(
            COLOURS[pair % len(COLOURS)] if several else colours.of(method),
            DASHES[pair % len(DASHES)],
            MARKS[pair % len(MARKS)],
        )
        for method, (_, pair) in zip(methods, sorted(chosen.items()), strict=True)
    ]
