"""The package does not grow: every limit of ``budgets.json`` holds."""

import subprocess
import sys
from pathlib import Path

import budgets
import pytest
import wording


@pytest.mark.slow
@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="other versions cut f-strings into tokens"
)
def test_no_number_is_above_its_limit():
    command = [sys.executable, str(Path(budgets.__file__))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_larger_number_is_reported():
    measured = {"files": 3.0, "frames": 2.0}
    (line,) = budgets.find_excess(measured, {"files": 2.0, "frames": 2.0})
    assert "files" in line


def test_comments_and_docstrings_have_no_weight():
    plain = "def double(x):\n    return 2 * x\n"
    described = (
        '"""A module."""\n\n# A comment.\ndef double(x):\n'
        '    """Return twice x."""\n    return 2 * x\n'
    )
    assert budgets.weigh(described) == budgets.weigh(plain)
    assert budgets.weigh(plain).lines == 2


def test_headless_clauses_are_found():
    texts = [("a", "What a client sends."), ("b", "Return the mean."), ("c", "Why?")]
    (line,) = wording.find_headless(iter(texts))
    assert line.startswith("a: ")


def test_banned_names_are_found():
    assert wording.is_banned("told") and not wording.is_banned("told_seconds")
    assert wording.is_banned("test_who_trains")
    assert not wording.is_banned("test_whole_rounds")
