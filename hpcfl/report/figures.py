"""Write figures to files: the figures at the end of a sweep and those of ``hpcfl plot``."""

import gc
import inspect
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pandas import concat

from hpcfl.errors import EXPECTED, UserError
from hpcfl.experiment import plugins, user_code
from hpcfl.files import atomic
from hpcfl.report import lines
from hpcfl.report.arrangement import arrange
from hpcfl.report.plots import curves, partition
from hpcfl.report.sheet import Sheet, house_style
from hpcfl.trained import loading
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = "hpcfl.report.plots"
PAGE = 7.0  # inches; text width of a page with two columns
# By format the metadata to leave out, so that equal figures are equal files.
NO_DATE: dict[str, dict[str, Any]] = {
    "png": {},
    "pdf": {"CreationDate": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
}


def plot(
    folders: Sequence[Path],
    kind: str,
    width: float,
    out: Path | None,
    options: dict[str, Any],
    own: Sequence[str] = (),
) -> list[str]:
    """Draw a figure of the runs below some folders and return the lines to print.

    Args:
        folders: Folders to search for runs.
        kind: Name of a module in ``plots``, or a user's ``module:function``.
        width: Width of the figure in inches.
        out: Path of the figure; default ``KIND.png`` in the current folder.
        options: Options of the kind that the user gave.
        own: User modules that may be imported; see ``loading.load_run``.

    Raises:
        UserError: If an option, the kind or the path is invalid, or there is no run.
        RunFailure: If the file cannot be written.
    """
    draw = plugins.find(KINDS, "--kind", kind)
    out = out or Path(f"{kind.rpartition(':')[2]}.png")
    if _find_format(out) not in NO_DATE:
        allowed = ", ".join(NO_DATE)
        raise UserError(f"--out {out}: its name must end with one of {allowed}")
    check_out(out)
    _refuse_unknown(options, draw, kind)
    runs, left_out = loading.load_runs_below(folders, own)
    damaged = [note for run in runs for note in run.notes]
    sheet = Sheet(width, [*left_out, *damaged])
    height = write(out, lambda: _draw_kind(kind, draw, runs, sheet, options))
    notes = [f"note: {note}" for note in dict.fromkeys(sheet.notes)]
    return [*notes, f"figure: {out} ({width:g} × {height:.2f} inches)"]


def _draw_kind(
    kind: str,
    draw: "Callable[..., Figure]",
    runs: list[Run],
    sheet: Sheet,
    options: dict[str, Any],
) -> "Figure":
    """Return the figure of a kind. Raises UserError if a user's function fails or
    returns something else.
    """
    try:
        figure = draw(runs, sheet, **options)
        if not hasattr(figure, "savefig"):
            raise TypeError(f"it returns {figure!r:.60}; expected a matplotlib figure")
    except Exception as error:
        if ":" not in kind or isinstance(error, EXPECTED):
            raise
        raise UserError(
            f"{user_code.locate(error, draw)}--kind = '{kind}' fails for "
            f"(runs, sheet): {user_code.describe_error(error)}"
        ) from error
    return figure


def _refuse_unknown(
    options: dict[str, Any], draw: Callable[..., Any], kind: str
) -> None:
    """Raise UserError if an option is no keyword parameter of the kind."""
    parameters = inspect.signature(draw).parameters.values()
    known = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    for name in options:
        if name not in known:
            allowed = ", ".join(f"--{one}" for one in known) or "no options"
            raise UserError(
                f"--{name}: unknown option for --kind {kind}, which takes {allowed}"
            )


def check_out(out: Path) -> None:
    """Raise UserError if a file cannot be written to the path of ``--out``."""
    if not out.parent.is_dir():
        raise UserError(
            f"--out {out}: there is no folder {out.parent}; choose another --out"
        )
    atomic.check_file(out)


def _find_format(path: Path) -> str:
    return path.suffix.removeprefix(".").lower()


def draw(folder: Path, runs: list[Run]) -> list[Path]:
    """Draw the figures of a run or a sweep into its folder and return their paths.

    The file of the curves is named after the primary score, usually ``accuracy.png``.
    The samples of each client are drawn in ``clients.png``.

    Args:
        folder: Folder of the run or sweep.
        runs: Runs of the folder, as ``list_runs`` returns them.
    """
    score = re.sub(r"[^\w-]+", "_", runs[0].measure.score)
    paths = [folder / f"{score}.png"]
    write(paths[0], lambda: draw_moments(runs, Sheet(PAGE)))
    if any("train_counts" in run.results.static for run in runs):
        paths.append(folder / "clients.png")
        write(paths[1], lambda: partition.plugin(runs, Sheet(PAGE)))
    # Figures contain reference cycles, so only the garbage collector frees them. Their
    # large pixel buffers do not trigger it.
    gc.collect()
    return paths


def draw_moments(runs: list[Run], sheet: Sheet) -> "Figure":
    """Draw the primary score over rounds, before and after local training."""
    arranged = arrange(runs, unfinished=True)
    measure = runs[0].measure
    drawn = []
    for column, title in lines.MOMENTS.items():
        of_column = curves.list_over_axis(arranged, f"{column}/{measure.recorded}")
        panel = of_column["panel"] + ", " if len(arranged.columns) > 1 else ""
        drawn.append(of_column.assign(panel=panel + title))
    return curves.draw(
        sheet,
        concat(drawn),
        measure,
        x="rounds",
        ylabel=f"test {measure.name}{measure.label_end}",
    )


def write(path: Path, make: "Callable[[], Figure]") -> float:
    """Draw a figure, write it and return its height in inches.

    Args:
        path: Path whose suffix gives the format.
        make: Function that draws the figure.
    """
    with house_style():
        figure = make()
        content = _encode(figure, _find_format(path))
    with atomic.explain_errors(path):
        atomic.write(path, content, durable=False)
    return float(figure.get_figheight())


def encode_svg(figure: "Figure", name: str) -> bytes:
    """Return a figure as SVG without a background and with texts kept as text.

    Args:
        figure: Figure of matplotlib.
        name: Salt that distinguishes the figure's ids from those of other figures.
    """
    from matplotlib import rc_context

    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        return _encode(figure, "svg", transparent=True)


def _encode(figure: "Figure", form: str, **settings: Any) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format=form, metadata=NO_DATE[form], **settings)
    return content.getvalue()
