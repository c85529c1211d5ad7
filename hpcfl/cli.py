"""Command line: commands and their options, without logic."""

import errno
import gc
import json
import math
import os
import shlex
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from pathlib import Path
from typing import Any

import click
import numpy as np
from click.core import ParameterSource

from hpcfl import __version__
from hpcfl.communication.communicator import Communicator, agreed
from hpcfl.errors import RESUMABLE, Interrupted, RunFailure, UserError
from hpcfl.files import atomic, output
from hpcfl.files.atomic import describe_reason
from hpcfl.report.text import escape
from hpcfl.simulation import signals


def require_finite(
    _: click.Context, __: click.Parameter, number: float | None
) -> float | None:
    """Return the number of an option. Raises BadParameter if it is infinite or "nan"."""
    if number is not None and not math.isfinite(number):
        raise click.BadParameter(f"{number} is not a finite number.")
    return number


class UsablePath(click.Path):
    """Path of a file or folder, whose names are not too long for file systems."""

    def convert(
        self,
        value: Any,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        longest = max((len(os.fsencode(name)) for name in path.parts), default=0)
        if longest > LONGEST_NAME or len(os.fsencode(path)) > LONGEST_PATH:
            raise click.BadParameter(
                f"a path has at most {LONGEST_PATH} bytes, each name in it {LONGEST_NAME}."
            )
        return path


# Exit codes besides RESUMABLE. UNREAD: the reader of the output has closed it, 128 plus
# the number of SIGPIPE as in shells.
DONE, FAILED, BAD_INPUT, UNREAD = 0, 1, 2, 141
MOST_LETTERS = (
    20_000  # letters of an error, because it may contain a very long file name
)
LONGEST_NAME, LONGEST_PATH = 255, 4_000  # bytes that Linux allows, or nearly
PATH = UsablePath()
# arguments and options that several commands share
FILE = click.argument("file", type=PATH)
FOLDER = click.argument("folder", type=PATH)
FOLDERS = click.argument(
    "folders",
    nargs=-1,
    required=True,
    metavar="FOLDER…",
    type=PATH,
)
OVERRIDES = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="SECTION.KEY=VALUE",
    help="Override a key of the file; another model, method or scheme removes the keys of "
    "the previous one.",
)
OUT = click.option("--out", type=PATH, help="Results folder; default runs/NAME.")
OWN = click.option(
    "--own",
    multiple=True,
    metavar="MODULE:OBJECT",
    help="Your own method, model or data set that may be imported.",
)
METRIC = click.option(
    "--metric",
    metavar="NAME",
    help="Recorded number to read; default: the primary metric. validation: the primary "
    "metric on training samples held out by training.validation.",
)
AT_HELP = (
    "Read the number in each run's best round, in its last round, or as the mean of the last "
    "tenth of the rounds."
)
AT_CHOICE = click.Choice(["best", "last", "tail"])
EXPLAIN = click.option("--explain", is_flag=True, help="Explain every number.")
BIBTEX = click.option(
    "--bibtex", is_flag=True, help="Print the BibTeX entries to cite."
)


def command(arguments: list[str], communicator: Communicator) -> int:
    """Run one command and return its exit code, which is the same on all ranks.

    Rank 0 prints the error lines.

    Args:
        arguments: Arguments after ``hpcfl``; none shows the help.
        communicator: Communicator of all ranks.

    Raises:
        KeyboardInterrupt: After Ctrl-C.
        Exception: Any error other than bad input, RunFailure and Interrupted.
    """
    try:
        atomic.check_working_folder()
        code: int | None = cli.main(
            arguments or ["--help"],
            prog_name="hpcfl",
            standalone_mode=False,
            obj=communicator,
        )
        return code or DONE
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.exceptions.Abort:  # click raises it for Ctrl-C
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        return _say(communicator, BAD_INPUT, error.format_message())
    except UserError as error:
        return _say(communicator, BAD_INPUT, *error.args)
    except Interrupted as error:
        again = [word for word in arguments if word != "--fresh" or not error.begun]
        return _say(
            communicator, RESUMABLE, f"{error}: {shlex.join(['hpcfl', *again])}"
        )
    except RunFailure as error:
        return _say(communicator, FAILED, str(error))


