"""Add a caption below a figure: ``python launch/figures/caption.py FILE TEXT``.

``make.sh`` uses it to state on each figure how it differs from the paper's setting. FILE
is a PNG from ``hpcfl plot``; the pixels of its picture do not change.
"""

import sys
from pathlib import Path
from textwrap import wrap

import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import imread

from hpcfl.report.sheet import HOUSE, LETTER, LINE, SMALL, house_style

MARGIN = 0.06  # inches around the text
NO_DATE = {"Software": None}


def write_caption(file: Path, text: str) -> None:
    """Add a strip with ``text`` below the picture of a PNG file."""
    dots = HOUSE["savefig.dpi"]
    picture = imread(file)
    height, width = picture.shape[:2]
    lines = wrap(text, int((width / dots - 2 * MARGIN) / LETTER))
    strip = round(dots * (len(lines) * LINE + 2 * MARGIN))
    with house_style():
        size = (width / dots, (height + strip) / dots)
        figure = Figure(figsize=size, dpi=dots, facecolor="white")
        figure.figimage(np.flipud(picture), xo=0, yo=strip, origin="lower")
        left = MARGIN * dots / width
        top = (strip - MARGIN * dots) / (height + strip)
        figure.text(left, top, "\n".join(lines), fontsize=SMALL, va="top")
        figure.savefig(file, dpi=dots, metadata=NO_DATE)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    write_caption(Path(sys.argv[1]), sys.argv[2])
