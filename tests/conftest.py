"""Fixtures for short federations in this process, and for small fleets."""

import contextlib
import gc
import io
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from playing import Played, call, play
from zygote import share

from hpcfl.clients import Fleet, training
from hpcfl.clients.setup import Setup
from hpcfl.commands.run import run
from hpcfl.communication import exchange
from hpcfl.communication.communicator import OneProcess
from hpcfl.communication.exchange import place
from hpcfl.communication.message import Message, wrap_entries
from hpcfl.data import datasets
from hpcfl.errors import UserError
from hpcfl.experiment import config, sections
from hpcfl.experiment.config import Training
from hpcfl.experiment.plugins import find_own_names
from hpcfl.methods.base import Cohort
from hpcfl.methods.fedavg import ServerModel
from hpcfl.rows import layout
from hpcfl.simulation import signals
from hpcfl.simulation.prepare import prepare
from hpcfl.trained import loading
from hpcfl.trained.run import Run

# Long tests start first: files that mostly wait for Slurm, together with two files of
# one test, and then files that would otherwise run alone at the end.
LONGEST = [
    "test_slurm_interruptions",
    "test_slurm_failures",
    "test_simulated",
    "test_campaign",
    "test_slurm",
    "test_ranks",
    "test_tune",
    "test_pages",
]


def pytest_configure(config: pytest.Config):
    """Make the folder of the zygote, which the workers of pytest-xdist share. The
    zygote ends with this process. The workers find the folder in their environment.
    """
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="zygote-")
        config.add_cleanup(folder.cleanup)
        life = f"{folder.name}/life"
        os.mkfifo(life)
        config.add_cleanup(os.fdopen(os.open(life, os.O_RDWR)).close)
        os.environ["HPCFL_ZYGOTE"] = folder.name


def pytest_collection_modifyitems(items: list[pytest.Item]):
    items.sort(
        key=lambda item: (
            LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST)
        )
    )


