"""Figures of the papers: the plotted numbers, from models that a run stored."""

import re
from pathlib import Path

import class_distribution
import model_distances
import numpy as np
import output_norms
import prototype_similarity
import pytest
import representations
import torch
import training_loss
import trajectory
import weight_learning
from principal import project_to_plane
from refusals import expect_refusal

from hpcfl.experiment import plugins
from hpcfl.report.figures import KINDS
from hpcfl.report.sheet import Sheet

pytestmark = pytest.mark.slow  # most play a run first
FIGURES = Path(class_distribution.__file__).parent


def test_the_estimates_end_with_those_of_the_trained_model(played):
    run = played({"name": "cwfedavg", "wdr": 3.0}, rounds=1)
    found = class_distribution.compute_estimates(run, 2)
    norms = run.model(2, "post").state_dict()["head.weight"].double().norm(dim=1)
    np.testing.assert_allclose(found[-1], norms / norms.sum(), rtol=1e-9)
    assert class_distribution.compute_shares(run, 2).sum() == pytest.approx(1)
    figure = class_distribution.draw([run], Sheet(7), client=2)
    np.testing.assert_allclose(figure.axes[-1].lines[0].get_ydata(), found[-1])
    named = [text.get_text() for text in figure.legends[0].texts]
    assert named == [*(f"class {number}" for number in range(4)), "cwfedavg"]
    highest = figure.axes[-1].get_xlim()[1]
    assert (
        figure.axes[-1].get_ylim()[1]
        == highest
        > class_distribution.compute_shares(run, 2).max()
    )


def test_norms_of_output_layers(played):
    run = played("cwfedavg")
    panels = output_norms.compute_panels(run, whole=True)
    assert list(panels) == ["", ": class models"]
    assert panels[": class models"].shape == (4, 4)
    own = run.model(3).state_dict()["head.weight"].double().norm(dim=1)
    np.testing.assert_allclose(panels[""][3], own)
    assert len(output_norms.draw([run], Sheet(7)).axes) == 3


def test_a_common_start_model_adds_panels_of_trained_models(played):
    panels = output_norms.compute_panels(played("fedavg"), whole=True)
    assert list(panels) == ["", ", after training", ": change by training"]
    np.testing.assert_allclose(
        panels[": change by training"], panels[", after training"] - panels[""]
    )


def test_cosines_are_those_of_the_prototypes(played):
    run = played("fednh")
    rows = run.model("global").state_dict()["head.weight"].double()
    table = prototype_similarity.compute_cosines(run)
    assert np.isnan(np.diag(table)).all()
    assert table[0, 1] == pytest.approx(
        torch.cosine_similarity(rows[0], rows[1], dim=0).item()
    )
    assert (
        len(prototype_similarity.draw([run], Sheet(7)).axes) == 2
    )  # with the scale of shades
    drawn = representations.project_features(
        run, 0
    )  # of more features than two: their principal components
    assert drawn.points.shape == (len(drawn.labels), 2) and drawn.rays.shape == (4, 2)
    assert (
        representations.draw([run], Sheet(7))
        .axes[0]
        .get_xlabel()
        .startswith("first component, ")
    )
    with expect_refusal(r"client 99 .* 0 … 4 "):
        representations.draw([run], Sheet(7), client=99)
    with expect_refusal(r"/run: fednh .*blend"):
        weight_learning.collect_losses(run, 0)
    with expect_refusal(r"/run: fednh .*pull"):
        model_distances.compute_distances(run)


def test_five_classes_make_a_super_class():
    assert (np.bincount(prototype_similarity.SUPER_CLASSES) == 5).all()
    same = (
        prototype_similarity.SUPER_CLASSES[:, None]
        == prototype_similarity.SUPER_CLASSES
    )
    assert prototype_similarity.compute_contrast(
        np.where(same, 0.5, -0.1)
    ) == pytest.approx((0.5, -0.1))


