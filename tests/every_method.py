"""The built-in methods for the tests that every method has to pass: the files of the
folder, whichever there are, each with the keys that make it quick.
"""

from hpcfl.experiment import plugins

NAMES = plugins.names("hpcfl.methods")


def kind(name):
    """The class of a method."""
    return plugins.find("hpcfl.methods", "method.name", name)


def short(name, **keys):
    """The section ``[method]`` of a quick run."""
    return {"name": name, **kind(name).short, **keys}
