"""Tests on a GPU: skipped without one, except those that pytest starts on the simulated
one.
"""

import sys

import pytest
import torch


@pytest.fixture
def a_gpu():
    """Require a real GPU, or the simulated one in its process
    (``tests/simulated_gpu``).
    """
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
