"""Class counts of which methods can read the numbers of samples alone."""

import pytest
import torch

from hpcfl.clients.class_counts import HiddenClasses
from hpcfl.errors import UserError

COUNTS = torch.tensor([[1.0, 2], [3, 4], [0, 5]]).double()


def test_numbers_of_samples_are_public():
    hidden = HiddenClasses(COUNTS)
    assert hidden.shape == (3, 2) and len(hidden) == 3
    assert hidden.sum(dim=1).tolist() == [3, 7, 5] and hidden.sum() == 15
    assert hidden[[0, 2]].sum(dim=1).tolist() == [3, 5]
    assert hidden.reveal() is COUNTS


@pytest.mark.parametrize(
    "read",
    [
        lambda counts: counts > 0,
        lambda counts: counts / counts.sum(dim=1)[:, None],
        lambda counts: torch.ones(2).double() * counts,
        lambda counts: counts.sum(dim=0),
        lambda counts: counts[:, 0],
        lambda counts: counts.clamp(min=1),
        lambda counts: torch.where(torch.ones(3, 2) > 0, counts, counts),
        lambda counts: list(counts),
    ],
)
def test_classes_are_refused(read):
    with pytest.raises(UserError, match="class counts"):
        read(HiddenClasses(COUNTS))
