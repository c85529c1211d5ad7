import pytest
import torch

from hpcfl.experiment import plugin_keys
from hpcfl.models.mlp import plugin


def test_default_is_the_model_of_diversifed():
    model = plugin((1, 28, 28), 10)
    assert [name for name, _ in model.named_children()] == ["hidden1", "head"]
    assert sum(p.numel() for p in model.parameters()) == 50_890


@pytest.mark.parametrize("hidden", [[], [7], [16, 8, 4]])
def test_any_widths(hidden):
    model = plugin((3, 4), 6, hidden=hidden)
    x = torch.randn(5, 3, 4)
    assert [layer.out_features for layer in model.children()] == [*hidden, 6]
    assert list(model.children())[-1] is model.head
    assert model.features(x).shape == (5, hidden[-1] if hidden else 12)
    assert torch.equal(model(x), model.head(model.features(x)))


def test_runs_under_vmap():
    model = plugin((4,), 3, hidden=[5])
    stacked = {
        name: torch.stack([p.detach(), 2 * p.detach()])
        for name, p in model.named_parameters()
    }
    x = torch.randn(2, 6, 4)
    logits = torch.vmap(
        lambda own, batch: torch.func.functional_call(model, own, batch)
    )(stacked, x)
    torch.testing.assert_close(logits[0], model(x[0]))


def test_keys_are_checked_by_the_configuration():
    keys = plugin_keys.fields_class("model", {"name": "mlp"})
    assert list(keys.model_fields) == ["hidden"]
    assert keys.model_validate({"hidden": [16, 8]}).model_dump(mode="json") == {
        "hidden": [16, 8]
    }
    assert keys.model_validate({}).model_dump(mode="json") == {"hidden": [64]}
    with pytest.raises(ValueError, match="greater than 0"):
        keys.model_validate({"hidden": [0]})