def _say(communicator: Communicator, code: int, *texts: str) -> int:
    """Print each text on a separate line on rank 0 and return ``code``."""
    if communicator.is_server:
        for text in texts:
            line = escape(text)
            cut = " …" if len(line) > MOST_LETTERS else ""
            output.complain(line[:MOST_LETTERS] + cut)
    return code


def on_server(action: Callable[..., None]) -> Callable[..., None]:
    """Return a command that only rank 0 executes. Its failure is raised on all ranks."""

    @click.pass_obj
    @wraps(action)
    def carry_out(communicator: Communicator, /, **arguments: Any) -> None:
        with agreed(communicator):
            if communicator.is_server:
                # A folder may hold any numbers; infinite results are shown without
                # warnings.
                with np.errstate(all="ignore"):
                    action(**arguments)

    return carry_out


def printing(action: Callable[..., None]) -> Callable[..., int]:
    """Return a command that fails if its output cannot be written."""

    @click.pass_obj
    @wraps(action)
    def carry_out(communicator: Communicator, /, **arguments: Any) -> int:
        action(**arguments)
        codes: list[int] = communicator.allgather(_check_output(communicator))
        return max(codes)

    return carry_out


def _check_output(communicator: Communicator) -> int:
    """Return a command's exit code by its output. Print an error after a failed write."""
    failure = output.find_failure()
    if failure is None:
        return DONE
    if failure.errno == errno.EPIPE:
        return UNREAD
    return _say(communicator, FAILED, f"standard output: {describe_reason(failure)}")


def traced(action: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the option --traceback.

    With it rank 0 also prints the exception that caused a UserError.
    """

    @click.option(
        "--traceback",
        "with_traceback",
        is_flag=True,
        help="Show the traceback of a mistake in your own code.",
    )
    @click.pass_obj
    @wraps(action)
    def carry_out(
        communicator: Communicator, /, with_traceback: bool, **arguments: Any
    ) -> None:
        try:
            action(communicator, **arguments)
        except UserError as error:
            if (
                with_traceback
                and communicator.is_server
                and error.__cause__ is not None
            ):
                traceback.print_exception(error.__cause__)
            raise

    return carry_out


def quietly(action: Callable[..., None]) -> Callable[..., None]:
    """Return a command with the option --quiet: print only errors and draw nothing."""

    @click.option(
        "-q",
        "--quiet",
        is_flag=True,
        help="Print errors only, and draw no figures of a sweep.",
    )
    @wraps(action)
    def carry_out(*arguments: Any, quiet: bool, **options: Any) -> None:
        with output.suppress_lines() if quiet else nullcontext():
            action(*arguments, **options)

    return carry_out


@contextmanager
def importing() -> Iterator[None]:
    """Disable the garbage collector during imports, and exclude their objects afterwards.

    The objects of torch stay until the end, and Python would search them several times.
    """
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def list_given(*names: str) -> list[str]:
    """Return the options on the command line among some parameters of the command."""
    context = click.get_current_context()
    return [
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name in names
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]


def refuse_together(*names: str) -> None:
    """Raise UserError if the command line has several of some parameters."""
    given = list_given(*names)
    if len(given) > 1:
        raise UserError(f"{' and '.join(given)} exclude each other; keep one of them")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Personalised federated learning simulated on HPC clusters."""


@cli.command()
@FILE
@OVERRIDES
@OUT
@click.option(
    "--fresh", is_flag=True, help="Move an old results folder aside and start over."
)
@quietly
@traced
def run(communicator: Communicator, **options: Any) -> None:
    """Run the experiment in FILE, or continue it from its last checkpoint."""
    signals.remember()  # before imports that take seconds
    with importing():
        from hpcfl.commands.experiments import run_file

    run_file(communicator=communicator, **options)


@cli.command()
@FILE
@OVERRIDES
@OUT
@click.option(
    "--stage", hidden=True, help="Stage of one of many jobs: rung, final, outcome."
)
@click.option("--cell", default="", hidden=True, help="Run of the stage.")
@quietly
@traced
def tune(communicator: Communicator, **options: Any) -> None:
    """Tune every method in FILE with the same budget.

    The same command continues a stopped search.
    """
    signals.remember()  # before imports that take seconds
    from hpcfl.commands.tune import tune_file

    tune_file(communicator=communicator, **options)


@cli.command()
@FOLDER
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object; for a sweep, one object for each run.",
)
@BIBTEX
@EXPLAIN
@printing
@on_server
def show(
    folder: Path,
    as_json: bool,
    bibtex: bool,
    explain: bool,
) -> None:
    """Show the results of a run or sweep, also while it runs."""
    refuse_together("as_json", "bibtex", "explain")
    from hpcfl.report import citation, tables
    from hpcfl.trained import loading

    if bibtex:
        print(citation.cite_runs(loading.list_runs(folder)))
    elif as_json:
        print_json(tables.make_json(folder))
    else:
        tables.show(folder, explain=explain)


