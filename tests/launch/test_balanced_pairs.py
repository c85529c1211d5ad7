"""DiversiFed's two classes per client, with an equal number of clients for each class."""

import numpy as np
import pytest
from places import ROOT
from refusals import expect_refusal

FOLDER = ROOT / "results" / "diversifed"


@pytest.fixture
def scheme(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    from balanced_pairs import BalancedPairs

    return BalancedPairs


def test_every_class_has_as_many_clients_and_every_client_two_classes(scheme):
    labels = np.tile(np.arange(10), 60)
    draw = scheme(clients=40, train_samples=20, test_samples=6).draw(labels, 10, 200)
    trained = np.stack([np.bincount(labels[one], minlength=10) for one in draw.train])
    tested = np.stack([np.bincount(labels[one], minlength=10) for one in draw.test])
    assert ((trained == 10).sum(axis=1) == 2).all()
    assert ((trained > 0).sum(axis=0) == 8).all()
    assert (tested[trained > 0] == 3).all() and (tested.sum(axis=1) == 6).all()


def test_places_that_no_class_can_share_equally_are_refused(scheme):
    with expect_refusal(r"partition\.clients = 7"):
        scheme(clients=7, train_samples=20, test_samples=6).draw_pairs(10)
