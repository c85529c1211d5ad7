"""The installed package is found wherever Python is started."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def test_a_folder_that_holds_the_clone_does_not_hide_the_package(tmp_path):
    """As in a notebook that lies beside the clone: the current folder comes first on
    sys.path.
    """
    package = tmp_path / "hpcfl" / "hpcfl"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    installed = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", "PYTHONSAFEPATH")
    }
    done = subprocess.run(
        [sys.executable, "-c", "import hpcfl; print(hpcfl.run.__module__)"],
        cwd=tmp_path,
        env=installed,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("hpcfl.api\n", "")


def test_an_installed_package_has_every_file():
    """What is no module is installed only where ``package-data`` names it."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"][
        "setuptools"
    ]["package-data"]["*"]
    files = [
        path
        for path in (ROOT / "hpcfl").rglob("*")
        if path.is_file() and path.suffix not in (".py", ".pyc")
    ]
    assert (
        files
        and [
            path
            for path in files
            if not any(path.match(pattern) for pattern in patterns)
        ]
        == []
    )
