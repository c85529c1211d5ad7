"""The installed package is found in every working folder of Python."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest
from places import ROOT

pytestmark = pytest.mark.slow


def test_a_folder_with_the_clone_does_not_shadow_the_package(tmp_path):
    """As in a notebook in the folder of the clone: the current folder is first on
    sys.path.
    """
    package = tmp_path / "hpcfl" / "hpcfl"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    code = "import hpcfl; print(hpcfl.run.__module__)"
    assert finished([sys.executable, "-c", code], tmp_path) == "hpcfl.api\n"


def test_a_wheel_of_the_source_archive_runs_when_installed(
    tmp_path,
):
    """As on a package index: source archive, a wheel built only from it, and its
    installation.

    The dependencies come from the environment that runs the tests. This environment's
    hpcfl is not visible, because Python reads no ``.pth`` file in a folder that a
    ``.pth`` file names.
    """
    source = tmp_path / "source"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "hpcfl", source / "hpcfl", ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    archive = build("sdist", source, tmp_path)
    (tmp_path / "unpacked").mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path / "unpacked"], check=True)
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    wheel = build("wheel", unpacked, tmp_path)

    place = tmp_path / "environment"
    venv.create(place)
    python = place / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(place)}))
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = [sys.executable, "-m", "pip", "--python", python, "--no-input"]
    finished([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], tmp_path)

    assert files_of(packages / "hpcfl") == files_of(source / "hpcfl")
    where = finished([python, "-c", "import hpcfl; print(hpcfl.__file__)"], tmp_path)
    assert where == f"{packages}/hpcfl/__init__.py\n"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    program = place / "bin" / "hpcfl"
    assert version in finished([program, "--version"], tmp_path)
    assert "ICML 2021" in finished([program, "methods", "ditto"], tmp_path)


def build(kind: str, source: Path, place: Path) -> Path:
    """Build an ``sdist`` or a ``wheel`` with the tool that pyproject.toml names."""
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(place)!r}))"
    *_, name = finished([sys.executable, "-c", code], source).split()
    return place / name


def finished(command: list[str | Path], place: Path) -> str:
    """Return the output of a command that must succeed, without PYTHONPATH."""
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("PYTHONPATH", "PYTHONSAFEPATH")
    }
    done = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_of(package: Path) -> list[str]:
    """Return the files of a package except compiled ones, by their path in it."""
    return sorted(
        str(path.relative_to(package))
        for path in package.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    )
