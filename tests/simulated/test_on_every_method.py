"""Every method, model, optimiser and option on the simulated GPU: the CPU's state, and what it costs."""

import pytest
import torch

from hpcfl.experiment import plugins
from hpcfl.fleet import comparing, graphs
from hpcfl.methods._ala import AdaptiveLocalAggregation, Blending

MOMENTUM = {"momentum": 0.9, "weight_decay": 0.01, "clip": 1.0}
# method, its options, the model, [training]
PLAYED = [
    ("apple", {}, "mlp", {}),
    ("cfl", {"quiet_rounds": 0, "eps1": 10.0, "eps2": 0.0}, "mlp", {}),
    ("creff", {"features_each": 5, "match_steps": 3, "head_epochs": 3}, "mlp", {}),
    ("cwfedavg", {"layers": "all", "wdr": 1.0}, "mlp", {}),
    ("cwfedavg", {"layers": "output", "wdr": 1.0}, "mlp", {"optimizer": "adam"}),
    ("ditto", {"ala": True}, "mlp", MOMENTUM),
    ("diversifed", {}, "mlp", {"optimizer": "adam"}),
    ("fedala", {"most_epochs": 2, "share": 1.0}, "mlp", {}),
    ("fedamp", {}, "mlp", {}),
    ("fedavg", {"ala": True, "aggregation": "class-wise"}, "mlp", {}),
    ("fedavg", {}, "fasttext", {"optimizer": "adam", "clip": 1.0}),
    ("fedavg", {}, "resnet8", {"buffers": "average", "lr": 1e-4}),
    ("fedavg-c", {"tune_epochs": 1}, "mlp", {}),
    ("fedbabu", {"tune_epochs": 1}, "lenet", {"momentum": 0.9}),
    ("fedcac", {}, "mlp", {}),
    ("fedfomo", {}, "mlp", {}),
    ("fednh", {}, "cnn", {}),
    ("fedper", {}, "mlp", {"optimizer": "adam"}),
    ("fedphp", {}, "tiny:normalised", {}),
    ("fedproto", {}, "mlp", {}),
    ("fedprox", {}, "cnn", {}),
    ("fedprox-c", {"tune_epochs": 1}, "mlp", {"momentum": 0.9}),
    ("fedrep", {"head_epochs": 1}, "tiny:normalised", {}),
    ("fedrod", {"personal": "hyper"}, "mlp", {}),
    ("fedrod", {"order": "separate"}, "mlp", {}),
    ("feduv", {}, "mlp", {}),
    ("ifca", {}, "mlp", {}),
    ("local", {}, "fasttext", {}),
    ("partialfed", {"warmup": 0}, "mlp", {}),
    ("per-fedavg", {"variant": "hessian-free"}, "mlp", {}),
    ("pfedme", {"lam": 5.0}, "mlp", {}),
    ("scaffold", {}, "mlp", {}),
    ("moon", {}, "mlp", {}),
    ("apfl", {}, "mlp", {"momentum": 0.9}),
    ("fedbn", {}, "tiny:normalised", {}),
    ("fedadam", {}, "mlp", {}),
    ("fedyogi", {}, "mlp", {}),
]
# Of five clients: three steps, the last of two samples for some; the smallest client has no whole batch.
COUNTS = [[4, 5, 0, 1], [0, 4, 4, 0], [0, 0, 1, 2], [6, 0, 2, 2], [2, 2, 2, 2]]
# torch's batch norm adds in another order where tensors say that they are on a GPU: one round and one small
# step, because batches of two samples would make much of that.
ROUNDED = {"resnet8": 1e-5}
CASES = [pytest.param(*case, id="-".join([case[0], case[2]])) for case in PLAYED]


@pytest.mark.parametrize(("name", "options", "model", "training"), CASES)
def test_a_method_ends_as_on_the_cpu(on_gpu, federate, samples, monkeypatch, name, options, model,
                                     training):
    """Four of five clients take part in each of two rounds; all are scored. Graphs begin at once."""
    monkeypatch.setattr(graphs, "SOON", 0 if model in ROUNDED else 1)
    monkeypatch.setattr(comparing, "is_due", lambda number: False)  # test_on_graphs.py compares
    monkeypatch.setattr(Blending, "adaptive_aggregation",
                        lambda self: AdaptiveLocalAggregation(most_epochs=2))
    rounds = 1 if model in ROUNDED else 2
    sections = {**samples(model), "rounds": rounds, "training": {"lr": 0.05, **training},
                "participation": {"fraction": 0.8}}
    method = {"name": name, **options}
    seen = on_gpu(method, COUNTS, **sections)
    plain = federate(method, COUNTS, **sections, runtime={"device": "cpu", "lanes": 1024})
    expected = {**{f"server {key}": value for key, value in plain.server.items()},
                **{f"client {key}": value for key, value in plain.clients.items()}}
    assert seen.state.keys() == expected.keys()
    most = ROUNDED.get(model, 0)
    assert [key for key, value in seen.state.items() if apart(value, expected[key]) > most] == []
    no_epoch_waits_twice(seen)
    rows_travel_page_locked(seen)


def apart(one, other):
    """The largest difference of two tensors; of infinities of the same sign none."""
    gaps = torch.where(one == other, 0.0, (one.double() - other.double()).abs())
    return gaps.amax().item() if one.numel() else 0.0


def no_epoch_waits_twice(seen):
    """For the order in which samples come, and nothing else; recordings and captures are made once."""
    once = ("begin of a capture", "fleet/graphs.py", "fleet/replay.py")
    waits = [{why: times for why, times in epoch.waits.items() if not any(part in why for part in once)}
             for epoch in seen.epochs]
    assert [one for one in waits if sum(one.values()) > 1] == []


def rows_travel_page_locked(seen):
    """And as they are: another type is made where it is worked on."""
    width = seen.played.prepared.setup.layout.width
    assert [copy for copy in seen.gpu.ledger.copies if copy.shape[-1:] == (width,)
            and copy.dtype.is_floating_point and (copy.converts or not copy.pinned)] == []


def test_every_method_is_played():
    assert {case[0] for case in PLAYED} == set(plugins.names("hpcfl.methods"))
