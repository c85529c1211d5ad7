"""Work of a client in a round, counted beforehand, compared with the recorded work of a
run.
"""

from fractions import Fraction

import numpy as np
import pytest
import tiny
from every_method import of_each_family, short
from playing import prepare_tiny

from hpcfl.clock.workload import count_workload

pytestmark = pytest.mark.slow


def counted(method, **sections):
    return count_workload(prepare_tiny(method, **sections))


@pytest.mark.parametrize("name", of_each_family())
def test_floats_are_those_that_a_run_records(federate, name):
    """If clients send data by their classes, the count cannot be exact beforehand; its
    order of magnitude is checked.
    """
    work = counted(short(name), counts=tiny.FEW).work
    values = federate(short(name), tiny.FEW, rounds=2).values
    up = values["clients/floats_up"][1]
    if len(np.unique(up)) == 1:
        assert work.floats_up == up[0], (
            "what clients send depends on more than the model"
        )
        assert work.floats_down == values["floats_down"][1]
    else:
        assert up.min() / 2 <= work.floats_up <= up.max()


@pytest.mark.parametrize(
    ("method", "passes"),
    [
        ("fedavg", 2),
        # two epochs on the personal model, the default, in addition to those on the
        # shared model
        ("ditto", 4),
        ({"name": "ditto", "personal_epochs": 1}, 3),
        # for each mini-batch a gradient of each of two models
        ("apfl", 4),
        # gradients per mini-batch
        ({"name": "pfedme", "inner_steps": 3}, 6),
        # a step uses a mini-batch for each of its two gradients
        ("per-fedavg", 4),
    ],
)
def test_passes_of_two_epochs_by_hand(method, passes):
    assert counted(method, training={"epochs": 2}).work.passes == Fraction(passes)


def test_dropped_last_batches_change_no_count():
    """The counted round has six samples, fewer than a mini-batch."""
    plain, full = (
        counted("ditto", training={"batch_size": 10, "drop_last": drops})
        for drops in (False, True)
    )
    assert full == plain


def test_the_milliseconds_of_a_sample_are_counted_by_hand():
    """An MLP of layers 5 → 6 → 4. Forward 2·(30 + 24) operations; backward 2·24 for the
    features and 2·(30 + 24) for the weights, as the gradient of the input is not
    needed: 264, at 10^6 per millisecond.
    """
    assert counted("fedavg").sample_ms == pytest.approx(264e-6, rel=1e-12)
    own = counted("fedavg", time={"mode": "synchronous", "sample_ms": 2.5})
    assert own.sample_ms == 2.5
