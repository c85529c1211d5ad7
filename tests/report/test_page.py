"""The page of a report: what stands on it, that nothing in a run's folder becomes
markup or script, and how it is in a real browser, on a phone and on a desk.
"""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import browser
import made_up
import pytest
from click.testing import CliRunner

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import plugins
from hpcfl.report import comparison, page, sweep_table
from hpcfl.report.sweep_table import Reading
from hpcfl.trained import loading


class Outline(HTMLParser):
    """The structure of a page: tags with the names of their attributes, and the texts
    of elements by tag.
    """

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, ...]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, *sorted(name for name, _ in attributes)))
        if tag not in ("meta", "path", "input"):
            self._open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        if self._open and self._open[-1] == tag:
            self._open.pop()

    def handle_data(self, text):
        for tag in set(self._open):
            self.texts[tag][-1] += text


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Two methods with two seeds each, and a third that failed and was continued
    before; not to be changed.
    """
    folder = tmp_path_factory.mktemp("page") / "sweep"
    for seed in (0, 1):
        for method in ("fedavg", "ditto"):
            made_up.folder(folder / f"{method},seed={seed}", method, seed)
    failed = made_up.folder(
        folder / "local",
        "local",
        0,
        finished=False,
        header={"starts": made_up.STARTS},
    )
    (failed / "failure.txt").write_text("client 3 diverged")
    return folder


@pytest.fixture(scope="module")
def html(sweep):
    """The page of the sweep."""
    return written(sweep)


def written(folder: Path, *more: Path) -> str:
    page.write([folder, *more], folder.parent / "report.html")
    return (folder.parent / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_says_what_the_commands_say(sweep, html):
    found = Outline(html)
    runs = loading.list_runs(sweep)
    cells = found.texts["td"]
    for at in ("best", "tail"):
        grid = sweep_table.make(runs, reading=Reading(at=at))
        assert set(grid.texts[grid.columns[0]]) <= set(cells)
        assert set(grid.notes) <= set(found.texts["li"])
    for run in runs:
        assert (run.summary.digest or "–") in cells and run.label in found.texts["th"]
    assert found.texts["h1"] == [runs[0].config["name"]]
    assert "digits dirichlet" in found.texts["h2"]
    assert {"Spread over clients", "Partition"} <= set(found.texts["h3"])
    assert "5 runs of federated learning: 4 finished, 1 failed" in found.texts["p"][0]
    assert "local, failed after round 12: client 3 diverged" in found.texts["p"]
    assert (
        "local: continued after round 7, 2026-01-02 00:00:00 UTC, on 1 rank; before it: no space"
        in found.texts["li"]
    )


@pytest.mark.slow
def test_gains_over_training_alone_stand_where_somebody_trains_alone(tmp_path):
    for seed in (0, 1):
        for method in ("fedavg", "local"):
            name = f"{method},seed={seed}"
            made_up.folder(tmp_path / "sweep" / name, method, seed)
    found = Outline(written(tmp_path / "sweep"))
    assert "Gains over training alone" in found.texts["h3"]
    assert any("of each client beside local" in text for text in found.texts["span"])


@pytest.mark.slow
def test_the_page_leads_with_intervals_over_partitions(sweep, html):
    """Without Local the reference is FedAvg; the intervals stand before the means, and
    no test over pairs of client and seed.
    """
    assert html.index("gain ± 95 %") < html.index("mean ± sample standard deviation")
    assert "of each client beside fedavg" in html
    assert "independent" not in html


@pytest.mark.slow
def test_a_page_of_one_partition_says_that_it_has_no_interval(tmp_path):
    for method in ("fedavg", "ditto"):
        made_up.folder(tmp_path / "sweep" / method, method, 0)
    notes = Outline(written(tmp_path / "sweep")).texts["li"]
    assert comparison.ONE_PARTITION in notes
    shutil.rmtree(tmp_path / "sweep" / "ditto")
    alone = Outline(written(tmp_path / "sweep")).texts["p"]
    assert any("no interval:" in text for text in alone)


@pytest.mark.slow
def test_numbers_of_held_out_samples_stand_beside_those_of_test_samples(sweep):
    runs = [run for run in loading.list_runs(sweep) if run.summary.finished]
    held_out = []
    for run in runs:
        values = {
            f"validation/{name}": numbers / 2
            for name, numbers in run.results.values.items()
            if name.startswith(f"{run.score}/")
        }
        results = replace(run.results, values={**run.results.values, **values})
        chosen = replace(run.summary, best_by="validation")
        held_out.append(replace(run, results=results, summary=chosen))
    found = Outline(page.render(held_out, []))
    grid = sweep_table.make(held_out, reading=Reading("validation"))
    assert set(grid.texts[grid.columns[0]]) <= set(found.texts["td"])
    captions = " ".join(found.texts["caption"])
    assert "best round by validation samples" in captions
    assert "validation" not in " ".join(Outline(page.render(runs, [])).texts["caption"])


@pytest.mark.slow
def test_the_same_runs_make_the_same_page_and_a_run_counts_once(sweep, html):
    again = written(sweep, sweep / "fedavg,seed=0")
    assert html.count("<tr>") == again.count("<tr>")
    assert written(sweep) == html


def test_it_needs_no_network_and_no_script(html):
    # within the page a mark refers to its definition by "#"; name spaces are not fetched
    loading = re.sub(r'xmlns(:\w+)?="[^"]*"', "", html)
    assert not re.search(r"src\s*=|href\s*=(?!\"#)|url\((?!#)|@import|https?:", loading)
    assert "default-src 'none'" in html and "<script" not in html


def test_every_table_and_chart_has_a_name_and_headings_are_in_order(html):
    found = Outline(html)
    tags = [tag for tag, *_ in found.tags]
    assert tags.count("table") == tags.count("caption") and tags.count("h1") == 1
    levels = [int(tag[1]) for tag in tags if re.fullmatch(r"h\d", tag)]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for tag, *attributes in found.tags:
        assert tag != "th" or "scope" in attributes
        assert tag != "figure" or "figcaption" in tags


@pytest.mark.slow
def test_cells_of_a_sweep_that_nobody_has_begun_are_named(sweep, tmp_path):
    begun = Path(shutil.copytree(sweep / "local", tmp_path / "sweep" / "local")).parent
    (begun / "sweep.json").write_text(json.dumps(["local", "fedavg,seed=2"]))
    found = Outline(written(begun))
    assert (
        "1 failed; 1 not begun" in found.texts["p"][0]
        and "fedavg,seed=2" in found.texts["li"]
    )
    assert "Not begun" in found.texts["h3"]


def test_before_the_first_round_there_is_little_to_say(tmp_path):
    folder = made_up.folder(tmp_path / "run", finished=False)
    (folder / "metrics.h5").unlink()
    html = written(folder)
    assert (
        "1 run of federated learning: 1 stopped" in html
        and "No round is scored yet." in html
    )


HOSTILE = (
    "</script><script>document.title='met'</script>"
    "\"'><img src=x onerror=\"document.title='met'\">"
    "' onmouseover='document.title=1' {{ 7 * 7 }}{% raw %}\x1b[31m\u202etxet\u2028 &lt;b&gt;"
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """The page of a folder that belongs to an enemy."""
    folder = tmp_path_factory.mktemp("hostile")
    page.write([made_up.spoilt(folder, HOSTILE)], folder / "report.html")
    return folder / "report.html"


@pytest.mark.slow
def test_what_a_folder_says_never_becomes_markup(hostile, tmp_path):
    """The page has the same elements with the same attributes as where all texts are
    harmless.
    """
    html = hostile.read_text(encoding="utf-8")
    found = Outline(html)
    harmless = Outline(written(made_up.spoilt(tmp_path, "plain")))
    assert without_lines(found.tags) == without_lines(harmless.tags)
    assert "{{ 7 * 7 }}" in found.texts["h2"][1]
    assert all(letter.isprintable() or letter == "\n" for letter in html)


def without_lines(tags: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The tags with each text in a figure once, on however many lines it stands."""
    kept: list[tuple[str, ...]] = []
    for tag in tags:
        shown = ("text",) if tag[0] == "text" else tag
        if shown != ("text",) or kept[-1] != shown:
            kept.append(shown)
    return kept


