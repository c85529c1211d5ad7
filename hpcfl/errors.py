"""Errors for users: one line with the mistake, its place and what to type next."""

import difflib
import errno
import traceback
from collections.abc import Iterable

# Error numbers of the operating system for a lack of memory or open files, and for a full
# disk or a failing device.
TOO_LITTLE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
DEVICES = (
    errno.EAGAIN,
    errno.EDQUOT,
    errno.EIO,
    errno.ENOSPC,
    errno.ESTALE,
    errno.ETIMEDOUT,
)
RESUMABLE = 75  # exit code: stopped early, and the same command continues
MOST = 60  # number of words up to which an error lists all allowed words
# Phrases by which Python, torch and its libraries report a lack of memory or threads.
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
    """An error that a notebook shows like the command line does.

    Attributes:
        on_all_ranks: Whether every rank of a job raises the error.
    """

    on_all_ranks: bool = False

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows for the error, as ``explain`` gives them."""
        return f"{type(self).__name__}: {explain(self)}".splitlines()


class UserError(_Shown):
    """Bad input: a configuration, file or launch that cannot work.

    The command prints it without a traceback and exits with code 2.

    Attributes:
        args: Lines, one for each mistake.
    """

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class RunFailure(_Shown):
    """A failure of a run, such as a diverged client, a lost rank or a full disk.

    The command prints one line and exits with code 1.
    """


class Diverged(RunFailure):
    """A failure because clients diverged, which would happen again."""


class Interrupted(_Shown):
    """A planned early end after a signal; the same command continues.

    The command exits with code 75.

    Attributes:
        begun: Whether there is a state to continue from. If so, the command to repeat is
            printed without ``--fresh``.
    """

    def __init__(self, text: str, begun: bool = True):
        super().__init__(text)
        self.begun = begun


class RankFailure(_Shown):
    """A failure on one rank while other ranks wait for it; it aborts the job.

    The message is the place in the run; ``__cause__`` is the original error.
    """

    def __str__(self) -> str:
        place, cause = super().__str__(), self.__cause__
        return place if cause is None else f"{place}: {_describe(cause)}"


# Errors that are printed in one line, without a traceback.
EXPECTED = (UserError, RunFailure, Interrupted)


def explain(error: BaseException) -> str:
    """Describe an error that aborts the job.

    Errors of EXPECTED and a lack of memory, threads or disk space take one line, also as
    the cause of a RankFailure. Other errors include a traceback.
    """
    cause = (
        error.__cause__ if isinstance(error, RankFailure) and error.__cause__ else error
    )
    text = str(error) if cause is not error else _describe(error)
    if isinstance(cause, EXPECTED) or is_shortage(cause):
        return text
    return f"{text}\n{''.join(traceback.format_exception(cause))}"


def _describe(error: BaseException) -> str:
    """Return the message of an expected error, or type and message of another one."""
    return (
        str(error)
        if isinstance(error, EXPECTED)
        else f"{type(error).__name__}: {error}"
    )


def is_shortage(error: BaseException | None) -> bool:
    """Return whether an error reports a lack of memory, threads, files or disk space, or
    a failing device. Such an error is not caused by the experiment.
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
    """Return the failure to report if a lack of memory caused an error, else None.

    Readers of files must raise their errors without a cause, because a damaged file may
    request any amount of memory.
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

    It names the most similar allowed word and all allowed words; if these are many, only
    the nearest ones.
    """
    allowed = list(allowed)
    small = {one.lower(): one for one in reversed(allowed)}
    close = difflib.get_close_matches(word.lower(), small, n=1)
    hint = f"did you mean '{small[close[0]]}'? " if close else ""
    if len(allowed) > MOST:
        allowed = difflib.get_close_matches(word, allowed, n=5, cutoff=0)
        return f"; {hint}nearest: {', '.join(allowed)}"
    return f"; {hint}allowed: {', '.join(allowed) or 'none'}"
