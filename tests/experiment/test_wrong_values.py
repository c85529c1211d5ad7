from collections.abc import Sequence
from typing import Literal

import pytest
from pydantic import Field, ValidationError

from hpcfl.experiment import wrong_values
from hpcfl.experiment.sections import Section


class Table(Section):
    needed: bool
    count: Literal["auto"] | int = 1
    rates: list[float] = Field(default_factory=list)
    widths: Sequence[int] = ()


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({}, "'x.needed' is missing"),
        ({"nedded": 1}, "unknown key 'x.nedded'; did you mean 'needed'? allowed: "),
        ({"needed": "True"}, "x.needed = 'True': must be true or false"),
        ({"count": "a"}, "x.count = 'a': must be 'auto' or "),
        ({"rates": [0.1, "b"]}, "x.rates.1 = 'b': must be"),
        ({"widths": 3}, "x.widths = 3: must be a list"),
        ({"widths": "3,4"}, "x.widths = '3,4': must be a list"),
        ({"count": 10**9}, "x.count = 1000000000: "),
    ],
)
def test_an_error_names_key_value_and_allowed_values(given, line):
    with pytest.raises(ValidationError) as error:
        Table(**{"needed": True, **given} if given else {})
    (explanation,) = wrong_values.explain(error.value, "x", lambda: Table.model_fields)
    assert explanation.startswith(line)


def test_a_long_value_is_cut():
    assert len(wrong_values.shorten("a" * 1000)) == wrong_values.VALUE_LETTERS + 1
