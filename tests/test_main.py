"""Exit of the process: ``hpcfl/__main__.py``."""

import signal
import subprocess
import sys

import pytest

from hpcfl import __main__, cli
from hpcfl.communication import connection
from hpcfl.files import output
from hpcfl.simulation import signals


class Aborted(Exception):
    pass


class Rank:
    """A communicator with a slow abort, during which a signal arrives."""

    rank = 0
    ranks = ("rank 0 on here",)

    def abort(self, code):
        for number in signals.STOP_SIGNALS:
            signal.raise_signal(number)
        raise Aborted(code)


@pytest.fixture
def handlers():
    """Restore the signal handlers after the test."""
    before = {number: signal.getsignal(number) for number in signals.STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("error", "code", "expected"),
    [
        (KeyboardInterrupt(), 130, "hpcfl: interrupted"),
        (ValueError("odd"), 1, "hpcfl: rank 0 on here failed: "),
    ],
)
def test_a_signal_while_a_job_is_ended_changes_nothing(
    monkeypatch, capsys, handlers, error, code, expected
):
    def fail(*_):
        raise error

    monkeypatch.setattr(output, "guard", lambda: None)  # replaces stderr of capsys
    monkeypatch.setattr(connection, "connect", Rank)
    monkeypatch.setattr(cli, "command", fail)
    with pytest.raises(Aborted) as aborted:
        __main__.main()
    assert aborted.value.args == (code,)
    assert capsys.readouterr().err.startswith(expected)


class Cleared:
    """An object during whose finalisation Ctrl-C arrives, or an error occurs."""

    def __init__(self, error):
        self.error = error

    def __del__(self):
        raise self.error


def test_a_ctrl_c_that_cannot_be_raised_prints_nothing(monkeypatch, printed_errors):
    monkeypatch.setattr(sys, "unraisablehook", signals.pass_over_interrupts)
    Cleared(KeyboardInterrupt())
    assert not printed_errors()
    Cleared(ValueError("odd"))
    assert "ValueError: odd" in printed_errors()


CONNECTING = """
import signal
from hpcfl import __main__
from hpcfl.communication import connection
connection.connect = lambda: signal.raise_signal(signal.SIGINT)
__main__.main()
"""

IMPORTING = """
import signal, sys
class Finder:
    def find_spec(self, name, *arguments):
        if name == "hpcfl.communication.connection":
            signal.raise_signal(signal.SIGINT)
from hpcfl import __main__
sys.meta_path.insert(0, Finder())
__main__.main()
"""


@pytest.mark.parametrize("program", [IMPORTING, CONNECTING])
def test_ctrl_c_until_ranks_are_connected_is_the_death_of_the_process(program):
    """mpiexec waits for ever for the other ranks of one that exits with a code."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")
