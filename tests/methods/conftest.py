"""Comparison of two equivalent methods."""

import pytest
import tiny
import torch


@pytest.fixture
def equal_runs(federate):
    """Return ``equal_runs(one, other, …)``, which runs two methods with partial
    participation, asserts the same bits and returns both runs.

    server, clients: names of the state to compare; names of clients' state as
    ``first=second`` if they differ. columns: names of the scores. exact: False if two
    different products must agree.
    """

    def check(
        one,
        other,
        *,
        server=("model",),
        clients=(),
        columns=(),
        exact=True,
        counts=tiny.COUNTS,
        **sections,
    ):
        sections = {"participation": {"fraction": 0.6}, **sections}
        first, second = (
            federate(method, counts, **sections) for method in (one, other)
        )
        pairs = [(first.server[key], second.server[key]) for key in server]
        for key in clients:
            own, _, same = key.partition("=")
            pairs.append((first.clients[own], second.clients[same or own]))
        for column in columns:
            name = f"clients/{column}/loss"
            losses = first.values[name], second.values[name]
            pairs.append(tuple(map(torch.from_numpy, losses)))
        tolerance = {"rtol": 0, "atol": 0} if exact else {}
        for found, expected in pairs:
            torch.testing.assert_close(found, expected, equal_nan=True, **tolerance)
        return first, second

    return check
