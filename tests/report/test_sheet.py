"""Lines are distinguishable, and have the same style in all figures."""

from matplotlib import colors

from hpcfl.experiment import plugins
from hpcfl.report.sheet import (
    OKABE_ITO,
    Sheet,
    choose_looks,
    set_whole_ticks,
)

EVERYONE = plugins.list_names("hpcfl.methods")


def alone(methods):
    """Return the styles of methods with one line each."""
    return choose_looks({method: method for method in methods})


def test_the_first_eight_methods_have_the_colours_of_okabe_and_ito():
    eight = [f"method {number}" for number in range(8)]
    assert [look.color for look in alone(eight).values()] == list(OKABE_ITO)
    more = alone([*eight, "method 8"])
    assert [more[method].color for method in eight] == list(OKABE_ITO)
    assert more["method 8"].color not in OKABE_ITO


def test_built_in_methods_differ_in_colour_and_line_style():
    chosen = alone(EVERYONE).values()
    assert len({colors.to_hex(look.color) for look in chosen}) == len(EVERYONE)
    assert len({(look.linestyle, look.marker) for look in chosen}) == len(EVERYONE)


def test_looks_do_not_depend_on_the_order_of_lines():
    methods = {
        "fedavg lr=0.1": "fedavg",
        "fedavg lr=0.2": "fedavg",
        "ditto": "ditto",
    }
    backwards = dict(reversed(methods.items()))
    assert choose_looks(methods) == choose_looks(backwards)


def test_variants_of_a_method_share_a_colour_among_others():
    chosen = choose_looks(
        {
            "one": "fedprox",
            "two": "fedprox",
            "other": "fedavg",
        }
    )
    assert chosen["one"].color == chosen["two"].color != chosen["other"].color
    pairs = {(look.linestyle, look.marker) for look in chosen.values()}
    assert len(pairs) == 3
    variants = choose_looks({f"lr={number}": "fedprox" for number in range(8)})
    assert len({look.color for look in variants.values()}) == 8


def test_a_single_round_has_one_tick():
    figure, (axes,) = Sheet(7).panels(1)
    axes.plot([6], [0.5])
    set_whole_ticks(axes.xaxis)
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [6]
    assert figure.get_figwidth() == 7
