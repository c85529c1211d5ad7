"""The texts given to Slurm and to launchers: pure functions of a profile and names, quoted for the shell."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from hpcfl.cluster.profile import Profile
from hpcfl.cluster.supervisor import Supervisor
from hpcfl.errors import UserError

Options = dict[str, str | int | bool]


def options(profile: Profile, name: str) -> Options:
    """sbatch's long options. The warning goes to the batch script alone, where the supervisor
    passes it on."""
    wanted: dict[str, str | int | bool | None] = {
        "job-name": name, "partition": profile.partition, "account": profile.account, "qos": profile.qos,
        "constraint": profile.constraint, "nodes": profile.nodes, "ntasks-per-node": profile.ranks_per_node,
        "cpus-per-task": profile.cores, "gpus-per-node": profile.gpus_per_node or None, "mem": profile.memory,
        "time": profile.time, "signal": f"B:USR2@{profile.warning}", "requeue": True, "open-mode": "append",
        **profile.options}
    return {key: value for key, value in wanted.items() if value is not None and value is not False}


def flags(chosen: Options) -> list[str]:
    """Options as arguments of sbatch."""
    return [f"--{key}" if value is True else f"--{key}={value}" for key, value in chosen.items()]


def launcher(profile: Profile) -> list[str]:
    """What starts the ranks of a job. A GPU is chosen by node-local rank, so every rank sees all
    GPUs of its node.

    A rank that dies ends the others after 10 s (``--wait``): ``--kill-on-bad-exit`` would also kill ranks
    that are about to leave with the code "continue me".
    """
    if profile.cluster != "slurm":
        return ["mpiexec", "-n", str(profile.ranks)] if profile.ranks > 1 else []
    if profile.mpi == "mpiexec":
        return ["mpiexec", "-n", str(profile.ranks)]
    binding = ["--gpu-bind=none"] if profile.gpus_per_node else []
    return ["srun", f"--mpi={profile.mpi}", "--wait=10", "--kill-on-bad-exit=0",
            f"--cpus-per-task={profile.cores}", "--cpu-bind=cores", *binding]


def experiment(python: str, file: Path, out: Path) -> list[str]:
    """What every rank runs."""
    return [python, "-u", "-m", "hpcfl", "run", str(file), "--out", str(out)]


def script(chosen: Options, setup: Sequence[str], command: Sequence[str]) -> str:
    """A whole batch script. ``exec``, because Slurm sends its warning to the script's own process."""
    lines = [f"#SBATCH {shlex.quote(flag)}" for flag in flags(chosen)]
    return "\n".join(["#!/bin/bash", *lines, *setup, f"exec {shlex.join(command)}", ""])


def supervised(python: str, supervisor: Supervisor) -> list[str]:
    """The supervisor as the last command of a batch script."""
    return [python, "-m", "hpcfl.cluster.supervisor",
            "--out", supervisor.folder, "--record", supervisor.record,
            "--again", shlex.join(supervisor.again), "--warning", f"{supervisor.warning:g}",
            "--max-requeues", str(supervisor.max_requeues), "--", *supervisor.command]


def check_folder(folder: Path) -> None:
    """Refuse a folder that Slurm cannot name: it expands % in log files and reads a batch script
    line by line."""
    text = str(folder)
    if "%" in text or "\\" in text or any(ord(letter) < 32 or ord(letter) == 127 for letter in text):
        raise UserError(f"{text!r}: Slurm cannot write logs to a folder with '%', '\\' or a control "
                        "character in its name; choose another --out")
