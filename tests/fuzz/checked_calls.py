"""Commands in this process, and requirements for their answers to any input."""

import io
from contextlib import redirect_stderr, redirect_stdout

from playing import call

from hpcfl.simulation.signals import StopRequest

EXPERIMENT = """
name = "fuzzed"
rounds = 3
[data]
dataset = "digits"
[partition]
clients = 3
[model]
name = "mlp"
hidden = [4]
[training]
batch_size = 200
[method]
name = "ditto"
[checkpoint]
every = 1
"""


def answer(*arguments: object, codes: tuple[int, ...] = (0, 2)) -> int:
    """Return the exit code of a command, one of ``codes``; a code other than 0 requires
    one line about it.
    """
    out, err = io.StringIO(), io.StringIO()
    # At the end of a StopRequest signals are handled as before.
    with redirect_stdout(out), redirect_stderr(err), StopRequest(lambda: None):
        code = call(*arguments)
    output = f"{arguments} → {code}\n{out.getvalue()}\n{err.getvalue()}"
    assert code in codes, output
    assert "Traceback" not in output
    assert "\x1b" not in output
    if code != 0:  # a line for each mistake
        lines = err.getvalue().strip().splitlines()
        assert lines and all(line.startswith("hpcfl: ") for line in lines), output
    return code
