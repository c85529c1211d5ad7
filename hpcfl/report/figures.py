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
from hpcfl.files import atomic, destination, output
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

    Args:
        folders: Where runs are looked for.
        kind: A file of ``plots``, or a user's own ``module:function``.
        width: Inches on paper.
        out: The file, by default ``KIND.png`` in the current folder.
        form: One of FORMATS, by default what the file's name ends with.
        options: Those of the kind that the user gave.
        own: As for ``summary.load``.

    Raises:
        UserError: A mistake in what was asked for.
        RunFailure: The file cannot be written.
    """
    require_matplotlib()
    draw = plugins.find(KINDS, "--kind", kind)
    name = kind.rpartition(":")[2]
    out, form = _file(out or Path(f"{name}.{form or 'png'}"), form)
    _refuse_unknown(options, draw, kind)
    runs, notes = summary.runs_below(folders, own)
    sheet = Sheet(width)
    sheet.notes.extend(notes)
    height = write(out, form, lambda: draw(runs, sheet, **options))
    lines = [f"note: {note}" for note in dict.fromkeys(sheet.notes)]
    size = f"{width:g} × {height:.2f} inches, letters of {TEXT} and {SMALL} points"
    return [*lines, f"figure: {out} ({size})"]


def _refuse_unknown(
    options: dict[str, Any], draw: Callable[..., Any], kind: str
) -> None:
    """Raise UserError where an option is no keyword parameter of the kind."""
    parameters = inspect.signature(draw).parameters.values()
    known = []
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY:
            known.append(parameter.name)
    unknown = [name for name in options if name not in known]
    if unknown:
        allowed = ", ".join(f"--{name}" for name in known) or "no options"
        raise UserError(
            f"--{unknown[0]}: means nothing to --kind {kind}, which takes {allowed}"
        )


def require_matplotlib() -> None:
    """Raise UserError where matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise UserError(
            "figures need matplotlib, which is not installed here: pip install matplotlib"
        )


def draw(folder: Path, runs: list[Run] | None = None) -> list[Path]:
    """Draw the figures of a run or a sweep into its folder and return their paths.

    The curves are called after the score that counts, mostly ``accuracy.png``; the
    samples are in ``clients.png``. Without matplotlib nothing is drawn.

    Args:
        folder: The run's or the sweep's.
        runs: What ``load_all`` gave for it, if that was called already.

    Raises:
        UserError: There is no run in the folder.
    """
    # Many compute nodes have just what training needs.
    if find_spec("matplotlib") is None:
        output.say("note: no figures, matplotlib is not installed here")
        return []
    runs = runs or summary.load_all(folder)
    score = re.sub(r"[^\w-]+", "_", runs[0].measure.score)
    paths = [folder / f"{score}.png"]
    write(paths[0], "png", lambda: moments(runs, Sheet(PAGE)))
    if any("train_counts" in run.results.static for run in runs):
        paths.append(folder / "clients.png")
        write(paths[1], "png", lambda: partition.plugin(runs, Sheet(PAGE)))
    # A figure is part of reference cycles, so only the garbage collector frees it, and
    # that is not started by the megabytes of pixels that it holds.
    gc.collect()
    return paths


def moments(runs: list[Run], sheet: Sheet) -> "Figure":
    """The score that counts over rounds, before and after local training."""
    arranged = arrange(runs, unfinished=True)
    measure = runs[0].measure
    panels: dict[str, list[Line]] = {}
    for column, title in _lines.MOMENTS.items():
        metric = f"{column}/{measure.recorded}"
        by_data = curves.over_cost(arranged.repetitions, metric)
        for data, lines in by_data.items():
            panel = title if len(by_data) == 1 else f"{data}, {title}"
            panels[panel] = lines
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


def write(path: Path, form: str, make: "Callable[[], Figure]") -> float:
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
