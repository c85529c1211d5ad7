"""A user's modules: constant buffers, statistics, and untrainable modules."""

import numpy as np
import pytest
import tiny
import torch
import torch.nn.functional as functional
from refusals import expect_refusal
from torch import nn

import hpcfl
from hpcfl.errors import RankFailure, UserError
from hpcfl.models.usable import Unusable, find_statistics, refuse_unusable
from hpcfl.rows import constants, layout


class Net(nn.Module):
    """A body, a head and constant buffers of four types."""

    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Linear(shape[0], 6)
        self.head = nn.Linear(6, classes)
        self.register_buffer("order", torch.tensor([5, 4, 3, 2, 1, 0]))
        self.register_buffer("mask", torch.arange(6) > 3)
        self.register_buffer("table", torch.full((6,), 2.0), persistent=False)
        self.register_buffer("phase", torch.ones(6, dtype=torch.complex64))

    def features(self, x):
        hidden = self.body(x)[:, self.order] * self.table * self.phase.real
        return hidden.masked_fill(self.mask, 0.0)

    def forward(self, x):
        return self.head(self.features(x))


class Moving(Net):
    """A model whose statistics are a mean and a counter, changed as ``how`` states."""

    def __init__(self, shape, classes, *, how: str = "in place"):
        super().__init__(shape, classes)
        self.how, self.steps, self.last = how, 0, torch.zeros(6)
        self.history = {"steps": [0]}
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("count", torch.tensor(0))

    def features(self, x):
        hidden = super().features(x)
        now = hidden.detach().mean(dim=0)
        if self.training and self.how == "in place":
            self.mean.mul_(0.5).add_(now, alpha=0.5)
            self.count.add_(1)
        if self.training and self.how == "replaced":
            self.mean = torch.lerp(self.mean, now, 0.5)
        if self.how == "counted":
            self.steps += 1
        if self.how == "listed":
            self.history["steps"][0] += 1
        if self.how == "bounded":
            self.body.weight.data.clamp_(-0.01, 0.01)
        if self.how == "large":
            self.count.add_(1 + (1 << 24))
        if self.how == "remembered":
            self.last = now  # no state: the same result for the same samples
        if self.how == "late" and len(x) > 2:
            self.mean.add_(1.0)
        return hidden - self.mean


class Outside(Net):
    """A model with state in its class, on which the outputs in one mode depend."""

    passes = 0

    def __init__(self, shape, classes, *, in_training: bool):
        super().__init__(shape, classes)
        self.in_training = in_training

    def features(self, x):
        Outside.passes += self.training
        changed = self.training == self.in_training
        return super().features(x) * (Outside.passes if changed else 1)


def share_weight(weight):
    layer = nn.Linear(5, 5)
    layer.weight.data = weight.T
    return nn.Sequential(nn.ParameterList([weight]), layer)


def module_with(layer):
    module = nn.Sequential(nn.Linear(5, 5), layer)
    module.head = nn.Linear(5, 2)
    return module


def holding(parts):
    module = nn.Identity()
    module.held = parts
    return module


def weight_norm():
    with pytest.warns(FutureWarning):
        return nn.utils.weight_norm(nn.Linear(5, 5))


@pytest.mark.parametrize(
    ("make", "place"),
    [
        (lambda: nn.Linear(5, 5).double(), "'1.weight' is torch.float64"),
        (lambda: nn.LazyLinear(5), "'1.weight' has no shape"),
        (lambda: nn.Linear(5, 5, device="meta"), "'1.weight' has no values"),
        (
            lambda: share_weight(nn.Parameter(torch.eye(5))),
            "'1.1.weight' shares .*'1.0.0'",
        ),
        (weight_norm, r"'1' \(Linear\) has torch.nn.utils.weight_norm"),
        (lambda: nn.DataParallel(nn.Linear(5, 5)), r"'1' \(DataParallel\) wraps"),
        (
            lambda: nn.BatchNorm1d(5, track_running_stats=False),
            r"'1' \(BatchNorm1d\) keeps no statistics",
        ),
        (lambda: torch.ao.nn.quantized.ReLU6(), r"'1' \(ReLU6\) is quantised"),
        (lambda: holding({"a": [(nn.Linear(5, 5), 1)]}), "in the plain dict 'held'"),
        (lambda: holding((nn.Parameter(torch.ones(3)),)), "in the plain tuple 'held'"),
        (lambda: holding([nn.BatchNorm1d(5, affine=False)]), "the plain list 'held'"),
    ],
)
def test_a_layer_that_cannot_be_trained_is_named(make, place):
    with pytest.raises(Unusable, match=place):
        refuse_unusable(module_with(make()))


def test_a_sparse_parameter_is_named():
    module = nn.Module()
    module.table = nn.Parameter(torch.eye(3).to_sparse())
    with pytest.raises(Unusable, match="'table'"):
        refuse_unusable(module)


