"""Stop signals: the first is noted, an echo ignored, a second ends at once; early ones
are kept for the run.
"""

import os
import signal

import pytest

from hpcfl.simulation import signals
from hpcfl.simulation.signals import StopRequest


@pytest.fixture(autouse=True)
def handlers():
    """What this process did about signals before."""
    before = {number: signal.getsignal(number) for number in signals.STOP}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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
        assert ends == []  # a launcher's echo
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
    with StopRequest(pytest.fail) as request:
        assert request.received == number.name
    with StopRequest(pytest.fail) as request:
        assert request.received is None


def test_an_early_ctrl_c_is_not_kept():
    # a shell's background jobs start with it ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signals.remember()
    with pytest.raises(KeyboardInterrupt):
        send(signal.SIGINT)


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest(pytest.fail):
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
