"""What is drawn: means and bands over seeds, costs, clients' own numbers; methods can
be told apart.
"""

import json
from dataclasses import replace

import made_up
import numpy as np
import pytest

from hpcfl.errors import UserError
from hpcfl.experiment import config
from hpcfl.report.plots import (
    clients,
    curves,
    gains,
    partition,
)
from hpcfl.report.plots.curves import AXES
from hpcfl.report.sheet import Sheet
from hpcfl.storage.metrics import MetricsWriter
from hpcfl.storage.run_folder import FORMAT
from hpcfl.trained.loading import list_runs

OWN = np.array([0.2, 0.4, 0.9])  # of three clients with ten test samples each


@pytest.fixture
def runs(tmp_path):
    """``runs(method=[numbers by seed])``: runs of two rounds; a number is added in
    round 2.
    """

    def make(
        finished: bool = True,
        partitions: int = 1,
        keys: dict | None = None,
        aside: str = "",
        **methods: list[float],
    ):
        for method, numbers in methods.items():
            for seed, number in enumerate(numbers):
                folder = tmp_path / f"{method},seed={seed}{aside}"
                table = {
                    "rounds": 2,
                    "seed": seed,
                    "method": {"name": method},
                    **(keys or {}),
                }
                resolved = config.parse(table).resolved()
                counts = np.full((3, 2), 5) + seed % partitions * np.array(
                    [[1, -1]] * 3
                )
                writer = MetricsWriter(
                    folder,
                    {
                        "run": config.fingerprint(resolved),
                        "config": resolved,
                        "primary": "pre",
                    },
                    {"train_counts": counts, "test_counts": counts},
                )
                for round, own in ((1, OWN), (2, OWN + number)):
                    writer.record(
                        round,
                        {
                            "pre/weighted": own.mean(),
                            "pre/mean": own.mean(),
                            "seconds/round": 2.0,
                            "floats_down": 100.0,
                            "clients/floats_up": np.array([50.0, np.nan, 50.0]),
                            "clients/pre/correct": 10 * own,
                            "clients/pre/total": np.full(3, 10.0),
                        },
                    )
                if finished:
                    writer.record(
                        3,
                        {
                            "final": 1,
                            "floats_down": 100.0,
                            "seconds/round": 1.0,
                        },
                    )
                    writer.merge()
                (folder / "run.json").write_text(
                    json.dumps({"format": FORMAT, "config": resolved})
                )
        # in arrays that a test may change
        return [
            made_up.changed(run, dict(run.results.values))
            for run in list_runs(tmp_path)
        ]

    return make


def line(figure, position=0):
    return figure.axes[0].lines[position].get_xydata().round(6).tolist()


def test_a_curve_is_the_mean_over_seeds_with_a_band_of_one_standard_deviation(runs):
    sheet = Sheet(7)
    figure = curves.plugin(runs(fedavg=[0.0, 0.06]), sheet)
    assert line(figure) == [[0, 50], [1, 53]]
    band = figure.axes[0].collections[0].get_paths()[0].vertices.round(6).tolist()
    half = round(18**0.5, 6)  # the sample standard deviation of 50 and 56
    assert [1, 53 - half] in band and [1, 53 + half] in band and [0, 50] in band
    assert sheet.notes == ["mean ± sample standard deviation over 2 seeds"]
    assert figure.axes[0].get_ylabel() == "test accuracy (%), before local training"
    assert all(float(tick).is_integer() for tick in figure.axes[0].get_xticks())


@pytest.mark.slow
def test_models_before_training_cost_what_the_rounds_before_did(runs):
    found = runs(fedavg=[0.1])
    assert line(curves.plugin(found, Sheet(7), x="seconds")) == [[0, 50], [2, 60]]
    assert line(curves.plugin(found, Sheet(7), x="floats")) == [[0, 50], [150, 60]]
    assert AXES["seconds"][1](found[0], "post").tolist() == [2, 4, 5]
    del found[0].results.values["floats_down"]
    with pytest.raises(UserError, match="--x floats: was not recorded"):
        curves.plugin(found, Sheet(7), x="floats")


def test_held_out_samples_of_each_methods_own_models(runs):
    found = runs(ditto=[0.1], fedavg=[0.0])
    found[0] = replace(found[0], score="post")
    numbers = {"pre": [0.5, 0.6], "post": [0.7, 0.8]}
    for run in found:
        of_run = np.array([*numbers[run.score], np.nan])
        run.results.values[f"validation/{run.score}/{run.metric}"] = of_run
    figure = curves.plugin(found, Sheet(7), metric="validation", x="seconds")
    assert line(figure, 0) == [[2, 70], [4, 80]]  # after training: with the round's own
    assert line(figure, 1) == [[0, 50], [2, 60]]
    assert " ".join(figure.axes[0].get_ylabel().split()) == (
        "validation accuracy (%), each method's own models"
    )


@pytest.mark.slow
def test_it_is_said_which_samples_chose_the_best_rounds(runs):
    found = runs(fedavg=[0.0, 0.02])
    sheet = Sheet(7)
    clients.plugin(found, sheet)
    curves.plugin(found, sheet, x="seed")
    assert [
        "best of the rounds, by test samples" in note for note in sheet.notes
    ].count(True) == 2


