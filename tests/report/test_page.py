"""Page of a report: its content, protection against markup or script in a run's folder,
and its layout in a real browser, on a phone and on a desktop.
"""

import base64
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import browser
import made_up
import pytest
from click.testing import CliRunner
from refusals import expect_refusal

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import plugins
from hpcfl.report import comparison, page, sweep_table
from hpcfl.report.arrangement import arrange
from hpcfl.report.metric_values import Reading
from hpcfl.trained import loading


class Outline(HTMLParser):
    """Structure of a page: tags with the names of their attributes, and the texts of
    elements by tag.
    """

    def __init__(self, html: str):
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
    """Return two methods with two seeds each, and a third that failed and was continued
    before; the folder must not be changed.
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
    """Return the page of the sweep."""
    return written(sweep)


def written(folder: Path, *more: Path) -> str:
    page.write([folder, *more], folder.parent / "report.html")
    return (folder.parent / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_agrees_with_the_commands(sweep, html):
    found = Outline(html)
    runs = loading.list_runs(sweep)
    cells, notes = found.texts["td"], found.texts["li"]
    for at in ("best", "tail"):
        table = sweep_table.make(arrange(runs), Reading(at=at))
        assert set(table.texts.iloc[:, 0]) <= set(cells)
    for run in runs:
        assert (run.summary.digest or "–") in cells and run.label in found.texts["th"]
    assert found.texts["h1"] == [runs[0].config["name"]]
    assert found.texts["h2"] == ["How these numbers were computed"]
    headings = ["method", "accuracy (%)", "accuracy of the last tenth of rounds (%)"]
    assert found.texts["th"][:3] == headings
    assert "4 of 5 runs" in found.texts["p"][0]
    assert "local ends at round 12 of 12, local is failed" in notes
    assert "local: failed after round 12: client 3 diverged" in notes
    assert any(note.startswith("local: continued after round 7") for note in notes)


@pytest.mark.slow
def test_headings_name_the_summary_that_chooses_the_best_round(tmp_path):
    made_up.folder(tmp_path / "run", evaluation={"metric": "worst_tenth"})
    _, best, tail, *_ = Outline(written(tmp_path / "run")).texts["th"]
    assert "worst tenth" in best and "worst tenth" in tail


@pytest.mark.slow
def test_rows_have_gains_over_training_alone_else_over_fedavg(tmp_path, html):
    for method in ("fedavg", "local"):
        for seed in (0, 1):
            name = f"{method},seed={seed}"
            made_up.folder(tmp_path / "sweep" / name, method, seed)
    alone = Outline(written(tmp_path / "sweep")).texts["th"]
    assert "gain over local ± 95 %" in alone
    assert "gain over fedavg ± 95 %" in Outline(html).texts["th"]
    made_up.folder(tmp_path / "sweep" / "faster", "fedavg", training={"lr": 0.2})
    longer = Outline(written(tmp_path / "sweep")).texts["th"]
    assert any(heading.startswith("gain over local lr=") for heading in longer)


@pytest.mark.slow
def test_a_page_of_one_partition_notes_the_missing_interval(tmp_path):
    for method in ("fedavg", "ditto"):
        made_up.folder(tmp_path / "sweep" / method, method, 0)
    notes = Outline(written(tmp_path / "sweep")).texts["li"]
    assert comparison.ONE_PARTITION in notes
    shutil.rmtree(tmp_path / "sweep" / "ditto")
    alone = Outline(written(tmp_path / "sweep")).texts["li"]
    assert any("no interval:" in text for text in alone)


@pytest.mark.slow
def test_the_title_of_a_search_is_its_name_and_shorter_curves_have_a_reason(tmp_path):
    for method, rounds in {"q-ffl": 12, "ditto": 4}.items():
        label = f"{method},tuned"
        folder = tmp_path / "final" / f"{label},seed=0"
        made_up.folder(folder, method, 0, rounds=rounds, name=f"my-paper-{label}")
    found = Outline(written(tmp_path / "final"))
    assert found.texts["h1"] == ["my-paper"]
    below_figure = found.texts["ul"][0]
    assert "ditto ends at round 4" in below_figure and "q-ffl" not in below_figure


@pytest.mark.slow
def test_each_data_set_has_separate_rows(tmp_path):
    for number, data in enumerate(({}, {"dataset": "digits", "samples": 500})):
        for method in ("fedavg", "ditto"):
            folder = tmp_path / "sweep" / f"{method}{number}"
            made_up.folder(folder, method, 0, data=data)
    found = Outline(written(tmp_path / "sweep"))
    assert found.texts["th"][:2] == ["method", "data"]
    assert found.tags.count(("img", "alt", "src")) == 1


@pytest.mark.slow
def test_the_same_runs_make_the_same_page_and_a_run_counts_once(sweep, html):
    again = written(sweep, sweep / "fedavg,seed=0")
    assert html.count("<tr>") == again.count("<tr>")
    assert written(sweep) == html


def test_the_page_needs_no_network_and_no_script(html):
    assert not re.search(r"src\s*=\s*\"(?!data:)|href|url\(|@import|https?:", html)
    assert "default-src 'none'" in html and "<script" not in html


@pytest.mark.slow
def test_cells_that_have_not_begun_are_listed(sweep, tmp_path):
    begun = Path(shutil.copytree(sweep / "local", tmp_path / "sweep" / "local")).parent
    (begun / "sweep.json").write_text(json.dumps(["local", "fedavg,seed=2"]))
    assert "1 not begun: fedavg,seed=2" in Outline(written(begun)).texts["li"]


def test_a_page_without_rounds_reports_no_finished_run(tmp_path):
    folder = made_up.folder(tmp_path / "run", finished=False)
    (folder / "metrics.h5").unlink()
    assert "No run is finished yet." in written(folder)


HOSTILE = (
    "</script><script>document.title='met'</script>"
    "\"'><img src=x onerror=\"document.title='met'\">"
    "' onmouseover='document.title=1' {{ 7 * 7 }}{% raw %}\x1b[31m\u202etxet\u2028 &lt;b&gt;"
)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Return the page of a hostile folder."""
    folder = tmp_path_factory.mktemp("hostile")
    page.write([made_up.spoilt(folder, HOSTILE)], folder / "report.html")
    return folder / "report.html"


