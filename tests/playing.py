"""A federation on the tiny data in this process, from start to end."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tiny
import torch
from recorded import Recorded

from hpcfl.adapters import make_adapter
from hpcfl.cli import command
from hpcfl.clock.schedule import make_schedule
from hpcfl.commands import experiments
from hpcfl.commands.run import run
from hpcfl.communication.communicator import Communicator, OneProcess, Process
from hpcfl.experiment import config
from hpcfl.simulation.federation import Federation, resume
from hpcfl.simulation.prepare import Prepared, prepare
from hpcfl.simulation.round_schedule import RoundSchedule
from hpcfl.simulation.signals import StopRequest
from hpcfl.storage.checkpoint import Checkpoints
from hpcfl.storage.clients import ClientDigests, digest_run, digest_tensors


@dataclass(frozen=True)
class Played:
    """A finished federation with its state, its digest and its recorded metrics."""

    prepared: Prepared
    schedule: RoundSchedule
    server: dict[str, torch.Tensor]
    clients: dict[str, torch.Tensor]  # name → [M, …]
    digest: str
    values: dict[str, np.ndarray]  # name → [T, …]; the last row is the final scoring

    @property
    def floats(self) -> np.ndarray:
        """Return the floats that each client received and sent, [rounds, 1 + clients]."""
        down, up = self.values["floats_down"], self.values["clients/floats_up"]
        return np.column_stack([down, up])[:-1]

    @property
    def state(self) -> dict[str, torch.Tensor]:
        """Return the state of the server and of the clients on the CPU."""
        return {
            **{f"server {name}": tensor.cpu() for name, tensor in self.server.items()},
            **{f"client {name}": tensor.cpu() for name, tensor in self.clients.items()},
        }


def prepare_on(process: Process, table: dict[str, Any]) -> Prepared:
    """Prepare an experiment with its adapter."""
    experiment = config.parse(table)
    return prepare(experiment, process, make_adapter(experiment.adapter))


def prepare_alone(table: dict[str, Any]) -> Prepared:
    """Prepare an experiment in one process."""
    return prepare_on(OneProcess(), table)


def prepare_tiny(*arguments, **sections) -> Prepared:
    """Prepare an experiment on the tiny data, with the arguments of ``tiny.table``."""
    return prepare_alone(tiny.table(*arguments, **sections))


def run_alone(table: dict[str, Any], folder: Path, *how, **keys) -> bool:
    """Run an experiment in one process; return whether rounds were run."""
    return run(config.parse(table), folder, OneProcess(), *how, **keys)


def call(*arguments) -> int:
    """Run a command of hpcfl in this process and return its exit code."""
    return command([str(argument) for argument in arguments], OneProcess())


def set_keys(*settings: str) -> list[str]:
    """Return the options of a command that set keys: ``--set key=value`` for each."""
    return [word for setting in settings for word in ("--set", setting)]


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the content of all files below a folder by their path in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def stamp(folder: Path) -> dict[str, object]:
    """Return names, types, contents and times of all files in a folder."""
    return {str(path.relative_to(folder)): _stamp(path) for path in folder.rglob("*")}


def _stamp(path: Path) -> object:
    about = path.lstat()
    content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return about.st_mode, about.st_mtime_ns if content else 0, content


def read_part(
    prepared: Prepared, client: int, part: str = "train", round: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a client's samples of one part in a round: raw images and labels."""
    samples = prepared.resources.samples.select_round(round)
    positions = torch.from_numpy(samples.parts[part][client])
    image = positions if samples._image is None else samples._image[positions]
    return samples.x[image], samples.y[positions]


def play_once(
    run_into: Callable[..., Any], make_folder: Callable[[str], Path]
) -> Callable[..., Path]:
    """Return a function with the arguments of ``run_into`` that returns the folder of
    an undisturbed run. The run is played once, and its folder must not be changed.
    """

    folders: dict[str, Path] = {}

    def folder(*arguments) -> Path:
        key = repr(arguments)
        if key not in folders:
            folders[key] = make_folder("calm") / "run"
            run_into(folders[key], *arguments)
        return folders[key]

    return folder


def play(folder: Path, method: str | dict[str, Any], *arguments, **sections) -> Played:
    """Run a federation in a new folder, with the arguments of ``tiny.table``."""
    return play_on(OneProcess(), folder, tiny.table(method, *arguments, **sections))


def run_table(table, folder):
    """Run the experiment of a table in this process, as ``hpcfl run`` does."""
    alone = OneProcess()
    plan = experiments.agree_on_plan(
        lambda: experiments.make_plan(table, "", folder), False, alone
    )
    experiments.run_plan(plan, False, alone)


def play_on(communicator: Communicator, folder: Path, table: dict[str, Any]) -> Played:
    """Run an experiment to its end, from the newest checkpoint if the folder has one,
    and return the result, which is complete on rank 0. Collective.
    """
    prepared = prepare_on(communicator, table)
    schedule = make_schedule(prepared, communicator)
    keep = prepared.config.checkpoint.keep
    checkpoints = Checkpoints(folder / "checkpoints", communicator, keep)
    restored = checkpoints.restore(prepared.store)
    writer = Recorded(folder, {}, {}) if communicator.is_server else None
    federation = Federation(
        communicator=communicator,
        prepared=prepared,
        server=resume(prepared, schedule, communicator, restored),
        schedule=schedule,
        checkpoints=checkpoints,
        writer=writer,
        meta={},
    )
    federation.run(restored.round if restored else 0, StopRequest(lambda: None))
    store = prepared.store
    parts = communicator.allgather(_list_digests(store.snapshot().digests))
    clients = [
        ClientDigests(np.array(ids, np.int64), template, dict(written))
        for ids, template, written in parts
    ]
    return Played(
        prepared,
        schedule,
        federation.server,
        store.get(store.ids),
        digest_run(digest_tensors(federation.server), clients),
        writer.values() if writer else {},
    )


def _list_digests(digests: ClientDigests) -> list[Any]:
    """Return the digests of a rank's clients in JSON types."""
    return [digests.ids.tolist(), digests.template, list(digests.written.items())]
