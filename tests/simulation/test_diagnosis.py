"""Causes of a failed preflight; ``test_preflight.py`` tests the lines of whole
commands.
"""

import errno

import pytest
import torch
from playing import prepare_tiny

from hpcfl.errors import RunFailure
from hpcfl.simulation import diagnosis


@pytest.mark.parametrize(
    ("output", "fits"),
    [
        (torch.zeros(3, 4), True),
        (torch.zeros(3, 5), True),  # a model may have more outputs than classes
        (torch.zeros(3, 2), False),
        (torch.zeros(2, 4), False),
        (torch.zeros(3, 4, 1), False),
        ("logits", False),
    ],
)
def test_a_model_has_a_row_for_each_sample_and_a_column_for_each_class(output, fits):
    if fits:
        diagnosis.check_output(output, 3, 4)
        return
    with pytest.raises(TypeError, match=r"\[3, 4\]"):
        diagnosis.check_output(output, 3, 4)


def test_a_working_model_is_not_reported_as_the_cause():
    prepared = prepare_tiny("fedavg")
    assert diagnosis.diagnose_model(prepared) is None
    line, cause = diagnosis.diagnose(prepared, ValueError("a shape"))
    assert "fedavg" in line and "a shape" in line and isinstance(cause, ValueError)


@pytest.mark.parametrize(
    ("error", "failed"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (MemoryError(), True),
        (RunFailure("a lost rank"), True),
        (ValueError("a shape"), False),
    ],
)
def test_machine_failures_are_distinguished_from_mistakes(error, failed):
    assert diagnosis.is_failure(error) == failed
