"""The container's recipe and the statements of slurm/README.md about sites, read as
text without a container or a cluster.
"""

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from places import ROOT

from hpcfl.cluster import batch
from hpcfl.cluster.profile import Profile

RECIPE = ROOT / "slurm" / "apptainer.def"
PAGE = (ROOT / "slurm" / "README.md").read_text(encoding="utf-8")
# By the name of the MPI: entries of a profile in addition to the common ones.
SITES = dict(
    re.findall(r"^```toml\n# ([^\n]+)\n(.+?)^```$", PAGE, re.DOTALL | re.MULTILINE)
)


def sections(text):
    """Return the header of a definition file, and the lines of each section by its
    name.
    """
    header, *parts = re.split(r"^%(?=\w)", text, flags=re.MULTILINE)
    lines = {}
    for part in parts:
        name, _, body = part.partition("\n")
        lines[name.strip()] = [
            line.strip()
            for line in body.splitlines()
            if line.strip() and not line.strip().startswith("#")
        ]
    return header, lines


HEADER, LINES = sections(RECIPE.read_text(encoding="utf-8"))
COPIED = [line.split() for line in LINES["files"]]


def test_the_base_image_has_a_supported_python():
    headers = [
        line for line in HEADER.splitlines() if not line.startswith("#") and line
    ]
    keys = dict(line.split(": ", 1) for line in headers)
    assert keys["Bootstrap"] == "docker"
    version = re.fullmatch(r"python:(\d+)\.(\d+)-slim", keys["From"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert version is not None
    assert project["requires-python"] == ">=3.11" and int(version[2]) >= 11


@pytest.mark.parametrize("pair", COPIED, ids=lambda pair: pair[0])
def test_copied_files_exist_and_keep_their_names(pair):
    source, target = pair
    assert (ROOT / source).exists() and target == f"/opt/hpcfl/{Path(source).name}"


def test_all_that_an_installation_reads_is_copied():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {"pyproject.toml", "hpcfl", project["readme"], *project["license-files"]}
    assert needed <= {source for source, _ in COPIED}


def test_the_recipe_installs_the_copied_package_with_an_existing_extra():
    (command,) = LINES["post"]
    *pip, what = shlex.split(command)
    folder, extra = re.fullmatch(r"(.+)\[(\w+)\]", what).groups()
    assert pip[:2] == ["pip", "install"] and folder == "/opt/hpcfl"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert extra in project["optional-dependencies"]


def test_its_scripts_are_scripts_of_a_shell():
    for name in ("post", "environment", "test", "runscript"):
        done = subprocess.run(
            ["sh", "-n"], input="\n".join(LINES[name]), text=True, capture_output=True
        )
        assert done.returncode == 0, (name, done.stderr)
    assert LINES["test"] == ["hpcfl check /opt/hpcfl/example.toml"]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("apptainer"), reason="apptainer is not installed")
def test_the_container_builds_and_passes_its_test(tmp_path):
    """A container is built and its test is run, if this is possible."""
    command = ["apptainer", "build", str(tmp_path / "hpcfl.sif"), str(RECIPE)]
    subprocess.run(
        command,
        cwd=ROOT,
        check=True,
        timeout=550,
    )


def test_there_is_a_site_for_each_mpi():
    assert list(SITES) == ["MPICH", "Open MPI", "Cray MPICH"]


@pytest.mark.parametrize("name", SITES)
def test_a_sites_lines_are_those_of_a_profile(name):
    profile = Profile(**tomllib.loads(SITES[name]))
    started = batch.make_launch_command(profile)
    assert f"--mpi={profile.mpi}" in started
    assert profile.setup[0].startswith("module load ")
