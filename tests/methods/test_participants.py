"""Audiences and cohorts in a method's server hooks."""

import numpy as np
import pytest
import torch
from playing import prepare_alone
from refusals import expect_refusal
from tiny import table

from hpcfl.communication.communicator import OneProcess
from hpcfl.methods.base import Audience, ClientModel
from hpcfl.methods.fedavg import FedAvg
from hpcfl.simulation import preflight


class Weighs(FedAvg):
    """FedAvg that scales its message by the weights of the receivers."""

    def send(self, server, audience):
        return {"model": server["model"] * audience.weights.sum()}


def test_an_audience_has_no_weights():
    """In scored rounds the audience contains all clients, so a message with weights
    would depend on the frequency of scoring.
    """
    prepared = prepare_alone(table("test_participants:Weighs"))
    with expect_refusal("'Audience' object has no attribute 'weights'"):
        preflight.run(prepared, OneProcess())


def test_weights_of_a_cohort_are_shares_of_samples_or_equal(cohort):
    weights = cohort([[1, 2], [3, 4], [7, 7]]).weights
    assert weights.dtype == torch.float64
    assert weights.tolist() == pytest.approx([3 / 24, 7 / 24, 14 / 24], abs=1e-15)
    uniform = cohort([[1, 2], [3, 4]], uniform=True).weights
    assert uniform.tolist() == [0.5, 0.5]


def test_ids_behind_those_of_the_clients_are_newcomers(cohort):
    setup = cohort([[1], [1]]).setup
    for ids, expected in (([0, 1], False), ([2], True)):
        assert Audience(np.array(ids), setup, 1).are_newcomers is expected


def test_models_of_the_same_objects_are_the_same():
    rows = torch.zeros(2, 3)
    assert ClientModel(rows).is_same(ClientModel(rows))
    for other in (ClientModel(rows.clone()), ClientModel(rows, len)):
        assert not ClientModel(rows).is_same(other)
