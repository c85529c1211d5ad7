import numpy as np
import pytest

from hpcfl.report import figures
from hpcfl.report.summary import load_all


@pytest.mark.slow
def test_two_figures_for_a_sweep_whose_runs_share_a_partition(make_run, tmp_path):
    make_run("fedavg")
    make_run("local", method="local", primary="post")
    paths = figures.draw(tmp_path)
    assert [path.name for path in paths] == ["accuracy.png", "clients.png"]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_curves_hold_the_recorded_accuracies(make_run, tmp_path):
    make_run("fedavg")
    figure = figures.curves(load_all(tmp_path))
    before, after = figure.axes
    assert before.lines[0].get_xydata().tolist() == [[1, 25], [2, 75], [3, 50], [4, 62.5]]
    assert after.lines[0].get_xydata().tolist() == [[1, 50], [2, 62.5], [3, 87.5]]
    assert [text.get_text() for text in figure.legends[0].texts] == ["fedavg"]


def test_bubbles_have_areas_in_proportion_to_samples():
    figure = figures.bubbles(np.array([[80, 0, 10], [0, 40, 0]]))
    drawn = figure.axes[0].collections[0]
    assert drawn.get_offsets().tolist() == [[0, 0], [0, 2], [1, 1]]
    assert np.allclose(drawn.get_sizes() / drawn.get_sizes()[0], [1, 1 / 8, 1 / 2])


def test_the_legend_shows_round_numbers_that_occur():
    assert figures._legend_sizes(93) == [2, 10, 50]
    assert figures._legend_sizes(1) == [1]
    assert figures._legend_sizes(3000) == [100, 500, 2000]
