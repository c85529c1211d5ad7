import re
import subprocess
import sys

import pytest

from hpcfl.errors import UserError
from hpcfl.experiment import plugins
from hpcfl.report import catalogue, listing


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("kind", list(catalogue.PACKAGES))
def test_one_line_each_whatever_the_width(kind, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    listing.show(kind, None)
    lines = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out).splitlines()
    names = plugins.names(catalogue.PACKAGES[kind])
    shown = [line.split()[0] for line in lines[1 : len(names) + 1]]
    assert all(
        name.startswith(word.rstrip("…"))
        for name, word in zip(names, shown, strict=True)
    )
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("kind", list(catalogue.PACKAGES))
def test_what_is_no_terminal_gets_whole_lines(kind, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    listing.show(kind, None)
    lines = capsys.readouterr().out.splitlines()[1:]
    for entry, line in zip(catalogue.entries(kind), lines, strict=False):
        assert line.startswith(entry["name"]) and line.rstrip().endswith(
            listing.COLUMNS[kind][-1][1](entry)
        )


def test_one_method_with_its_keys(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    listing.show("methods", "fedprox")
    shown = capsys.readouterr().out
    assert "fedprox (Li et al., MLSys 2020): " in shown
    assert "FedALA's Table 3 has their sum, 2 Σ = 2.00" in shown
    (mu,) = (line for line in shown.splitlines() if line.split()[:1] == ["mu"])
    assert (
        " ".join(mu.split())
        == "mu 0.001 number ≥ 0 strength μ of the proximal term; 0 is FedAvg"
    )


def test_one_data_set_and_one_score(capsys):
    listing.show("datasets", "mnist")
    listing.show("scores", "macro-f1")  # as a configuration takes it, too
    shown = " ".join(capsys.readouterr().out.split())
    assert "hpcfl data download mnist --root DIR" in shown
    assert "unit: % better: up" in shown


def test_what_is_not_there():
    with pytest.raises(
        UserError, match=r"'fedvag' is none of hpcfl's methods; did you mean 'fedavg'\?"
    ):
        listing.show("methods", "fedvag")


@pytest.mark.parametrize(
    "schema, words",
    [
        ({"type": "number", "minimum": 0}, "number ≥ 0"),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "number > 0, ≤ 1"),
        ({"enum": ["a", "b"], "type": "string"}, "a | b"),
        ({"const": "a", "type": "string"}, "a"),
        ({"type": "array", "items": {"type": "integer"}}, "list of integer"),
        (
            {
                "anyOf": [
                    {"enum": ["all"]},
                    {"type": "integer", "exclusiveMinimum": 0},
                    {"type": "null"},
                ]
            },
            "all | integer > 0",
        ),
    ],
)
def test_values_in_words(schema, words):
    assert listing.values(schema) == words


def test_listing_is_instant():
    """Nothing that takes seconds to import is imported for it, in a process of its own."""
    code = (
        "import sys; from hpcfl.report import listing; listing.show('methods', None); "
        "print([name for name in ('torch', 'h5py', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
