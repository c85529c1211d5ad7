import re
import subprocess
import sys

import pytest
from refusals import expect_refusal

from hpcfl.experiment import plugins
from hpcfl.report import catalogue, listing


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("kind", list(catalogue.PACKAGES))
def test_each_entry_has_one_line_at_any_width(kind, width, monkeypatch, printed):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    listing.show(kind, None)
    lines = re.sub(r"\x1b\[\d*m", "", printed()).splitlines()
    names = plugins.list_names(catalogue.PACKAGES[kind])
    show = [line.split()[0] for line in lines[1 : len(names) + 1]]
    assert all(
        name.startswith(word.rstrip("…"))
        for name, word in zip(names, show, strict=True)
    )
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("kind", list(catalogue.PACKAGES))
def test_lines_are_not_shortened_without_a_terminal(kind, monkeypatch, printed):
    monkeypatch.setenv("COLUMNS", "40")
    listing.show(kind, None)
    lines = printed().splitlines()[1:]
    for entry, line in zip(catalogue.list_entries(kind), lines, strict=False):
        assert line.startswith(entry["name"])
        assert line.rstrip().endswith(
            entry[listing.COLUMNS.get(kind, ["description"])[-1]]
        )


def test_licences_follow_the_names_of_data_sets(printed):
    listing.show("datasets", None)
    lines = printed().splitlines()
    (line,) = (line for line in lines if line.startswith("mnist "))
    assert line.split()[:5] == ["mnist", "download", "CC", "BY-SA", "3.0"]


def test_one_method_with_its_keys(monkeypatch, printed):
    monkeypatch.setenv("COLUMNS", "200")
    listing.show("methods", "fedprox")
    show = printed()
    assert "fedprox (Li et al., MLSys 2020): " in show
    (mu,) = (line for line in show.splitlines() if line.split()[:1] == ["mu"])
    assert (
        " ".join(mu.split())
        == "mu 0.001 number ≥ 0 strength μ of the proximal term; 0 is FedAvg"
    )


def test_one_data_set_and_one_score(printed):
    listing.show("datasets", "mnist")
    listing.show("scores", "macro-f1")  # as in a configuration
    show = " ".join(printed().split())
    assert "hpcfl data download mnist --root DIR" in show
    assert (
        "looked for below data.root, else below $HPCFL_DATA: "
        "MNIST/raw/train-images-idx3-ubyte MNIST/raw/train-labels-idx1-ubyte "
    ) in show
    assert "licence: CC BY-SA 3.0" in show
    assert "unit: % better: up" in show


def test_an_unknown_name_is_refused_with_a_suggestion():
    with expect_refusal(r"'fedvag' .*'fedavg'"):
        listing.show("methods", "fedvag")


OWN = """
from pydantic import Field
from hpcfl.methods.fedprox import FedProx

class Pulled(FedProx):
    \"\"\"FedProx with a key
    of its own.

    No more is shown.
    \"\"\"

    reference = "Nobody, 2020"
    strength: float = Field(0.5, ge=0, description="how much")

class Needy(FedProx):
    strength: float
"""


@pytest.fixture
def shown_of(tmp_path, monkeypatch, printed):
    """Return the listing of a class in a user's module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delitem(sys.modules, "listed_method", raising=False)
    (tmp_path / "listed_method.py").write_text(OWN)

    def show(name):
        listing.show("methods", f"listed_method:{name}")
        return [" ".join(line.split()) for line in printed().splitlines()]

    return show


def test_a_users_method_is_listed(shown_of):
    show = shown_of("Pulled")
    assert (
        show[0] == "listed_method:Pulled (Nobody, 2020): FedProx with a key of its own."
    )
    assert "strength 0.5 number ≥ 0 how much" in show
    assert "mu 0.001 number ≥ 0 strength μ of the proximal term; 0 is FedAvg" in show


def test_a_key_without_a_default_has_a_dash(shown_of):
    show = shown_of("Needy")
    assert show[1] == "Primary metric: column pre."
    assert "strength – number" in show


def test_a_missing_class_of_a_users_module_is_refused(shown_of):
    with expect_refusal(r"'listed_method' .*'Pull'; .*'Pulled'"):
        shown_of("Pull")


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("models", "tiny:normalised", "hidden"),
        ("partitions", "tiny:Counts", "training samples by client and class"),
        ("scores", "own_scores:Surprise", "unit: bits"),
        ("datasets", "tiny:blobs", "files: built in"),
    ],
)
def test_other_plugins_of_users_are_listed(printed, kind, name, expected):
    listing.show(kind, name)
    show = " ".join(printed().split())
    assert show.startswith(name) and expected in show


@pytest.mark.parametrize(
    "schema, words",
    [
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, "number > 0, ≤ 1"),
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
def test_values_of_a_key_are_named_in_words(schema, words):
    assert listing.describe_values(schema) == words


def test_listing_imports_no_slow_package():
    """In a separate process, it imports nothing that takes seconds."""
    code = (
        "import sys; from hpcfl.report import listing; listing.show('methods', None); "
        "print([name for name in ('torch', 'h5py', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
