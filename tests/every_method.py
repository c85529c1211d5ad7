"""The built-in methods for the tests that every method has to pass: the files of the
folder, whichever there are, each with the keys that make it quick.
"""

from functools import cache

from hpcfl.experiment import plugins
from hpcfl.report import catalogue

NAMES = plugins.names("hpcfl.methods")


def kind(name):
    """The class of a method."""
    return plugins.find("hpcfl.methods", "method.name", name)


def short(name, **keys):
    """The section ``[method]`` of a quick run."""
    return {"name": name, **kind(name).short, **keys}


@cache
def of_each_family():
    """One method of each family of the catalogue: they differ in what travels, in what
    clients keep and in what is trained.
    """
    found = {}
    for entry in catalogue.list_entries("methods"):
        found.setdefault(entry["family"], entry["name"])
    return sorted(found.values())
