"""Rounds of two programs run in turn, with separate seconds."""

import re
import signal
import sys
import time

import pfllib
import pytest
import turns

MARK = re.compile(r"^round \d+$")
# Each round uses a given number of CPU seconds and then prints its line. The seconds of
# an ended process are lost, so one more round follows the last counted one.
WORK = """
import sys, time
seconds, rounds = float(sys.argv[1]), int(sys.argv[2])
for number in range(rounds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
    print("round", number)
"""


def start(seconds, rounds=4, ends=True):
    words = [sys.executable, "-c", WORK, seconds, rounds]
    return turns.Program(words, MARK, ends=ends)


@pytest.mark.slow
def test_each_program_has_its_own_seconds():
    found = turns.race(
        {"short": lambda: start(0.1), "long": lambda: start(0.5)}, warm_up=1, rounds=2
    )
    assert found["short CPU"] == pytest.approx(0.1, abs=0.1)
    assert found["long CPU"] == pytest.approx(0.5, abs=0.1)
    assert found["short"] >= 0.09 and found["long"] >= 0.49


def test_a_program_pauses_after_a_round_and_is_killed_at_the_end():
    with start(0.1, 100_000, ends=False) as program:
        program.warm_up(1)
        time.sleep(0.1)  # until the signal has arrived
        used = turns.cpu_seconds([program.process.pid])
        time.sleep(0.2)
        assert turns.cpu_seconds([program.process.pid]) == used > 0
        assert program.play_round().wall > 0
    assert program.process.returncode == -signal.SIGKILL


def test_a_program_that_ends_too_early_is_an_error():
    with (
        pytest.raises(RuntimeError, match="before the end of a round"),
        start(0.01, 0) as program,
    ):
        program.warm_up(1)


@pytest.mark.slow
def test_children_are_counted():
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1], '0.3', '3'])"
    words = [sys.executable, "-c", code, WORK]
    with turns.Program(words, MARK, ends=True) as program:
        program.warm_up(1)
        assert program.play_round().cpu == pytest.approx(0.3, abs=0.1)


@pytest.mark.parametrize(
    ("line", "is_end"),
    [
        ("-" * 25 + " time cost " + "-" * 25 + " 2.6406\n", True),
        ("-" * 50 + " 9.1e-05\n", True),
        ("-------------Round number: 1-------------\n", False),
        ("Average time cost per round.\n", False),
        ("2.6406\n", False),
    ],
)
def test_lines_of_pfllib_with_the_seconds_of_a_round_end_it(line, is_end):
    assert bool(pfllib.ROUND.search(line)) == is_end
