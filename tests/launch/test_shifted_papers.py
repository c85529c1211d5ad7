"""Files of papers whose clients differ in more than their classes: the files are valid
and state their purpose, and their shifts can be plotted.
"""

import pytest
import torch
from places import ROOT

from hpcfl.data import shifted
from hpcfl.data.datasets import Dataset
from hpcfl.experiment import config, sweep

PAPERS = ROOT / "launch" / "papers"
DIFFERENCES = ("[[shift]]", "quantity", "imbalance", "by-domain")
FILES = [
    path
    for path in sorted(PAPERS.glob("*.toml"))
    if any(word in path.read_text() for word in DIFFERENCES)
]
SHAPES = {"mnist": (1, 28, 28), "cifar-10": (3, 32, 32), "npz-folders": (3, 28, 28)}


def test_each_setting_has_a_file():
    assert len(FILES) == 10


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_papers_setting_is_valid_and_states_its_purpose(path):
    comment = "".join(
        line for line in path.read_text().splitlines() if line.startswith("#")
    )
    assert "Must show" in comment
    asked, *_ = sweep.expand(config.read(path), path.name).values()
    assert asked.name.startswith(path.stem)
    x = torch.zeros(4, *SHAPES[asked.data.dataset], dtype=torch.uint8)
    toy = Dataset("toy", x, torch.arange(4), 10)
    clients = asked.partition.clients
    if asked.shift:
        drawn = shifted.draw(asked.shift, toy, asked.partition.seed, clients, 0)
        assert len(drawn.make_groups().group) == clients
        assert len(drawn.make_groups().names) > 1


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("cwfedavg-1", 0.001),
        ("cwfedavg-2", 0.001),
        ("cwfedavg-iccv-practical", 0.005),
    ],
)
def test_each_version_of_cwfedavg_has_its_printed_rate(name, rate):
    path = PAPERS / f"{name}.toml"
    cells = sweep.expand(config.read(path), path.name)
    assert {cell.training.lr for cell in cells.values()} == {rate}
