"""P = 64·64 + 64 + 64·10 + 10 = 4,810 floats, of which the body has 4,160; K = 10
classes, d = 64; 20 clients.
"""

import pytest
import traffic

from hpcfl.experiment import plugins

BODY, PROTOTYPES = 4160 / 4810, 10 * 64 / 4810
EXPECTED = {  # down and up, methods-1.md §3
    "local": (0, 0),
    "fedavg": (1, 1),
    "cwfedavg": (1, 1),
    "diversifed": (1, 1),
    "cfl": (1, 1),
    "feduv": (1, 1),
    "ifca": (2, 1 + 1 / 4810),
    "fedproto": (PROTOTYPES, PROTOTYPES),
    "fedper": (BODY, BODY),
    "fedbabu": (BODY, BODY),
    "apple": (19, 1),
    "fedfomo": (19, 1 + 20 / 4810),
    "fedcac": (1, 1 + 1 / 32),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", EXPECTED)
def test_floats_down_and_up(method):
    expected = pytest.approx(EXPECTED[method], rel=1e-3)
    counted = traffic.count(method)
    assert (counted.down, counted.up) == expected


@pytest.mark.slow
@pytest.mark.parametrize("method", traffic.FEDALA_TABLE_3)
def test_every_method_of_fedalas_table_agrees_with_it(method):
    counted = traffic.count(method)
    assert counted.paper is not None
    _, paper = counted.paper
    # A client of hpcfl has its own model, which the paper sends with the others.
    own = 1 if method in ("apple", "fedfomo") else 0
    # FedFomo's clients also report the models that they want, M floats that the paper
    # leaves out.
    assert counted.down + counted.up == pytest.approx(paper - own, rel=1e-3)


@pytest.mark.slow
def test_the_methods_page_has_what_is_counted():
    page = traffic.PAGE.read_text(encoding="utf-8")
    assert traffic.with_table(page) == page


def test_the_methods_page_has_every_method():
    table = traffic.PAGE.read_text(encoding="utf-8").partition(traffic.BEGIN)[2]
    for method in plugins.names("hpcfl.methods"):
        assert f"\n| `{method}` | " in table.partition(traffic.END)[0]