@cli.command()
@FILE
@OVERRIDES
@click.option(
    "--all",
    "whole",
    is_flag=True,
    help="Print every key with its meaning, and long lists in full.",
)
@printing
@traced
def check(
    communicator: Communicator, file: Path, overrides: tuple[str, ...], whole: bool
) -> None:
    """Check the experiment in FILE without running it.

    Prints the data, the model, the memory and disk space needed, and the keys that differ
    from their defaults.
    """
    with importing():
        from hpcfl.commands.check import check_file

    check_file(file, overrides, communicator, whole)


@cli.command()
@click.argument(
    "kind", type=click.Choice(["experiment", "method", "source", "score", "profile"])
)
@click.argument("name")
@on_server
def new(kind: str, name: str) -> None:
    """Write a commented file to start from, which runs without changes."""
    from hpcfl.commands.new import write_new

    for line in write_new(kind, name):
        print(line)


def _add_listing(kind: str, what: str) -> None:
    """Add a command that lists the entries of a kind.

    Args:
        kind: Name of the command, a key of ``catalogue.PACKAGES``.
        what: Name of the entries in the help text.
    """

    @click.argument("name", required=False)
    @click.option(
        "--json",
        "as_json",
        is_flag=True,
        help="Print a list of JSON objects, or the object of NAME.",
    )
    @printing
    @on_server
    def show_listing(name: str | None, as_json: bool, bibtex: bool = False) -> None:
        refuse_together("as_json", "bibtex")
        from hpcfl.report import catalogue, listing

        if bibtex:
            from hpcfl.report import citation

            print(citation.cite_method(name) if name else citation.cite_methods())
        elif as_json:
            print_json(
                catalogue.list_entries(kind)
                if name is None
                else listing.find_entry(kind, name)
            )
        else:
            listing.show(kind, name)

    if kind == "methods":
        show_listing = BIBTEX(show_listing)
    description = (
        f"List the {what}.\n\n"
        "With NAME, or your own MODULE:OBJECT, show its description and keys."
    )
    cli.command(kind, help=description)(show_listing)


for kind, what in {
    "methods": "methods",
    "models": "models",
    "partitions": "partition schemes",
    "shifts": "kinds of [[shift]], distribution shifts between clients",
    "selections": "rules that select the clients of a round",
    "transforms": "kinds of [compression] and [[transform]]",
    "rules": "rules by which the server aggregates updates",
    "attacks": "attacks by malicious clients",
    "scores": "scores",
    "datasets": "data sets",
}.items():
    _add_listing(kind, what)


@cli.group()
def data() -> None:
    """Download data sets."""


@data.command()
@click.argument("name")
@click.option(
    "--root",
    type=PATH,
    required=True,
    help="Folder of the data sets.",
)
@on_server
def download(name: str, root: Path) -> None:
    """Download the data set NAME into a folder and check it. A run never downloads."""
    from hpcfl.data.datasets import download as fetch

    fetch(name, root)
    print(f"{name} is complete in {root}")


@cli.command()
@FILE
@click.option(
    "--profile",
    "profile_name",
    required=True,
    metavar="NAME",
    help="Cluster profile, a name or FILE.toml.",
)
@OVERRIDES
@OUT
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the batch script and the needs of each rank without submitting.",
)
@on_server
def submit(**options: Any) -> None:
    """Submit the experiment in FILE to a Slurm cluster.

    A sweep becomes an array of jobs, a tuning a chain of arrays.
    """
    from hpcfl.cluster.submission import submit

    for line in submit(**options):
        print(line, flush=True)  # a cell that runs here takes long


@cli.command()
@FOLDER
@click.option(
    "--watch", is_flag=True, help="Refresh the output until no run or job is active."
)
@printing
@on_server
def status(folder: Path, watch: bool) -> None:
    """Show the progress of the runs in FOLDER."""
    from hpcfl.cluster.status import show

    show(folder, watch)


