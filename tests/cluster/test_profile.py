"""Profiles: found by name, checked once, and safe against hostile content."""

import math
import sys
from pathlib import Path

import pytest
from places import ROOT
from refusals import expect_refusal

from hpcfl.cluster import profile
from hpcfl.cluster.profile import Profile
from hpcfl.commands.new import write_new
from hpcfl.errors import UserError

EXAMPLES = sorted((ROOT / "slurm" / "profiles").glob("*.toml"))


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def write(path: str, text: str):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    return write


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_are_valid(path):
    assert profile.load(str(path)).ranks > 1


def test_a_users_profile_takes_precedence(write):
    write("slurm/profiles/mine.toml", "nodes = 1")
    write("config/hpcfl/profiles/mine.toml", "nodes = 5\nranks_per_node = 3")
    assert profile.load("mine").ranks == 15
    assert profile.load("slurm/profiles/mine.toml").nodes == 1


def test_an_unknown_profile_is_refused_with_the_known_ones(write):
    write("slurm/profiles/gpu.toml", "")
    with expect_refusal(r"--profile gpuu: .*'gpu'"):
        profile.load("gpuu")


@pytest.mark.parametrize("name", ["cpu", "cpu.toml"])
def test_a_missing_profile_is_refused_with_the_command_for_one(write, name):
    with expect_refusal("hpcfl new profile cpu "):
        profile.load(name)


@pytest.mark.parametrize("name", ["my-cluster", "2 nodes.toml", "-"])
def test_the_command_that_writes_a_profile_accepts_its_name(write, name):
    with pytest.raises(UserError) as refused:
        profile.load(name)
    command = str(refused.value).partition("hpcfl new profile ")[2]
    written, _, file, *_ = command.split()
    assert write_new("profile", written)[0] == f"wrote {file}"


def test_an_unknown_key_is_refused_with_the_valid_ones(write):
    write("p.toml", "node = 3")
    with expect_refusal(r"p\.toml: .*'node'; .*'nodes'.* partition"):
        profile.load("p.toml")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nodes = 0", "nodes = 0: "),
        ("time = 'tomorrow'", "time = 'tomorrow'"),
        ("time = '0:10'", "warning = 120 s"),
        ("[options]\nnodes = 2", "nodes"),
        ("time = true", "time"),
        (f"time = '{'9' * 5000}'", "time = '9"),
        ("memory = '64GiB'", "memory = '64GIB'"),
        ("partition = 'low; rm -rf ~'", "partition"),
        ('partition = "low\\n#SBATCH --uid=0"', "partition"),
        ("account = '$(id)'", "account"),
        ("mpi = 'pmi2 --uid=0'", "mpi"),
        ('setup = ["true\\nfalse"]', "setup.0"),
        ("[options]\n'x y' = 1", "options"),
        ('[options]\nmail-user = "a\\nb"', "options"),
        ("nodes = ", "p.toml: "),
    ],
)
def test_invalid_values_are_refused(write, text, complaint):
    write("p.toml", text)
    with expect_refusal() as caught:
        profile.load("p.toml")
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        (30, 1800),
        ("30:15", 1815),
        ("0:01:30", 90),
        ("12:00:00", 43200),
        ("7-0", 604800),
        ("7-1:30", 610200),
        ("2-01:00:00", 176400),
        ("UNLIMITED", math.inf),
        ("infinite", math.inf),
        (-1, math.inf),
        ("0", math.inf),
    ],
)
def test_seconds_of_a_time_limit(text, seconds):
    assert Profile(time=text).seconds == seconds


@pytest.mark.parametrize(
    ("text", "taken"),
    [("64GB", "64G"), ("64g", "64G"), ("500M", "500M"), (64000, "64000"), ("0", "0")],
)
def test_memory_is_written_as_slurm_reads_it(text, taken):
    assert Profile(memory=text).memory == taken


@pytest.mark.parametrize(
    ("keys", "python"),
    [
        ({}, sys.executable),
        ({"setup": ["module load mpich"]}, sys.executable),
        ({"setup": ["module load mpich", "source ~/fl/bin/activate"]}, "python"),
        ({"setup": ["conda activate fl"], "cluster": "local"}, sys.executable),
        ({"setup": ["conda activate fl"], "python": "/opt/python3"}, "/opt/python3"),
        ({"python": "~/python3"}, str(Path.home() / "python3")),
    ],
)
def test_interpreter_of_a_job(keys, python):
    assert Profile(**keys).interpreter == python