def test_a_plane_of_two_features(played):
    run = played("fedavg", model={"name": "spiral"})
    drawn = representations.project_features(run, 1)
    head = run.model(1, "post").state_dict()["head.weight"]
    assert drawn.points.shape == (len(drawn.labels), 2)
    assert np.array_equal(drawn.rays, head)
    assert len(representations.draw([run], Sheet(7), client=1).axes) == 2


def test_distances_of_pairs_by_the_sign_of_their_force(played):
    run = played("diversifed")
    models = run.models.replay.server(4)["models"].double()
    apart = torch.cdist(models, models)
    pulled, pushed = model_distances.compute_distances(run)
    assert apart[apart > 0].min() <= pulled < pushed <= apart.max()


HISTORY = {"every": 1, "keep": 9}


def test_collected_losses_of_weight_learning_have_six_epochs(played):
    """FedALA trains the weights for seven epochs in round 2, the maximum, and for one
    in round 3, which the test continues.
    """
    run = played({"name": "fedala", "most_epochs": 7}, checkpoint=HISTORY)
    found = weight_learning.collect_losses(run, 1)
    assert {round: len(epochs) for round, epochs in found.items()} == {2: 7, 3: 6}
    assert (
        len(weight_learning.draw([run], Sheet(7), client=1).axes[0].lines) == 4
    )  # a rule before each


def test_a_path_goes_through_the_models_before_and_after_training(played):
    run = played("fedavg", checkpoint=HISTORY)
    path = trajectory.collect_models(run, 2)
    assert len(path) == 6
    layout = run.models.replay.prepared.setup.layout
    for position, column in ((2, "pre"), (3, "post")):
        found = run.model(2, column, at=2).state_dict()
        row = torch.cat([found[name].flatten() for name in layout.names])
        assert np.array_equal(path[position], row.numpy())
    assert (
        len(trajectory.draw([run], Sheet(7), client=2).axes[0].lines) == 5
    )  # two of them for the legend


def test_the_training_loss_is_of_the_clients_own_training_samples(played):
    run = played("local", checkpoint=HISTORY)
    samples = run.models.replay.prepared.resources.samples
    total = count = 0
    for client in range(5):
        x, y = samples.take(samples.train[client])
        logits = run.model(client, "post", at=2)(x)
        total += torch.nn.functional.cross_entropy(logits, y, reduction="sum").item()
        count += len(y)
    assert training_loss.compute_loss(run, "post", 2) == pytest.approx(total / count)
    before, after = training_loss.draw([run], Sheet(7)).axes[0].lines
    assert after.get_ydata()[1] == pytest.approx(total / count)
    assert before.get_ydata()[2] == pytest.approx(
        total / count
    )  # alone, a client continues from its own model


def test_lines_have_gaps_at_rounds_without_stored_state(played, tmp_path):
    run, sheet = played("local", rounds=4, checkpoint={"every": 3}), Sheet(7)
    assert run.models.replay.rounds == {1, 4, 5}
    before, _ = training_loss.draw([run], sheet).axes[0].lines
    assert before.get_xdata().tolist() == [1, 2, 4]
    assert np.isnan(before.get_ydata()).tolist() == [False, True, False]
    note = sheet.notes[-1]
    assert " 2 rounds" in note
    assert "checkpoint.every = 1 and checkpoint.keep = 4 " in note


def test_every_kind_in_make_sh_is_there():
    asked = set(re.findall(r"--kind (\S+?)[ \"]", (FIGURES / "make.sh").read_text()))
    own = {kind for kind in asked if ":" in kind}
    assert len(own) == 9
    for kind in asked:
        assert callable(plugins.find(KINDS, "--kind", kind))


def test_the_plane_of_principal_components():
    rows = np.array([[0.0, 0, 5], [2, 0, 5], [4, 0, 5]])
    found = project_to_plane(rows)
    np.testing.assert_allclose(np.abs(found.points[:, 0]), [2, 0, 2], atol=1e-12)
    np.testing.assert_allclose(
        (rows - rows.mean(axis=0)) @ found.directions, found.points, atol=1e-12
    )
    assert found.shares[0] == pytest.approx(1)
