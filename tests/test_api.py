import os
import signal
import subprocess
import sys
import threading

import pytest
import torch
from refusals import expect_refusal

import hpcfl
from hpcfl.errors import Interrupted, RankFailure, RunFailure, UserError
from hpcfl.experiment import config

TABLE = {
    "name": "small",
    "rounds": 2,
    "partition": {"scheme": "iid", "clients": 4},
    "model": {"name": "mlp", "hidden": [8]},
    "method": {"name": "fedavg"},
    "training": {"batch_size": 200},
}


def test_importing_the_package_imports_no_other_one():
    """Importing the package imports neither another package nor another of its modules;
    a module is imported when it is called.
    """
    code = "import sys; before = set(sys.modules); import hpcfl; print(*set(sys.modules) - before)"
    printed = subprocess.check_output([sys.executable, "-c", code], text=True)
    new = {name.partition(".")[0] for name in printed.split()}
    assert new - sys.stdlib_module_names == {"hpcfl"}
    assert [name for name in printed.split() if name.startswith("hpcfl.")] == []


def test_an_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'walk'"):
        hpcfl.walk  # noqa: B018


@pytest.mark.slow
@pytest.mark.parametrize("block", ["no_grad", "inference_mode"])
def test_a_run_inside_a_block_without_gradients_is_the_same(tmp_path, block):
    with getattr(torch, block)():
        inside = hpcfl.run(TABLE, out=tmp_path / "inside")
    outside = hpcfl.run(TABLE, out=tmp_path / "outside")
    assert inside.summary.digest == outside.summary.digest


@pytest.mark.slow
def test_a_table_a_file_and_a_config_are_the_same_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = hpcfl.run(TABLE)
    assert first.folder.as_posix() == "runs/small" and first.summary.finished
    assert len(first.accuracy("pre")) == 3

    (tmp_path / "small.toml").write_text(
        'name = "small"\nrounds = 2\n'
        'method.name = "fedavg"\nmodel.hidden = [8]\n'
        "training.batch_size = 200\n"
        'partition = { scheme = "iid", clients = 4 }'
    )
    from_file = hpcfl.run(tmp_path / "small.toml", out="elsewhere")
    assert from_file.summary.digest == first.summary.digest
    assert hpcfl.run(config.parse(TABLE)).summary.digest == first.summary.digest
    assert hpcfl.load("runs/small").summary == first.summary


@pytest.mark.slow
def test_a_callback_receives_every_recorded_round(tmp_path):
    calls = []

    def on_round(name, round, values):
        calls.append((name, round, values["pre/weighted"]))

    out, sweep = tmp_path / "seeds", {**TABLE, "sweep": {"seed": [0, 1]}}
    found = hpcfl.run(sweep, out=out, on_round=on_round)
    assert list(found) == ["seed=0", "seed=1"]
    assert [entry[:2] for entry in calls] == [
        (f"small-seed={seed}", round) for seed in (0, 1) for round in (1, 2, 3)
    ]
    assert [entry[2] for entry in calls[3:]] == found["seed=1"].accuracy("pre").tolist()
    assert hpcfl.run(TABLE, out=out / "seed=0", on_round=on_round)
    assert len(calls) == 6


@pytest.mark.slow
def test_the_models_of_every_cell_of_a_sweep_can_be_loaded(tmp_path):
    sweep = {"model.name": ["mlp", "tiny:zero_head"]}
    table = {**TABLE, "model": {}, "sweep": sweep}
    found = hpcfl.run(table, out=tmp_path, progress=False)
    assert [run.model(client=0).head.out_features for run in found.values()] == [10, 10]


@pytest.mark.slow
def test_an_error_in_a_callback_ends_the_run_and_the_next_command_continues(tmp_path):
    def on_round(name, round, values):
        raise ZeroDivisionError("a bug in a callback")

    line = r"^round 1, report: .*test_api\.py:\d+: on_round raised ZeroDivisionError: a bug in a callback$"
    with pytest.raises(RankFailure, match=line) as error:
        hpcfl.run(TABLE, out=tmp_path / "run", on_round=on_round)
    cause = error.value.__cause__
    assert isinstance(cause, UserError) and isinstance(
        cause.__cause__, ZeroDivisionError
    )
    assert hpcfl.run(TABLE, out=tmp_path / "run").summary.finished


