"""Tests on a GPU: skipped where there is none, but for those that pytest starts on the
simulated one.
"""

import sys

import pytest
import torch


@pytest.fixture
def a_gpu():
    """The real one, or the simulated in a process that has it (``tests/simulated_gpu``)."""
    if "gpu.guard" in sys.modules:
        from gpu.device import GPU

        with GPU():
            yield
    elif torch.cuda.is_available():
        yield
    else:
        pytest.skip(
            "needs a GPU, and torch sees none; tests/simulated_gpu plays the same on a simulated one"
        )
