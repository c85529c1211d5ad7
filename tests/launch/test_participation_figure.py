"""Figure of participating clients over virtual time."""

import made_up
import numpy as np
import participation
from participation import Turns
from refusals import expect_refusal

from hpcfl.report import figures
from hpcfl.report.sheet import Sheet, house_style


def test_participation_over_time_is_counted_by_client():
    """Clients take turns for six rounds of 10 s. Sorted by speed they are 1, 2, 0."""
    turns = participation.read_turns(made_up.timed("fedavg", 0, *6 * [0.1]))
    assert turns.seconds.tolist() == [10, 20, 30, 40, 50, 60]
    assert np.argmax(turns.counted, axis=1).tolist() == [2, 0, 1, 2, 0, 1]
    times, rows, updates = participation.count_updates(turns)
    assert times.tolist() == [0, 10, 20, 30, 40, 50, 60]
    assert rows.tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(updates, turns.counted)


def test_many_clients_share_rows_and_many_rounds_stretches():
    """Of 1,000 clients 25 share each of 40 rows, and of 600 rounds 10 share each of 60
    columns. The fastest 25 take part in all rounds, the next in none.
    """
    counted = np.zeros((600, 1000), bool)
    counted[:, :25] = True
    turns = Turns(np.arange(1.0, 601.0), counted)
    times, rows, updates = participation.count_updates(turns)
    assert updates.shape == (60, 40) and len(times) == 61 and len(rows) == 41
    assert (updates[:, 0] == 10).all() and (updates[:, 1:] == 0).all()


def test_the_figure_of_a_thousand_clients_is_small():
    random = np.random.default_rng(1)
    turns = Turns(np.arange(1.0, 301.0), random.random((300, 1000)) < 0.1)
    with house_style():
        figure = participation.draw_panels(Sheet(10.0), {"fedavg": turns})
        assert len(figures.encode_svg(figure, "f")) < 500_000


def test_the_kind_of_figure_has_a_panel_for_each_method():
    runs = [made_up.timed(method, 0, 0.1, 0.2, 0.3) for method in ("fedavg", "ditto")]
    with house_style():
        figure = participation.draw(runs, Sheet(7.0))
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["fedavg", "", "ditto", ""]
    with expect_refusal(r"runs/fedavg-0: .*time\.mode = 'synchronous'"):
        participation.draw([made_up.run("fedavg", 0, (0.1,))], Sheet(7.0))
