"""The caller that makes the schedule refuses impossible rounds."""

from playing import prepare_tiny
from refusals import expect_refusal

from hpcfl.clock.schedule import make_schedule
from hpcfl.communication.communicator import OneProcess

SYNCHRONOUS = {"mode": "synchronous"}


def calendar(**sections):
    return make_schedule(prepare_tiny("fedavg", **sections), OneProcess())


def test_impossible_availability_is_refused_before_round_1(tmp_path):
    file = tmp_path / "on.json"
    file.write_text('[{"active": [], "inactive": [], "finish_time": 9}]')
    time = {
        "availability": "file",
        "availability_file": str(file),
        **SYNCHRONOUS,
    }
    with expect_refusal(r"time\.availability: .* round 1 "):
        calendar(time=time)
    with expect_refusal(r"time\.availability = 'file': .*time\.availability_file"):
        calendar(time={"availability": "file", **SYNCHRONOUS})
