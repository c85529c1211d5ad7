import itertools

import numpy as np
import pytest
import torch

from hpcfl.clients.samples import (
    VARIANTS,
    Assigned,
    Samples,
    crop_and_flip,
    draw_variants,
)
from hpcfl.data.datasets import Dataset

IMAGES = torch.arange(1, 1 + 3 * 2 * 5 * 6, dtype=torch.uint8).view(3, 2, 5, 6)


def test_variant_zero_leaves_images_unchanged():
    assert torch.equal(crop_and_flip(IMAGES, torch.zeros(3, dtype=torch.int64)), IMAGES)


def test_every_variant_is_a_crop_of_the_padded_image_perhaps_flipped():
    variants = torch.arange(1, VARIANTS + 1)
    images = IMAGES.repeat(VARIANTS // 3, 1, 1, 1)
    changed = crop_and_flip(images, variants)
    padded = np.pad(images.numpy(), [(0, 0), (0, 0), (4, 4), (4, 4)])
    expected = []
    for number, (down, right) in enumerate(itertools.product(range(9), repeat=2)):
        places = slice(down, down + 5), slice(right, right + 6)
        expected.append(padded[2 * number][:, *places])
        expected.append(padded[2 * number + 1][:, *places][..., ::-1])
    assert changed.dtype == torch.uint8
    assert np.array_equal(changed.numpy(), np.stack(expected))


def test_draws_are_uniform():
    drawn = draw_variants(162_000, np.random.default_rng(0))
    counts = np.bincount(drawn, minlength=163)
    assert counts[0] == 0
    assert len(counts) == 163
    assert counts[1:].min() > 850
    assert counts[1:].max() < 1150


@pytest.fixture
def samples():
    """Return ``samples(augment)``, which makes twenty images of one client, sixteen for
    training and four for testing.
    """
    x = torch.randint(
        1,
        256,
        (20, 1, 8, 8),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(0),
    )
    data = Dataset("images", x, torch.arange(20) % 2, 2)
    assigned = Assigned(train=[np.arange(16)], test=[np.arange(16, 20)])
    device = torch.device("cpu")
    return lambda augment: Samples(data, [0], assigned, device, augment=augment)


def test_samples_are_copied_only_for_a_rank_that_has_some_of_them():
    data = Dataset("images", IMAGES, torch.arange(3) % 2, 2)
    cpu = torch.device("cpu")
    parts = {"train": [np.array([2]), np.array([1])], "test": [np.array([0])] * 2}
    whole = Samples(data, [0, 1], Assigned(**parts), cpu)
    assert whole.x.data_ptr() == IMAGES.data_ptr()
    assert torch.equal(whole.x[whole.train[0]], IMAGES[2:])
    part = Samples(data, [0], Assigned(**parts), cpu)
    assert torch.equal(part.x, IMAGES[[0, 2]])


def test_few_samples_are_kept(monkeypatch):
    monkeypatch.setattr("hpcfl.clients.samples.FEW", 2)
    data = Dataset("images", IMAGES, torch.arange(3) % 2, 2)
    assigned = Assigned(train=[np.array([0, 1])], test=[np.array([2])])
    whole = Samples(data, [0], assigned, torch.device("cpu"))
    few = whole.keep_few()
    assert torch.equal(few.take([0, 1])[0], whole.take([0, 1])[0])
    assert few.x.untyped_storage().nbytes() == IMAGES[:2].nbytes
    assert few.nbytes == whole.nbytes == IMAGES.nbytes + data.y.nbytes


def test_redistributed_samples_are_no_common_test_set():
    data = Dataset("images", IMAGES, torch.arange(3) % 2, 2)
    everyone = [np.arange(3)] * 2
    assigned = Assigned(train=everyone, test=everyone, has_global_test=True)
    samples = Samples(data, [0, 1], assigned, torch.device("cpu"))
    assert samples.number_tests([0, 1]).tolist() == [0, 0]
    dealt = samples.redistribute({0: np.array([0]), 1: np.array([1, 2])})
    assert dealt.number_tests([0, 1]).tolist() == [0, 1]


def test_training_images_vary_with_the_key_and_labels_stay(samples):
    some = samples(True)
    pool = some.train[0]
    plain, y = some.take(pool)
    first, same_y = some.take(some.vary(pool, 3, "train", 1, 0, 0))
    again, _ = some.take(some.vary(pool, 3, "train", 1, 0, 0))
    other, _ = some.take(some.vary(pool, 3, "train", 1, 0, 1))
    assert torch.equal(y, same_y) and torch.equal(first, again)
    assert not torch.equal(first, plain) and not torch.equal(first, other)
    assert (
        first.min() == -1 and plain.min() > -1
    )  # padding is black, before normalisation


def test_positions_of_test_images_are_taken_as_they_are(samples):
    plain, varied = samples(False), samples(True)
    assert torch.equal(plain.take(plain.test[0])[0], varied.take(varied.test[0])[0])
