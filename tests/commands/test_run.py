"""A run whose folder is changed by others fails soon, with one line, and creates
nothing in its place.
"""

import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import tiny
from playing import run_alone

from hpcfl.communication.communicator import OneProcess
from hpcfl.errors import RankFailure, RunFailure
from hpcfl.report import sweep_table
from hpcfl.simulation import signals
from hpcfl.storage import results
from hpcfl.trained import loading


def rename(folder: Path):
    folder.rename(folder.with_name("moved"))


def replace(folder: Path):
    rename(folder)
    folder.mkdir()


def lose_rounds(folder: Path):
    shutil.rmtree(folder / "rounds")


def play(folder: Path, every: int, strike=None):
    def on_round(name: str, round: int, values: dict):
        if strike and round == 2:
            strike(folder)

    table = tiny.table("ditto", rounds=6, checkpoint={"every": every})
    run_alone(table, folder, on_round=on_round)


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 100])
@pytest.mark.parametrize("strike", [rename, replace, shutil.rmtree, lose_rounds])
def test_a_folder_that_vanishes_is_a_failure(tmp_path, capsys, strike, every):
    folder = tmp_path / "run"
    with pytest.raises(RankFailure) as caught:
        play(folder, every, strike)
    assert isinstance(caught.value.__cause__, RunFailure)
    assert str(caught.value).endswith(": No such file or directory")
    if strike is replace:
        assert list(folder.iterdir()) == []
    else:
        assert folder.exists() == (strike is lose_rounds)


@pytest.mark.slow
@pytest.mark.parametrize("strike", [rename, lose_rounds])
def test_a_run_continues_from_the_remains_of_its_folder(tmp_path, monkeypatch, strike):
    """The metrics equal those of an undisturbed run, with each round once."""
    monkeypatch.setattr("hpcfl.commands.run.PUBLISH_EVERY", 0.0)
    with pytest.raises(RankFailure):
        play(tmp_path / "run", 3, strike)
    left = tmp_path / ("moved" if strike is rename else "run")
    play(left, 3)
    play(tmp_path / "undisturbed", 3)
    found, expected = results.read(left), results.read(tmp_path / "undisturbed")
    assert found.rounds.tolist() == expected.rounds.tolist()
    one, other = (
        loading.load_run(place).summary for place in (left, tmp_path / "undisturbed")
    )
    assert (one.digest, one.best) == (other.digest, other.best)


def test_clients_that_are_left_out_are_named_once_and_in_tables(tmp_path, printed):
    table = tiny.table(
        {"name": "tiny:Diverges", "client": 1}, training={"on_divergence": "exclude"}
    )
    run_alone(table, tmp_path)
    assert printed().count("client 1 diverged") == 1
    sweep_table.show([tmp_path])
    assert "1 of 5 clients in rounds 2 to 3: 1" in printed()


def test_a_file_of_the_user_that_changes_between_rounds_is_noted(
    tmp_path, monkeypatch, printed
):
    """Otherwise a result of two versions would look like a result of the last version."""
    monkeypatch.chdir(tmp_path)
    file = Path("edited_method.py")
    file.write_text("from hpcfl.methods.fedavg import FedAvg as Edited\n")
    x, y = np.random.default_rng(0).random((120, 4)), np.arange(120) % 3
    np.savez("own.npz", x=x, y=y)
    table = tiny.table("edited_method:Edited", rounds=1)
    table["data"] = {"dataset": "npz", "file": "own.npz"}
    table["partition"] = {"scheme": "iid", "clients": 3}
    run_alone(table, tmp_path / "run")
    run_alone(table | {"rounds": 2}, tmp_path / "run")
    assert "has changed" not in printed()
    file.write_text(file.read_text() + "# another version\n")
    np.savez("own.npz", x=x + 1, y=y)
    run_alone(table | {"rounds": 3}, tmp_path / "run")
    output = printed()
    for name in (file.name, "data.dataset = 'npz'"):
        assert f"{name} has changed" in output


@pytest.mark.parametrize("fresh", [False, True])
def test_a_second_signal_is_reported_as_the_cause(
    tmp_path, monkeypatch, printed_errors, fresh
):
    def interrupt(name, round, values):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)

    def leave(self, code):
        raise KeyboardInterrupt

    monkeypatch.setattr(signals, "ECHO", 0.0)
    monkeypatch.setattr(OneProcess, "abort", leave)
    with pytest.raises(KeyboardInterrupt):
        run_alone(tiny.table("fedavg"), tmp_path / "run", fresh, on_round=interrupt)
    errors = printed_errors()
    assert "second signal" in errors and ("--fresh" in errors) == fresh