def test_a_list_may_hold_registered_layers_and_those_without_parameters():
    module = module_with(nn.ReLU())
    module.held = [module[0], nn.Tanh(), (3, {"a": [module.head]})]
    refuse_unusable(module)


def test_frozen_parameters_may_have_any_type():
    module = module_with(nn.Linear(5, 5).double().requires_grad_(False))
    module.order = nn.Parameter(torch.arange(3), requires_grad=False)
    refuse_unusable(module)


@pytest.mark.parametrize(
    ("how", "changed"),
    [("in place", {"mean", "count"}), ("remembered", set())],
)
def test_statistics_are_the_buffers_that_training_changes(how, changed):
    x = torch.randn(2, 5)
    assert find_statistics(Moving((5,), 4, how=how), x, seed=0) == changed


@pytest.mark.parametrize(
    ("how", "place"),
    [
        ("replaced", "buffer 'mean'"),
        ("counted", "attribute 'steps'"),
        ("listed", "attribute 'history'"),
        ("bounded", "parameter 'body.weight'"),
        ("large", "buffer 'count'"),
    ],
)
def test_state_that_would_be_lost_or_shared_is_refused(how, place):
    with pytest.raises(Unusable, match=place):
        find_statistics(Moving((5,), 4, how=how), torch.randn(2, 5), seed=0)


@pytest.mark.parametrize("in_training", [True, False])
def test_state_outside_of_the_module_is_refused(in_training):
    module = Outside((5,), 4, in_training=in_training)
    with pytest.raises(Unusable, match="outside"):
        find_statistics(module, torch.randn(2, 5), seed=0)


@pytest.mark.parametrize(
    "draw",
    [
        lambda hidden: functional.dropout(hidden, 0.001),
        lambda hidden: hidden * np.random.default_rng().random(),
    ],
)
def test_a_model_with_random_predictions_is_refused(draw):
    module = nn.Sequential(nn.Linear(5, 4))
    module.forward = lambda x: draw(module[0](x))
    with pytest.raises(Unusable, match="if self"):
        find_statistics(module, torch.randn(2, 5), seed=0)


@pytest.mark.parametrize("kind", ["spectral_norm", "parametrizations.spectral_norm"])
def test_spectral_norm_has_statistics(kind):
    normalise = nn.utils.spectral_norm
    if kind.startswith("parametrizations"):
        normalise = nn.utils.parametrizations.spectral_norm
    module = nn.Sequential(normalise(nn.Linear(5, 4)))
    changed = find_statistics(module, torch.randn(2, 5), seed=0)
    assert len(changed) == 2  # two vectors of the power iteration


def test_constant_buffers_are_in_no_row():
    module = nn.Sequential(Net((5,), 4), nn.BatchNorm1d(4))
    held = constants.hold(module, constants.copy_frozen(module))
    names = layout.lay_out_buffers(held).names
    assert names == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    kinds = {name: value.dtype for name, value in constants.collect(held).items()}
    assert kinds == {
        "0.order": torch.int64,
        "0.mask": torch.bool,
        "0.table": torch.float32,
        "0.phase": torch.complex64,
    }


@pytest.mark.parametrize("lanes", ["auto", 1])
def test_the_global_model_has_its_constant_buffers(tmp_path, lanes):
    run = play(tmp_path, "test_usable:Net", runtime={"lanes": lanes})
    model = run.model("global")
    assert model.order.tolist() == [5, 4, 3, 2, 1, 0]
    assert model.mask.dtype == torch.bool
    assert model.phase.dtype == torch.complex64
    reference = Net((5,), 4)
    reference.load_state_dict(model.state_dict())
    x = torch.from_numpy(np.random.default_rng(0).random((3, 5))).float()
    assert torch.equal(reference(x), model(x))


def test_own_statistics_stay_with_each_client(tmp_path):
    run = play(tmp_path, "test_usable:Moving")
    counts = [int(run.model(i).count) for i in range(2)]
    # client 0 has 4 samples and client 1 has 8, in mini-batches of 4, in 2 rounds
    assert counts == [2, 4]
    with expect_refusal(r"'global' .*training.buffers = 'average'"):
        run.model("global")


@pytest.mark.parametrize("lanes", ["auto", 1])
def test_a_buffer_that_changes_later_ends_the_run(tmp_path, lanes):
    # In lanes torch itself refuses the change, before round 1.
    refused = r"(its buffer 'mean'|in-place|inplace|written-to tensor)"
    with pytest.raises((RankFailure, UserError), match=refused):
        play(tmp_path, "test_usable:Moving", {"how": "late"}, runtime={"lanes": lanes})


def play(folder, name, model=None, **sections):
    experiment = tiny.table("fedavg", [[2, 2, 0, 0], [4, 4, 0, 0]], **sections)
    experiment["model"] = {"name": name, **(model or {})}
    experiment["rounds"] = 2
    experiment["training"] = {"batch_size": 4, "lr": 0.1}
    return hpcfl.run(experiment, out=folder / "run", progress=False)
