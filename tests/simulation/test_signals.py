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


def send(*numbers: signal.Signals) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", signals.STOP)
def test_the_first_is_noted(number):
    with StopRequest(pytest.fail) as request:
        assert request.received is None
        send(number)
        assert request.received == number.name


def test_the_second_ends_at_once(clock):
    ends = []
    with StopRequest(lambda: ends.append(True)) as request:
        send(signal.SIGINT, signal.SIGINT)
        assert ends == []  # echo of a launcher
        clock[0] += 1.1
        send(signal.SIGTERM)
        assert ends == [True] and request.received == "SIGINT"


def test_warnings_may_be_repeated_but_do_not_protect(clock):
    ends = []
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
    with StopRequest(pytest.fail) as request:
        assert request.received is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_came_too_late_for_a_run_stops_the_next(number):
    signals.remember()
    with StopRequest(pytest.fail):
        send(number)
    with StopRequest(pytest.fail) as request:
        assert request.received == number.name


def test_what_came_while_a_run_failed_stops_the_next():
    signals.remember()
    with pytest.raises(RunFailure), StopRequest(pytest.fail):
        send(signal.SIGTERM)
        raise RunFailure("diverged")
    with StopRequest(pytest.fail) as request:
        assert request.received == "SIGTERM"


def test_what_ended_a_run_at_once_is_done_with():
    signals.remember()
    with pytest.raises(KeyboardInterrupt), StopRequest(pytest.fail):
        send(signal.SIGINT)
        raise KeyboardInterrupt
    with StopRequest(pytest.fail) as request:
        assert request.received is None


def test_a_process_that_goes_on_keeps_no_signal():
    with StopRequest(pytest.fail):
        send(signal.SIGINT)
    with StopRequest(pytest.fail) as request:
        assert request.received is None


def test_the_echo_of_an_early_signal_ends_nothing(clock):
    ends = []
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
