"""Mixing of rows, compared with values computed by hand."""

import numpy as np
import pytest
import torch

from hpcfl.updates.premixing import mix_buckets, mix_nearest


def test_each_row_becomes_the_mean_of_its_nearest_rows():
    rows = torch.tensor([[0.0], [1], [3], [10]])
    mixed = mix_nearest(rows, tolerated=1)
    assert mixed[:, 0].tolist() == pytest.approx([4 / 3, 4 / 3, 4 / 3, 14 / 3])


def test_a_row_counts_itself_among_equal_rows():
    rows = torch.tensor([[0.0], [0], [6], [6]])
    assert mix_nearest(rows, tolerated=3).tolist() == rows.tolist()


def test_the_last_bucket_may_be_smaller():
    rows = torch.tensor([[0.0], [1], [3], [10], [4]])
    mixed = mix_buckets(rows, np.array([4, 0, 3, 1, 2]), size=2)
    assert mixed[:, 0].tolist() == [2, 5.5, 3]
