"""Batch scripts and command lines for Slurm and launchers, quoted for the shell.

All functions are pure.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path

from hpcfl.cluster.profile import Profile
from hpcfl.cluster.supervisor import Supervisor
from hpcfl.errors import UserError

Options = dict[str, str | int | bool]


def make_options(profile: Profile, name: str) -> Options:
    """Return sbatch's long options for a job.

    Slurm's warning, USR2, is sent only to the process of the batch script ("B:"); the
    supervisor passes it on. ``no-requeue`` replaces ``requeue``.

    Args:
        profile: profile of the cluster.
        name: name of the job.
    """
    wanted: dict[str, str | int | bool | None] = {
        "job-name": name,
        "partition": profile.partition,
        "account": profile.account,
        "qos": profile.qos,
        "constraint": profile.constraint,
        "nodes": profile.nodes,
        "ntasks-per-node": profile.ranks_per_node,
        "cpus-per-task": profile.cores,
        "gpus-per-node": profile.gpus_per_node or None,
        "mem": profile.memory,
        "time": profile.time,
        "signal": f"B:USR2@{profile.warning}",
        "requeue": True,
        "open-mode": "append",
        **profile.options,
    }
    given = {
        key: value
        for key, value in wanted.items()
        if value is not None and value is not False
    }
    return {key: value for key, value in given.items() if f"no-{key}" not in given}


def make_flags(chosen: Options) -> list[str]:
    """Return options as arguments of sbatch."""
    return [
        f"--{key}" if value is True else f"--{key}={value}"
        for key, value in chosen.items()
    ]


def make_launch_command(profile: Profile) -> list[str]:
    """Return the words before a command that start it on every rank; empty for one
    process.

    Every rank sees all GPUs of its node, because it selects one by its rank on the
    node. If a rank dies, the others end after 10 s (``--wait``). ``--kill-on-bad-exit``
    would also kill ranks that are about to exit with code 75, which requests a requeue.
    """
    if profile.cluster != "slurm":
        return ["mpiexec", "-n", str(profile.ranks)] if profile.ranks > 1 else []
    if profile.mpi == "mpiexec":
        return ["mpiexec", "-n", str(profile.ranks)]
    binding = ["--gpu-bind=none"] if profile.gpus_per_node else []
    placement = []
    if profile.has_server_apart:
        placement = [f"--ntasks={profile.ranks}", "--distribution=cyclic"]
    return [
        "srun",
        f"--mpi={profile.mpi}",
        *placement,
        "--wait=10",
        "--kill-on-bad-exit=0",
        f"--cpus-per-task={profile.cores}",
        "--cpu-bind=cores",
        *binding,
    ]


def is_final(profile: Profile) -> bool:
    """Return whether the profile forbids that a job is continued automatically."""
    return profile.options.get("no-requeue") is True


def describe_interpreter(profile: Profile) -> list[str]:
    """Return a line on a relative interpreter of jobs; empty for an absolute path."""
    name = profile.interpreter
    if "/" in name:
        return []
    source = "PATH" if profile.python else "the environment that setup activates"
    return [f"interpreter: {name} of {source}; set the key python to use another"]


def describe_gpus(profile: Profile) -> list[str]:
    """Return a line on the workers of each GPU; empty without GPUs or on one node."""
    gpus, ranks = profile.gpus_per_node, profile.ranks_per_node
    if not gpus or profile.nodes == 1:
        return []
    if profile.has_server_apart:
        workers = (ranks - 1) // gpus
        plural = "s" if workers > 1 else ""
        return [
            f"GPUs: {workers} worker{plural} on each; srun places {profile.ranks} ranks in "
            f"turn on {profile.nodes} nodes, so the first node also hosts the server, on "
            "GPU 0"
        ]
    if ranks % gpus:
        return [
            f"GPUs: {ranks} ranks per node on {gpus} GPUs, so some GPUs have more work than "
            f"others; set ranks_per_node = {gpus}, or {gpus + 1} if srun starts the ranks"
        ]
    return [
        f"GPUs: {ranks // gpus} ranks on each; the server takes the place of a worker"
    ]


def make_run_command(python: str, file: Path, out: Path) -> list[str]:
    """Return the command that every rank of a run executes.

    Args:
        python: the interpreter.
        file: experiment file.
        out: results folder.
    """
    return [python, "-u", "-m", "hpcfl", "run", str(file), "--out", str(out)]


def make_tune_command(
    python: str, file: Path, out: Path, stage: str, cell: str
) -> list[str]:
    """Return the command that every rank of a tuning's job executes.

    Args:
        python: the interpreter.
        file: file of the tuning.
        out: results folder.
        stage: value of ``--stage``.
        cell: value of ``--cell``; "" for none.
    """
    part = ["--stage", stage, *(["--cell", cell] if cell else [])]
    return [python, "-u", "-m", "hpcfl", "tune", str(file), "--out", str(out), *part]


def make_script(chosen: Options, setup: Sequence[str], command: Sequence[str]) -> str:
    """Return a complete batch script.

    It ends with ``exec``, so that ``command`` itself receives Slurm's warning.

    Args:
        chosen: options of sbatch.
        setup: shell commands before the command.
        command: words of the command.
    """
    lines = [f"#SBATCH {shlex.quote(flag)}" for flag in make_flags(chosen)]
    words = f"exec {shlex.join(command)}"
    return "\n".join(["#!/bin/bash", *lines, *setup, words, ""])


def stop_at_errors(setup: Sequence[str]) -> list[str]:
    """Return the lines of ``setup`` with ``set -e``, so that a failing line ends the
    job.
    """
    return ["set -e", *setup] if setup else []


def make_supervisor_command(python: str, supervisor: Supervisor) -> list[str]:
    """Return the command that starts a supervisor, the last line of a batch script."""
    return [
        python,
        "-m",
        "hpcfl.cluster.supervisor",
        "--out",
        supervisor.folder,
        "--record",
        supervisor.record,
        "--again",
        shlex.join(supervisor.again),
        "--warning",
        f"{supervisor.warning:g}",
        "--max-requeues",
        str(supervisor.max_requeues),
        "--",
        *supervisor.command,
    ]


def check_folder(folder: Path) -> None:
    """Raise UserError for a folder to which Slurm cannot write logs.

    Slurm expands '%' in names of log files, and reads the options of a batch script
    line by line.
    """
    text = str(folder)
    if (
        "%" in text
        or "\\" in text
        or any(ord(letter) < 32 or ord(letter) == 127 for letter in text)
    ):
        raise UserError(
            f"{text!r}: Slurm cannot write logs to a folder with '%', '\\' or a control "
            "character in its name; choose another --out"
        )
