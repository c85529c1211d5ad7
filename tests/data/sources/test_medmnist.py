"""Data sets of MedMNIST: heterogeneity.md D4."""

import numpy as np
import pytest
from user_data import load, md5, numbers, refusal

from hpcfl.data.sources import medmnist


def medmnist_files(root, name, monkeypatch, side=28):
    """Write a data set of MedMNIST with three training, one validation and two test
    images in its package's format, and return the images.
    """
    known = medmnist.plugins[name].known
    shape = (side, side, 3) if known.channels == 3 else (side, side)
    images = numbers(5, 6, *shape)
    labels = np.array([[0], [1], [0], [1], [1], [0]], np.uint8)
    spans = {
        "train": slice(0, 3),
        "val": slice(3, 4),
        "test": slice(4, 6),
    }
    arrays = {f"{part}_images": images[span] for part, span in spans.items()}
    arrays |= {f"{part}_labels": labels[span] for part, span in spans.items()}
    file = f"{name}.npz" if side == 28 else f"{name}_{side}.npz"
    np.savez_compressed(root / file, **arrays)
    checksum = {"md5" if side == 28 else "md5_64": md5(root / file)}
    known = known._replace(train=3, test=2, **checksum)
    source = medmnist.make_source(name, known)
    monkeypatch.setitem(medmnist.plugins, name, source)
    return images


@pytest.mark.parametrize("name", medmnist.plugins)
def test_each_set_of_medmnist_leaves_its_validation_part_out(
    tmp_path, monkeypatch, name
):
    images = medmnist_files(tmp_path, name, monkeypatch)
    data = load(name, tmp_path)
    assert data.y.tolist() == [0, 1, 0, 1, 0] and data.official_test == 2
    assert data.classes == medmnist.plugins[name].known.classes
    kept = np.delete(images, 3, axis=0)
    expected = kept.transpose(0, 3, 1, 2) if kept.ndim == 4 else kept[:, None]
    assert np.array_equal(data.x.numpy(), expected) and data.x.is_contiguous()


def test_images_of_64_pixels(tmp_path, monkeypatch):
    images = medmnist_files(tmp_path, "bloodmnist", monkeypatch, side=64)
    data = load("bloodmnist", tmp_path, size=64)
    assert data.shape == (3, 64, 64) and data.classes == 8
    assert np.array_equal(data.x[0].numpy(), images[0].transpose(2, 0, 1))
    assert "data.size = 32: " in refusal("bloodmnist", tmp_path, size=32)
    (tmp_path / "bloodmnist_64.npz").unlink()
    assert "https://zenodo.org/" in refusal("bloodmnist", tmp_path, size=64)
