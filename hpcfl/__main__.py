"""``hpcfl`` and ``python -m hpcfl``: initialise MPI, then run the command.

A failing rank ends all ranks.
"""

import gc
import signal
import sys


def main() -> None:
    """Run the command line on this rank and exit with its code.

    Codes: 0 done; 2 bad input; 75 stopped early, the same command continues; 130 Ctrl-C;
    other codes a failure.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        # Ctrl-C before the ranks are connected ends this rank without a traceback.
        # mpiexec ends the other ranks only if this rank dies of a signal.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from hpcfl.communication.connection import connect
    from hpcfl.files import output
    from hpcfl.simulation import signals

    output.guard()
    sys.unraisablehook = signals.pass_over_interrupts
    # Before any heavy import, for the reason that its docstring gives.
    communicator = connect()
    signal.signal(signal.SIGINT, handler)
    try:
        from hpcfl.cli import command

        code = command(sys.argv[1:], communicator)
        # The ranks have agreed on the code, so a stop signal must not change it.
        signals.ignore()
    except SystemExit:
        raise
    except BaseException as error:
        signals.ignore()  # a second signal would raise within this handler
        if isinstance(error, KeyboardInterrupt):
            print("hpcfl: interrupted; the same command continues", file=sys.stderr)
            communicator.abort(130)
        from hpcfl.errors import explain

        rank = communicator.ranks[communicator.rank]
        output.complain(f"{rank} failed: {explain(error)}")
        communicator.abort(1)
    try:
        communicator.end(code)
    finally:
        # Without this Python searches all objects of torch for garbage at exit.
        gc.freeze()


if __name__ == "__main__":
    main()
