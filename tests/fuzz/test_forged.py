"""Folders with complete files and correct checksums, and impossible content: every
reading command answers soon, in one line if it refuses, and without warnings.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import checked_calls
import made_up
import numpy as np
import pytest
from recorded import sparse

from hpcfl.storage import results
from hpcfl.storage.manifest import Manifest, Shard
from hpcfl.storage.results import Results

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
NONE = "0" * 64  # a digest of nothing
LOOKS = (
    ["show"],
    ["show", "--json"],
    ["status"],
    ["table"],
    ["table", "--against", "fedavg", "--test", "client-seed-pairs"],
)
PAGE = (["report", "--out", "report.html"],)
PLOTS = (
    ["plot", "--out", "curves.png"],
    ["plot", "--x", "seconds", "--out", "seconds.png"],
    ["plot", "--x", "floats", "--out", "floats.png"],
    ["plot", "--kind", "clients", "--out", "clients.png"],
    ["plot", "--kind", "partition", "--out", "partition.png"],
)


@pytest.fixture
def look(tmp_path, monkeypatch):
    """Return ``look(folder)``, which runs every reading command on it and checks each
    answer. With ``plots`` it also draws pictures of the page's SVG figures; without
    ``page`` neither.
    """
    monkeypatch.chdir(tmp_path)

    def call_commands(folder: Path, plots: bool = False, page: bool = True):
        commands = (*LOOKS, *(PAGE if page else ()), *(PLOTS if plots else ()))
        for command, *options in commands:
            checked_calls.answer(command, folder, *options)

    return call_commands


def forged(path: Path, change: Callable[[Results], Results]) -> Path:
    """Write a finished run's folder with other results."""
    folder = made_up.folder(path, rounds=4, clients=5)
    file = folder / results.MERGED
    file.write_bytes(results.encode(change(results.load(file))))
    return folder


def test_a_round_of_any_number(tmp_path, look):
    rounds = np.array([1, 2, 3, 4, 2**62])
    look(forged(tmp_path / "run", lambda old: replace(old, rounds=rounds)))


def test_rounds_with_many_gaps(tmp_path, look):
    def change(old: Results) -> Results:
        rounds = np.arange(1, 40_001, 2)
        values = {
            name: np.resize(of, (20_000, *of.shape[1:]))
            for name, of in old.values.items()
        }
        return replace(old, rounds=rounds, values=sparse(values))

    look(forged(tmp_path / "run", change))


def test_a_checkpoint_of_a_round_of_any_number(tmp_path, look):
    folder = made_up.folder(tmp_path / "run", rounds=4, clients=5)
    checkpoints = folder / "checkpoints"
    checkpoints.mkdir()
    server = Shard(f"server-{NONE}.h5", NONE, 5, None, [NONE])
    (checkpoints / server.name).write_bytes(b"state")
    Manifest(99_999_999, NONE, {}, [server]).write(checkpoints)
    look(folder)


@pytest.mark.parametrize(
    "names",
    [
        # costs of a run; each has an axis or a column
        ["seconds/round", "seconds/score", "floats_down", "clients/floats_up"],
        ["clients/pre/correct"],
        ["clients/pre/total"],
        ["pre/weighted"],
        ["pre/std", "pre/clients"],
    ],
    ids=", ".join,
)
def test_numbers_that_no_run_has(tmp_path, look, names):
    def change(old: Results) -> Results:
        changed = dict(old.values)
        for name in names:
            some = np.array(old.values[name], float)
            some[0] = -1e308
            some[1] = np.inf
            some[2:] = 1e308
            changed[name] = some
        return replace(old, values=sparse(changed))

    look(forged(tmp_path / "run", change), plots="clients/pre/correct" in names)


@pytest.mark.parametrize(
    "name", ["clients/pre/total", "test_counts", "train_counts", "seconds/round"]
)
def test_numbers_that_are_missing(tmp_path, look, name):
    def change(old: Results) -> Results:
        static = {one: array for one, array in old.static.items() if one != name}
        values = {one: array for one, array in old.values.items() if one != name}
        return replace(old, static=static, values=sparse(values))

    look(forged(tmp_path / "run", change))


@pytest.mark.parametrize(
    ("text", "plots"),
    # In the other figure the heatmap is a picture, and the rest is SVG.
    [(r"$\frac{ 名前 \u202e", True), (r"\$a$ {\bf %_^#&~ $" + "m" * 200, False)],
)
def test_names_that_are_formulas_or_in_other_scripts(tmp_path, look, text, plots):
    look(made_up.spoilt(tmp_path, text), plots)


def test_a_name_of_any_length(tmp_path, look):
    folder = made_up.folder(tmp_path / "run", rounds=4, clients=5)
    described = json.loads((folder / "run.json").read_text())
    described["config"]["method"]["name"] = "m" * 200_000
    (folder / "run.json").write_text(json.dumps(described))
    look(folder)


ODD = ["a\ud800b", "a\0b", "x" * 300, "é" * 200, "..", "a/b", ""]


@pytest.mark.parametrize(
    ("names", "page"),
    # The page draws the same run each time.
    [([name], False) for name in ODD[:2]] + [(ODD, True), (range(60_000), False)],
)
def test_cells_of_any_name(tmp_path, look, names, page):
    made_up.folder(tmp_path / "sweep" / "begun", rounds=4, clients=5)
    cells = [str(name) for name in names]
    (tmp_path / "sweep" / "sweep.json").write_text(json.dumps(cells))
    look(tmp_path / "sweep", page=page)
