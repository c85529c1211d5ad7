"""The errors that a user meets: each one line that says what is wrong, where, and what to type next."""


class UserError(Exception):
    """Bad input: a configuration, file or launch that cannot work. One line, no traceback, exit code 2."""


class RunFailure(Exception):
    """A run that had to end: a diverged client, a lost rank, a full disk. One line, exit code 1."""


class Interrupted(Exception):
    """A planned early end after a signal: state is saved and the same command continues. Exit code 75."""
