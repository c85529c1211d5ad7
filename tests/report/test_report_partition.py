"""Figure of a partition."""

import numpy as np

from hpcfl.report.plots import partition
from hpcfl.report.sheet import Sheet


def test_the_title_names_the_drawn_partition_of_several(made_runs):
    found = made_runs(fedavg=[0.0, 0.1], partitions=2)
    whole = "training samples by client and class (30 in total)"
    assert partition.plugin(found[:1], Sheet(7)).axes[0].get_title() == whole
    title = partition.plugin(found, Sheet(7)).axes[0].get_title().replace("\n", " ")
    assert title == f"{whole}, seed=0, one of 2 partitions"


def test_only_the_first_of_many_clients_are_drawn(made_runs, monkeypatch):
    monkeypatch.setattr(partition, "MOST", 2)
    [place] = partition.plugin(made_runs(fedavg=[0.0]), Sheet(7)).axes
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
