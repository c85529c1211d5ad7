"""Head of the tuned table: its claims, and the pages that judge them."""

import re
import tomllib
from pathlib import Path
from statistics import fmean

import pytest

from hpcfl.trained import loading

ROOT = Path(__file__).parents[2]
TUNED = ROOT / "launch" / "tuned"
RESULTS = ROOT / "results" / "tuned"
SETTINGS = [
    file.stem.removeprefix("head-") for file in sorted(TUNED.glob("head-*.toml"))
]
PUBLISHED = [one for one in SETTINGS if (RESULTS / f"head-{one}.tar.xz").is_file()]


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
    ("claim", "verdict", "outcome"),
    [
        ("better", "better", "confirmed"),
        ("better", "same", "refuted"),
        ("not better", "worse", "confirmed"),
        ("not worse", "worse", "refuted"),
        ("same", "open", "open"),
        ("same", "", "open"),
    ],
)
def test_a_verdict_judges_a_claim(head, claim, verdict, outcome):
    assert head.judge(claim, verdict) == outcome


@pytest.mark.slow
@pytest.mark.parametrize("setting", PUBLISHED)
def test_a_page_has_what_its_archive_has(head, setting, tmp_path):
    for name in (f"head-{setting}.tar.xz", f"head-{setting}.csv"):
        (tmp_path / name).symlink_to(RESULTS / name)
    head.main(setting, tmp_path)
    page = (RESULTS / f"head-{setting}.md").read_text(encoding="utf-8")
    assert (tmp_path / f"head-{setting}.md").read_text(encoding="utf-8") == page
    tails: dict[str, list[float]] = {}
    for run in loading.list_runs(RESULTS / f"head-{setting}.tar.xz"):
        row = (
            f"{run.config['method']['name']} score={run.config['evaluation']['score']}"
        )
        scored = run.rounds()[f"{run.score}/mean"].dropna()
        tail = scored[scored.index > 0.9 * run.config["rounds"]].mean()
        tails.setdefault(head.name_entry(row), []).append(100 * tail)
    reference = fmean(tails.pop(head.REFERENCE))
    for method, accuracies in tails.items():
        gain = fmean(accuracies) - reference
        assert re.search(rf"^\| {method} \|[^|]*\| {gain:+.2f} ±", page, re.MULTILINE)
