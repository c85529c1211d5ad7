import pytest
import torch

from hpcfl.experiment import plugins
from hpcfl.models.mlp import plugin


@pytest.mark.parametrize("hidden", [[], [7], [16, 8, 4]])
def test_hidden_layers_have_the_widths_that_are_asked_for(hidden):
    model = plugin((3, 4), 6, hidden=hidden)
    x = torch.randn(5, 3, 4)
    assert [layer.out_features for layer in model.children()] == [*hidden, 6]
    assert list(model.children())[-1] is model.head
    assert model.features(x).shape == (5, hidden[-1] if hidden else 12)
    assert torch.equal(model(x), model.head(model.features(x)))


def test_keys_are_checked_by_the_configuration():
    keys = plugins.fields_class("model", {"name": "mlp"})
    assert list(keys.model_fields) == ["hidden"]
    assert keys.model_validate({"hidden": [16, 8]}).model_dump(mode="json") == {
        "hidden": [16, 8]
    }
    assert keys.model_validate({}).model_dump(mode="json") == {"hidden": [64]}
    with pytest.raises(ValueError, match=r"hidden\.0"):
        keys.model_validate({"hidden": [0]})
