"""Parts and clients whose values are scaled in another way."""

import numpy as np
import pytest

from hpcfl.data import datasets
from hpcfl.experiment import config

GENERATOR = np.random.default_rng(1)


def load(path, **arrays):
    np.savez(path, y=np.zeros(40, int), **arrays)
    return datasets.load(config.Data(dataset="npz", file=str(path)))


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_a_client_with_pixels_of_another_scale_is_noted(tmp_path, dtype):
    pixels = 128 + GENERATOR.integers(0, 128, (40, 6))
    clients = np.repeat(["ann", "bob"], 20)
    data = load(tmp_path / "t.npz", x=pixels.astype(dtype), client=clients)
    assert data.notes == ()
    pixels[20:] //= 255
    pixels[20:, 0] = 1
    data = load(tmp_path / "t.npz", x=pixels.astype(dtype), client=clients)
    assert "in client 'ann', but 1 in client 'bob'" in data.notes[0]


def test_test_samples_of_another_scale_are_noted(tmp_path):
    lines = [f"{200 + row},{row % 2},train" for row in range(0, 40, 3)]
    lines += [f"{0.5 + row / 100},{row % 2},test" for row in range(20)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["x,label,split", *lines]) + "\n")
    data = datasets.load(config.Data(dataset="csv", file=str(path)))
    assert "in training samples, but 0.595 in test samples" in data.notes[0]


def test_a_few_large_values_are_no_other_scale(tmp_path):
    x = GENERATOR.random((40, 3))
    x[3] = 1e6
    data = load(tmp_path / "t.npz", x=x, client=np.arange(40) // 20)
    assert data.notes == ()


def test_clients_with_zeros_alone_are_no_other_scale(tmp_path):
    x = np.zeros((40, 3))
    x[:20] = 1
    data = load(tmp_path / "t.npz", x=x, client=np.arange(40) // 20)
    assert data.notes == ()
