"""Compressed downloads."""

import numpy as np
import pytest
import tiny
import torch
from playing import prepare_alone
from refusals import expect_refusal
from whole_runs import PART, is_the_same_elsewhere

from hpcfl.clients.setup import Setup
from hpcfl.experiment.sections import Training
from hpcfl.methods.base import Audience, Cohort
from hpcfl.rows.layout import Layout
from hpcfl.updates.downloads import Downloads

SETUP = Setup(
    Layout([]), torch.ones(3, 2).double(), 9, 0, torch.nn.Identity, Training()
)
WIDTH = 5
WHOLE, CHANGE = 32 * WIDTH, 4 * WIDTH + 32  # 9 levels with zero and signs need 4 bits
MODELS = torch.arange(6 * WIDTH).view(6, WIDTH).float()


@pytest.fixture
def server():
    """Return the overlay of a method that sends a row of MODELS, and its state."""
    overlay = Downloads(
        levels=4,
        compose=lambda state, audience: {"model": MODELS[audience.round]},
        initial=lambda setup: {},
        seed=1,
    )
    return overlay, overlay.server_state(SETUP)


def send(overlay, state, round, ids=(0, 1, 2)):
    """Return the model that clients receive, and its number of bits for each."""
    audience = Audience(np.array(ids), SETUP, round)
    message = overlay.send(state, audience, overlay.compose(state, audience))
    return message["model"].tensor, message["download.bits"].tensor[:, 0].tolist()


def end_round(overlay, state, round, ids):
    cohort = Cohort(np.array(ids), SETUP.counts[ids], SETUP, round)
    overlay.aggregate(state, cohort, {})


def test_a_client_receives_the_changes_since_its_version(server):
    overlay, state = server
    first, bits = send(overlay, state, 1)
    assert torch.equal(first, MODELS[1]) and bits == [WHOLE] * 3
    end_round(overlay, state, 1, [0, 1])
    second, bits = send(overlay, state, 2)
    assert bits == [CHANGE, CHANGE, WHOLE]
    levels = (second - first) / (MODELS[2] - MODELS[1]).norm() * 4
    torch.testing.assert_close(levels, levels.round())
    assert not torch.equal(second, MODELS[2])
    end_round(overlay, state, 2, [0, 2])
    assert torch.equal(state["download.sent"], second)
    assert send(overlay, state, 3)[1] == [CHANGE, 2 * CHANGE, CHANGE]
    for round in (3, 4):
        end_round(overlay, state, round, [0, 2])
    # four changes would take more than the whole model
    assert send(overlay, state, 5)[1] == [CHANGE, WHOLE, CHANGE]


def test_the_message_does_not_depend_on_its_receivers(server):
    overlay, state = server
    end_round(overlay, state, 1, [0])
    assert torch.equal(send(overlay, state, 2)[0], send(overlay, state, 2, ids=[1])[0])


def test_newcomers_receive_the_whole_message(server):
    overlay, state = server
    end_round(overlay, state, 1, [0])
    message = {"model": MODELS[2]}
    newcomers = Audience(np.array([3]), SETUP, 2)
    assert overlay.send(state, newcomers, message) is message


@pytest.mark.slow
def test_a_run_is_the_same_on_any_number_of_ranks_and_resumed(tmp_path):
    compression = {"kind": "top-k", "share": 0.3, "downloads": "qsgd"}
    table = tiny.table(
        "fedavg",
        compression=compression,
        participation=PART,
        newcomers={"clients": 1, "epochs": 1},
    )
    same, played = is_the_same_elsewhere(tmp_path, table)
    assert same
    width = len(played.server["model"])
    first, last = played.values["clients/recorded/bits_down"][[0, -2]]
    assert set(first[~np.isnan(first)]) == {32 * width}
    assert np.nanmin(last) == 4 * width + 32
    updated = played.server["download.number"].item()
    assert updated == 3 and played.server["download.versions"].max() == updated


def test_a_message_to_each_client_is_named(server):
    overlay, state = server
    message = {"model": MODELS[1], "mix": MODELS[:3]}
    with expect_refusal(r"compression\.downloads = 'qsgd': .*'mix' .*'whole'"):
        overlay.send(state, Audience(np.arange(3), SETUP, 1), message)


def test_a_transform_of_uploads_changes_no_downloads():
    transform = {"kind": "qsgd", "downloads": "qsgd"}
    table = tiny.table("fedavg", transform=[transform])
    with expect_refusal(r"transform\.0\.downloads"):
        prepare_alone(table)
