"""Ranks are advised against where a round has few operations."""

import pytest
import tiny
from in_threads import on_ranks

from hpcfl.experiment import config
from hpcfl.simulation import preflight
from hpcfl.simulation.prepare import prepare

COUNTS = [[4, 0, 0, 0], [10, 10, 0, 0], [0, 0, 30, 0]]
# 5·6 + 6 + 6·4 + 4 = 64 parameters, 54 samples, two epochs, six operations each
OPERATIONS = 6 * 64 * 54 * 2


def count_notes(ranks, **sections):
    table = tiny.table("fedavg", COUNTS, **sections)

    def work(communicator):
        prepared = preflight.run(
            prepare(config.parse(table), communicator), communicator
        )
        noted = preflight.note_short_rounds(prepared)
        return len(noted.notes) - len(prepared.notes)

    return on_ranks(ranks, work)


@pytest.mark.parametrize(
    ("limit", "ranks", "expected"),
    [(OPERATIONS, 3, 1), (OPERATIONS - 1, 3, 0), (OPERATIONS, 1, 0)],
)
def test_a_round_of_few_operations_is_noted_on_ranks(
    monkeypatch, limit, ranks, expected
):
    monkeypatch.setattr(preflight, "SHORT_ROUND", limit)
    assert count_notes(ranks, training={"epochs": 2}) == expected


def test_models_of_other_layers_are_not_judged():
    model = {"name": "tiny:normalised", "hidden": 6}
    assert count_notes(3, training={"batch_size": 100}, model=model) == 0
