import numpy as np
import pytest

from hpcfl.errors import UserError
from hpcfl.storage import client_numbers, metrics
from hpcfl.storage.client_numbers import ClientNumbers, OfSome, Values
from hpcfl.storage.metrics import MetricsWriter

NAN = np.nan
# three rounds of four clients: in the first clients 1 and 3 were asked, then nobody,
# then client 0, who said nothing of b
SERIES = {
    "clients/a": np.array([[NAN, 1, NAN, 3], [NAN] * 4, [5, NAN, NAN, NAN]]),
    "clients/b": np.array([[-1, 2, -1, 4], [-1] * 4, [-1] * 4]),
}


def same(found, expected):
    return all(
        np.array_equal(found.series(name), array, equal_nan=array.dtype.kind == "f")
        for name, array in expected.items()
    )


def test_only_clients_that_have_a_number_are_entries():
    numbers = client_numbers.of_series(SERIES, 3)
    assert numbers.starts.tolist() == [0, 2, 2, 3] and numbers.ids.tolist() == [1, 3, 0]
    assert numbers.rounds.tolist() == [0, 0, 2]
    assert numbers.columns["clients/b"].tolist() == [2, 4, -1]
    assert same(numbers, SERIES)


def test_some_rounds_and_some_clients():
    numbers = client_numbers.of_series(SERIES, 3)
    turned = numbers.select_rounds([2, 0])
    assert same(turned, {name: array[[2, 0]] for name, array in SERIES.items()})
    some = numbers.only(np.array([0, 3]))
    assert same(some, {name: array[:, [0, 3]] for name, array in SERIES.items()})
    assert some.clients == 2


def test_rounds_of_several_parts_lie_in_their_order():
    """The first part has rounds 0 and 2 of a, the second round 1, and of b alone."""
    first = client_numbers.of_series({"clients/a": SERIES["clients/a"][[0, 2]]}, 2)
    second = client_numbers.of_series({"clients/b": np.array([[7, -1, -1, 8]])}, 1)
    found = client_numbers.joined([(first, [0, 1], [0, 2]), (second, [0], [1])], 3)
    assert same(found, {"clients/a": SERIES["clients/a"]})
    assert found.series("clients/b").tolist() == [[-1] * 4, [7, -1, -1, 8], [-1] * 4]
    assert found.ids.tolist() == [1, 3, 0, 3, 0]


def test_numbers_of_different_clients_in_one_round():
    some = OfSome(np.array([1]), np.array([2.0]), 3)
    everybody = OfSome(np.arange(3), np.array([4, 5, 6]), 3)
    found = client_numbers.of_round({"clients/a": some, "clients/b": everybody})
    assert found.series("clients/b").tolist() == [[4, 5, 6]]
    assert np.array_equal(found.series("clients/a"), [[NAN, 2, NAN]], equal_nan=True)
    assert np.array_equal(np.asarray(some), [NAN, 2, NAN], equal_nan=True)
    assert np.ndim(some) == 1 and np.nansum(some) == 2


def test_an_array_of_all_clients_must_fit_into_memory(monkeypatch):
    numbers = client_numbers.of_series(SERIES, 3)
    monkeypatch.setattr(client_numbers, "MOST", 8 * 3 * 4 - 1)
    with pytest.raises(UserError, match=r"'clients/a' of 4 clients in 3 rounds"):
        numbers.series("clients/a")


def test_a_few_of_a_million_clients_make_small_files(tmp_path):
    writer = MetricsWriter(tmp_path, {}, {})
    asked = np.arange(0, 1_000_000, 10_007)
    for round in (1, 2):
        of_round = OfSome(asked + round, asked * 1.0, 1_000_000)
        writer.record(round, {"clients/a": of_round})
        assert (tmp_path / "rounds" / f"{round:08d}.h5").stat().st_size < 10_000
    writer.merge()
    assert (tmp_path / "metrics.h5").stat().st_size < 15_000
    read = metrics.read(tmp_path).select_rounds([1])
    assert read.clients.ids.tolist() == (asked + 2).tolist()
    assert read.values["clients/a"].shape == (1, 1_000_000)


def test_nothing_of_clients():
    values = Values.from_arrays({"a": np.zeros(2)}, 2)
    assert list(values) == ["a"] and len(values.select_rounds([1]).clients.starts) == 2
    assert client_numbers.joined([], 2).starts.tolist() == [0, 0, 0]
    assert ClientNumbers().clients == 0
