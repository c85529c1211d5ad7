"""Layers below the head that run once per training, and trainings in which this is not
allowed.
"""

import errno

import pytest
import torch
import torch.nn.functional as functional
from every_method import NAMES, kind, short
from torch import nn

from hpcfl.clients import evaluate_at, heads
from hpcfl.clients.resources import make_head_kernel
from hpcfl.experiment import plugins
from hpcfl.rows.layout import make_row

COUNTS = [[8, 3, 0, 0], [0, 9, 2, 0], [2, 2, 2, 2], [5, 5, 5, 5]]
HEAD = {"params": ("head",), "epochs": 3}


class Convolutional(nn.Module):
    """A convolution with batch norm over the five features as a 1×5 image, and further
    layers that a test inserts.
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


class Undecided(Convolutional):
    """A model whose features depend on the mode by a function and not by a layer."""

    def features(self, x):
        features = super().features(x)
        return functional.dropout(features, 0.5, training=self.training)


class Between(Convolutional):
    """A model that drops numbers between the features and the head."""

    def forward(self, x):
        return self.head(functional.dropout(self.features(x), 0.5, self.training))


class Apart(Convolutional):
    """A model whose forward pass does not call ``features``."""

    def forward(self, x):
        return self.head(2 * torch.relu(self.conv(x.view(-1, 1, 1, 5))).flatten(1))


MODELS = {
    "plain": lambda: Convolutional(nn.Identity()),
    "dropping": lambda: Convolutional(nn.Dropout(0.5)),
    "batch_dependent": lambda: Convolutional(nn.BatchNorm2d(4, affine=False)),
    "apart": lambda: Apart(nn.Identity()),
    "between": lambda: Between(nn.Identity()),
    "undecided": lambda: Undecided(nn.Identity()),
}


def build(shape, classes, *, kind: str):
    return MODELS[kind]()


def fleet_of(make_fleet, model, lanes="auto"):
    """Return a fleet with one of these models."""
    model = {"name": "test_heads:build", "kind": model}
    fleet = make_fleet(COUNTS, lanes=lanes, model=model)
    if fleet.resources.buffers.width:
        row = make_row(fleet.resources.buffers, fleet.resources.setup.build())
        fleet.state["buffers.model"] = row.repeat(len(COUNTS), 1)  # as in a run
    return fleet


def without(fleet):
    """Return the same fleet, running the frozen layers for every mini-batch."""
    object.__setattr__(fleet.resources, "head", None)
    return fleet


@pytest.fixture
def runs(monkeypatch):
    """Return the number of samples in each run of the frozen layers."""
    counted, run_once = [], heads.compute_features

    def counting(resources, models, pools):
        counted.append(sum(map(len, pools)))
        return run_once(resources, models, pools)

    monkeypatch.setattr(heads, "compute_features", counting)
    return counted


@pytest.mark.parametrize("lanes", [1, 3, "auto"])
@pytest.mark.parametrize(
    "how", [{}, {"share": 0.5}, {"steps": 1}, {"proximal": 0.5}], ids=str
)
def test_the_head_trained_on_features_is_the_head_trained_on_samples(
    make_fleet, rows_of, lanes, how, runs
):
    how = {**HEAD, **how}
    once, each = (
        make_fleet(COUNTS, lanes=lanes, dtype=torch.float64) for _ in range(2)
    )
    rows = rows_of(once)
    if "proximal" in how:
        how["proximal"] = how["proximal"], rows.flip(0)
    one, other = once.train(rows, **how), without(each).train(rows, **how)
    samples = (how.get("share", 1) * once.samples).int().clamp(min=1)
    assert sum(runs) == samples.sum()
    torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
    torch.testing.assert_close(once.results.losses, each.results.losses)
    body = once.layout.columns("body")
    assert torch.equal(one[:, body], rows[:, body]) and not torch.equal(one, rows)


@pytest.mark.parametrize("lanes", [1, "auto"])
def test_frozen_convolutions_with_batch_norm_stay_unchanged(
    make_fleet, rows_of, lanes, runs
):
    once, each = (fleet_of(make_fleet, "plain", lanes) for _ in range(2))
    rows = rows_of(once)
    before = once.state["buffers.model"].clone()
    one, other = once.train(rows, **HEAD), without(each).train(rows, **HEAD)
    torch.testing.assert_close(one, other)
    assert sum(runs) == once.samples.sum()
    assert torch.equal(once.state["buffers.model"], before)


def test_features_take_no_more_memory_than_they_may(make_fleet, rows_of, runs):
    """The features of a sample are twelve numbers. The clients train in the order of
    their numbers of samples: 20, 11, 11 and 8.
    """
    plenty, little = (fleet_of(make_fleet, "plain") for _ in range(2))
    rows = rows_of(plenty)
    expected = plenty.train(rows, **HEAD)
    assert runs == [50]
    runs.clear()
    object.__setattr__(little.resources.head, "memory", 22 * 12 * 4)
    assert torch.equal(little.train(rows, **HEAD), expected)
    assert runs == [20, 22, 8]


@pytest.mark.parametrize(
    ("params", "augment"),
    [(("all",), False), (("body",), False), ((2,), False), (("head",), True)],
)
def test_layers_that_train_or_vary_run_for_every_batch(
    make_fleet, rows_of, params, augment, runs
):
    fleet = make_fleet(COUNTS)
    if augment:
        samples = fleet.resources.samples
        samples.take = samples.redistribute({}).take  # the samples are not images
        samples.vary = lambda index, *key: index
        samples.augment = True
    fleet.train(rows_of(fleet), params=params)
    assert runs == []


def reads_samples(model, batch, lane):
    return functional.cross_entropy(model(batch.x + 0.1 * batch.x.sign()), batch.y)


def asks_another_model(model, batch, lane):
    features = evaluate_at(
        model, lane.teacher, lambda teacher: teacher.features(batch.x)
    )
    entropy = functional.cross_entropy(model(batch.x), batch.y)
    return entropy + features.square().mean() * model.head.bias.sum()


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        ("dropping", None),
        ("batch_dependent", None),
        ("apart", None),
        ("undecided", None),
        ("between", None),
        ("plain", reads_samples),
        ("plain", asks_another_model),
    ],
)
def test_layers_run_for_every_batch_if_features_do_not_suffice(
    make_fleet, rows_of, model, loss, runs
):
    """The bits do not change."""
    fleet, other = (fleet_of(make_fleet, model, lanes=1) for _ in range(2))
    rows = rows_of(fleet)
    how = {**HEAD, "loss": loss, "variables": {"teacher": rows}}
    trained = fleet.train(rows, **how)
    assert runs == []
    assert torch.equal(trained, without(other).train(rows, **how))


def test_a_wrong_loss_is_named(make_fleet, rows_of):
    def wrong(model, batch, lane):
        return model(batch.x)

    fleet = make_fleet(COUNTS)
    with pytest.raises(TypeError, match=r"loss .* \[4, 4\]"):
        fleet.train(rows_of(fleet), loss=wrong, **HEAD)


METHODS = [
    *[short(name) for name in NAMES if "body" in kind(name).trains],
    short("fedrod", order="separate"),
    short("fedrep", ala=True),
    short("fedavg", aggregation="class-wise"),
]


@pytest.mark.slow  # every training is done twice
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_training_on_features_equals_training_on_samples(
    federate, short_ala, tried_both_ways, method
):
    """Compare both ways for options and methods that define their body's training.
    ``test_frozen_parameters.py`` tests models with a frozen body in the other methods.
    """
    trains_body = "body" in kind(method["name"]).trains
    model = {"name": "mlp" if trains_body else "tiny:head_only"}
    federate(method, rounds=2, model=model)
    assert tried_both_ways or trains_body


TOKENS = [
    "fasttext",
    "text-transformer",
    "char-transformer",
    "char-lstm",
    "bert",
    "gpt",
]
SHAPES = {"lenet": (1, 28, 28), **dict.fromkeys(TOKENS, (12,))}


@pytest.mark.parametrize("name", plugins.list_names("hpcfl.models"))
def test_heads_of_all_models_map_features_to_outputs(name):
    """The head computes the outputs from the features, as the model's structure
    implies.
    """
    shape = SHAPES.get(name, (3, 32, 32))
    options = {"vocabulary": 30} if name in TOKENS else {}
    if name in ("bert", "gpt"):
        options |= {"width": 8, "depth": 1, "heads": 2, "hidden": 8}
    module = plugins.find("hpcfl.models", "model.name", name)(shape, 4, **options)
    x = torch.randint(0, 30, (3, *shape)) if options else torch.randn(3, *shape)
    names = [key for key, _ in module.named_parameters() if key.startswith("head.")]
    assert heads.features_suffice(module, x[:2], names)
    module.eval()
    torch.testing.assert_close(module.head(module.features(x)), module(x))


class Unfeatured(nn.Module):
    """A model with features and without a layer ``head``."""

    def __init__(self):
        super().__init__()
        self.features = nn.Linear(4, 3)

    def forward(self, x):
        return self.features(x)


def test_a_model_without_a_head_has_no_features_for_samples():
    cpu = torch.device("cpu")
    assert make_head_kernel(Unfeatured(), cpu, "auto", True, 1e6) is None


@pytest.mark.parametrize(
    "error", [OSError(errno.ESTALE, "Stale file handle"), MemoryError()], ids=repr
)
def test_a_failure_is_raised_to_the_caller(monkeypatch, error):
    """Training on samples instead of features changes the last bits."""

    def fail(*given):
        raise error

    module = Unfeatured()
    module.head = nn.Linear(3, 2)
    monkeypatch.setattr(module, "forward", fail)
    with pytest.raises(type(error)):
        heads.features_suffice(module, torch.ones(2, 4), ["head.weight"])
