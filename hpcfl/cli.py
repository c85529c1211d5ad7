"""The command line: commands and their options, no logic."""

import sys
from pathlib import Path
from typing import Any

import click

from hpcfl import __version__
from hpcfl.communicator import Communicator
from hpcfl.errors import Interrupted, RunFailure, UserError

DONE, FAILED, BAD_INPUT, CONTINUE = 0, 1, 2, 75


def command(arguments: list[str], communicator: Communicator) -> int:
    """Run one command on this rank; the exit code, the same on all ranks. Only rank 0 says what was wrong."""
    try:
        cli.main(arguments, prog_name="hpcfl", standalone_mode=False, obj=communicator)
        return DONE
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        return _say(communicator, error.format_message(), BAD_INPUT)
    except UserError as error:
        return _say(communicator, str(error), BAD_INPUT)
    except Interrupted as error:
        return _say(communicator, str(error), CONTINUE)
    except RunFailure as error:
        return _say(communicator, str(error), FAILED)


def _say(communicator: Communicator, text: str, code: int) -> int:
    if communicator.is_server:
        print(f"hpcfl: {text}", file=sys.stderr)
    return code


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def cli() -> None:
    """Personalised federated learning simulated on HPC clusters."""


@cli.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a key of the file.")
@click.option("--out", type=click.Path(path_type=Path), help="Results folder; default runs/NAME.")
@click.option("--fresh", is_flag=True, help="Move an old results folder aside and start over.")
@click.pass_obj
def run(communicator: Communicator, file: Path, overrides: tuple[str, ...], out: Path | None, fresh: bool) -> None:
    """Run the experiment in FILE, or continue it where it stands."""
    from hpcfl.experiment import run_file

    run_file(file, overrides, out, fresh, communicator)


def _json(value: Any) -> None:
    import json

    print(json.dumps(value, indent=1))
