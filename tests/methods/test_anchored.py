"""The base of methods with a proximal term to an anchor from the server."""

import pytest
import torch
from every_method import kind


@pytest.mark.parametrize("name", ["diversifed", "fedamp"])
def test_without_uploads_there_is_no_anchor(equal_runs, name):
    equal_runs(name, "local", server=(), clients=("model",), rounds=1)


@pytest.mark.parametrize("name", ["diversifed", "fedamp"])
def test_the_pull_by_hand(make_fleet, rows_of, name):
    """With one full batch a step from the client's own model w differs from Local's by
    η·(λ/α)·(w − z).
    """

    def train(inbox, **keys):
        fleet = make_fleet(dtype=torch.float64, batch_size=100, lr=0.1)
        own, anchors = rows_of(fleet), rows_of(fleet, seed=2)
        fleet.state["model"] = own
        given = {"anchor": anchors} if inbox else {}
        method = kind(name)(name=name, **keys)
        uplink = method.update(fleet, method.prepare(fleet, given))
        return uplink["model"], own, anchors

    plain, own, anchors = train(inbox=False)
    pulled, _, _ = train(inbox=True, alpha=2.0, lam=0.5)
    expected = plain - 0.1 * 0.25 * (own - anchors)
    torch.testing.assert_close(pulled, expected, rtol=1e-12, atol=1e-14)
