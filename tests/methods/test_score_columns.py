"""``evaluation.tune_epochs``: the same time of scoring for every method."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from by_hand import build_model, train_samples
from refusals import expect_refusal

from hpcfl.clients.losses import Fit
from hpcfl.experiment import config
from hpcfl.methods.base import ClientModel
from hpcfl.methods.fedavg import FedAvg

COUNTS = [[8, 3, 0, 1], [0, 9, 2, 2], [1, 0, 6, 6], [3, 0, 5, 10]]
TUNED = {"tune_epochs": [0, 1, 2]}
PART = {"fraction": 0.5, "stragglers": 0.5}


@pytest.mark.slow
def test_stragglers_are_tuned_in_full(federate):
    """Two of four clients take part, one of them as a straggler. ``test_digests.py``
    shows for every method that scores after tuning change no other number.
    """
    sections = {"participation": PART, "training": {"epochs": 2}, "rounds": 2}
    plain = federate("ditto", COUNTS, **sections)
    tuned = federate("ditto", COUNTS, evaluation=TUNED, **sections)
    assert tuned.digest == plain.digest
    more = (
        tuned.values["clients/sample_gradients"]
        - plain.values["clients/sample_gradients"]
    )
    samples = tuned.prepared.setup.samples.numpy()
    assert (more[-1] == 3 * samples).all()


def test_local_after_one_epoch_of_tuning_is_local_after_its_epoch(federate):
    """With one full batch both take the same step, up to the order of samples."""
    played = federate("local", COUNTS, training={"batch_size": 100}, evaluation=TUNED)
    after = played.values["clients/post/loss"][:-1]
    tuned = played.values["clients/tuned_1/loss"][:-1]
    np.testing.assert_allclose(tuned, after, rtol=1e-6)


def test_tuning_minimises_the_prediction_that_is_scored(make_fleet, rows_of):
    """With one full batch, tuning takes one step of 0.1 along the negative gradient of
    the cross-entropy of ``half``, the method's prediction: w − 0.1·∇CE(½ f(x; w), y).
    """
    fleet = make_fleet(COUNTS, batch_size=100)
    rows = rows_of(fleet)

    def half(model, x, lane):
        return lane.factor * model(x)

    trained = fleet.train(
        rows, loss=Fit(half), variables={"factor": torch.full((4,), 0.5)}
    )
    client = 2
    model = build_model(fleet.setup, rows[client])
    x, y = train_samples(fleet, client)
    torch.nn.functional.cross_entropy(0.5 * model(x), y).backward()
    step = [parameter - 0.1 * parameter.grad for parameter in model.parameters()]
    expected = torch.cat([part.flatten() for part in step])
    torch.testing.assert_close(trained[client], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("column", ["pre", "post", "tuned_0", "tuned_1"])
def test_another_model_in_a_column_of_the_engine_is_refused(
    make_fleet, rows_of, column
):
    class Other(FedAvg):
        def other_models(self, fleet, inbox, rows, trained):
            return {column: ClientModel(2 * rows)}

    fleet = make_fleet(COUNTS)
    fleet.scoring = replace(fleet.scoring, tune_epochs=(0, 1))
    method = Other(name="fedavg")
    with expect_refusal(rf"'{column}'"):
        for trained in (False, True):
            method.score(fleet, {}, rows_of(fleet), trained)


def test_the_same_prediction_is_the_same_loss():
    assert Fit(len) == Fit(len) != Fit(max)
    assert hash(Fit(len)) == hash(Fit(len))


@pytest.mark.parametrize("epochs", ["[1, 1]", "[-1]", "3"])
def test_epochs_that_make_no_columns_are_refused(tmp_path, epochs):
    file = tmp_path / "one.toml"
    file.write_text(f'method.name = "fedavg"\nevaluation.tune_epochs = {epochs}\n')
    with expect_refusal(r"evaluation\.tune_epochs"):
        config.load(file)
