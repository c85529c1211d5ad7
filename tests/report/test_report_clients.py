"""Figure of the numbers of each client."""

import numpy as np

from hpcfl.report.plots import clients
from hpcfl.report.sheet import Sheet

OWN = np.array([0.2, 0.4, 0.9])  # numbers of the three clients in round 1


def test_clients_have_dots_and_rows_are_in_the_order_of_their_means(made_runs):
    found = made_runs(fedavg=[0.0, 0.1], local=[0.1, 0.1])
    figure = clients.plugin(found, Sheet(7))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        "local",
        "fedavg",
    ]
    dots = figure.axes[0].collections[1].get_offsets()[:, 0]
    np.testing.assert_allclose(dots, 100 * np.concatenate([OWN, OWN + 0.1]))


def test_a_dot_for_one_client_in_several_where_there_are_too_many(
    made_runs, monkeypatch
):
    found = made_runs(fedavg=[0.0, 0.1], local=[0.1])
    monkeypatch.setattr(clients, "MOST", 5)
    sheet = Sheet(7)
    figure = clients.plugin(found, sheet)
    shown = [dots.get_offsets()[:, 0].tolist() for dots in figure.axes[0].collections]
    np.testing.assert_allclose(shown[0], 100 * (OWN + 0.1)[[0, 2]])
    np.testing.assert_allclose(
        shown[1], 100 * np.concatenate([OWN, OWN + 0.1])[[0, 2, 3, 5]]
    )
    assert "one dot for every 2 clients" in sheet.notes
