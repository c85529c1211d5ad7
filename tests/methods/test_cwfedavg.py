"""cwFedAvg: methods-1.md §5."""

import pytest
import tiny
import torch
from pydantic import ValidationError
from refusals import expect_refusal

from hpcfl.errors import UserError
from hpcfl.experiment.config import parse


def test_layers_are_named_exactly(federate):
    with expect_refusal(r"layers = 3.* 1 to 2"):
        federate({"name": "cwfedavg", "layers": 3})
    for wrong in (0, "outpu", "head1"):
        with pytest.raises((UserError, ValidationError), match="layers"):
            parse({"method": {"name": "cwfedavg", "layers": wrong}})


def test_distributions_count_training_samples_only(federate):
    """Every client is tested on 20 samples of each of its classes. Test samples in the
    counts would make the classes more even.
    """
    played = federate({"name": "cwfedavg", "distribution": "true"}, rounds=1)
    counts = torch.tensor(tiny.COUNTS).double()
    torch.testing.assert_close(
        played.server["distributions"],
        counts / counts.sum(1, keepdim=True),
        rtol=1e-6,
        atol=0,
    )
