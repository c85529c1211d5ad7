"""Runs on the tiny data, played into a folder and read again."""

import contextlib
import io
from typing import Any

import pytest
import tiny

from hpcfl.commands.run import run
from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config
from hpcfl.report import summary
from hpcfl.report.summary import Run
from hpcfl.trained.experiment import named


@pytest.fixture
def played(tmp_path):
    """``played(method, **sections)``: a finished run, whose plugins from ``tiny`` may be imported."""
    def play(method: str | dict[str, Any], **sections: Any) -> Run:
        table, folder = tiny.table(method, **sections), tmp_path / "run"
        with contextlib.redirect_stdout(io.StringIO()):
            run(config.parse(table), folder, OneProcess())
        return summary.load(folder, named(table))
    return play
