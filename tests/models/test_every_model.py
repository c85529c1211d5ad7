"""Every model trains for a round, with a method of each family."""

import numpy as np
import pytest
import torch
from every_method import of_each_family, short
from playing import play_on

from hpcfl.communication.communicator import OneProcess

pytestmark = pytest.mark.slow

# one mean on the server, mixes on the server, and models that clients blend
METHODS = [{"name": "fedavg"}, {"name": "diversifed"}]
METHODS += [{"name": "fedala", "most_epochs": 1}]
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
    """Return each model with a family and each family with a model. A model depends on
    rows, a method on a body and a head, so one partner for each is sufficient.
    """
    found = []
    for number in range(max(len(MODELS), len(FAMILIES))):
        model, shape = MODELS[number % len(MODELS)]
        method = FAMILIES[number % len(FAMILIES)]
        name = "-".join(map(str, [*model.values(), method]))
        found.append(pytest.param(model, shape, short(method), id=name))
    return found


@pytest.fixture(scope="module")
def own_data(tmp_path_factory):
    """Return ``own_data(shape)``, which writes a file of 36 random samples: images,
    tokens of a vocabulary of 500, or points.
    """
    folder, generator = tmp_path_factory.mktemp("data"), np.random.default_rng(0)

    def make(shape):
        path = folder / f"{len(shape)}-{shape[-1]}.npz"
        size = CLIENTS * EACH * 4 // 3, *shape
        if len(shape) == 3:
            x = generator.integers(0, 256, size, np.uint8)
        elif shape == (2,):
            x = generator.standard_normal(size)
        else:
            x = generator.integers(0, 500, size)
        if not path.exists():
            np.savez(path, x=x, y=np.arange(size[0]) % CLASSES)
        return str(path)

    return make


@pytest.fixture
def play(tmp_path, own_data):
    """Return ``play(model, shape, method, …)``, which runs one round with all clients."""

    def run(model, shape, method=METHODS[0], batch_size=5, buffers="local"):
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
        }
        folder = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        return play_on(OneProcess(), folder, table)

    return run


@pytest.mark.parametrize(("model", "shape", "method"), pairs())
def test_a_round_has_finite_losses_and_state(play, model, shape, method):
    played = play(model, shape, method)
    values, score = played.values, played.prepared.method.primary
    for losses in ("train_loss", f"{score}/loss"):
        assert np.isfinite(values[f"clients/{losses}"][0]).all()
    assert values["clients/train_loss"][0].min() > 0
    for tensor in played.clients.values():
        assert tensor.isfinite().all()


@every_method
def test_batch_norm_statistics_stay_with_each_client_or_are_averaged(play, method):
    local = play({"name": "resnet8"}, TINY_IMAGES, method)
    kept, prepared = local.clients["buffers.model"], local.prepared
    assert kept.shape == (CLIENTS, prepared.resources.buffers.width)
    means = kept[:, prepared.resources.buffers.columns("stem.1.running_mean")]
    assert (means != 0).all()
    assert not torch.equal(means[0], means[1])
    assert not torch.equal(means[1], means[2])
    # they are never sent
    assert prepared.setup.layout.width == sum(
        p.numel() for p in prepared.setup.build().parameters()
    )

    averaged = play({"name": "resnet8"}, TINY_IMAGES, method, buffers="average")
    trained = averaged.clients["buffers.model"]
    assert torch.equal(trained, kept)  # the first round starts from the same model
    weights = averaged.prepared.make_cohort(np.arange(CLIENTS), 1).weights[:, None]
    torch.testing.assert_close(
        averaged.server["buffers.model"], (weights * trained.double()).sum(0).float()
    )
    assert (averaged.values["clients/floats_up"][0] >= trained.shape[1]).all()


def test_batch_norm_tracks_no_batch_of_one_sample(play):
    # 4 + 4 + 1: one position per channel at the end
    played = play({"name": "resnet8"}, TINY_IMAGES, batch_size=4)
    buffers = played.prepared.resources.buffers
    tracked = buffers.columns("stem.1.num_batches_tracked")
    assert (played.clients["buffers.model"][:, tracked] == 2).all()
    assert np.isfinite(played.values["clients/train_loss"][0]).all()
