"""Layers below the head that run once a training, and trainings in which they may not."""

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from torch import nn

from hpcfl.clients import at, frozen
from hpcfl.rows.layout import to_row

COUNTS = [[8, 3, 0, 0], [0, 9, 2, 0], [2, 2, 2, 2], [5, 5, 5, 5]]
HEAD = {"params": ("head",), "epochs": 3}


class Convolutional(nn.Module):
    """A convolution with batch norm over the five features as a 1×5 image, and what a
    test puts between.
    """

    def __init__(self, between):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, (1, 3))
        self.norm = nn.BatchNorm2d(4)
        self.between = between
        self.head = nn.Linear(12, 4)

    def features(self, x):
        return self.between(
            torch.relu(self.norm(self.conv(x.view(-1, 1, 1, 5))))
        ).flatten(1)

    def forward(self, x):
        return self.head(self.features(x))


class Apart(Convolutional):
    """The forward pass does not go through ``features``."""

    def forward(self, x):
        return self.head(2 * torch.relu(self.conv(x.view(-1, 1, 1, 5))).flatten(1))


def plain(shape, classes):
    return Convolutional(nn.Identity())


def dropping(shape, classes):
    return Convolutional(nn.Dropout(0.5))


def batch_dependent(shape, classes):
    return Convolutional(nn.BatchNorm2d(4, affine=False))


def apart(shape, classes):
    return Apart(nn.Identity())


def fleet_of(make_fleet, model, lanes="auto"):
    fleet = make_fleet(COUNTS, lanes=lanes, model={"name": f"test_frozen:{model}"})
    if fleet.resources.buffers.width:
        row = to_row(fleet.resources.buffers, fleet.resources.setup.build())
        fleet.state["buffers.model"] = row.repeat(len(COUNTS), 1)  # as a run does
    return fleet


def without(fleet):
    """The same fleet, which runs the frozen layers for every mini-batch."""
    object.__setattr__(fleet.resources, "head", None)
    return fleet


@pytest.fixture
def runs(monkeypatch):
    """How many samples each run of the frozen layers had, but for the two of the trial."""
    counted, run_once = [], frozen.run_once

    def counting(resources, rows, buffers, pools):
        if len(pools) > 1 or len(pools[0]) > 2:
            counted.append(sum(map(len, pools)))
        return run_once(resources, rows, buffers, pools)

    monkeypatch.setattr(frozen, "run_once", counting)
    return counted


@pytest.mark.parametrize("lanes", [1, 3, "auto"])
@pytest.mark.parametrize(
    "how", [{}, {"share": 0.5}, {"steps": 1}, {"proximal": 0.5}], ids=str
)
def test_the_head_trained_on_features_is_the_head_trained_on_samples(
    make_fleet, rows_of, lanes, how, runs
):
    once, each = (
        make_fleet(COUNTS, lanes=lanes, dtype=torch.float64) for _ in range(2)
    )
    rows = rows_of(once)
    how = {
        key: (value, rows.flip(0)) if key == "proximal" else value
        for key, value in how.items()
    }
    one, other = (
        once.train(rows, **HEAD, **how),
        without(each).train(rows, **HEAD, **how),
    )
    assert sum(runs) == sum(
        np.maximum(1, (how.get("share", 1) * once.samples.numpy()).astype(int))
    )
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
    torch.testing.assert_close(once.losses, each.losses)
    body = once.layout.columns("body")
    assert torch.equal(one[:, body], rows[:, body]) and not torch.equal(one, rows)


@pytest.mark.parametrize("lanes", [1, "auto"])
def test_convolutions_with_batch_norm_stand_still(make_fleet, rows_of, lanes, runs):
    once, each = (fleet_of(make_fleet, "plain", lanes) for _ in range(2))
    rows = rows_of(once)
    before = once.state["buffers.model"].clone()
    torch.testing.assert_close(
        once.train(rows, **HEAD), without(each).train(rows, **HEAD)
    )
    assert sum(runs) == sum(map(sum, COUNTS))
    assert torch.equal(once.state["buffers.model"], before)


