"""P = 64·64 + 64 + 64·10 + 10 = 4,810 floats, of which the body has 4,160; K = 10
classes, d = 64; 20 clients.
"""

import pytest

from hpcfl.experiment import plugins
from hpcfl.report import catalogue, traffic

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


@pytest.fixture(scope="module")
def counted():
    """What ``test_catalogue.py`` finds that ``traffic.of`` counts for each method."""
    return {
        method["name"]: method["traffic"] for method in catalogue.entries("methods")
    }


@pytest.mark.parametrize("method", EXPECTED)
def test_floats_down_and_up(counted, method):
    found = counted[method]
    expected = pytest.approx(EXPECTED[method], rel=1e-3)
    assert (found["down"], found["up"]) == expected


def test_every_method_of_fedalas_table_agrees_with_it(counted):
    assert set(traffic.FEDALA_TABLE_3) < set(plugins.names("hpcfl.methods"))
    for method in traffic.FEDALA_TABLE_3:
        found = counted[method]
        _, paper = found["paper"]
        # FedFomo's clients also tell the server whose models they want, M floats that
        # the paper leaves out.
        assert found["down"] + found["up"] == pytest.approx(paper, rel=1e-3), method


def test_a_method_is_counted_by_playing_it():
    assert traffic.of("fedper") == traffic.Traffic(
        pytest.approx(BODY), pytest.approx(BODY), None
    )