def pytest_collection_finish():
    """Exclude imported and collected objects from garbage collection, because they stay
    until the end.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_draws():
    """Seed torch's generator before each test, so that unkeyed draws do not depend on
    earlier tests.
    """
    # Only the CPU's generator: ``torch.manual_seed`` stores the stack for each type of
    # GPU.
    torch.default_generator.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_remembered_signals():
    """Forget stop signals after each test. Otherwise a signal that arrived after the
    end of a run would stop a run of a later test.
    """
    before = {number: signal.getsignal(number) for number in signals.STOP_SIGNALS}
    for number in signals.STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def federate(tmp_path: Path):
    """Return ``federate(method, counts, **sections)``, which runs a federation on the
    tiny data from start to end.
    """

    def play_in_new_folder(*arguments, **sections) -> Played:
        return play(
            tmp_path / f"run{len(list(tmp_path.glob('run*')))}", *arguments, **sections
        )

    return play_in_new_folder


@pytest.fixture
def short_ala(monkeypatch):
    """Let the first adaptive local aggregation end after few epochs."""
    settings = ServerModel.adaptive_aggregation
    monkeypatch.setattr(
        ServerModel,
        "adaptive_aggregation",
        lambda self: replace(settings(self), most_epochs=5),
    )


@pytest.fixture
def need_data():
    """Return ``need_data(section)``, which skips the test if the section's data set is
    missing.
    """

    def read(data: sections.Data):
        try:
            datasets.load(data)
        except UserError as missing:
            pytest.skip(str(missing))

    return read


@pytest.fixture
def tried_both_ways(monkeypatch):
    """Compare each training on features with the same training on samples, up to
    rounding. Return the phases in which both were compared.
    """
    train, tried = training.train, []

    def train_both_ways(task, resources, start):
        trained = train(task, resources, start)
        if training.LocalTraining(task, resources, start).features_once:
            tried.append(task.phase)
            on_samples = train(task, replace(resources, head=None), start)
            for one, other in zip(_numbers(trained), _numbers(on_samples), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
        return trained

    monkeypatch.setattr(training, "train", train_both_ways)
    return tried


def _numbers(trained):
    return [trained.rows, trained.buffers, trained.losses, *trained.changed.values()]


@pytest.fixture
def played(tmp_path: Path):
    """Return ``played(method, counts, **sections)``, which returns a finished run in a
    folder. Its plug-ins from ``tiny`` may be imported.
    """

    def play(method: str | dict[str, Any], *counts, **sections) -> Run:
        table, folder = tiny.table(method, *counts, **sections), tmp_path / "run"
        with contextlib.redirect_stdout(io.StringIO()):
            run(config.parse(table), folder, OneProcess())
        return loading.load_run(folder, find_own_names(table))

    return play


@pytest.fixture
def printed(capsys):
    """Return ``printed()``, which returns the text that was printed since its last
    call.
    """
    return lambda: capsys.readouterr().out


@pytest.fixture
def printed_errors(capsys):
    """Return ``printed_errors()``, which returns the error output since its last
    call.
    """
    return lambda: capsys.readouterr().err


@pytest.fixture
def hpcfl(tmp_path: Path, monkeypatch, capfd):
    """Return ``hpcfl(*arguments)``, which runs a command in an empty folder in this
    process and returns its exit code, its output and its error output.
    """
    monkeypatch.chdir(tmp_path)

    def run_command(*arguments) -> tuple[int, str, str]:
        code = call(*arguments)
        sys.stdout.flush()
        return code, *capfd.readouterr()

    return run_command


@pytest.fixture
def make_fleet():
    """Return ``make_fleet(counts, …)``, which makes the clients of one rank on the tiny
    data, each with an untrained MLP.
    """

    def make(
        counts: list[list[int]] = tiny.COUNTS,
        *,
        lanes: int | str = "auto",
        dtype: torch.dtype = torch.float32,
        hidden: tuple[int, ...] = (6,),
        model: dict[str, Any] | None = None,
        round: int = 1,
        **training,
    ) -> Fleet:
        experiment = tiny.table(
            "fedavg",
            counts,
            data={"dataset": "tiny:blobs"},
            training=training,
            runtime={"lanes": lanes},
        )
        experiment["model"] = model or {"name": "mlp", "hidden": list(hidden)}
        prepared = prepare(config.parse(experiment), OneProcess())
        prepared.resources.kernel.module.to(dtype)
        prepared.resources.samples.x = prepared.resources.samples.x.to(dtype)
        fleet = prepared.make_fleet(np.arange(len(counts)), round, is_scored=True)
        fleet.state = dict(fleet.state)  # of the test's method
        return fleet

    return make


@pytest.fixture
def rows_of():
    """Return ``rows_of(fleet)``, which makes a different random model for each client,
    ``[n, P]``.
    """

    def draw(fleet: Fleet, seed: int = 1) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        dtype = next(fleet.resources.kernel.module.parameters()).dtype
        return (
            torch.randn(
                len(fleet.ids), fleet.layout.width, generator=generator, dtype=dtype
            )
            / 3
        )

    return draw


@pytest.fixture
def cohort():
    """Return ``cohort(counts, layout, ids, …)``, which makes the server's information
    about clients.
    """

    def make(
        counts,
        of: layout.Layout | None = None,
        ids=None,
        round: int = 1,
        uniform: bool = False,
    ) -> Cohort:
        counts = torch.as_tensor(counts).double()
        ids = np.arange(len(counts)) if ids is None else np.asarray(ids)
        setup = Setup(
            of or layout.Layout([]), counts, 3, 3, torch.nn.Identity, Training()
        )
        return Cohort(ids, counts, setup, round, uniform)

    return make


@pytest.fixture
def arrived():
    """Return ``arrived(message)``, which returns the values that rank 0 receives from a
    message of all clients of one rank.
    """

    def gather(message: Message) -> dict[str, torch.Tensor]:
        ids = np.arange(len(next(iter(wrap_entries(message).values())).tensor))
        placed = place([1.0] * len(ids), 1)
        return exchange.gather(
            OneProcess(), placed, ids, message, [exchange.make_header(message)]
        )

    return gather


@pytest.fixture
def torchvision():
    """Import torchvision, which takes a second."""
    from hpcfl.data.vision import torchvision

    return torchvision


@pytest.fixture(scope="session")
def zygote():
    """Return the process from which jobs and commands are forked."""
    return share(Path(os.environ["HPCFL_ZYGOTE"]))


@pytest.fixture
def files(monkeypatch):
    """Return a function that lists the new files in $TMPDIR."""
    made, make = [], tempfile.TemporaryFile
    monkeypatch.setattr(
        tempfile, "TemporaryFile", lambda **how: made.append(how) or make(**how)
    )
    return made


@pytest.fixture
def small_disk(tmp_path):
    """Return a folder on a file system of 1 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder],
            capture_output=True,
        ).returncode
    ):
        pytest.skip("mounting needs root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)
