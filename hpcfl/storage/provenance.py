"""Where a result comes from: versions, processor, command line, commit."""

import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import hpcfl

PACKAGES = ("numpy", "torch", "torchvision", "mpi4py", "h5py", "pydantic")


def versions() -> dict[str, str]:
    """The versions of hpcfl, Python and PACKAGES by name, "none" for a package that is
    not installed.
    """
    versions = {"hpcfl": hpcfl.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "none"
    return versions


def processor() -> str:
    """The CPU's model name, recorded because another model may round differently."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def commit() -> str | None:
    """The commit of the source tree that runs, with '+' if it has changes; None outside
    a git repository.
    """
    here = Path(__file__).parent
    try:
        answer = subprocess.run(
            [
                "git",
                "-C",
                str(here),
                "describe",
                "--always",
                "--abbrev=40",
                "--dirty=+",
            ],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def header() -> dict[str, Any]:
    """All of it, JSON-able, for the header of results."""
    return {
        "versions": versions(),
        "processor": processor(),
        "command": sys.argv,
        "commit": commit(),
    }
