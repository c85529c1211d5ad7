"""Description of the clients' devices in ``hpcfl check``."""

import tiny

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.report import devices
from hpcfl.simulation.prepare import prepare
from hpcfl.simulation.timing import timed


def test_devices_are_described_from_the_fastest_to_the_slowest_client():
    keys = {"mode": "synchronous", "devices": "lognormal", "sample_ms": 5.0}
    experiment = config.parse(tiny.table("fedavg", time=keys))
    prepared = timed(prepare(experiment, OneProcess()), OneProcess())
    work, _, pace, *others = devices.lines(prepared)
    assert work.startswith("time: in a round a client does 1 passes over its samples")
    numbers = [float(cell) for cell in pace.removeprefix("time: ms a sample").split()]
    assert len(others) == 4 and len(numbers) == 5
    assert numbers == sorted(numbers) and numbers[0] < 5 < numbers[-1]


def test_without_time_there_are_no_devices():
    experiment = config.parse(tiny.table("fedavg"))
    assert devices.lines(prepare(experiment, OneProcess())) == []
