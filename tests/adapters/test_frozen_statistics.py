"""Batch norm in a frozen base: its statistics belong to the base and not to a client."""

import pytest
import tiny
import torch
from playing import prepare_alone
from safetensors.torch import save_file
from torch import nn

from hpcfl.clients.losses import set_modes
from hpcfl.rows import constants
from hpcfl.rows.layout import lay_out_buffers

NORMALISED = {"name": "tiny:normalised"}
LORA = {"kind": "lora", "targets": ["hidden*"], "rank": 2}
STATISTICS = ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked"]


def table(adapter, model=NORMALISED, **sections):
    return tiny.table("fedavg", model=model, adapter=adapter, **sections)


def prepared(adapter, **sections):
    return prepare_alone(table(adapter, **sections))


def base_of(prepared):
    return constants.collect(prepared.resources.kernel.module)


@pytest.fixture
def file(tmp_path):
    """Return a file with changed statistics."""
    module = tiny.normalised((5,), 4)
    tensors = dict(module.state_dict())
    tensors["norm.running_mean"] = torch.arange(5.0)
    tensors["norm.running_var"] = torch.arange(1.0, 6.0)
    tensors["norm.num_batches_tracked"] = torch.tensor(7)
    path = tmp_path / "base.safetensors"
    save_file(tensors, path)
    return path, tensors


@pytest.mark.parametrize("key", ["init", "base"])
def test_statistics_and_their_digest_come_from_the_file(file, key):
    path, tensors = file

    def read():
        if key == "base":
            return prepared({**LORA, "base": str(path)})
        return prepared(LORA, model={**NORMALISED, "init": str(path)})

    first = read()
    base = base_of(first)
    assert set(STATISTICS) < set(base)
    for name, value in base.items():
        assert torch.equal(value, tensors[name])
    x = torch.randn(3, 5)
    module = first.setup.build().eval()
    normalised = (x - torch.arange(5.0)) / (torch.arange(1.0, 6.0) + 1e-5).sqrt()
    torch.testing.assert_close(
        module.norm(x), normalised * base["norm.weight"] + base["norm.bias"]
    )
    save_file({**tensors, "norm.running_mean": torch.ones(5)}, path)
    assert read().fixed_digest != first.fixed_digest


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [LORA, {"kind": "head"}])
@pytest.mark.parametrize("buffers", ["local", "average"])
def test_statistics_do_not_change_and_clients_have_none(
    federate, file, adapter, buffers
):
    path, tensors = file
    played = federate(
        "ditto",
        model={**NORMALISED, "init": str(path)},
        adapter=adapter,
        training={"buffers": buffers},
        rounds=2,
    )
    for name in STATISTICS:
        assert torch.equal(base_of(played.prepared)[name], tensors[name])
    assert not [name for name in played.state if "buffers" in name]
    assert played.prepared.resources.buffers.width == 0


def test_a_norm_that_trains_its_bias_has_statistics_of_each_client():
    assert prepared({"kind": "bias"}).resources.buffers.names == STATISTICS


class Plain(nn.Module):
    """A norm without parameters next to layers with parameters."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(5, 6)
        self.norm = nn.BatchNorm1d(6, affine=False)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        return self.head(self.norm(self.hidden(x)))


@pytest.mark.parametrize("adapted", [False, True])
def test_a_norm_without_parameters_is_frozen_with_all_but_an_adapter(adapted):
    module = tiny._without(Plain(), "hidden")
    constants.hold(module, constants.copy_frozen(module, adapted))
    set_modes(module, ["head.weight", "head.bias"], "training")
    assert module.norm.training != adapted and module.training
    assert lay_out_buffers(module).names == ([] if adapted else STATISTICS)


def test_changing_released_statistics_leaves_the_frozen_copy_unchanged():
    module = tiny._without(tiny.normalised((5,), 4), "norm", "hidden1")
    values = constants.copy_frozen(module)
    assert STATISTICS[0] in values
    held = constants.release(constants.hold(module, values))
    held.norm.running_mean.add_(1)
    assert not values["norm.running_mean"].any()
    assert lay_out_buffers(held).names == STATISTICS
