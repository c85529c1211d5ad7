"""The errors that a user meets: each one line that says what is wrong, where, and what to type next."""

import traceback


class UserError(Exception):
    """Bad input: a configuration, file or launch that cannot work. One line, no traceback, exit code 2."""


class RunFailure(Exception):
    """A run that had to end: a diverged client, a lost rank, a full disk. One line, exit code 1."""


class Interrupted(Exception):
    """A planned early end after a signal, from which the same command goes on. Exit code 75.

    begun: whether there is a state that it continues, so that nobody wants to start afresh.
    """

    def __init__(self, text: str, begun: bool = True):
        super().__init__(text)
        self.begun = begun


class RankFailure(Exception):
    """A failure on one rank while the others wait for it, which aborts the job.

    Its text says where in the run it happened, its ``__cause__`` what went wrong.
    """


def explain(error: BaseException) -> str:
    """Describe an error that aborts the job, in one line if it was expected, else with its traceback.

    Expected are UserError and RunFailure, also as the cause of a RankFailure.
    """
    cause = error.__cause__ if isinstance(error, RankFailure) and error.__cause__ else error
    place = f"{error}: " if cause is not error else ""
    if isinstance(cause, UserError | RunFailure):
        return f"{place}{cause}"
    return f"{place}{type(cause).__name__}: {cause}\n{''.join(traceback.format_exception(cause))}"
