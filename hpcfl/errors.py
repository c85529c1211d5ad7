"""The errors that a user meets: each a line that says what is wrong, where, and what to
type next.
"""

import difflib
import errno
import traceback
from collections.abc import Iterable

# Errors of the operating system that report a lack of memory or of open files, and those
# that report a full disk or a device that fails.
TOO_LITTLE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
DEVICES = (
    errno.EAGAIN,
    errno.EDQUOT,
    errno.EIO,
    errno.ENOSPC,
    errno.ESTALE,
    errno.ETIMEDOUT,
)
MOST = 60  # words that an error lists
# Words with which Python, torch and its libraries report a lack of memory or threads.
SHORT_OF = (
    "alloc_failed",
    "bad_alloc",
    "can't allocate memory",
    "can't start new thread",
    "cannot allocate memory",
    "could not create a memory",
    "could not create a primitive",
    "not enough memory",
    "out of memory",
    "unable to mmap",
)


class _Shown(Exception):
    """An error that a notebook shows as a command does.

    on_all_ranks: whether every rank of a job raises it.
    """

    on_all_ranks: bool = False

    def _render_traceback_(self) -> list[str]:
        """IPython's question how to show it: what ``explain`` says, line by line."""
        return f"{type(self).__name__}: {explain(self)}".splitlines()


class UserError(_Shown):
    """Bad input: a configuration, file or launch that cannot work. No traceback, exit
    code 2.

    Attributes:
        args: a line for each mistake, mostly one.
    """

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class RunFailure(_Shown):
    """A run that had to end: a diverged client, a lost rank, a full disk. One line,
    exit code 1.
    """


class Diverged(RunFailure):
    """A run that had to end because clients diverged, which it would do again."""


class Interrupted(_Shown):
    """A planned early end after a signal, from which the same command goes on. Exit
    code 75.

    Attributes:
        begun: whether there is a state that it continues, so that nobody wants to start
            afresh.
    """

    def __init__(self, text: str, begun: bool = True):
        super().__init__(text)
        self.begun = begun


class RankFailure(_Shown):
    """A failure on one rank while the others wait for it, which aborts the job.

    It is made with where in the run it happened; its ``__cause__`` is what went wrong.
    """

    def __str__(self) -> str:
        place, cause = super().__str__(), self.__cause__
        return place if cause is None else f"{place}: {_describe(cause)}"


# Errors that are printed in one line, without a traceback.
EXPECTED = (UserError, RunFailure, Interrupted)


def explain(error: BaseException) -> str:
    """Describe an error that aborts the job, in one line if it was expected, else with
    its traceback.

    EXPECTED and a lack of memory, threads or disk space are expected, also as the cause
    of a RankFailure.
    """
    cause = (
        error.__cause__ if isinstance(error, RankFailure) and error.__cause__ else error
    )
    said = str(error) if cause is not error else _describe(error)
    if isinstance(cause, EXPECTED) or is_shortage(cause):
        return said
    return f"{said}\n{''.join(traceback.format_exception(cause))}"


def _describe(error: BaseException) -> str:
    """Return an expected error's line, or the kind and the text of another error."""
    return (
        str(error)
        if isinstance(error, EXPECTED)
        else f"{type(error).__name__}: {error}"
    )


def is_shortage(error: BaseException | None) -> bool:
    """Return whether an error reports a lack of memory, threads, files or disk space, or
    a device that fails. The experiment is not the cause.
    """
    if isinstance(error, OSError) and error.errno in DEVICES:
        return True
    return is_lack_of_memory(error)


def is_lack_of_memory(error: BaseException | None) -> bool:
    """Return whether an error reports a lack of memory, threads or open files."""
    if isinstance(error, MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno in TOO_LITTLE
    if not isinstance(error, RuntimeError | ImportError):
        return False
    words = str(error).lower()
    return any(phrase in words for phrase in SHORT_OF)


def lack_of_memory(error: BaseException | None) -> RunFailure | None:
    """Return the failure to report if a lack of memory is the cause of an error; None for
    any other error.

    Readers of files raise their errors without a cause: a damaged file may ask for
    any amount of memory.
    """
    cause = error
    while cause is not None and not is_lack_of_memory(cause):
        cause = cause.__cause__
    if cause is None:
        return None
    failure = RunFailure(f"{_describe(cause)}; give the job more memory")
    failure.__cause__ = cause
    return failure


def suggest(word: str, allowed: Iterable[str]) -> str:
    """Return the end of an error line about an unknown word.

    It has the most similar allowed word and all of them, or of many the next ones.
    """
    allowed = list(allowed)
    small = {one.lower(): one for one in reversed(allowed)}
    close = difflib.get_close_matches(word.lower(), small, n=1)
    hint = f"did you mean '{small[close[0]]}'? " if close else ""
    if len(allowed) > MOST:
        allowed = difflib.get_close_matches(word, allowed, n=5, cutoff=0)
        return f"; {hint}nearest: {', '.join(allowed)}"
    return f"; {hint}allowed: {', '.join(allowed) or 'none'}"
