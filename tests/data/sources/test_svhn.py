"""SVHN: heterogeneity.md D3, in files written by SciPy."""

from dataclasses import replace

import numpy as np
import pytest
from user_data import load, md5, numbers, refusal

from hpcfl.data.sources import svhn


@pytest.fixture
def svhn_files(tmp_path, monkeypatch):
    """Write three training images, two test images and two further ones."""
    from scipy import io  # takes long to import

    sizes = {
        svhn.TRAIN: 3,
        svhn.TEST: 2,
        svhn.EXTRA: 2,
    }
    for seed, (file, size) in enumerate(sizes.items()):
        labels = np.array([10, 1, 9][:size], np.uint8)[:, None]
        arrays = {"X": numbers(seed, 32, 32, 3, size), "y": labels}
        io.savemat(tmp_path / file, arrays, do_compression=True)
    checksums = {file: md5(tmp_path / file) for file in (svhn.TRAIN, svhn.TEST)}
    further = {svhn.EXTRA: md5(tmp_path / svhn.EXTRA)}
    source = replace(svhn.plugin, checksums=checksums, further=further)
    monkeypatch.setattr(svhn, "plugin", source)
    monkeypatch.setattr(svhn, "SIZES", sizes)
    return tmp_path


def test_images_are_train_then_further_ones_then_test(svhn_files):
    data = load("svhn", svhn_files, extra=True)
    assert data.official_test == 2 and data.x.is_contiguous()
    stored = [numbers(seed, 32, 32, 3, size) for seed, size in ((0, 3), (2, 2), (1, 2))]
    expected = np.concatenate(stored, axis=3).transpose(3, 2, 0, 1)
    assert np.array_equal(data.x.numpy(), expected)
    assert data.y.tolist() == [0, 1, 9, 0, 1, 0, 1]  # 10 is the digit 0


def test_the_further_images_are_read_where_they_are_asked_for(svhn_files):
    data = load("svhn", svhn_files)
    assert data.y.tolist() == [0, 1, 9, 0, 1]
    (svhn_files / svhn.EXTRA).unlink()
    assert len(load("svhn", svhn_files).y) == 5
    line = refusal("svhn", svhn_files, extra=True)
    assert line.endswith("extra_32x32.mat")
    assert "extra_32x32.mat: " in line