@cli.command()
@FOLDER
@click.option(
    "--client",
    "clients",
    multiple=True,
    type=click.IntRange(0),
    metavar="N",
    help="Write the model of client N; may be repeated.",
)
@click.option(
    "--all", "everyone", is_flag=True, help="Write the models of all clients."
)
@click.option(
    "--global",
    "of_server",
    is_flag=True,
    help="Write the server's models: the global model, or models of classes or clusters.",
)
@click.option(
    "--moment",
    metavar="COLUMN",
    help="Write the models scored in this column, such as pre (before local training) or "
    "post (after it); default: the method's primary column.",
)
@click.option(
    "--at",
    default="last",
    type=click.Choice(["last", "best"]),
    show_default=True,
    help="Round of the models.",
)
@OWN
@click.option(
    "--out",
    type=PATH,
    required=True,
    help="New folder for the files.",
)
@click.option(
    "--adapter",
    "adapters",
    is_flag=True,
    help="For [adapter] kind = 'lora': write only the trained tensors in PEFT's format, and "
    "the base model once.",
)
@on_server
def export(everyone: bool, clients: tuple[int, ...], **options: Any) -> None:
    """Write trained models of the run in FOLDER to files.

    Using the files does not require hpcfl.
    """
    refuse_together("clients", "everyone")
    from hpcfl.commands.export import export

    export(clients=None if everyone else clients, **options)


@cli.command()
@FOLDERS
@click.option(
    "--rows",
    default="",
    metavar="KEY,…",
    help="Keys of the configuration that label rows; default: the method, and keys in which "
    "its runs differ.",
)
@click.option(
    "--columns",
    default="",
    metavar="KEY,…",
    help="Keys of the configuration that label columns; default: data set, partition, and "
    "other keys of the data that differ.",
)
@METRIC
@click.option(
    "--at",
    default="best",
    show_default=True,
    type=AT_CHOICE,
    help=AT_HELP,
)
@click.option(
    "--at-virtual",
    type=click.FloatRange(0),
    callback=require_finite,
    metavar="SECONDS",
    help="Read the number in the last round that ended by this virtual time ([time]).",
)
@click.option(
    "--time-to",
    type=float,
    callback=require_finite,
    metavar="NUMBER",
    help="Show the virtual seconds until the number reaches NUMBER, in the unit of the table "
    "(85 for 85 %).",
)
@click.option(
    "--against",
    default="",
    metavar="ROW",
    help="Show each row's gains over this row, such as local or fedavg, over clients, with "
    "95 % intervals over partitions.",
)
@click.option(
    "--test",
    type=click.Choice(["client-seed-pairs"]),
    help="With --against: add a signed-rank test over pairs of client and seed. It assumes "
    "independent pairs and does not extend to other partitions.",
)
@click.option(
    "--margin",
    default=0.5,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    callback=require_finite,
    help="With --against: margin below which differences count as none, in the unit of the "
    "table (points of accuracy).",
)
@click.option(
    "--power",
    type=click.FloatRange(0, min_open=True),
    callback=require_finite,
    metavar="DIFFERENCE",
    help="With --against: print the number of partitions needed to detect a difference of this size.",
)
@click.option(
    "--format",
    "form",
    default="terminal",
    type=click.Choice(["terminal", "markdown", "csv", "latex"]),
    help="Format of the table.",
)
@EXPLAIN
@printing
@on_server
def table(
    folders: tuple[Path, ...],
    rows: str,
    columns: str,
    metric: str | None,
    at: str,
    at_virtual: float | None,
    time_to: float | None,
    against: str,
    test: str | None,
    margin: float,
    power: float | None,
    form: str,
    explain: bool,
) -> None:
    """Print a table of runs, with mean ± sample standard deviation over seeds."""
    with importing():
        from hpcfl.report.comparison import Reference
        from hpcfl.report.metric_values import Reading
        from hpcfl.report.sweep_table import show

    refuse_together("at", "at_virtual")
    of_comparison = list_given("test", "margin", "power")
    if of_comparison and not against:
        raise UserError(
            f"{' and '.join(of_comparison)}: needs a reference row; add --against ROW, such "
            "as --against local"
        )
    reference = Reference(against, margin, power, test is not None) if against else None
    show(
        folders=folders,
        rows=_split(rows),
        columns=_split(columns),
        reading=Reading(
            metric or "", at if at_virtual is None else at_virtual, time_to
        ),
        form=form,
        explain=explain,
        against=reference,
    )


