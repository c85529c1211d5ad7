"""Poisson mini-batches and noise on sums of clipped gradients."""

import math

import numpy as np
import pytest
import torch
from playing import play, prepare_tiny
from torch.nn import functional

from hpcfl.clients.sample_privacy import StepNoise, draw_batches

SAMPLE = {"unit": "sample"}
KEYS = [(1, 0), (1, 5)]


def test_samples_join_independently_with_one_probability():
    drawn = draw_batches(50, 10, 2000, 3, "key")
    sizes = np.array([len(batch) for batch in drawn])
    assert abs(sizes.mean() - 10) < 4 * math.sqrt(8 / 2000)
    assert abs(sizes.var() / 8 - 1) < 0.15
    joined = np.bincount(np.concatenate(drawn), minlength=50) / 2000
    assert np.abs(joined - 0.2).max() < 4 * math.sqrt(0.16 / 2000)
    again = draw_batches(50, 10, 2000, 3, "key")
    assert all(map(np.array_equal, drawn, again))


def test_a_client_with_few_samples_takes_all_of_them():
    (batch,) = draw_batches(4, 10, 1, 3, "key")
    assert batch.tolist() == [0, 1, 2, 3]


def test_noise_has_its_deviation_and_depends_on_the_client_alone():
    noise = StepNoise(3, "train", KEYS, [2.0, 0.5])
    first = noise.draw(slice(0, 2), 10_000)
    second = noise.draw(slice(0, 2), 10_000)
    for row, deviation in zip(first, (2.0, 0.5), strict=True):
        assert abs(float(row.mean())) < 4 * deviation / 100
        assert abs(float(row.std()) / deviation - 1) < 0.03
    correlations = np.corrcoef(np.concatenate([first, second]))
    assert np.abs(correlations - np.eye(4)).max() < 0.05
    alone = StepNoise(3, "train", KEYS[1:], [0.5])
    assert torch.equal(alone.draw(torch.tensor([0]), 10_000)[0], first[1])
    assert StepNoise(3, "train", KEYS, [0.0, 0.0]).draw(slice(0, 2), 4) is None


def plain_poisson(prepared, client, rounds):
    """Return a client's model after rounds of plain Poisson steps, by autograd."""
    samples, setup = prepared.resources.samples, prepared.setup
    size, module = setup.training.batch_size, setup.build()
    row = setup.initial()
    torch.nn.utils.vector_to_parameters(row, module.parameters())
    pool = samples.train[client]
    steps = -(-len(pool) // size)
    for round in range(1, rounds + 1):
        key = "train", round, client, 0
        for batch in draw_batches(len(pool), size, steps, setup.seed, *key):
            if not len(batch):
                continue
            x, y = samples.take(torch.from_numpy(pool[batch]))
            loss = functional.cross_entropy(module(x), y, reduction="sum")
            loss = loss / min(size, len(pool))
            gradients = torch.autograd.grad(loss, list(module.parameters()))
            with torch.no_grad():
                pairs = zip(module.parameters(), gradients, strict=True)
                for parameter, gradient in pairs:
                    parameter -= setup.training.lr * gradient
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach()


def test_without_clip_and_noise_a_step_is_the_plain_poisson_step(tmp_path):
    played = play(tmp_path, "local", privacy=SAMPLE)
    prepared = prepare_tiny("local", privacy=SAMPLE)
    models = played.clients["model"]
    for client in range(len(models)):
        expected = plain_poisson(prepared, client, rounds=3)
        torch.testing.assert_close(models[client], expected)
    far = play(tmp_path / "far", "local", privacy={**SAMPLE, "clip": 1e6})
    torch.testing.assert_close(far.clients["model"], models)


def test_terms_without_data_come_after_the_noise(tmp_path):
    """With a tiny clip the data change nothing, and only weight decay remains."""
    sections = {"privacy": {**SAMPLE, "clip": 1e-9}, "training": {"weight_decay": 0.5}}
    played = play(tmp_path, "local", **sections)
    prepared = played.prepared
    start, size = prepared.setup.initial(), prepared.setup.training.batch_size
    for client, model in enumerate(played.clients["model"]):
        pool = prepared.resources.samples.train[client]
        steps = 3 * -(-len(pool) // size)
        expected = start * (1 - 0.1 * 0.5) ** steps
        torch.testing.assert_close(model, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("method", "gradients"), [("local", 1), ("ditto", 1), ("apfl", 2)]
)
def test_gradients_are_counted_by_mini_batch(tmp_path, method, gradients):
    """Ditto's personal steps count in addition to the global ones, and APFL takes two
    gradients of each mini-batch.
    """
    keys = {"name": "ditto", "personal_epochs": 2} if method == "ditto" else method
    played = play(tmp_path, keys, privacy={**SAMPLE, "clip": 1.0, "noise": 1.0})
    steps = played.clients["privacy.noisy_batches"]
    samples = played.prepared.setup.samples
    epochs = 3 if method == "ditto" else 1
    expected = 3 * epochs * torch.ceil(samples / 4)
    assert steps[:, gradients].tolist() == expected.tolist()
    assert int(steps.sum()) == int(expected.sum())
