"""Batch scripts and launch lines as texts, evaluated by the shell if names are unusual."""

import shlex
import subprocess
from pathlib import Path

import pytest
from refusals import expect_refusal

from hpcfl.cluster import batch
from hpcfl.cluster.profile import Profile
from hpcfl.cluster.supervisor import Supervisor

ODD = [
    "plain",
    "two words",
    "quo'te",
    'dou"ble',
    "semi;colon",
    "$(touch hacked)",
    "`touch hacked`",
    "-n",
    "new\nline",
    "ü*?",
]


def test_options_of_a_gpu_job():
    profile = Profile(
        partition="gpu",
        account="p-1",
        nodes=2,
        ranks_per_node=5,
        gpus_per_node=4,
        cores=8,
        memory="200G",
        time="1-00:00:00",
        warning=300,
        options={
            "exclusive": True,
            "nice": 10,
            "requeue": False,
        },
    )
    assert batch.make_flags(batch.make_options(profile, "cifar")) == [
        "--job-name=cifar",
        "--partition=gpu",
        "--account=p-1",
        "--nodes=2",
        "--ntasks-per-node=5",
        "--cpus-per-task=8",
        "--gpus-per-node=4",
        "--mem=200G",
        "--time=1-00:00:00",
        "--signal=B:USR2@300",
        "--open-mode=append",
        "--exclusive",
        "--nice=10",
    ]


def test_no_requeue_replaces_requeue():
    flags = batch.make_flags(
        batch.make_options(Profile(options={"no-requeue": True}), "cifar")
    )
    assert "--no-requeue" in flags
    assert "--requeue" not in flags


@pytest.mark.parametrize(
    ("profile", "line"),
    [
        (
            Profile(nodes=2, cores=3),
            "srun --mpi=pmi2 --wait=10 --kill-on-bad-exit=0 --cpus-per-task=3 --cpu-bind=cores",
        ),
        (
            Profile(mpi="pmix", gpus_per_node=4),
            "srun --mpi=pmix --wait=10 --kill-on-bad-exit=0 --cpus-per-task=1"
            " --cpu-bind=cores --gpu-bind=none",
        ),
        (
            Profile(nodes=3, ranks_per_node=5, gpus_per_node=4),
            "srun --mpi=pmi2 --ntasks=13 --distribution=cyclic --wait=10"
            " --kill-on-bad-exit=0 --cpus-per-task=1 --cpu-bind=cores --gpu-bind=none",
        ),
        (Profile(mpi="mpiexec", nodes=2, ranks_per_node=4), "mpiexec -n 8"),
        (Profile(cluster="local"), "mpiexec -n 2"),
        (Profile(cluster="local", ranks_per_node=1), ""),
        (Profile(cluster="debug", nodes=3), ""),
    ],
)
def test_launch_command_of_each_profile(profile, line):
    assert shlex.join(batch.make_launch_command(profile)) == line


@pytest.mark.parametrize(
    ("nodes", "ranks", "mpi", "expected"),
    [
        (1, 5, "pmi2", ""),
        (3, 5, "pmi2", "1 worker on each; "),
        (3, 9, "pmi2", "2 workers on each"),
        (3, 5, "mpiexec", "more work"),
        (3, 6, "pmi2", "more work"),
        (3, 4, "pmi2", "1 ranks on each"),
    ],
)
def test_work_of_each_gpu(nodes, ranks, mpi, expected):
    profile = Profile(nodes=nodes, ranks_per_node=ranks, gpus_per_node=4, mpi=mpi)
    assert expected in "".join(batch.describe_gpus(profile))
    assert bool(expected) == bool(batch.describe_gpus(profile))
    if "more work" in expected:
        assert not profile.has_server_apart


@pytest.mark.parametrize("name", ODD)
def test_odd_names_reach_the_command_unchanged(name, tmp_path):
    """The script is run with a command that writes its arguments."""
    seen = tmp_path / "seen"
    words = [
        "python",
        "-c",
        "import sys; open(sys.argv[1], 'w').write(repr(sys.argv[2:]))",
        str(seen),
    ]
    supervisor = Supervisor(
        ["srun", *batch.make_run_command("python", Path(name), Path(name))],
        name,
        name,
        60,
        1,
        [name],
    )
    command = [*words, *batch.make_supervisor_command("python", supervisor)]
    text = batch.make_script({"nodes": 2, "requeue": True}, ["true"], command)
    subprocess.run(["bash", "-c", text], cwd=tmp_path, check=True)
    words = eval(seen.read_text())
    assert words == batch.make_supervisor_command("python", supervisor)
    assert shlex.split(words[words.index("--again") + 1]) == [name]
    assert [path.name for path in tmp_path.iterdir()] == ["seen"]


def test_a_script_has_quoted_options_the_setup_and_the_command():
    text = batch.make_script(
        {"job-name": "two words", "requeue": True},
        ["module load mpich"],
        ["python", "it's.py"],
    )
    assert text == (
        "#!/bin/bash\n#SBATCH '--job-name=two words'\n#SBATCH --requeue\nmodule load mpich\n"
        "exec python 'it'\"'\"'s.py'\n"
    )


@pytest.mark.parametrize(
    "name", ["new\nline", "100%", "back\\slash", "tab\t", "del\x7f"]
)
def test_folders_that_slurm_cannot_name(name):
    with expect_refusal(r"^'/results/.* --out$"):
        batch.check_folder(Path("/results") / name)


@pytest.mark.parametrize("name", ["two words", "quo'te", "semi;colon", "$HOME", "ü"])
def test_folders_that_it_can(name):
    batch.check_folder(Path("/results") / name)
