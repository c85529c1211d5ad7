import pytest

from hpcfl.experiment.sections import Participation


@pytest.mark.parametrize(
    ("fraction", "clients", "down", "up"),
    [
        (0.5, 5, 2, 3),
        (0.3, 10, 3, 3),
        (0.01, 20, 1, 1),
    ],
)
def test_a_share_of_the_clients_is_rounded(fraction, clients, down, up):
    counts = [
        Participation(fraction=fraction, rounding=rounding).count(clients)
        for rounding in ("down", "up")
    ]
    assert counts == [down, up]
