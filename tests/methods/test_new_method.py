"""A built-in method is one file: a file added to the folder is found everywhere."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

import hpcfl
from hpcfl.experiment import plugins

FRESH = '''"""Fresh: FedAvg whose clients forget a share of what they have learnt.

Nobody, "A method for a test", 2026.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from hpcfl.methods.base import search
from hpcfl.methods.fedavg import FedAvg


class Fresh(FedAvg):
    """Server: ``model`` [P]. Client: nothing. Down P, up P."""

    reference = "Nobody, 2026"
    keeps: ClassVar[tuple[str, ...]] = ("ala", "aggregation")
    short: ClassVar[Mapping[str, Any]] = {"share": 0.5}
    share: float = Field(
        0.1,
        ge=0,
        le=1,
        description="what is forgotten",
        json_schema_extra=search([0.1, 0.2], "nobody"),
    )

    def local_train(self, fleet, rows, inbox):
        return super().local_train(fleet, rows, inbox).lerp(fleet.rows(rows), self.share)


plugin = Fresh
'''
EXPERIMENT = """
rounds = 1
[partition]
clients = 4
[method]
name = "fresh"
share = 0.2
ala = true
aggregation = "class-wise"
"""
# In one process, because starting Python with torch takes longer than all of this.
EVERYWHERE = """
import contextlib
import io
import runpy
import sys
from pathlib import Path

sys.modules["matplotlib"] = None  # the figures are the same for every method

import on_gpu
from every_method import NAMES, short

from hpcfl.cli import command
from hpcfl.communication.communicator import OneProcess


def run_hpcfl(*arguments):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        assert command(list(arguments), OneProcess()) == 0
    return output.getvalue()


Path("methods.json").write_text(run_hpcfl("methods", "--json"))
run_hpcfl("run", "fresh.toml", "--out", "run")
Path("shown.json").write_text(run_hpcfl("show", "run", "--json"))

assert short("fresh", weights="uniform") == {
    "name": "fresh", "share": 0.5, "weights": "uniform"
}
assert "fresh" in NAMES
assert ("fresh", {"share": 0.5}, "mlp", {}) in on_gpu.PLAYED

sys.modules.pop("hpcfl.report.catalogue", None)
runpy.run_module("hpcfl.report.catalogue", run_name="__main__")
"""


@pytest.fixture
def folder(tmp_path):
    """Return a copy of the package with one additional method and, of the other
    methods, only FedAvg, because the catalogue imports all methods.
    """
    shutil.copytree(Path(hpcfl.__file__).parent, tmp_path / "hpcfl")
    methods = tmp_path / "hpcfl" / "methods"
    for name in plugins.list_names("hpcfl.methods"):
        if name != "fedavg":
            (methods / f"{name.replace('-', '_')}.py").unlink()
    (methods / "fresh.py").write_text(FRESH, encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_a_new_file_is_a_method_in_all_commands(folder):
    (folder / "fresh.toml").write_text(EXPERIMENT)
    paths = os.pathsep.join(map(str, (folder, ROOT / "tests")))
    subprocess.run(
        [sys.executable, "-c", EVERYWHERE],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths},
        check=True,
    )

    listed = json.loads((folder / "methods.json").read_text())
    (entry,) = (method for method in listed if method["name"] == "fresh")
    assert entry["description"].startswith("Fresh: FedAvg whose clients forget")
    assert entry["keys"]["share"]["search"] == [0.1, 0.2]
    assert {"ala", "aggregation", "weights"} < entry["keys"].keys()

    shown = json.loads((folder / "shown.json").read_text())
    assert shown["method"] == "fresh" and shown["finished"]

    line = "| `fresh` | Nobody, 2026 | FedAvg whose clients forget a share of"
    page = folder / "hpcfl" / "methods" / "README.md"
    assert line in page.read_text(encoding="utf-8")
    stored = (folder / "hpcfl" / "report" / "catalogue.json").read_text()
    assert '"name": "fresh"' in stored