@pytest.mark.slow
def test_texts_of_a_folder_never_become_markup(hostile, tmp_path):
    """The page has the same elements with the same attributes as for harmless texts."""
    html = hostile.read_text(encoding="utf-8")
    found = Outline(html)
    harmless = Outline(written(made_up.spoilt(tmp_path, "plain")))
    assert found.tags == harmless.tags
    assert any("{{ 7 * 7 }}" in text for text in found.texts["th"])
    assert all(letter.isprintable() or letter == "\n" for letter in html)
    for svg in pictures(html):
        assert "<script" not in svg and "<img" not in svg


def pictures(html):
    """Return the texts of the page's figures."""
    found = re.findall(r"base64,([^\"]+)", html)
    return [base64.b64decode(content).decode() for content in found]


@pytest.mark.slow
def test_no_text_names_a_folder_of_the_machine(tmp_path, monkeypatch):
    """This includes paths in commands, keys, failures and labels."""
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
    for text in (re.sub('base64,[^"]+', "", html), *pictures(html)):
        assert "/data" not in text and str(tmp_path) not in text
    assert "hpcfl run …/first.toml" in html


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/me/runs/first: failed", "…/first: failed"),
        ("--out=/scratch/x --data ~/sets/mnist", "--out=…/x --data …/mnist"),
        ("'/tmp/a b'", "'…/a b'"),
        ("pre/weighted, 3 /4, </b>x</b>", "pre/weighted, 3 /4, </b>x</b>"),
        ("https://example.org/a/b", "https://example.org/a/b"),
    ],
)
def test_paths_are_shortened_to_their_last_name(text, expected):
    assert page.hide_folders(text) == expected


@pytest.mark.slow
def test_the_command_writes_the_page_and_prints_its_path(sweep, tmp_path):
    from hpcfl.cli import cli

    out = tmp_path / "page.html"
    arguments = ["report", str(sweep / "local"), "--out", str(out)]
    done = CliRunner().invoke(cli, arguments, obj=OneProcess())
    assert (done.exit_code, done.output) == (0, f"page: {out}\n") and out.exists()


@pytest.mark.parametrize(
    ("folder", "out", "complaint"),
    [
        ("nothing", "x.html", "^nothing: "),
        ("sweep", ".", " --out$"),
        ("sweep", "missing/x.html", " --out$"),
    ],
)
def test_mistakes_are_refused_in_one_line(sweep, monkeypatch, folder, out, complaint):
    monkeypatch.chdir(sweep.parent)
    with expect_refusal(complaint):
        page.write([Path(folder)], Path(out))


LONG = sorted(plugins.list_names("hpcfl.methods"), key=len)[-15:]  # names
METHODS = sorted([*LONG, "local"])  # reference of the gains


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Return the page of many methods with three seeds each."""
    folder = tmp_path_factory.mktemp("all") / "runs"
    for method in METHODS:
        for seed in range(3):
            made_up.folder(
                folder / f"{method},seed={seed}", method, seed, rounds=400, clients=20
            )
    page.write([folder], folder.parent / "report.html")
    return folder.parent / "report.html"


@pytest.mark.slow
def test_a_method_with_three_seeds_takes_160_kilobytes(everything):
    """Fifty methods then fit in eight megabytes."""
    assert everything.stat().st_size < 160e3 * len(METHODS)


@pytest.fixture(scope="module")
def browser_page(tmp_path_factory):
    if browser.path() is None:
        pytest.skip("no browser is installed; apt-get install chromium")
    with browser.page(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_fits_the_window_without_errors(browser_page, everything, width):
    browser_page.complaints.clear()
    browser_page.requests.clear()
    browser_page.open(everything, width)
    fetched = [one for one in browser_page.requests if not one.startswith("data:")]
    assert browser_page.complaints == [] and fetched == [everything.as_uri()]
    assert browser_page.ask("document.documentElement.scrollWidth") == width


# words of some elements, without hyphens, that occupy several lines
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
def test_no_name_of_a_method_is_broken_on_a_phone(browser_page, everything):
    browser_page.open(everything, 390)
    assert browser_page.ask(BROKEN % ".results th") == []


@pytest.mark.slow
def test_hostile_texts_do_nothing_in_a_browser(browser_page, hostile):
    browser_page.complaints.clear()
    browser_page.open(hostile, 1200)
    assert browser_page.complaints == []
    assert browser_page.ask("document.title").endswith(": a report of hpcfl")
    assert browser_page.ask("document.scripts.length") == 0
