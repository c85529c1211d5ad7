"""All built-in methods, for tests that every method must pass: the files of the folder,
each with keys for a quick run.
"""

from functools import cache

from hpcfl.experiment import plugins
from hpcfl.report import catalogue

NAMES = plugins.list_names("hpcfl.methods")


def kind(name):
    """Return the class of a method."""
    return plugins.find("hpcfl.methods", "method.name", name)


def short(name, **keys):
    """Return the section ``[method]`` of a quick run."""
    return {"name": name, **kind(name).short, **keys}


@cache
def of_each_family():
    """Return one method of each family of the catalogue. Families differ in their
    messages, in the private state and in the trained parameters.
    """
    found = {}
    for entry in catalogue.list_entries("methods"):
        found.setdefault(entry["family"], entry["name"])
    return sorted(found.values())
