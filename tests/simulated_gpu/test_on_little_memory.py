"""Memory on the device compared with the rule for the number of lanes, and a device
that is too small.
"""

import gc

import pytest
import tiny
import torch
from on_gpu import PLAYED, TOLERANCE, apart, share_of_rule

from hpcfl.clients.execution import cuda_graphs
from hpcfl.commands import needs
from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import RankFailure, explain
from hpcfl.rows import mixing
from hpcfl.simulation import lane_choice, prepare

LANES = 4
EVEN = [[4, 4, 0, 0]] * LANES
WIDE = {"name": "mlp", "hidden": [3000]}
UNEVEN = [[count, count, 0, 0] for count in range(2, 14)]
ADAM = {"optimizer": "adam", "clip": 1.0, "weight_decay": 0.1}
# methods whose local training uses more models than the trained one
SEVERAL = {
    "apfl",
    "diversifed",
    "fedala",
    "moon",
    "partialfed",
    "per-fedavg",
    "scaffold",
}
# Models in the pool of a round of eight clients.
IN_POOLS = {"apple": 8, "cfl": 1, "ditto": 0, "ifca": 2}
METHODS = [
    pytest.param({"name": name, **options}, EVEN, training, 2, id=name)
    for name, options, _, training in PLAYED
    if name in SEVERAL
]
# There is a graph for nearly every number of lanes.
METHODS += [pytest.param("apfl", UNEVEN, {"batch_size": 4}, 3, id="lanes that end")]


@pytest.mark.parametrize(
    ("method", "model", "training", "form"),
    [
        ("fedavg", WIDE, ADAM, "grouped"),
        ("apple", WIDE, {"momentum": 0.9}, "grouped"),
        ("fedavg", {"name": "cnn"}, ADAM, "grouped"),
        ("fedavg", {"name": "cnn"}, ADAM, "loop"),
        ("fedavg", {"name": "resnet8"}, {"momentum": 0.9}, "grouped"),
        ("fedavg", {"name": "resnet8"}, {"momentum": 0.9}, "loop"),
    ],
    ids=str,
)
def test_a_lane_needs_no_more_memory_than_the_rule_estimates(
    gpu, samples, monkeypatch, method, model, training, form
):
    """Two rounds, the second with graphs."""
    monkeypatch.setattr(cuda_graphs, "SOON", 1)
    sections = {**samples(model["name"]), "model": model, "training": training}
    sections["runtime"] = {"convolutions": form}
    assert share_of_rule(method, EVEN, sections, 2) < 1


@pytest.mark.parametrize(("method", "counts", "training", "rounds"), METHODS)
def test_methods_with_several_models_need_no_more_memory_either(
    gpu, monkeypatch, method, counts, training, rounds
):
    monkeypatch.setattr(cuda_graphs, "SOON", 1)
    sections = {"model": {"name": "mlp", "hidden": [300, 300]}, "training": training}
    assert share_of_rule(method, counts, sections, rounds) < 1


def test_half_as_many_lanes_train_where_they_do_not_fit(gpu, federate, on_cpu, capfd):
    sections = {"model": WIDE, "rounds": 1}
    fits = on_cpu("ditto", EVEN, **sections)
    needed = {}
    for lanes in (2, LANES):
        gc.collect()
        begun = gpu.memory.begin()
        federate("ditto", EVEN, **sections, runtime={"device": "cuda", "lanes": lanes})
        needed[lanes] = gpu.memory.peak - begun
    gc.collect()
    gpu.memory.capacity = gpu.memory.used + (needed[2] + needed[LANES]) / 2
    played = federate(
        "ditto", EVEN, **sections, runtime={"device": "cuda", "lanes": LANES}
    )
    assert played.prepared.resources.kernel.widest == LANES // 2
    assert capfd.readouterr().err.count(f"; using at most {LANES // 2} ") == 1
    assert torch.equal(played.server["model"].cpu(), fits.server["model"])


@pytest.mark.parametrize(("method", "models"), IN_POOLS.items())
def test_rows_and_pools_use_the_available_device_memory(
    gpu, federate, on_cpu, monkeypatch, method, models
):
    """In groups of two the device has memory for two rows and state of six clients
    less, and then the pool, of which several blocks are copied.
    """
    sections = {"model": WIDE, "rounds": 2}
    sections["evaluation"] = {"clients": "all", "every": 1}
    counts = [[4, 4, 0, 0]] * 8
    expected = on_cpu(method, counts, **sections)
    monkeypatch.setattr(mixing, "GPU_BLOCK_FLOATS", 1 << 15)
    peaks = []
    for together, share in (8, 1), (2, 1), (2, 0):
        monkeypatch.setattr(lane_choice, "fit_clients", lambda *_, n=together: n)
        monkeypatch.setattr(prepare, "POOL_SHARE", share)
        gc.collect()
        begun = gpu.memory.begin()
        runtime = {"device": "cuda", "lanes": 2}
        played = federate(method, counts, **sections, runtime=runtime)
        peaks.append(gpu.memory.peak - begun)
        assert played.prepared.resources.clients_on_device == together
        for name, tensor in played.state.items():
            assert apart(tensor, expected.state[name]) < TOLERANCE
        model = 4 * played.prepared.setup.layout.width
        found = needs.compute_gpu_needs(played.prepared, models * model)
        assert found.pool == share * models * model
    assert peaks[1] < peaks[0] - 6 * model
    assert peaks[2] <= peaks[1] - models * model


def test_check_counts_the_memory_on_the_gpu(gpu, monkeypatch):
    """Ditto's clients store one model each; of eight clients two have their rows there."""
    monkeypatch.setattr(lane_choice, "fit_clients", lambda *_: 2)
    runtime = {"device": "cuda", "lanes": 20}
    prepared = prepare.prepare(
        tiny.parse("ditto", [[4, 4, 0, 0]] * 8, runtime=runtime), OneProcess()
    )
    job = needs.compute_needs(prepared, OneProcess())
    [found] = job.gpus
    model = 4 * prepared.setup.layout.width
    assert (found.clients, found.lane_count) == (2, 2)
    # received and sent, private state before and after the round
    assert found.rows == 2 * (2 * model + 2 * model)
    # a checkpoint reads one client after the other
    assert found.locked == found.rows + model
    assert found.lanes > 2 * 3 * model
    assert "GPU of rank 0" in needs.describe_needs(prepared, job)
    assert "rows of 2 of 8 clients" in needs.describe_needs(prepared, job)


def test_a_client_that_does_not_fit_alone_ends_the_run(gpu, federate, samples):
    sections = {
        "model": WIDE,
        "runtime": {"device": "cuda"},
    }
    # the model, its copy for heads, and the received row, but no row to train
    gpu.memory.capacity = 420_000
    with pytest.raises(RankFailure) as failure:
        federate("fedavg", EVEN, **sections)
    line = explain(failure.value)
    assert "(CUDA out of memory" in line and "more GPUs" in line and "\n" not in line