@pytest.mark.slow
def test_fewer_rounds_than_a_later_command_has_played_are_noted(tmp_path, printed):
    for rounds in (2, 3):
        hpcfl.run({**TABLE, "rounds": rounds}, out=tmp_path / "run")
        # a later command that has finished no further round
        described = tmp_path / "run" / "run.json"
        text = described.read_text()
        described.write_text(text.replace(f'"rounds": {rounds}', '"rounds": 9'))
        hpcfl.run({**TABLE, "rounds": rounds}, out=tmp_path / "run")
    assert "of a later command" not in printed()
    assert hpcfl.run(TABLE, out=tmp_path / "run").summary.rounds == 3
    assert " 3 rounds of a later command; --fresh " in printed()
    (tmp_path / "run" / "run.json").write_text("damaged")
    assert hpcfl.run(TABLE, out=tmp_path / "run").summary.rounds == 3


@pytest.mark.slow
def test_an_own_file_that_has_changed_since_a_complete_run_is_noted(
    tmp_path, monkeypatch, printed
):
    file = tmp_path / "own_of_complete.py"
    file.write_text("from hpcfl.methods.fedavg import FedAvg as Own\n")
    monkeypatch.syspath_prepend(tmp_path)
    table = {**TABLE, "method": {"name": "own_of_complete:Own"}}
    for changed in (False, False, True):
        if changed:
            file.write_text(f"{file.read_text()}# another version\n")
            del sys.modules["own_of_complete"]  # as in a new process
        printed()
        hpcfl.run(table, out=tmp_path / "run")
        assert ("note: own_of_complete.py " in printed()) == changed


@pytest.mark.slow
def test_a_run_in_a_thread_is_the_same_run(tmp_path):
    found = []

    def play():
        found.append(hpcfl.run(TABLE, out=tmp_path / "thread", progress=False))

    thread = threading.Thread(target=play)
    thread.start()
    thread.join()
    assert not sys.stdout.closed
    alone = hpcfl.run(TABLE, out=tmp_path / "alone")
    assert found[0].summary.digest == alone.summary.digest


@pytest.mark.slow
def test_a_second_run_in_another_thread_is_refused(tmp_path):
    errors = []

    def play():
        try:
            hpcfl.run(TABLE, out=tmp_path / "second")
        except hpcfl.UserError as error:
            errors.append(str(error))

    def on_round(name, round, values):
        thread = threading.Thread(target=play)
        thread.start()
        thread.join()

    hpcfl.run(TABLE, out=tmp_path / "run", on_round=on_round, progress=False)
    assert len(errors) == 3 and "another thread" in errors[0]
    assert not (tmp_path / "second").exists()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"on_round": 5}, "on_round = 5 is not callable"),
        ({"out": 5}, "out = 5 is "),
        ({"out": "a\0b"}, r"b'a.x00b': .*--out"),
        ({"config": 5}, "config = 5 is "),
        ({"config": {**TABLE, 5: 1}}, "the key 5 is not a string"),
        ({"config": {**TABLE, "data": {5: 1}}}, r"the key 5 in \[data\]"),
    ],
)
def test_mistakes_in_python_are_refused_in_one_line(
    tmp_path, monkeypatch, arguments, expected
):
    monkeypatch.chdir(tmp_path)
    with expect_refusal(expected):
        hpcfl.run(**{"config": TABLE, **arguments})
    assert not list(tmp_path.iterdir())


def test_errors_have_names_at_the_top_level():
    assert hpcfl.UserError is UserError and hpcfl.Interrupted is Interrupted
    assert hpcfl.RunFailure is RunFailure


@pytest.mark.slow
def test_without_progress_only_the_callback_prints(tmp_path, capsys):
    def on_round(name, round, values):
        print(f"heard {round}")

    out = tmp_path / "run"
    assert hpcfl.run(TABLE, out=out, on_round=on_round, progress=False).summary.finished
    assert capsys.readouterr() == ("heard 1\nheard 2\nheard 3\n", "")
    hpcfl.run(TABLE, out=out, progress=False)  # complete, so no message is printed
    assert capsys.readouterr() == ("", "") and not list(out.glob("*.png"))


@pytest.mark.slow
def test_an_interrupt_without_progress_ends_the_run_and_restores_the_output(
    tmp_path, capsys
):
    """The interrupt is a SIGINT, as by the stop button of a notebook."""

    def on_round(name, round, values):
        if round == 1:
            os.kill(os.getpid(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    threads = set(threading.enumerate())
    with pytest.raises(Interrupted, match=r"stopped after round \d of 2"):
        hpcfl.run(TABLE, out=tmp_path / "run", on_round=on_round, progress=False)
    assert signal.getsignal(signal.SIGINT) is handler
    for thread in set(threading.enumerate()) - threads:
        thread.join(10)
        assert not thread.is_alive()
    print("back")
    assert capsys.readouterr() == ("back\n", "")
    assert hpcfl.run(TABLE, out=tmp_path / "run", progress=False).summary.finished