@pytest.mark.slow
def test_no_text_names_a_folder_of_the_machine(tmp_path, monkeypatch):
    """Not even where a path stands in a command, a key, a failure or a label."""
    monkeypatch.chdir(tmp_path)
    for root in ("/data/home/me", "/data/home/you"):
        folder = made_up.folder(
            tmp_path / f"sweep/{root[-2:]}",
            header={"command": ["hpcfl", "run", "/data/home/me/first.toml"]},
            data={"root": f"{root}/sets"},
        )
    (folder / "failure.txt").write_text("/data/home/me/sets: no such file")
    page.write([tmp_path / "sweep"], tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "/data" not in html and str(tmp_path) not in html
    assert "hpcfl run …/first.toml" in html


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/home/me/runs/first: failed", "…/first: failed"),
        ("--out=/scratch/x --data ~/sets/mnist", "--out=…/x --data …/mnist"),
        ("'/tmp/a b'", "'…/a b'"),
        ("pre/weighted, 3 /4, </b>x</b>", "pre/weighted, 3 /4, </b>x</b>"),
        ("https://example.org/a/b", "https://example.org/a/b"),
    ],
)
def test_of_a_path_the_last_name_is_left(text, said):
    assert page.shown(text) == said


@pytest.mark.slow
def test_the_command(sweep, tmp_path):
    from hpcfl.cli import cli

    out = tmp_path / "page.html"
    arguments = ["report", str(sweep / "local"), "--out", str(out)]
    done = CliRunner().invoke(cli, arguments, obj=OneProcess())
    assert (done.exit_code, done.output) == (0, f"page: {out}\n") and out.exists()


