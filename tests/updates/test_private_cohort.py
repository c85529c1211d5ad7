"""Cohort of a method's server under ``[privacy]``."""

import pytest
import torch
from refusals import expect_refusal

from hpcfl.clients.setup import Setup
from hpcfl.experiment.sections import Training
from hpcfl.rows.layout import Layout
from hpcfl.updates.private_cohort import PrivateCohort

COUNTS = torch.ones(4, 2).double()
SETUP = Setup(Layout([]), COUNTS, 9, 0, torch.nn.Identity, Training())
COHORT = PrivateCohort(SETUP, 3, share_of_clients=0.25)


def test_the_cohort_has_only_values_independent_of_the_clients():
    assert COHORT.share_of_clients == 0.25 and COHORT.round == 3
    assert COHORT.uniform and COHORT.layout is SETUP.layout


@pytest.mark.parametrize(
    "name", ["ids", "class_counts", "counts", "samples", "shares", "weights"]
)
def test_the_drawn_clients_are_refused_by_name(name):
    with expect_refusal(rf"cohort\.{name}.*\[privacy\]"):
        getattr(COHORT, name)
