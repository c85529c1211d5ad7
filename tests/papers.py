"""Experiment files of the papers."""

from places import ROOT

from hpcfl.experiment import config, sweep

PAPERS = sorted((ROOT / "launch" / "papers").glob("*.toml"))


def find_repetitions(table):
    """Return the axis of a sweep along which experiments are repeated."""
    for values in table["sweep"].values():
        if isinstance(values, list) and "seed" in str(values[0]):
            return values
    return table["sweep"]["seed"]


def read_paper(path):
    """Return the cells of a paper's file, and the number of repetitions of each
    experiment; two repetitions of each are included.
    """
    table = config.read(path)
    repeats = "seed" in str(table.get("sweep"))
    if repeats:
        del find_repetitions(table)[2:]
    return sweep.expand(table, path.name), 1 + repeats
