"""Colours follow from a method's name alone, and are seen on white and on dark pages."""

from itertools import combinations

import pytest

from hpcfl.experiment import plugins
from hpcfl.report import colours

PAGES = ("#ffffff", "#14171a")  # of page.css


def test_every_built_in_method_has_a_place_and_a_colour_of_its_own():
    assert sorted(colours.METHODS) == sorted(plugins.names("hpcfl.methods"))
    assert len({colours.of(method) for method in colours.METHODS}) == len(
        colours.METHODS
    )


@pytest.mark.parametrize("method", ["fedavg", "my_method:Pulled", "", "naïve"])
def test_a_colour_is_always_the_same(method):
    assert colours.of(method) == colours.of(method) and len(colours.of(method)) == 7


def test_colours_have_a_contrast_of_three_to_the_page():
    for method in colours.METHODS:
        for page in PAGES:
            light, dark = sorted(
                [colours.luminance(colours.of(method)), colours.luminance(page)],
                reverse=True,
            )
            assert (light + 0.05) / (dark + 0.05) > 3


def test_no_two_methods_have_nearly_the_same_colour():
    def parts(colour):
        return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]

    for one, other in combinations(colours.METHODS, 2):
        apart = sum(
            abs(a - b)
            for a, b in zip(
                parts(colours.of(one)), parts(colours.of(other)), strict=True
            )
        )
        assert apart > (60 if {one, other} <= set(colours.METHODS[:8]) else 25), (
            one,
            other,
        )


def test_luminance_is_that_of_wcag():
    assert (
        colours.luminance("#ffffff") == pytest.approx(1)
        and colours.luminance("#000000") == 0
    )
    assert colours.luminance("#ff0000") == pytest.approx(0.2126)
