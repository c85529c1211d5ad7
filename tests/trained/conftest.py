"""The fixture of runs that were never played."""

from made_up import make_run

__all__ = ["make_run"]
