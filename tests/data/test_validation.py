"""Samples held out for validation: disjoint, stratified, drawn by the seed and the
client.
"""

import numpy as np
import pytest

from hpcfl.data.validation import hold_out

LABELS = np.repeat(np.arange(4), 50)
TRAIN = [
    np.arange(200),
    np.array([0, 1, 2, 3, 4, 60, 61, 62, 63, 64, 199]),
    np.array([7]),
    np.array([8, 9]),
]


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 0.9])
def test_parts_are_disjoint_and_complete_and_classes_keep_their_shares(share):
    train, held_out = hold_out(TRAIN, LABELS, share, seed=1)
    for whole, remaining, out in zip(TRAIN, train, held_out, strict=True):
        assert np.array_equal(np.sort(np.concatenate([remaining, out])), whole)
        assert (np.diff(out) > 0).all() and (np.diff(remaining) > 0).all()
        for label in range(4):
            expected = share * (LABELS[whole] == label).sum()
            if len(whole) > 2:
                assert abs((LABELS[out] == label).sum() - expected) <= 1
        assert len(remaining) >= 1 and len(out) == min(
            max(1, round(share * len(whole))), len(whole) - 1
        )


def test_drawn_by_seed_and_client():
    same = [TRAIN[0], TRAIN[0]]
    first, again, other = (hold_out(same, LABELS, 0.2, seed)[1] for seed in (1, 1, 2))
    assert (
        np.array_equal(first, again)
        and not np.array_equal(first[0], other[0])
        and not np.array_equal(first[0], first[1])
    )


def test_nothing_is_held_out_unasked():
    train, held_out = hold_out(TRAIN, LABELS, 0.0, seed=1)
    assert all(
        np.array_equal(one, other) for one, other in zip(train, TRAIN, strict=True)
    )
    assert [len(out) for out in held_out] == [0, 0, 0, 0]