@pytest.mark.slow
def test_a_score_over_a_key(runs):
    runs(fedavg=[0.0, 0.02], keys={"training": {"lr": 0.1}})
    found = runs(local=[0.1], keys={"training": {"lr": 0.2}})
    figure = curves.plugin(found, Sheet(7), x="training.lr", at="last")
    assert sorted(line(figure, position) for position in (0, 1)) == [
        [[0.1, 51]],
        [[0.2, 60]],
    ]
    assert [text.get_text() for text in figure.legends[0].texts] == ["local", "fedavg"]
    with pytest.raises(
        UserError, match=r"--x method.name: 'fedavg' in .* is not a number"
    ):
        curves.plugin(found, Sheet(7), x="method.name")
    with pytest.raises(
        UserError, match=r"--x lr: .*floats, partition.seed, seed, training.lr$"
    ):
        curves.plugin(found, Sheet(7), x="lr")


def test_a_run_that_is_not_finished_is_drawn_as_far_as_it_is(runs):
    sheet = Sheet(7)
    assert line(curves.plugin(runs(fedavg=[0.1], finished=False), sheet)) == [
        [0, 50],
        [1, 60],
    ]
    assert sheet.notes[0] == "fedavg,seed=0: it stands at round 2 of 2"


def test_group_makes_lines_and_must_tell_runs_apart(runs):
    runs(fedprox=[0.0], keys={"training": {"lr": 0.1}})
    found = runs(fedavg=[0.1])
    figure = curves.plugin(found, Sheet(7), group=["method", "training.lr"])
    assert [text.get_text() for text in figure.legends[0].texts] == [
        "fedavg lr=0.005",
        "fedprox lr=0.1",
    ]
    with pytest.raises(
        UserError,
        match=r"'method.nam' is no key of these runs; did you mean 'method.name'",
    ):
        curves.plugin(found, Sheet(7), group=["method.nam"])
    with pytest.raises(
        UserError,
        match=r"runs of the same entry differ in method.name; add it to --group",
    ):
        curves.plugin(found, Sheet(7), group=["rounds"])


@pytest.mark.slow
def test_clients_have_dots_and_rows_are_in_the_order_of_their_means(runs):
    found = runs(fedavg=[0.0, 0.1], local=[0.1, 0.1])
    figure = clients.plugin(found, Sheet(7))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [
        "local",
        "fedavg",
    ]
    dots = figure.axes[0].collections[1].get_offsets()[:, 0]
    np.testing.assert_allclose(dots, 100 * np.concatenate([OWN, OWN + 0.1]))


def test_gains_are_client_by_client_in_the_seeds_that_both_have(runs):
    """fedavg's seeds are 0 and 0.1 above ``OWN``, local's first 0.1: its second is not
    there.
    """
    sheet = Sheet(7)
    found = runs(fedavg=[0.0, 0.1], local=[0.1])
    place = gains.plugin(found, sheet).axes[0]
    assert [label.get_text() for label in place.get_yticklabels()] == ["fedavg"]
    dots = place.collections[0].get_offsets()[:, 0]
    np.testing.assert_allclose(dots, [-10, -10, -10], rtol=1e-12)
    assert "gain in accuracy over local (points)" in place.get_xlabel()
    with pytest.raises(UserError, match="--against ditto: no row of this table"):
        gains.plugin(found, sheet, against="ditto")
    alone = [run for run in found if run.config["method"]["name"] == "local"]
    with pytest.raises(UserError, match="--against local: no other row has the same"):
        gains.plugin(alone, sheet)


@pytest.mark.slow
def test_of_several_partitions_it_is_said_which_is_drawn(runs):
    found = runs(fedavg=[0.0, 0.1], partitions=2)
    whole = "training samples by client and class (30 in total)"
    assert partition.plugin(found[:1], Sheet(7)).axes[0].get_title() == whole
    title = partition.plugin(found, Sheet(7)).axes[0].get_title().replace("\n", " ")
    assert title == f"{whole}, seed=0, one of 2 partitions"


def test_of_very_many_clients_the_first_are_drawn(runs, monkeypatch):
    monkeypatch.setattr(partition, "MOST", 2)
    [place] = partition.plugin(runs(fedavg=[0.0]), Sheet(7)).axes
    assert len(place.collections[0].get_offsets()) == 4  # two classes of two clients
    assert place.get_title().endswith("the first 2 of 3 clients")


def test_circles_have_areas_in_proportion_to_samples():
    counts = np.array([[80, 0, 10], [0, 40, 0]])
    figure = partition.draw(Sheet(7), {"": counts}, {"": []})
    drawn = figure.axes[0].collections[0]
    assert drawn.get_offsets().tolist() == [[0, 0], [0, 2], [1, 1]]
    assert np.allclose(drawn.get_sizes() / drawn.get_sizes()[0], [1, 1 / 8, 1 / 2])
    many = partition.draw(Sheet(7), {"": np.ones((10, 100), int)}, {"": []})
    assert many.get_figheight() < 7


def test_the_legend_has_whole_names_and_counts_one_sample():
    name = "0 ↔ 5 swapped, 1 ↔ 7 swapped from round 2"
    figure = partition.draw(Sheet(7), {"": np.eye(2, dtype=int)}, {"": [name] * 2})
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["1 sample", name]
    figure.draw_without_rendering()
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width


def test_a_dot_for_one_client_in_several_where_there_are_too_many(runs, monkeypatch):
    found = runs(fedavg=[0.0, 0.1], local=[0.1])
    monkeypatch.setattr(clients, "MOST", 5)
    sheet = Sheet(7)
    figure = clients.plugin(found, sheet)
    shown = [dots.get_offsets()[:, 0].tolist() for dots in figure.axes[0].collections]
    np.testing.assert_allclose(shown[0], 100 * (OWN + 0.1)[[0, 2]])
    np.testing.assert_allclose(
        shown[1], 100 * np.concatenate([OWN, OWN + 0.1])[[0, 2, 3, 5]]
    )
    assert "a dot for one client in 2" in sheet.notes
