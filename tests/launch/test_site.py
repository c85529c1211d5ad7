"""Documentation site: it is built without a warning and without a network, and has a
page for each method.
"""

import re
import subprocess
from urllib.parse import unquote, urlsplit

import browser
import click
import pytest
from places import ROOT

from hpcfl.cli import cli
from hpcfl.experiment import plugins
from hpcfl.experiment.config import Config
from hpcfl.experiment.sections import Training

SITE = ROOT / "launch" / "site"
PROGRAM = """
import socket, sys
from pathlib import Path

def refuse(*_):
    raise AssertionError("the network was asked for")

socket.socket.connect = socket.getaddrinfo = refuse
sys.path.insert(0, {site!r})
import build
sys.exit(build.{call})
"""
FETCHED = re.compile(r'(?:<link [^>]*?href|src)="([^"]*)"')
SEEN = [
    "index.html",
    "gallery.html",
    "methods/ditto.html",
    "tutorials/from-pfllib.html",
    "reference/keys.html",
    "reference/commands.html",
    "reference/api/methods.html",
    "explanation/comparison.html",
    "explanation/round.html",
    "hpcfl/methods/methods-1.html",
    "results/benchmarks/README.html",
]


def build(zygote, call):
    """Return output and exit code of ``build.py``, which must not use the network."""
    program = PROGRAM.format(site=str(SITE), call=call)
    done = subprocess.run(
        [zygote.python, "-c", program], capture_output=True, text=True, timeout=300
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_dead_link_is_an_error(zygote, tmp_path):
    text = "# Pages\n\n[Here](index.md)\n\n[There](gone.md)\n"
    (tmp_path / "index.md").write_text(text)
    code, output = build(zygote, f"make('{tmp_path}', '{tmp_path}/site')")
    assert code == 1 and "index.md:5: " in output and "'gone.md'" in output
    assert output.count("WARNING") == 1


@pytest.fixture(scope="module")
def site(zygote, tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    assert build(zygote, f"build(Path('{folder}'))") == (0, "")
    return folder


@pytest.mark.slow
def test_each_method_has_a_separate_page(site):
    listed = (site / "hpcfl" / "methods" / "README.html").read_text()
    for name in plugins.list_names("hpcfl.methods"):
        assert f'href="../../methods/{name}.html"' in listed
        page = (site / "methods" / f"{name}.html").read_text()
        for heading in ("State and messages", "Keys", "Source"):
            assert f"<h2>{heading}<" in page


@pytest.mark.slow
def test_a_citation_leads_to_its_section(site):
    page = (site / "methods" / "ditto.html").read_text()
    assert 'href="../hpcfl/methods/methods-2.html#methods-2-5"' in page
    specification = (site / "hpcfl" / "methods" / "methods-2.html").read_text()
    assert 'id="methods-2-5"' in specification


@pytest.mark.slow
def test_every_key_and_every_option_is_listed(site):
    keys = (site / "reference" / "keys.html").read_text()
    for section in Config.model_fields:
        assert section in keys
    for key in Training.model_fields:
        assert f">{key}<" in keys
    commands = (site / "reference" / "commands.html").read_text()
    for name, command in cli.commands.items():
        assert f"hpcfl {name}" in commands
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[0] in commands


@pytest.mark.slow
def test_no_page_fetches_anything_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 80
    for page in pages:
        addresses = set(FETCHED.findall(page.read_text()))
        assert len(addresses) > 5
        for address in addresses:
            assert (page.parent / unquote(urlsplit(address).path)).exists()


@pytest.mark.slow
def test_no_page_is_wider_than_a_phones_screen(site, tmp_path):
    if browser.path() is None:
        pytest.skip("no browser is installed; apt-get install chromium")
    with browser.page(tmp_path) as shown:
        for name in SEEN:
            shown.open(site / name, 390)
            assert shown.ask("document.documentElement.scrollWidth") == 390
        shown.open(site / "index.html", 1280)
        assert (
            shown.ask(
                "document.querySelector('img.front').getBoundingClientRect().bottom"
            )
            < 800
        )
        assert shown.complaints == []
