"""Stop signals: the first is recorded, an echo ignored, and a second one ends the
process at once; early signals are stored for the run.
"""

import os
import signal

import pytest

from hpcfl.errors import Interrupted, RunFailure
from hpcfl.simulation import signals
from hpcfl.simulation.signals import StopRequest


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    return now


def send(*numbers: signal.Signals):
    for number in numbers:
        os.kill(os.getpid(), number)


@pytest.fixture
def ends():
    """Return a list of the calls that end the process."""
    return []


def find_kept_signal() -> str | None:
    """Return the signal that the next run receives at its start."""
    with StopRequest(pytest.fail) as request:
        return request.received


@pytest.mark.parametrize("number", signals.STOP_SIGNALS)
def test_the_first_signal_is_recorded(number):
    with StopRequest(pytest.fail) as request:
        assert request.received is None
        send(number)
        assert request.received == number.name


def test_the_second_signal_ends_the_process(clock, ends):
    with StopRequest(lambda: ends.append(True)) as request:
        send(signal.SIGINT, signal.SIGINT)
        assert ends == []  # echo of a launcher
        clock[0] += 1.1
        send(signal.SIGTERM)
        assert ends == [True] and request.received == "SIGINT"


def test_repeated_warnings_end_nothing_and_another_signal_does(clock, ends):
    with StopRequest(lambda: ends.append(True)):
        for _ in range(3):
            send(signal.SIGUSR1, signal.SIGUSR2)
            clock[0] += 10
        assert ends == []
        send(signal.SIGTERM)
        assert ends == [True]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_early_signals_are_kept_for_one_run(number):
    signals.remember()
    send(number)
    with pytest.raises(Interrupted), StopRequest(pytest.fail) as request:
        assert request.received == number.name
        raise Interrupted("stopped")
    assert find_kept_signal() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_at_the_end_of_a_run_stops_the_next(number):
    signals.remember()
    with StopRequest(pytest.fail):
        send(number)
    assert find_kept_signal() == number.name


def test_a_signal_while_a_run_fails_stops_the_next():
    signals.remember()
    with pytest.raises(RunFailure), StopRequest(pytest.fail):
        send(signal.SIGTERM)
        raise RunFailure("diverged")
    assert find_kept_signal() == "SIGTERM"


def test_a_signal_that_ended_a_run_is_not_kept():
    signals.remember()
    with pytest.raises(KeyboardInterrupt), StopRequest(pytest.fail):
        send(signal.SIGINT)
        raise KeyboardInterrupt
    assert find_kept_signal() is None


def test_signals_are_not_kept_by_default():
    with StopRequest(pytest.fail):
        send(signal.SIGINT)
    assert find_kept_signal() is None


def test_the_echo_of_an_early_signal_ends_nothing(clock, ends):
    signals.remember()
    send(signal.SIGTERM)
    with StopRequest(lambda: ends.append(True)):
        clock[0] += 0.01
        send(signal.SIGTERM)
        assert ends == []
        clock[0] += 1.1
        send(signal.SIGTERM)
        assert ends == [True]


def test_an_early_ctrl_c_is_not_kept():
    signals.remember()
    with pytest.raises(KeyboardInterrupt):
        send(signal.SIGINT)


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest(pytest.fail):
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
