"""A server that waits for nobody: the rounds against the serial simulation, event by
event, and where they are those of a server that waits (time.md §5, §6, §9).
"""

import numpy as np
import pytest
import serial
import tiny
import torch
from every_method import short

from hpcfl.commands.run import run
from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import UserError
from hpcfl.experiment import config
from hpcfl.simulation.prepare import prepare
from hpcfl.simulation.timing import timed
from hpcfl.storage import results
from hpcfl.storage.checkpoint import latest
from hpcfl.trained.models import predicted

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_figures")]

# twelve clients whose devices differ
COUNTS = [[3 + client % 5, 2, client % 3, 4] for client in range(12)]
ASYNCHRONOUS = {"mode": "asynchronous", "sigma": 1.0, "sample_ms": 100.0}
EVEN = {
    "mode": "asynchronous",
    "devices": "equal",
    "down_sigma": 0.0,
    "up_sigma": 0.0,
}


def polynomial(staleness):
    return round(2**16 / (1 + staleness) ** 0.5)


def halved(staleness):
    """hinge with a = 1 and b = 1."""
    return round(2**16 / max(1, staleness))


def against_serial(federate, method, units_of=polynomial, **sections):
    """Play it both ways; the rounds as they were played."""
    played = federate(method, COUNTS, **sections)
    table = tiny.table(method, COUNTS, **sections)
    prepared = timed(prepare(config.parse(table), OneProcess()), OneProcess())
    expected = serial.play(prepared, units_of)
    kept = {
        name: tensor
        for name, tensor in played.server.items()
        if not name.startswith("in flight")
    }
    assert kept.keys() == expected.server.keys()
    for name, tensor in expected.server.items():
        assert torch.equal(kept[name], tensor), name
    for name, tensor in expected.clients.items():
        assert torch.equal(played.clients[name], tensor), name
    for (round, client), numbers in expected.numbers.items():
        for name, value in numbers.items():
            if name == "sample_gradients":
                continue  # those of scoring before training count, too
            recorded = played.values[f"clients/{name}"][round - 1, client]
            assert np.array_equal(recorded, value, equal_nan=True), name
    return played


CASES = {
    "fedbuff": ("fedavg", polynomial, {"buffer": 3, "concurrency": 8}),
    "fedasync": ("fedavg", polynomial, {"rule": "fedasync", "concurrency": 4}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_rounds_are_the_serial_simulation(federate, case):
    method, units_of, keys = CASES[case]
    time = {**ASYNCHRONOUS, **keys}
    played = against_serial(federate, method, units_of, rounds=8, time=time)
    assert played.values["staleness/largest"].max() > 1


def play(folder, stops, **sections):
    """Run to each of the numbers of rounds, one after the other; the digest."""
    for rounds in stops:
        table = tiny.table("ditto", COUNTS, rounds=rounds, **sections)
        run(config.parse(table), folder, OneProcess())
    return latest(folder / "checkpoints").digest


def test_a_run_goes_on_with_the_same_bits(tmp_path):
    """Messages of older versions are in the checkpoint, and go once nobody needs them."""
    keys = {"time": {**ASYNCHRONOUS, "buffer": 2, "concurrency": 6}}
    assert play(tmp_path / "calm", [7], **keys) == play(
        tmp_path / "run", [4, 7], **keys
    )
    calm, run = (results.read(tmp_path / name).values for name in ("calm", "run"))
    for name in ("clients/train_loss", "clients/post/correct", "staleness/mean"):
        np.testing.assert_array_equal(calm[name], run[name])


def test_models_of_a_round_are_made_again(played):
    """The last round's clients started from older versions than it begins with."""
    time = {**ASYNCHRONOUS, "buffer": 2, "concurrency": 4}
    run = played("ditto", rounds=6, time=time)
    values = run.results.values
    assert values["staleness/largest"][5] > 0
    found = list(run.models.of_clients(range(5), "post", at=6))
    assert len(found) == 2
    for one in [*found, *run.models.of_clients(range(5), "pre", at=6)]:
        x, y = run.models.samples(one.clients)
        right = predicted(one.module, x) == y
        assert float(right.double().mean()) == one.recorded


REFUSED = {
    "scaffold": "changes from the server's control of one round",
    "feddyn": "how far clients move away from its model",
    "feddbe": "mean feature is that of the first round's clients",
    "pfedsim": "messages change after the warm-up",
    "cfl": "sends clients a 'models' of their own",
    "ifca": "sends clients a 'models' of their own",
    "fedgh": "needs each client's own 'means'",
    "fednova": "gets a 'change' that it has not sent",
    "fedproto": "some of a round's clients alone",
}


@pytest.mark.parametrize("method", REFUSED)
def test_what_needs_a_round_is_refused(method):
    table = tiny.table(short(method), COUNTS, time=ASYNCHRONOUS)
    prepared = prepare(config.parse(table), OneProcess())
    with pytest.raises(
        UserError, match=rf"{method} cannot, because .*{REFUSED[method]}"
    ):
        timed(prepared, OneProcess())
