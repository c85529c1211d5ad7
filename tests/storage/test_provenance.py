"""Recorded origin of a result."""

import os
import re
import subprocess
import sys

import pytest
import torch

from hpcfl.storage import provenance

PRINTED = "from hpcfl.storage import provenance; print(provenance.digest_arithmetic())"


def test_the_arithmetic_is_the_same_in_every_call():
    first = provenance.digest_arithmetic()
    assert re.fullmatch(r"[0-9a-f]{16}", first)
    assert (
        provenance.digest_arithmetic()
        == first
        == provenance.collect_header()["arithmetic"]
    )


def test_the_commit_of_another_project_around_the_package_is_not_recorded(
    tmp_path, monkeypatch
):
    """As in a virtual environment inside a repository."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    commit = ["commit", "--quiet", "--allow-empty", "--message", "theirs"]
    for command in (["init", "--quiet"], [*identity, *commit]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    installed = tmp_path / "site-packages" / "provenance.py"
    installed.parent.mkdir()
    installed.touch()
    monkeypatch.setattr(provenance, "__file__", str(installed))
    assert provenance.find_commit() is None
    subprocess.run(["git", "add", installed], cwd=tmp_path, check=True)
    assert provenance.find_commit().endswith("+")


@pytest.mark.slow
@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT",
    reason="this processor has one set of kernels",
)
def test_other_kernels_are_another_arithmetic():
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default"}
    done = subprocess.run(
        [sys.executable, "-c", PRINTED],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() != provenance.digest_arithmetic()
