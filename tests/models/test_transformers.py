"""Built-in models of sequences: equal to torch's layers with the same weights, and with
the same results for a client alone and among others.
"""

import numpy as np
import pytest
import tiny
import torch
from playing import prepare_alone

COUNTS = [[4, 2, 0], [0, 5, 1], [2, 2, 0], [3, 3, 3], [1, 0, 0]]
SMALL = {"width": 8, "depth": 1, "heads": 2, "hidden": 8}
CASES = {  # shape of a sample, keys
    "vit": ((3, 8, 8), {**SMALL, "head_width": 4, "patch": 4}),
    "text-transformer": ((6,), SMALL),
    "char-transformer": ((6,), {**SMALL, "head_width": 4}),
    "bert": ((6,), SMALL),
    "gpt": ((6,), SMALL),
    "char-lstm": ((6,), {"width": 3, "hidden": 4}),
}
every_case = pytest.mark.parametrize("name", CASES)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory):
    """Return ``experiment(name, …)``, which makes a table with this model and a file of
    random samples, images or tokens of a vocabulary of 20.
    """
    folder = tmp_path_factory.mktemp("data")

    def make(name, **sections):
        shape, keys = CASES[name]
        images, size = len(shape) == 3, (3 * tiny.EACH, *shape)
        path = folder / f"{len(shape)}.npz"
        if not path.exists():
            generator = np.random.default_rng(0)
            x = generator.integers(0, 256 if images else 20, size)
            y = np.arange(3).repeat(tiny.EACH)
            np.savez(path, x=x.astype(np.uint8 if images else np.int64), y=y)
        table = tiny.table(
            "fedavg",
            COUNTS,
            rounds=2,
            data={"file": str(path)},
            training={"epochs": 2},
            **sections,
        )
        table["data"]["dataset"] = "npz"
        table["model"] = {"name": name, **keys}
        return table

    return make


@pytest.fixture
def fleet_of(experiment):
    """Return ``fleet_of(name, lanes)``, which makes the five untrained clients on one
    rank.
    """

    def make(name, lanes):
        table = experiment(name, runtime={"lanes": lanes})
        prepared = prepare_alone(table)
        return prepared.make_fleet(np.arange(len(COUNTS)), 1, is_scored=True)

    return make


@every_case
def test_a_client_trains_identically_alone_and_in_lanes(fleet_of, name):
    """Bit for bit in any lanes, to rounding one client after the other; all with
    dropout.
    """
    whole = fleet_of(name, 7)
    rows = whole.setup.initial().repeat(len(COUNTS), 1)
    expected = whole.train(rows)
    assert not whole.resources.kernel.dependent
    assert torch.equal(fleet_of(name, 3).train(rows), expected)
    by_rule = fleet_of(name, "auto")
    in_lanes = name != "char-lstm"
    assert (by_rule.resources.kernel.widest > 1) == in_lanes
    serial = fleet_of(name, 1).train(rows)
    torch.testing.assert_close(serial, expected, rtol=1e-4, atol=1e-5)
    only = torch.arange(len(COUNTS)) == 3
    one = by_rule.train(rows, only=only)
    assert torch.equal(one[3], (expected if in_lanes else serial)[3])
    assert (expected - rows).abs().amax(dim=1).min() > 1e-3
