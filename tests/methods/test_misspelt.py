"""A function of a user's own method that is nearly called like a hook gets a note."""

import inspect
from pathlib import Path

import pytest
import tiny

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.methods.fedavg import FedAvg
from hpcfl.simulation.prepare import prepare


class Recieves(FedAvg):
    """Its hook would never be called."""

    def recieved(self, fleet, inbox):
        return super().received(fleet, inbox)


class Derived(Recieves):
    """Has the one that it derives from, and functions of its own."""

    def received(self, fleet, inbox):
        return self.blended(super().received(fleet, inbox))

    def blended(self, rows):
        return rows

    def _uploads(self):
        return []


@pytest.mark.parametrize("kind", ["Recieves", "Derived"])
@pytest.mark.parametrize("options", [{}, {"ala": True}])
def test_what_is_nearly_a_hook_is_noted_with_its_line(kind, options):
    keys = {"name": f"{__name__}:{kind}", **options}
    notes = prepare(config.parse(tiny.table(keys)), OneProcess()).notes
    line = inspect.getsourcelines(Recieves.recieved)[1]
    (note,) = [note for note in notes if "no hook" in note]
    assert note.endswith(
        f"{Path(__file__).name}:{line}: 'recieved' is no hook, and no round calls it; "
        "did you mean 'received'?"
    )
