"""The installed package is found wherever Python is started."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def test_a_folder_that_holds_the_clone_does_not_hide_the_package(tmp_path):
    """As in a notebook that lies beside the clone: the current folder comes first on sys.path."""
    package = tmp_path / "hpcfl" / "hpcfl"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    installed = {key: value for key, value in os.environ.items()
                 if key not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    done = subprocess.run([sys.executable, "-c", "import hpcfl; print(hpcfl.run.__module__)"], cwd=tmp_path,
                          env=installed, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("hpcfl.api\n", "")