@pytest.mark.parametrize(
    ("folder", "out", "complaint"),
    [
        ("nothing", "x.html", "nothing: no run of hpcfl here"),
        ("sweep", ".", "choose another --out"),
        ("sweep", "missing/x.html", "choose another --out"),
    ],
)
def test_mistakes_are_one_line(sweep, monkeypatch, folder, out, complaint):
    monkeypatch.chdir(sweep.parent)
    with pytest.raises(page.UserError, match=complaint):
        page.write([Path(folder)], Path(out))


LONG = sorted(plugins.names("hpcfl.methods"), key=len)[-15:]  # names
METHODS = sorted([*LONG, "local"])  # over which the others have gains


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """The page of many methods with three seeds each."""
    folder = tmp_path_factory.mktemp("all") / "runs"
    for method in METHODS:
        for seed in range(3):
            made_up.folder(
                folder / f"{method},seed={seed}", method, seed, rounds=400, clients=20
            )
    page.write([folder], folder.parent / "report.html")
    return folder.parent / "report.html"


@pytest.mark.slow
def test_a_method_with_three_seeds_takes_120_kilobytes(everything):
    """So that fifty methods fit in six megabytes."""
    assert everything.stat().st_size < 120e3 * len(METHODS)


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    if browser.path() is None:
        pytest.skip("no browser is installed; apt-get install chromium")
    with browser.page(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1200])
def test_in_a_browser_it_is_quiet_and_as_wide_as_the_window(
    shown, everything, width, scheme
):
    shown.complaints.clear()
    shown.requests.clear()
    shown.open(everything, width, scheme=scheme)
    assert shown.complaints == [] and shown.requests == [everything.as_uri()]
    assert shown.ask("document.documentElement.scrollWidth") == width
    background = shown.ask("getComputedStyle(document.body).backgroundColor")
    assert (
        background == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[scheme]
    )


# the words of some elements, without hyphens, that stand on more than one line
BROKEN = """[...document.querySelectorAll('%s')].flatMap(cell => {
  const range = document.createRange();
  const text = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT).nextNode();
  return text ? [...text.data.matchAll(/[^\\s-]+/g)].filter(word => {
    range.setStart(text, word.index);
    range.setEnd(text, word.index + word[0].length);
    return new Set([...range.getClientRects()].map(one => one.top)).size > 1;
  }).map(String) : [];
})"""


@pytest.mark.slow
def test_no_word_of_a_heading_or_a_state_is_broken_in_print(shown, everything):
    shown.open(everything, 700)
    shown.tell("Emulation.setEmulatedMedia", media="print")
    assert (
        shown.ask(BROKEN % "thead th, tbody th, table:not([class]) td:not(.digest)")
        == []
    )


@pytest.mark.slow
def test_on_a_phone_keys_and_values_are_whole_and_wide_tables_have_a_shadow(
    shown, everything
):
    shown.open(everything, 390)
    wide = "[...document.querySelectorAll('.scroll')].filter(box => box.scrollWidth > box.clientWidth)"
    assert shown.ask(f"{wide}.filter(box => box.querySelector('.values')).length") == 0
    assert shown.ask(f"{wide}.length") > 0
    assert shown.ask(
        f"{wide}.every(box => getComputedStyle(box).backgroundImage.includes('gradient'))"
    )


@pytest.mark.slow
def test_hostile_texts_do_nothing_in_a_browser(shown, hostile):
    shown.complaints.clear()
    shown.open(hostile, 1200)
    assert shown.complaints == [] and shown.ask("document.title").endswith(
        ": a report of hpcfl"
    )
    assert shown.ask("document.images.length + document.scripts.length") == 0
