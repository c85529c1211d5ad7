"""Figures as files: those that a run or a sweep draws at its end, and what ``hpcfl
plot`` is asked for.
"""

import gc
import inspect
import io
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hpcfl.errors import UserError
from hpcfl.experiment import plugins
from hpcfl.files import atomic, destination
from hpcfl.report import summary
from hpcfl.report.arrangement import arrange
from hpcfl.report.plots import _lines, curves, partition
from hpcfl.report.plots._lines import Line
from hpcfl.report.plots.base import Sheet
from hpcfl.report.style import HOUSE, SMALL, TEXT
from hpcfl.report.summary import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = "hpcfl.report.plots"
FORMATS = ("png", "pdf", "svg")
PAGE = 7.0  # inches, the text's width on a page with two columns
NO_DATE: dict[str, dict[str, Any]] = {
    "png": {},
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}


def plot(
    folders: Sequence[Path],
    kind: str,
    width: float,
    out: Path | None,
    form: str | None,
    options: dict[str, Any],
    own: Sequence[str] = (),
) -> list[str]:
    """Draw a figure of the runs below some folders; returns the lines to say.

    kind: a file of ``plots``, or a user's own ``module:function``. width: inches on
        paper. out: the file, by default ``KIND.png`` in the current folder. form: one
        of FORMATS, by default what the file's name ends
    with. options: those of the kind that the user gave. own: as for ``summary.load``.
        Raises UserError, RunFailure.
    """
    require_matplotlib()
    draw = plugins.find(KINDS, "--kind", kind)
    out, form = _file(
        out or Path(f"{kind.partition(':')[2] or kind}.{form or 'png'}"), form
    )
    taken = [
        name
        for name, of in inspect.signature(draw).parameters.items()
        if of.kind is of.KEYWORD_ONLY
    ]
    if unknown := [name for name in options if name not in taken]:
        allowed = ", ".join(f"--{name}" for name in taken) or "no options"
        raise UserError(
            f"--{unknown[0]}: means nothing to --kind {kind}, which takes {allowed}"
        )
    runs, notes = summary.runs_below(folders, own)
    sheet = Sheet(width)
    sheet.notes.extend(notes)
    height = _written(out, form, lambda: draw(runs, sheet, **options))
    return [f"note: {note}" for note in dict.fromkeys(sheet.notes)] + [
        f"figure: {out} ({width:g} × {height:.2f} inches, letters of {TEXT} and {SMALL} points)"
    ]


def require_matplotlib() -> None:
    """Raise UserError where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise UserError(
            "figures need matplotlib, which is not installed here: pip install matplotlib"
        )


def draw(folder: Path, runs: list[Run] | None = None) -> list[Path]:
    """Draw the figures of a run or a sweep into its folder and return their paths.

    runs: what ``load_all`` gave for it, if that was called already. The curves are
    called after the score that counts, mostly ``accuracy.png``; the samples are in
    ``clients.png``. Without matplotlib nothing is drawn. Raises UserError if there is
    no run in the folder.
    """
    if (
        find_spec("matplotlib") is None
    ):  # many compute nodes have just what training needs
        print("note: no figures, matplotlib is not installed here")
        return []
    runs = runs or summary.load_all(folder)
    drawn: dict[str, Callable[[], Figure]] = {
        re.sub(r"[^\w-]+", "_", runs[0].measure.score) + ".png": lambda: moments(
            runs, Sheet(PAGE)
        )
    }
    if any("train_counts" in run.results.static for run in runs):
        drawn["clients.png"] = lambda: partition.plugin(runs, Sheet(PAGE))
    for name, make in drawn.items():
        _written(folder / name, "png", make)
    # A figure refers to itself, and to megabytes of pixels of which Python does not know
    # when it decides whether to look for such cycles.
    gc.collect()
    return [folder / name for name in drawn]


def moments(runs: list[Run], sheet: Sheet) -> "Figure":
    """The score that counts over rounds, before and after local training."""
    arranged = arrange(runs, unfinished=True)
    measure = runs[0].measure
    panels: dict[str, list[Line]] = {}
    for column, title in _lines.MOMENTS.items():
        found = curves.over_cost(arranged.repetitions, f"{column}/{measure.recorded}")
        panels |= {
            title if len(found) == 1 else f"{data}, {title}": lines
            for data, lines in found.items()
        }
    unit = f" ({measure.unit})" if measure.unit else ""
    return curves.draw(sheet, panels, measure, "rounds", f"test {measure.score}{unit}")


def _file(out: Path, form: str | None) -> tuple[Path, str]:
    """The file and its format. Raises UserError where its name says another one, or
    none.
    """
    ending = out.suffix.removeprefix(".").lower()
    if form is not None and ending not in ("", form):
        raise UserError(f"--out {out}: ends with .{ending}, but --format is {form}")
    if (ending or form) not in FORMATS:
        raise UserError(
            f"--out {out}: its name must end with one of {', '.join(FORMATS)}"
        )
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}")
    file = out if ending else out.with_suffix(f".{form}")
    destination.check_file(file)
    return file, form or ending


def _written(path: Path, form: str, make: "Callable[[], Figure]") -> float:
    """Draw and write a figure in the house's style; returns its height in inches."""
    with house_style():
        figure = make()
        content = _encoded(figure, form)
    with atomic.explained(path):
        atomic.write(path, content, durable=False)
    return float(figure.get_figheight())


def as_svg(figure: "Figure") -> bytes:
    """A figure as SVG without a background, whose texts are texts."""
    with _matplotlib().rc_context({"svg.fonttype": "none"}):
        return _encoded(figure, "svg", transparent=True)


@contextmanager
def house_style() -> Iterator[None]:
    """Within it matplotlib draws in the house's style."""
    with _matplotlib().rc_context(HOUSE), warnings.catch_warnings():
        # letters that its font lacks are drawn as boxes
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        yield


def _encoded(figure: "Figure", form: str, **settings: Any) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format=form, metadata=NO_DATE[form], **settings)
    return content.getvalue()


def _matplotlib() -> ModuleType:
    """The library, which reads settings from the current folder when it is imported:
    here from no folder that may be somebody else's.
    """
    current = os.open(".", os.O_PATH)
    try:
        os.chdir(Path(__file__).parent)
        return import_module("matplotlib")
    finally:
        os.fchdir(current)
        os.close(current)
