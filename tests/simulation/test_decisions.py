"""Decisions of two starts of a run are compared by subject."""

import pytest

from hpcfl.simulation.decisions import list_changed_decisions

BEGAN = {"asked": ["cpu", "auto"], "clients train": "side by side"}


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        (BEGAN, []),
        ({**BEGAN, "clients train": "one after the other"}, ["clients train"]),
        # the user has asked for other lanes
        ({"asked": ["cpu", 1], "clients train": "one after the other"}, []),
        # a decision that the earlier version did not make
        ({**BEGAN, "noise": "Gaussian"}, []),
    ],
)
def test_decisions_with_the_same_settings_are_compared(now, changed):
    found = list_changed_decisions(BEGAN, now)
    assert [text.split(" one ")[0] for text in found] == changed


def test_a_run_that_stored_none_has_changed_none():
    assert list_changed_decisions(None, BEGAN) == []
