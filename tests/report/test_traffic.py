"""P = 64·64 + 64 + 64·10 + 10 = 4,810 floats, of which the body has 4,160; K = 10
classes, d = 64; 20 clients.
"""

import pytest

from hpcfl.experiment import plugins
from hpcfl.report import traffic

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


@pytest.mark.parametrize("method", EXPECTED)
def test_floats_down_and_up(method):
    counted = traffic.of(method)
    assert (counted.down, counted.up) == pytest.approx(EXPECTED[method], rel=1e-3)


@pytest.mark.slow
def test_every_method_of_fedalas_table_agrees_with_it():
    assert set(traffic.FEDALA_TABLE_3) < set(plugins.names("hpcfl.methods"))
    for method in traffic.FEDALA_TABLE_3:
        counted = traffic.of(method)
        assert counted.paper is not None
        # FedFomo's clients also tell the server whose models they want, M floats that
        # the paper leaves out.
        assert counted.down + counted.up == pytest.approx(counted.paper[1], rel=1e-3), (
            method
        )
