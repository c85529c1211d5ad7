"""Every model trains for a round, and so does a method of each family."""

import numpy as np
import pytest
import torch
from every_method import of_each_family, short
from recorded import Recorded

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.simulation.federation import Federation
from hpcfl.simulation.prepare import prepare
from hpcfl.simulation.round_schedule import make_untimed
from hpcfl.simulation.signals import StopRequest
from hpcfl.storage.checkpoint import Checkpoints

pytestmark = pytest.mark.slow

METHODS = [
    {"name": name} for name in ("fedavg", "cwfedavg", "fednh", "diversifed", "local")
] + [{"name": "fedala", "most_epochs": 1}]
FAMILIES = of_each_family()
TINY_IMAGES = (3, 8, 8)
MODELS = [
    ({"name": "mlp"}, TINY_IMAGES),
    ({"name": "cnn"}, (3, 16, 16)),
    ({"name": "lenet"}, (3, 28, 28)),
    ({"name": "conv2cifar"}, (3, 16, 16)),
    ({"name": "resnet8"}, TINY_IMAGES),
    ({"name": "tiny:residual"}, TINY_IMAGES),
    ({"name": "tiny:residual", "norm": "group"}, TINY_IMAGES),
    ({"name": "tiny:residual", "norm": "none"}, TINY_IMAGES),
    ({"name": "fasttext"}, (20,)),
    ({"name": "spiral"}, (2,)),
    ({"name": "cnn", "head": "cosine"}, (3, 16, 16)),
    (
        {
            "name": "vit",
            "width": 8,
            "depth": 1,
            "heads": 2,
            "head_width": 4,
        },
        TINY_IMAGES,
    ),
]
CLIENTS, EACH, CLASSES = 3, 9, 3  # training samples of each client
every_method = pytest.mark.parametrize(
    "method", METHODS, ids=lambda method: method["name"]
)


def pairs():
    """Each model with two families and each family with two models or more: a model sees
    rows, a method sees a body and a head, so that what one does with one other it does
    with all.
    """
    found = []
    for number in range(2 * max(len(MODELS), len(FAMILIES))):
        model, shape = MODELS[number % len(MODELS)]
        method = FAMILIES[number % len(FAMILIES)]
        name = "-".join(map(str, [*model.values(), method]))
        found.append(pytest.param(model, shape, short(method), id=name))
    return found


@pytest.fixture(scope="module")
def own_data(tmp_path_factory):
    """``own_data(shape)``: a file of 36 random samples: images, tokens of a vocabulary
    of 500, or points.
    """
    folder, generator = tmp_path_factory.mktemp("data"), np.random.default_rng(0)

    def make(shape):
        path, size = (
            folder / f"{len(shape)}-{shape[-1]}.npz",
            (CLIENTS * EACH * 4 // 3, *shape),
        )
        x = {
            3: lambda: generator.integers(0, 256, size, np.uint8),
            2: lambda: generator.standard_normal(size),
            1: lambda: (
                generator.integers(0, 500, size)
                if shape[0] > 2
                else generator.standard_normal(size)
            ),
        }[len(shape)]()
        if not path.exists():
            np.savez(path, x=x, y=np.arange(size[0]) % CLASSES)
        return str(path)

    return make


@pytest.fixture
def play(tmp_path, own_data):
    """``play(model, shape, method, …)``: one round with all clients; the federation and
    what was recorded.
    """

    def run(model, shape, method=METHODS[0], batch_size=5, buffers="local", **runtime):
        table = {
            "rounds": 1,
            "data": {"dataset": "npz", "file": own_data(shape)},
            "model": model,
            "method": method,
            "partition": {"scheme": "iid", "clients": CLIENTS},
            "training": {
                "batch_size": batch_size,
                "lr": 0.01,
                "buffers": buffers,
            },
            "runtime": runtime,
        }
        alone, folder = OneProcess(), tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        prepared = prepare(config.parse(table), alone)
        metrics = Recorded(folder, {}, {})
        federation = Federation(
            alone,
            prepared,
            prepared.server,
            make_untimed(prepared, alone),
            Checkpoints(folder / "checkpoints", alone),
            metrics,
            {},
            lambda result: None,
        )
        federation.run(0, StopRequest(lambda: None))
        return federation, metrics.values()

    return run


@pytest.mark.parametrize(("model", "shape", "method"), pairs())
def test_a_round(play, model, shape, method):
    federation, values = play(model, shape, method)
    prepared = federation.prepared
    assert (
        np.isfinite(values["clients/train_loss"][0]).all()
        and values["clients/train_loss"][0].min() > 0
    )
    score = prepared.method.primary
    assert (
        np.isfinite(values[f"clients/{score}/loss"][0]).all()
        and values[f"{score}/weighted"][0] >= 0
    )
    state = prepared.store.get(prepared.store.ids)
    assert all(
        tensor.isfinite().all()
        for tensor in state.values()
        if tensor.is_floating_point()
    )


def test_a_round_of_resnet18(play):
    """Its other forms are those of ``tiny:residual``."""
    _, values = play({"name": "resnet18"}, TINY_IMAGES)
    assert np.isfinite(values["clients/train_loss"][0]).all()


def statistics_of(federation):
    prepared = federation.prepared
    return prepared.store.get(prepared.store.ids)["buffers.model"]


@every_method
def test_batch_norm_statistics_stay_with_each_client_or_are_averaged(play, method):
    local, _ = play({"name": "resnet8"}, TINY_IMAGES, method)
    kept, prepared = statistics_of(local), local.prepared
    assert kept.shape == (CLIENTS, prepared.resources.buffers.width)
    means = kept[:, prepared.resources.buffers.columns("stem.1.running_mean")]
    assert (
        (means != 0).all()
        and not torch.equal(means[0], means[1])
        and not torch.equal(means[1], means[2])
    )
    # they never travel
    assert prepared.setup.layout.width == sum(
        p.numel() for p in prepared.setup.build().parameters()
    )

    averaged, values = play({"name": "resnet8"}, TINY_IMAGES, method, buffers="average")
    trained = statistics_of(averaged)
    assert torch.equal(trained, kept)  # the first round starts from the same
    weights = averaged.prepared.cohort(np.arange(CLIENTS), 1).weights[:, None]
    torch.testing.assert_close(
        averaged.server["buffers.model"], (weights * trained.double()).sum(0).float()
    )
    assert (values["clients/floats_up"][0] >= trained.shape[1]).all()


def test_batch_norm_never_sees_a_single_sample(play):
    # 4 + 4 + 1: one position a channel at the end
    federation, values = play({"name": "resnet8"}, TINY_IMAGES, batch_size=4)
    counted = statistics_of(federation)[
        :, federation.prepared.resources.buffers.columns("stem.1.num_batches_tracked")
    ]
    assert (counted == 2).all() and np.isfinite(values["clients/train_loss"][0]).all()
