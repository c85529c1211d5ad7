"""Runs of PFLlib and hpcfl: the selected rounds, the comparison of both codes, and
agreement of the page with the measurements.
"""

import json

import numpy as np
import pandas
import pytest
from places import ROOT

from hpcfl.data.sources import pfllib

RESULTS = ROOT / "results" / "pfllib"


@pytest.fixture
def tools(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "launch" / "pfllib"))
    import compare
    import cut

    return compare, cut


def test_the_first_samples_of_each_client_are_kept(tools, tmp_path):
    _, cut = tools
    source = tmp_path / "all"
    total = 0
    for part, size in {"train": 70, "test": 20}.items():
        (source / part).mkdir(parents=True)
        for client in (0, 1):
            x = np.arange(total, total + size, dtype=np.float32).reshape(-1, 1, 1, 1)
            y = np.arange(size) % 2
            samples = np.array({"x": x, "y": y}, dtype=object)
            np.savez_compressed(source / part / f"{client}.npz", data=samples)
            total += size
    config = {"num_clients": 2, "num_classes": 2, cut.pfllib.SIZES: None}
    (source / "config.json").write_text(json.dumps(config))
    cut.cut(source, tmp_path / "cut")
    dataset = pfllib.plugin.read("pfllib", tmp_path / "cut")
    # 63 of 70 and 63 of 70 for training, all 20 of each for testing
    expected = [*range(63), *range(70, 133), *range(140, 180)]
    assert dataset.x.flatten().tolist() == expected
    assert dataset.official_test == 40


def test_accuracies_are_compared_seed_by_seed(tools):
    """After ten rounds 0.52 and 0.54 against 0.50 and 0.50: 3 points, with a standard
    deviation of √2 over two seeds an error of 1. The values are equal until round 8;
    the next ones differ by 1 and 1.
    """
    compare, _ = tools
    rows = []
    for code, steps in {"PFLlib": (0, 0, 0), "hpcfl": (1, 2, 4)}.items():
        ninth, first, second = steps
        for seed, last in ((1, first), (2, second)):
            for round in range(11):
                percent = 50 + (ninth if round == 9 else last if round == 10 else 0)
                rows.append((code, "fedavg", seed, round, percent / 100))
    names = ["code", "method", "seed", "round", "accuracy"]
    table = compare.render_table(pandas.DataFrame(rows, columns=names), "PFLlib")
    assert table.splitlines()[2:] == [
        "| FedAvg | 2 | 50.0 | 53.0 | +3.0 | 1.0 | 0.0 | 3.0 | 8 |"
    ]


def test_the_page_has_the_tables_of_the_numbers(tools):
    compare, _ = tools
    pages = [(RESULTS / name).read_text() for name in ("README.md", "details.md")]
    page = "\n".join(pages)
    numbers = pandas.read_csv(compare.NUMBERS)
    assert compare.render_table(numbers, compare.PFLLIB) in page
    assert compare.render_table(numbers, compare.ALIKE) in page
