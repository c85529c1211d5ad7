"""Printed results of a tuning's final runs."""

import pytest
from made_up import folder

from hpcfl.report import metric_values, page
from hpcfl.report.arrangement import arrange
from hpcfl.report.metric_values import Reading
from hpcfl.report.sweep_table import make
from hpcfl.scores.metric_names import Measure
from hpcfl.trained import loading
from hpcfl.tuning import outcome


@pytest.mark.slow
def test_all_outputs_have_the_sample_standard_deviation_of_the_same_runs(tmp_path):
    """The outputs for three runs are the table, the page and the tuning's table."""
    for seed in range(3):
        folder(tmp_path / "runs" / f"fedavg-{seed}", "fedavg", seed)
    runs = loading.list_runs(tmp_path / "runs")
    best = make(arrange(runs)).texts.iat[0, 0]
    tail = make(arrange(runs), Reading(at="tail")).texts.iat[0, 0]
    html = page.render(runs)
    assert best in html and tail in html
    of_seeds = [metric_values.read_value(one, one.metric, "tail").value for one in runs]
    assert outcome.write_scores(of_seeds, 3, runs[0].measure) == tail
    alone = make(arrange(runs[:1]))
    assert "±" not in alone.texts.iat[0, 0]
    assert outcome.write_scores([0.5], 1, runs[0].measure) == "50.00"


def test_a_mean_without_a_diverged_run_has_its_number_of_runs():
    accuracy = Measure("accuracy", "mean", "mean", "%")
    assert outcome.write_scores([0.5, 0.5], 3, accuracy) == "50.00 ± 0.00 (2)"
    assert outcome.write_scores([0.5], 3, accuracy) == "50.00 (1)"


def test_the_curve_begins_with_the_untuned_score():
    points = [
        {"method": method, "trials": trials, "expected_best_validation": score}
        for method, trials, score in (
            ("fedavg", 0, 0.5),
            ("fedavg", 1, 0.6),
            ("ditto", 1, 0.4),
        )
    ]
    accuracy = Measure("accuracy", "mean", "mean", "%")
    [place] = outcome.draw_curve(points, accuracy).axes
    fedavg, ditto = sorted(place.lines, key=lambda line: -len(line.get_xdata()))
    assert fedavg.get_xdata().tolist() == [0, 1]
    assert fedavg.get_ydata().tolist() == [50, 60]
    assert fedavg.get_color() != ditto.get_color()
