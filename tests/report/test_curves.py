"""Curves: means and bands over seeds, by rounds, costs and keys."""

from dataclasses import replace

import numpy as np
from refusals import expect_refusal

from hpcfl.report.plots import curves
from hpcfl.report.sheet import Sheet
from hpcfl.storage.results import Results


def draw(runs, **keys):
    return curves.plugin(runs, Sheet(7), **keys)


def line(figure, position=0):
    return figure.axes[0].lines[position].get_xydata().round(6).tolist()


def test_a_curve_is_the_mean_over_seeds_with_a_band_of_one_standard_deviation(
    made_runs,
):
    sheet = Sheet(7)
    figure = curves.plugin(made_runs(fedavg=[0.0, 0.06]), sheet)
    assert line(figure) == [[0, 50], [1, 53]]
    band = figure.axes[0].collections[0].get_paths()[0].vertices.round(6).tolist()
    half = round(18**0.5, 6)  # the sample standard deviation of 50 and 56
    assert [1, 53 - half] in band and [1, 53 + half] in band and [0, 50] in band
    [note] = sheet.notes
    assert note.endswith("2 seeds")
    assert figure.axes[0].get_ylabel() == "test accuracy (%), before local training"
    assert all(float(tick).is_integer() for tick in figure.axes[0].get_xticks())


def test_costs_that_a_run_lacks_are_refused(made_runs):
    found = made_runs(fedavg=[0.1])
    assert line(draw(found, x="floats")) == [[0, 50], [150, 60]]
    del found[0].results.values.of_rounds["floats_down"]
    with expect_refusal("fedavg,seed=0: --x floats: "):
        draw(found, x="floats")


def test_held_out_samples_of_each_methods_own_models(made_runs):
    found = made_runs(ditto=[0.1], fedavg=[0.0])
    found[0] = replace(found[0], score="post")
    numbers = {"pre": [0.5, 0.6], "post": [0.7, 0.8]}
    for run in found:
        of_run = np.array([*numbers[run.score], np.nan])
        run.results.values.of_rounds[f"validation/{run.score}/{run.metric}"] = of_run
    figure = draw(found, metric="validation", x="seconds")
    # after training: includes the round's cost
    assert line(figure, 0) == [[2, 70], [4, 80]]
    assert line(figure, 1) == [[0, 50], [2, 60]]
    assert " ".join(figure.axes[0].get_ylabel().split()) == (
        "validation accuracy (%), each method's own models"
    )


def test_trained_models_of_attackers_include_the_cost_of_their_round(made_runs):
    [run] = found = made_runs(fedavg=[0.0])
    run.results.values.of_rounds["attackers/post/weighted"] = np.array(
        [0.7, 0.8, np.nan]
    )
    figure = draw(found, metric="attackers/post/weighted", x="seconds")
    assert line(figure) == [[2, 70], [4, 80]]
    figure = draw(found, metric="attackers/post/weighted")
    assert line(figure) == [[1, 70], [2, 80]]


def test_a_score_over_a_key(made_runs):
    made_runs(fedavg=[0.0, 0.02], keys={"training": {"lr": 0.1}})
    found = made_runs(local=[0.1], keys={"training": {"lr": 0.2}})
    figure = draw(found, x="training.lr", at="last")
    lines = sorted([line(figure, 0), line(figure, 1)])
    assert lines == [[[0.1, 51]], [[0.2, 60]]]
    assert [text.get_text() for text in figure.legends[0].texts] == ["local", "fedavg"]
    with expect_refusal(r"--x method\.name: 'fedavg' in .*fedavg,seed=0 "):
        draw(found, x="method.name")
    with expect_refusal(r"--x lr: .*floats, bits, partition.seed, seed, training.lr$"):
        draw(found, x="lr")


def test_a_run_that_is_not_finished_is_drawn_as_far_as_it_is(made_runs):
    sheet = Sheet(7)
    figure = curves.plugin(made_runs(fedavg=[0.1], finished=False), sheet)
    assert line(figure) == [[0, 50], [1, 60]]
    assert sheet.notes[0] == "fedavg,seed=0: it is at round 2 of 2"


def test_group_defines_lines_and_must_separate_runs(made_runs):
    made_runs(fedprox=[0.0], keys={"training": {"lr": 0.1}})
    found = made_runs(fedavg=[0.1])
    figure = draw(found, group=["method", "training.lr"])
    labels = [text.get_text() for text in figure.legends[0].texts]
    assert labels == ["fedavg lr=0.005", "fedprox lr=0.1"]
    with expect_refusal(r"'method\.nam' .*'method\.name'"):
        draw(found, group=["method.nam"])
    with expect_refusal(r"method\.name; .*--group"):
        draw(found, group=["rounds"])


def test_a_run_before_its_first_round_has_no_curve(made_runs):
    waiting, played = made_runs(fedavg=[0.1], local=[0.2])
    figure = draw([replace(waiting, results=Results()), played])
    assert [text.get_text() for text in figure.legends[0].texts] == ["local"]
