"""Figure of a tuning with synthetic scores."""

from hpcfl.report.sheet import Sheet
from hpcfl.scores.metric_names import Measure
from hpcfl.tuning import figure

ACCURACY = Measure("accuracy", "mean", "mean", "%")


def test_lines_begin_at_the_first_trial_and_marks_are_untuned():
    curves = {"fedavg": [0.5, 0.6, 0.7], "ditto": [None, 0.4]}
    drawn = figure.draw(Sheet(7), curves, ACCURACY)
    [place] = drawn.axes
    tuned, untuned, other, _ = place.lines
    assert tuned.get_xdata().tolist() == [1, 2]
    assert tuned.get_ydata().tolist() == [
        60,
        70,
    ]
    assert list(untuned.get_xdata()) == [0] and list(untuned.get_ydata()) == [50]
    assert tuned.get_color() == untuned.get_color() != other.get_color()


def test_the_figure_is_written(tmp_path):
    figure.write(tmp_path / "curve.png", {"fedavg": [0.5, 0.6]}, ACCURACY)
    assert (tmp_path / "curve.png").stat().st_size > 1000
