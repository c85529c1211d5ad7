"""Decision whether clients with different start models train together: it depends only
on the method, not on failures.
"""

import pytest
import tiny
import torch
from in_threads import on_ranks
from playing import prepare_alone

from hpcfl.clock.asynchronous import trial
from hpcfl.experiment import config
from hpcfl.methods.fedavg import FedAvg
from hpcfl.simulation.prepare import prepare_together

TIME = {"mode": "asynchronous", "concurrency": 3, "buffer": 2}
TABLE = tiny.table("fedavg", time=TIME)


@pytest.fixture
def prepared():
    return prepare_alone(TABLE)


def fail_together(monkeypatch, *errors):
    """Make the next calls with both clients raise these errors."""
    real, left = trial.train_small, list(errors)

    def made(small, clients, messages):
        if len(clients) > 1 and left:
            raise left.pop(0)
        return real(small, clients, messages)

    monkeypatch.setattr(trial, "train_small", made)


def test_fedavg_can_mix_start_models(prepared):
    assert trial.can_mix(prepared)


def test_a_method_that_expects_one_model_cannot_mix_start_models(monkeypatch, prepared):
    real = FedAvg.update

    def update(method, fleet, inbox):
        assert inbox["model"].dim() == 1
        return real(method, fleet, inbox)

    monkeypatch.setattr(FedAvg, "update", update)
    assert not trial.can_mix(prepared)


@pytest.mark.parametrize("error", [MemoryError(), ValueError("a timer")], ids=repr)
def test_a_passing_failure_is_raised(monkeypatch, prepared, error):
    fail_together(monkeypatch, error)
    with pytest.raises(type(error)):
        trial.can_mix(prepared)


def test_a_failure_of_a_client_alone_is_raised(monkeypatch, prepared):
    def fail(*given):
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(trial, "train_small", fail)
    with pytest.raises(torch.OutOfMemoryError):
        trial.can_mix(prepared)


def test_all_ranks_use_the_same_decision(monkeypatch):
    answers = iter([True, False])
    monkeypatch.setattr(trial, "can_mix", lambda _: next(answers))
    mixes = []

    def decide(communicator):
        ready = prepare_together(config.parse(TABLE), communicator)
        mixes.append(trial.try_asynchronous(ready, communicator))

    on_ranks(3, decide)
    assert mixes == [False] * 3
