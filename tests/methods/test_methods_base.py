"""Contract of methods and of overlays, and examples of the documentation."""

import re
import runpy
import sys
import textwrap

import pytest
import tiny
import torch
from in_threads import on_ranks
from places import ROOT
from playing import play_on
from refusals import expect_refusal

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.methods import base
from hpcfl.methods.base import Overlay


@pytest.mark.slow
def test_the_contracts_example_prints_the_documented_numbers(
    tmp_path, monkeypatch, printed
):
    example = base.__doc__.partition("models::\n")[2].partition("\nThe last number")[0]
    source = textwrap.dedent(example)
    (tmp_path / "halfway.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    runpy.run_path("halfway.py", run_name="__main__")
    output = printed()
    expected = re.findall(r"# (\d\.\d\d)$", source, re.MULTILINE)
    assert len(expected) == 4 and output.split()[-4:] == expected


def test_the_base_class_of_overlays_changes_nothing():
    overlay, message = Overlay(), {"model": torch.ones(2)}
    assert overlay.server_state(None) == overlay.client_state(None) == {}
    assert overlay.send({}, None, message) is message
    assert overlay.receive(None, message) is message
    assert overlay.upload(None, message, message) is message
    assert overlay.aggregate({}, None, message) is message
    assert overlay.show_cohort(message) is message
    assert not overlay.acts_on_empty_cohorts()
    assert overlay.measure({}, 1) == overlay.list_decisions() == {}
    assert overlay.describe(1, len, {}) == []


@pytest.fixture
def private(tmp_path, monkeypatch):
    """Return ``private(method, **keys)``, which makes an experiment with the overlay of
    the documentation.
    """
    site = ROOT / "launch" / "site"
    page = (site / "howto" / "overlays.md").read_text(encoding="utf-8")
    (source,) = re.findall(
        r"^```python\n# my_overlay\.py\n(.*?)^```$", page, re.M | re.S
    )
    (tmp_path / "overlay_of_page.py").write_text(source, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "overlay_of_page", raising=False)

    def make(method="fedavg", kind="overlay_of_page:Private", **keys):
        return tiny.table(method, overlay=[{"kind": kind, **keys}])

    return make


@pytest.mark.slow
def test_the_documented_overlay_clips_on_any_number_of_ranks(private, tmp_path):
    """Without noise the mean of changes of length 0.01 has at most this length. With
    noise the bits on three ranks are the same.
    """
    plain, clipped, noisy = (
        play_on(OneProcess(), tmp_path / name, table)
        for name, table in {
            "plain": private(clip=1e6, noise=0.0),
            "clipped": private(clip=0.01, noise=0.0),
            "noisy": private(clip=0.01),
        }.items()
    )
    rounds = 3
    initial = clipped.prepared.setup.initial()
    assert (plain.server["model"] - initial).norm() > 0.1
    assert 0 < (clipped.server["model"] - initial).norm() <= rounds * 0.01 * 1.001
    assert noisy.digest != clipped.digest
    table = private(clip=0.01)
    digest = on_ranks(3, lambda rank: play_on(rank, tmp_path / "ranks", table).digest)
    assert digest == noisy.digest


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clp": 1.0}, "'overlay.0.clp'; .*'clip'"),
        ({"clip": 0.0}, "overlay.0.clip = 0.0: "),
        ({"kind": "privat"}, "overlay.0.kind = 'privat' .*: none"),
        (
            {"kind": "overlay_of_page:Mean"},
            "overlay.0.kind = 'overlay_of_page:Mean' .*OwnOverlay",
        ),
    ],
)
def test_an_invalid_table_of_an_overlay_is_refused(private, change, words):
    with expect_refusal(words):
        config.parse(private(**change))


def test_an_overlay_belongs_to_the_identity_of_a_run(private):
    one, other = (config.parse(private(clip=clip)) for clip in (1.0, 2.0))
    assert one.fingerprint() != other.fingerprint()
    assert one.resolved()["overlay"] == [
        {"kind": "overlay_of_page:Private", "clip": 1.0, "noise": 0.01}
    ]
