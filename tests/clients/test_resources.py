"""Times of phases."""

from types import SimpleNamespace

from hpcfl.clients import resources


def test_an_inner_phase_pauses_the_outer_one(monkeypatch):
    """The inner phase begins after 1 s of the outer phase, which lasts 4 s after it."""
    times = iter([0, 1, 2, 5, 9])
    clock = SimpleNamespace(perf_counter=times.__next__)
    monkeypatch.setattr(resources, "time", clock)
    stopwatch = resources.Stopwatch()
    with stopwatch.phase("outer"), stopwatch.phase("inner"):
        pass
    assert stopwatch.seconds == {"outer": 1 + 4, "inner": 3}
