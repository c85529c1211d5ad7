"""Base class of small image models."""

import pytest
from refusals import expect_refusal

from hpcfl.models.cnn import plugin


@pytest.mark.parametrize("shape", [(3, 32, 15), (200,)])
def test_other_samples_are_refused_with_their_shape(shape):
    expected = f" 16×16; .* {'×'.join(map(str, shape))};"
    with expect_refusal(expected):
        plugin(shape, 10)
