"""Head of the tuned table: its claims, and the pages that judge them."""

import re
import tomllib
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas
import pytest

from hpcfl.report.comparison import Gains
from hpcfl.report.inference import estimate_interval
from hpcfl.storage.packed_runs import unpack
from hpcfl.trained import loading

ROOT = Path(__file__).parents[2]
TUNED = ROOT / "launch" / "tuned"
RESULTS = ROOT / "results" / "tuned"
PUBLISHED = [
    file.stem.removeprefix("head-") for file in sorted(RESULTS.glob("head-*.md"))
]
SETTINGS = [
    file.stem.removeprefix("head-") for file in sorted(TUNED.glob("head-*.toml"))
]


@pytest.fixture
def head(monkeypatch):
    """Return the module ``launch/tuned/head.py``."""
    monkeypatch.syspath_prepend(str(TUNED))
    import head

    return head


@pytest.mark.parametrize("setting", SETTINGS)
def test_each_method_but_the_reference_has_one_claim(head, setting):
    text = (TUNED / f"head-{setting}.toml").read_text(encoding="utf-8")
    methods = tomllib.loads(text)["tune"]["methods"]
    assert {*head.read_claims(text), head.REFERENCE} == {*methods}
    claimed = re.findall(r"^#   [a-z ]+: (.+)$", text, re.MULTILINE)
    assert sum(len(line.split(", ")) for line in claimed) == len(methods) - 1


@pytest.mark.parametrize(
    ("claim", "verdict", "is_same", "outcome"),
    [
        ("better", "better", False, "confirmed"),
        ("better", "same", True, "refuted"),
        ("not better", "worse", False, "confirmed"),
        ("not worse", "worse", False, "refuted"),
        ("same", "open", False, "open"),
        ("same", "", False, "open"),
        ("same", "better", True, "confirmed"),
        ("same", "better", False, "refuted"),
    ],
)
def test_a_gain_judges_a_claim(head, claim, verdict, is_same, outcome):
    assert head.judge(claim, verdict, is_same) == outcome


def test_a_page_has_the_gains_and_judges_the_claims(head):
    """One method gains a point at each client of four partitions, another loses it."""
    gains = {}
    for method, gain in (("ditto", 0.01), ("fedavg", -0.01)):
        of_clients = [np.full(3, gain) + noise for noise in (0, 2e-4, 2e-4, 4e-4)]
        interval = estimate_interval(of_clients)
        pairs = np.concatenate(of_clients)
        gains[method] = Gains(of_clients, 0.0, interval, pairs, bootstrap=0.002)
    columns = ["mean", *head.COMPONENTS, "spent/budget", "searches"]
    methods = ["local", "fedavg", "ditto"]
    searches = pandas.DataFrame(0.5, index=methods, columns=columns)
    claims = {"ditto": "better", "fedavg": "not worse"}
    page = head.write_page("made up", claims, searches, gains)
    assert "1 confirmed, 1 refuted, 0 open" in page
    for line in (
        "| ditto | 50.00 | +1.02 ± 0.02 | 0.20 | better | 0 % | better | confirmed |",
        "| fedavg | 50.00 | -0.98 ± 0.02 | 0.20 | worse | 100 % | not worse | refuted |",
    ):
        assert line in page


@pytest.mark.parametrize("setting", PUBLISHED)
def test_a_published_page_has_the_numbers_of_its_archive(setting):
    """Two methods are read: Local and kNN-Per."""
    means = {}
    with unpack(RESULTS / f"head-{setting}.tar.xz") as folder:
        for method in ("local", "knn-per"):
            runs = [loading.load_run(place) for place in folder.glob(f"{method},*")]
            means[method] = 100 * fmean(run.summary.tail[run.score] for run in runs)
    page = (RESULTS / f"head-{setting}.md").read_text(encoding="utf-8")
    [local] = re.findall(r"^\| local \| (\S+) \|", page, re.MULTILINE)
    [other] = re.findall(r"^\| knn-per \| (\S+) \| (\S+) ± ", page, re.MULTILINE)
    gain = means["knn-per"] - means["local"]
    assert float(local) == pytest.approx(means["local"], abs=0.006)
    assert tuple(map(float, other)) == pytest.approx(
        (means["knn-per"], gain), abs=0.006
    )
