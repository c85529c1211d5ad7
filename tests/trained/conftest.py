"""Fixture of synthetic runs."""

from made_up import make_run

__all__ = ["make_run"]