def test_features_take_no_more_memory_than_they_may(make_fleet, rows_of, runs):
    """A sample's are twelve numbers. The clients train by number of samples: 20, 11, 11
    and 8.
    """
    plenty, little = (fleet_of(make_fleet, "plain") for _ in range(2))
    rows = rows_of(plenty)
    expected = plenty.train(rows, **HEAD)
    assert runs == [50]
    runs.clear()
    object.__setattr__(little.resources.head, "memory", 22 * 12 * 4)
    assert torch.equal(little.train(rows, **HEAD), expected)
    assert runs == [20, 22, 8]


def test_a_client_gets_the_same_bits_whoever_trains_beside_it(
    make_fleet, rows_of, runs
):
    together = fleet_of(make_fleet, "plain")
    rows = rows_of(together)
    trained = together.train(rows, **HEAD)
    for client in range(len(COUNTS)):
        alone = fleet_of(make_fleet, "plain")
        only = torch.arange(len(COUNTS)) == client
        assert torch.equal(
            alone.train(rows, only=only, **HEAD)[client], trained[client]
        )


@pytest.mark.parametrize(
    ("params", "augment"),
    [(("all",), False), (("body",), False), (2, False), (("head",), True)],
)
def test_what_moves_or_varies_below_the_head_runs_each_time(
    make_fleet, params, augment
):
    fleet = make_fleet(COUNTS)
    fleet.resources.samples.augment = augment
    groups = (params,) if isinstance(params, int) else params
    assert not frozen.fits(
        fleet.resources,
        torch.zeros(1, fleet.layout.width),
        torch.zeros(1, 0),
        np.arange(2),
        fleet.layout.members(groups),
        fleet.loss,
        {},
    )


@pytest.mark.parametrize("lanes", [1, "auto"])
def test_layers_that_the_model_freezes_run_once_in_every_training(
    make_fleet, lanes, runs
):
    """With all below the head frozen, "all" is the head."""
    model = {"name": "tiny:head_only"}
    once, each = (
        make_fleet(COUNTS, lanes=lanes, model=model, epochs=3) for _ in range(2)
    )
    for fleet in (once, each):
        row = to_row(fleet.resources.buffers, fleet.setup.build())
        fleet.state["buffers.model"] = row.repeat(len(COUNTS), 1)
    rows = once.setup.initial()
    one, other = once.train(rows), without(each).train(rows)
    assert sum(runs) == sum(map(sum, COUNTS))
    torch.testing.assert_close(one, other)
    assert not torch.equal(one[0], rows)


def reads_samples(model, batch, lane):
    return functional.cross_entropy(model(batch.x + 0.1 * batch.x.sign()), batch.y)


def asks_another_model(model, batch, lane):
    features = at(model, lane.teacher, lambda teacher: teacher.features(batch.x))
    entropy = functional.cross_entropy(model(batch.x), batch.y)
    return entropy + features.square().mean() * model.head.bias.sum()


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        ("dropping", None),
        ("batch_dependent", None),
        ("apart", None),
        ("plain", reads_samples),
        ("plain", asks_another_model),
    ],
)
def test_where_features_do_not_stand_for_samples_the_layers_run_each_time(
    make_fleet, rows_of, model, loss, runs
):
    """The same bits as ever; another model is the client's own here, so that only
    asking for it tells.
    """
    ended = []
    for change in (lambda fleet: fleet, without):
        fleet = change(fleet_of(make_fleet, model, lanes=1))
        rows = rows_of(fleet)
        torch.manual_seed(1)
        ended.append(fleet.train(rows, loss=loss, variables={"teacher": rows}, **HEAD))
    assert runs == []
    if model != "dropping":  # the trial draws as well
        assert torch.equal(*ended)


def test_a_loss_at_fault_says_so_itself(make_fleet, rows_of):
    fleet = make_fleet(COUNTS)
    with pytest.raises(TypeError, match="has shape"):
        fleet.train(
            rows_of(fleet), loss=lambda model, batch, lane: model(batch.x), **HEAD
        )


def test_how_far_a_run_has_come_does_not_decide(make_fleet, rows_of, monkeypatch):
    """The trial is of the initial model; a resumed run must decide as the run before it
    did.
    """
    tried, same = [], frozen._same
    monkeypatch.setattr(
        frozen,
        "_same",
        lambda resources, rows, *given: (
            tried.append(rows) or same(resources, rows, *given)
        ),
    )
    fleet = fleet_of(make_fleet, "plain")
    fleet.train(8 * rows_of(fleet), **HEAD)
    assert len(tried) == 1 and torch.equal(tried[0], fleet.setup.initial()[None])
