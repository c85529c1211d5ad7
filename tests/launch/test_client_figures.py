"""Figures of clients' numbers and of gains over a key: the plotted numbers."""

import heatmap
import key_gains
import made_up
import numpy as np
import pytest
import spread
from refusals import expect_refusal

from hpcfl.report.metric_values import Reading
from hpcfl.report.plots import clients
from hpcfl.report.sheet import Sheet
from hpcfl.trained.loading import list_runs


def test_the_spread_is_a_mean_over_seeds_of_tenths():
    own = np.array([0.2, 0.4, 0.9])
    assert spread.compute_spread([own, own + 0.1], "up") == pytest.approx(
        (0.25, 0.55, 0.95)
    )
    assert spread.compute_spread([own], "down") == pytest.approx((0.9, 0.5, 0.2))


@pytest.fixture
def runs(tmp_path):
    """Return two methods with two seeds and different partitions."""
    for method in ("fedavg", "ditto"):
        for seed in (0, 1):
            made_up.folder(tmp_path / f"{method}-{seed}", method, seed, clients=3)
    return list_runs(tmp_path)


def test_clients_of_other_partitions_are_other_clients(runs):
    scores = clients.read_rows(runs, Sheet(7), Reading())
    [panel] = scores.panels
    table = heatmap.tabulate_scores(scores, panel)
    assert table.shape == (2, 7) and table.iloc[:, 3].isna().all()
    for row, numbers in scores.panels[panel].items():
        drawn = table.loc[row].dropna().tolist()
        assert drawn == numbers.sort_values(["seed", "client"])["number"].tolist()
    figure = heatmap.draw(runs, Sheet(7))
    [above] = figure.axes[0].child_axes
    assert [text.get_text() for text in above.get_xticklabels()] == ["seed=0", "seed=1"]
    assert len(spread.draw(runs, Sheet(7)).axes[0].lines) == 4


def test_clients_of_one_partition_are_averaged_over_seeds(runs):
    counts = runs[0].results.static["test_counts"]
    for run in runs:
        run.results.static["test_counts"] = counts
    scores = clients.read_rows(runs, Sheet(7), Reading())
    [panel] = scores.panels
    table = heatmap.tabulate_scores(scores, panel)
    means = scores.numbers.groupby(["row", "client"])["number"].mean()
    assert table.shape == (2, 3)
    assert table.loc["ditto"].tolist() == pytest.approx(means["ditto"].tolist())


def test_gains_over_the_runs_with_one_value_of_a_key_seed_by_seed():
    runs = [
        *made_up.seeds("fedprox", 0.5, 0.6, mu=0.1),
        *made_up.seeds("fedprox", 0.6, 0.8, mu=1.0),
    ]
    figure = key_gains.draw(runs, Sheet(7), x="method.mu", against="0.1")
    [line] = figure.axes[0].lines
    np.testing.assert_allclose(line.get_xydata(), [[0.1, 0], [1, 15]], atol=1e-9)
    for missing in ("0.3", "1.0"):
        with expect_refusal(r"--against .*: fedprox .*method\.mu"):
            key_gains.draw(runs[:-1], Sheet(7), x="method.mu", against=missing)
