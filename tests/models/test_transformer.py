"""Sizes of transformers; ``test_bert.py``, ``test_gpt.py`` and ``test_vit.py`` compare
their blocks with torch's layers.
"""

import pytest
from refusals import expect_refusal

from hpcfl.models.transformer import Transformer

SIZES = {"width": 8, "depth": 1, "heads": 2, "hidden": 8}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"heads": 3}, "model.heads = 3 of .*'mine' .* model.width = 8 "),
        ({"width": 60_000, "depth": 999}, "'mine': .* 1,000,000,000 "),
    ],
)
def test_sizes_that_do_not_fit_are_refused(keys, expected):
    with expect_refusal(expected):
        Transformer("mine", 9, **{**SIZES, **keys})