@cli.command()
@click.argument("path", metavar="FOLDER|FILE", type=PATH)
@click.option(
    "--sample",
    default=3,
    show_default=True,
    type=click.IntRange(1),
    help="Number of runs, chosen at random.",
)
@click.option(
    "--run",
    "names",
    multiple=True,
    metavar="NAME",
    help="Run to verify; may be repeated.",
)
@click.option(
    "--root",
    type=PATH,
    help="Folder of the data sets; default $HPCFL_DATA.",
)
@OWN
@traced
def verify(communicator: Communicator, **options: Any) -> None:
    """Repeat runs and compare the results.

    On the same arithmetic the final state and every number must be identical, for any
    number of ranks; otherwise the exit code is 1.
    """
    from hpcfl.commands.verify import verify

    verify(communicator=communicator, **options)


@cli.command()
@FOLDERS
@click.option(
    "--out",
    required=True,
    type=PATH,
    help="File to write, NAME.tar.xz; an old file is replaced.",
)
@on_server
def pack(folders: tuple[Path, ...], out: Path) -> None:
    """Pack finished runs into one file for publication.

    The file holds everything that table, report, plot and verify need: configuration,
    digest, per-client numbers, versions, processor, commit.
    """
    from hpcfl.trained import loading, packed

    runs, notes = loading.load_runs_below(folders)
    for line in [*notes, *packed.write(runs, out)]:
        print(escape(line))


@cli.command()
@FOLDERS
@click.option(
    "--out",
    default=Path("report.html"),
    show_default=True,
    type=PATH,
    help="File to write; an old file is replaced.",
)
@on_server
def report(folders: tuple[Path, ...], out: Path) -> None:
    """Write an HTML page about runs, which needs no network."""
    from hpcfl.report import page

    page.write(folders, out)
    print(f"page: {out}")


@cli.command()
@FOLDERS
@click.option(
    "--kind",
    default="curves",
    show_default=True,
    metavar="NAME",
    help="Kind of figure: curves, clients, gains, partition, or your own MODULE:FUNCTION.",
)
@click.option(
    "--x",
    metavar="AXIS",
    help="Horizontal axis of curves: rounds, seconds, virtual, floats, bits, or a "
    "key such as training.lr.",
)
@METRIC
@click.option(
    "--at",
    type=AT_CHOICE,
    help=AT_HELP,
)
@click.option(
    "--group",
    metavar="KEY,…",
    help="Keys that define a line or row; default: the method, and keys in which its runs "
    "differ.",
)
@click.option(
    "--against",
    metavar="ROW",
    help="Reference row for gains; default: local.",
)
@click.option(
    "--client",
    type=click.IntRange(0),
    metavar="N",
    help="Client to show, for kinds of figures that show one.",
)
@OWN
@click.option(
    "--width",
    default=7.0,
    show_default=True,
    type=click.FloatRange(2, 40),
    callback=require_finite,
    metavar="INCHES",
    help="Width of the printed figure in inches; a column is about 3.3 wide.",
)
@click.option(
    "--out",
    type=PATH,
    help="File to write, .png, .pdf or .svg; default KIND.png in the current folder.",
)
@on_server
def plot(
    folders: tuple[Path, ...],
    kind: str,
    width: float,
    out: Path | None,
    group: str | None,
    own: tuple[str, ...],
    **options: Any,
) -> None:
    """Draw a figure of runs, with one colour for each method.

    Curves are means over seeds with a band of one sample standard deviation. Clients
    and gains show the clients of all seeds, partition the clients of the first seed.
    launch/figures has further kinds, such as figures of the papers.
    """
    from hpcfl.report.figures import plot

    given = {name: value for name, value in options.items() if value is not None}
    if group is not None:
        given["group"] = _split(group)
    for line in plot(
        folders=folders, kind=kind, width=width, out=out, options=given, own=own
    ):
        print(line)


def _split(keys: str) -> list[str]:
    """Return the keys of an option such as ``method.name,seed``."""
    return [key for key in keys.split(",") if key]


def print_json(value: Any) -> None:
    """Print a value as JSON. Raises ValueError for NaN, which other programs reject."""
    print(json.dumps(value, indent=1, allow_nan=False))
