"""A built-in method is one file: whoever drops one into the folder sees it everywhere."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hpcfl

PROJECT = Path(__file__).parents[2]
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
LISTS = """
import on_gpu
from every_method import NAMES, short
from methods.test_all_methods import MIXING
assert short("fresh", weights="uniform") == {
    "name": "fresh", "share": 0.5, "weights": "uniform"
}
assert "fresh" in NAMES and "fresh" in MIXING
assert ("fresh", {"share": 0.5}, "mlp", {}) in on_gpu.PLAYED
"""


@pytest.fixture
def python(tmp_path):
    """Runs Python in a folder with a copy of the package that has one method more."""
    shutil.copytree(Path(hpcfl.__file__).parent, tmp_path / "hpcfl")
    (tmp_path / "hpcfl" / "methods" / "fresh.py").write_text(FRESH, encoding="utf-8")
    paths = os.pathsep.join(map(str, (tmp_path, PROJECT / "tests")))
    environment = {**os.environ, "PYTHONPATH": paths}

    def run(*arguments):
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    return run


@pytest.mark.slow
def test_a_file_in_the_folder_is_a_method_everywhere(python, tmp_path):
    listed = json.loads(python("-m", "hpcfl", "methods", "--json"))
    (entry,) = (method for method in listed if method["name"] == "fresh")
    assert entry["description"].startswith("Fresh: FedAvg whose clients forget")
    assert entry["keys"]["share"]["search"] == [0.1, 0.2]
    assert {"ala", "aggregation", "weights"} < entry["keys"].keys()
    assert entry["traffic"] == {
        "down": 1.0,
        "up": 1.0,
        "paper": None,
    }

    (tmp_path / "fresh.toml").write_text(EXPERIMENT)
    python("-m", "hpcfl", "run", "fresh.toml", "--out", "run")
    shown = json.loads(python("-m", "hpcfl", "show", "run", "--json"))
    assert shown["method"] == "fresh" and shown["finished"]

    python("-c", LISTS)

    python("-m", "hpcfl.report.catalogue")
    line = "| `fresh` | Nobody, 2026 | FedAvg whose clients forget a share of"
    page = tmp_path / "hpcfl" / "methods" / "README.md"
    assert line in page.read_text(encoding="utf-8")
    stored = (tmp_path / "hpcfl" / "report" / "catalogue.json").read_text()
    assert '"name": "fresh"' in stored
