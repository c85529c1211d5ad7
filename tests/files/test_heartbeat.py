"""Heartbeats of a working rank: their receivers and frequency."""

import pytest

from hpcfl.files import heartbeat


def test_a_listener_receives_beats_only_inside_its_block():
    outer, inner = [], []
    with heartbeat.use_listener(lambda: outer.append(1)):
        with (
            pytest.raises(ZeroDivisionError),
            heartbeat.use_listener(lambda: inner.append(1)),
        ):
            heartbeat.beat()
            raise ZeroDivisionError
        heartbeat.beat()
    heartbeat.beat()  # no rank waits for a single process
    assert (outer, inner) == ([1], [1])


def test_training_beats_once_a_mini_batch_and_scoring_too(make_fleet):
    fleet, beats = make_fleet(), []
    rows = fleet.setup.layout.width
    steps = -(-fleet.samples.max() // fleet.setup.training.batch_size)
    with heartbeat.use_listener(lambda: beats.append(1)):
        start = fleet.setup.normal(rows, key=("start",))
        trained = fleet.train(start)
        assert len(beats) >= steps
        beats.clear()
        fleet.score("post", trained)
    assert beats
