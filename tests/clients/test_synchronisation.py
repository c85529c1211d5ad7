"""Nothing inside an epoch asks the device for a value: on a GPU the host would stand
still until all before is done.
"""

import pytest
import torch
from every_method import NAMES, short
from torch.utils._python_dispatch import TorchDispatchMode

from hpcfl.clients import training

ASKING = {
    "aten::_local_scalar_dense",
    "aten::nonzero",
    "aten::masked_select",
    "aten::equal",
    "aten::is_nonzero",
    "aten::unique_dim",
    "aten::_unique2",
}


class Watch(TorchDispatchMode):
    """Notes operations whose result the host has to wait for."""

    def __init__(self):
        super().__init__()
        self.asked = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        name = function._schema.name
        bools = name in ("aten::index", "aten::index_put", "aten::index_put_") and any(
            index is not None and index.dtype == torch.bool for index in arguments[1]
        )
        if name in ASKING or bools:
            self.asked.append(name)
        return function(*arguments, **(keywords or {}))


@pytest.mark.slow
def test_the_watch_sees_what_waits():
    with Watch() as watch:
        x = torch.ones(3)
        x[x > 0].sum().item()
    assert watch.asked == ["aten::index", "aten::_local_scalar_dense"]


@pytest.fixture
def watched(monkeypatch):
    """Whatever is asked while epochs run, with how many epochs there were."""
    asked, epochs, real = [], [], training.Chunk.epoch

    def epoch(*arguments):
        epochs.append(1)
        with Watch() as watch:
            result = real(*arguments)
        asked.extend(watch.asked)
        return result

    monkeypatch.setattr(training.Chunk, "epoch", epoch)
    return asked, epochs


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_method_waits_inside_an_epoch(federate, watched, name):
    federate(short(name), rounds=2, runtime={"lanes": 8})
    asked, epochs = watched
    assert asked == [] and len(epochs) > 1


@pytest.mark.parametrize(
    "training",
    [{"momentum": 0.9}, {"clip": 0.1, "weight_decay": 0.1}, {"optimizer": "adam"}],
    ids=str,
)
def test_no_optimiser_waits_inside_an_epoch(federate, watched, training):
    federate("fedavg", rounds=1, training=training, runtime={"lanes": 8})
    assert watched[0] == [] and watched[1]
