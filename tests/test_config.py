"""Bad input: one line that names file, key, value and what is allowed; exit 2; nothing written."""

import subprocess
import sys

import pytest
import tiny

from hpcfl import config
from hpcfl.cli import command
from hpcfl.communicator import Communicator
from hpcfl.errors import UserError

GOOD = '[method]\nname = "cwfedavg"\n[training]\nlr = 0.1\n[partition]\nclients = 5\nbeta = 0.5\n'

# --set → what the line must say
WRONG = {
    "trainig.lr=1": "unknown section 'trainig'; did you mean 'training'? allowed: name, seed,",
    "roundz=3": "unknown key 'roundz'; did you mean 'rounds'?",
    "training.epoch=3": "unknown key 'training.epoch'; did you mean 'epochs'? allowed: epochs, batch_size,",
    "training=3": "training = 3: must be a table, [training]",
    "method.name=fedavgg": "method.name = 'fedavgg' is unknown; did you mean 'fedavg'? allowed: ",
    "method.name=3": "method.name = 3: must be a string; allowed: ",
    "method.wdrr=1.0": "unknown key 'method.wdrr'; did you mean 'wdr'? allowed: ",
    "method.layers=outptu": "method.layers = 'outptu': must be 'all' or 'output' or an integer (which layers are class-wise",
    "method.layers=0": "method.layers = 0: must be 'all' or 'output' or greater than 0",
    "method.layers=9": "layers = 9: this model has 1 to 2 upper layers",
    "method.wdr=-1.0": "method.wdr = -1.0: must be greater than or equal to 0",
    "method.distribution=wd": "method.distribution = 'wd': must be 'true', 'norm' or 'wdr'",
    "method.name=nowhere:Method": "method.name = 'nowhere:Method': cannot import 'nowhere'",
    "method.name=tiny:Fedavg": "method.name = 'tiny:Fedavg': 'tiny' has no 'Fedavg'; did you mean 'FedAvg'?",
    "data.dataset=digit": "data.dataset = 'digit' is unknown; did you mean 'digits'? allowed: ",
    "model.name=mpl": "model.name = 'mpl' is unknown; did you mean 'mlp'? allowed: ",
    "model.hidde=[8]": "unknown key 'model.hidde'; did you mean 'hidden'? allowed: name,",
    "model.hidden=[8, 0]": "model.hidden.1 = 0: must be greater than 0",
    "model.hidden=8": "model.hidden = 8: must be a",
    "partition.scheme=dirichlett": "partition.scheme = 'dirichlett' is unknown; did you mean 'dirichlet'?",
    "partition.clients=-2": "partition.clients = -2: must be greater than 0 (number of clients in total)",
    "partition.clients=2000": "partition.clients = 2000: there are only 1797 samples",
    "training.lr=nan": "training.lr = nan: must be a finite number (local learning rate)",
    "training.lr=inf": "training.lr = inf: must be a finite number",
    "training.lr='0.1'": "training.lr = '0.1': must be a number",
    "training.epochs=0": "training.epochs = 0: must be greater than 0 (local epochs a round)",
    "training.batch_size=2.5": "training.batch_size = 2.5: must be an integer",
    "training.optimizer=rmsprop": "training.optimizer = 'rmsprop': must be 'sgd' or 'adam'",
    "rounds=0": "rounds = 0: must be greater than 0 (federated rounds)",
    "rounds=true": "rounds = True: must be an integer",
    "seed=-1": "seed = -1: must be greater than or equal to 0",
    "participation.fraction=0.0": "participation.fraction = 0.0: must be greater than 0",
    "evaluation.clients=some": "evaluation.clients = 'some': must be 'all' or 'cohort'",
    "runtime.lanes=0": "runtime.lanes = 0: must be greater than 0 or 'auto' (clients trained side by side in one step)",
    "runtime.device=gpu": "runtime.device = 'gpu': must be of the form",
    "name=a/b": "name = 'a/b': must be of the form",
    "rounds": "--set rounds: write it as section.key=value",
    "rounds.x=1": "--set rounds.x: 'rounds' is a value, not a section",
}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """``run(*arguments)`` of GOOD in an empty folder: the exit code, what was said, and what was left there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.toml").write_text("rounds = 2\n" + GOOD)

    def play(*arguments, file="good.toml"):
        code = command(["run", str(file), *arguments], Communicator())
        return code, capsys.readouterr().err, {path.name for path in tmp_path.iterdir()} - {"good.toml"}
    return play


@pytest.mark.parametrize("override", WRONG)
def test_bad_input_is_one_line_and_leaves_nothing(run, override):
    code, said, left = run("--set", override)
    assert code == 2
    assert said.startswith("hpcfl: ") and said.count("\n") == 1
    assert WRONG[override] in said
    assert not left


def test_the_file_is_named(run):
    assert run("--set", "trainig.lr=1")[1].startswith("hpcfl: good.toml: unknown section")


@pytest.mark.parametrize(("content", "message"), [
    (None, "no such experiment file"), ("rounds = ", "not valid TOML"), (b"\xff\xfe", "cannot be read"),
    ("rounds = 3", "'method.name' is missing; allowed: "), ("method = 'fedavg'", "method = 'fedavg': must be a table, [method]"),
    ("[method]\nlayers = 1", "'method.name' is missing; allowed: ")])
def test_bad_files(run, tmp_path, content, message):
    if content is not None:
        (tmp_path / "bad.toml").write_bytes(content if isinstance(content, bytes) else content.encode())
    code, said, left = run(file="bad.toml")
    assert code == 2 and f"bad.toml: {message}" in said and said.count("\n") == 1 and left <= {"bad.toml"}


def test_a_folder_as_experiment_file(run, tmp_path):
    assert run(file=tmp_path)[:2] == (2, f"hpcfl: {tmp_path}: cannot be read ([Errno 21] Is a directory: '{tmp_path}')\n")


@pytest.mark.parametrize(("name", "value"), [("PMI_SIZE", "4"), ("OMPI_COMM_WORLD_SIZE", "4"), ("SLURM_NTASKS", "4")])
def test_a_world_that_is_not_the_launchers(run, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_PROCID", "0")
    code, said, left = run()
    assert code == 2 and "the launcher started 4 ranks but MPI sees a world of 1" in said and not left


def test_slurms_tasks_outside_a_step_do_not_count(run, monkeypatch):
    """A batch script that runs the command without srun is one process, whatever the job was given."""
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    assert run("--set", "rounds=1")[0] == 0


def test_the_real_command_says_the_same(tmp_path):
    (tmp_path / "f.toml").write_text('[method]\nname = "fedavgg"\n')
    done = subprocess.run([sys.executable, "-m", "hpcfl", "run", "f.toml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("hpcfl: f.toml: method.name = 'fedavgg' is unknown; did you mean 'fedavg'?")


def test_overrides_keep_their_types():
    table = {}
    for override in ("a.b.c=1", "a.x=0.5", "word=fedavg", "list=[1, 2]", "yes=true", 'text="1"'):
        config.assign(table, *config._split(override))
    assert table == {"a": {"b": {"c": 1}, "x": 0.5}, "word": "fedavg", "list": [1, 2], "yes": True, "text": "1"}


def test_a_resolved_configuration_is_an_experiment_again():
    first = config.parse(tiny.table({"name": "cwfedavg", "layers": 2, "wdr": 3.0}, model={"name": "mlp", "hidden": [6, 5]}))
    table = first.resolved()
    assert table["model"]["hidden"] == [6, 5] and table["method"]["layers"] == 2
    without = {section: {key: value for key, value in keys.items() if value is not None} if isinstance(keys, dict) else keys
               for section, keys in table.items() if keys is not None}
    again = config.parse(without)
    assert again.resolved() == table and again.fingerprint() == first.fingerprint()


@pytest.mark.parametrize(("sections", "same"), [
    ({"rounds": 9}, True), ({"name": "other"}, True), ({"runtime": {"lanes": 2}}, True), ({"checkpoint": {"every": 1}}, True),
    ({"data": {"root": "/elsewhere"}}, True), ({"seed": 4}, False), ({"training": {"lr": 0.2}}, False),
    ({"partition": {"seed": 2}}, False), ({"model": {"hidden": [7]}}, False), ({"participation": {"fraction": 0.5}}, False)])
def test_what_makes_two_runs_the_same(sections, same):
    base, other = config.parse(tiny.table("fedavg")), config.parse(tiny.table("fedavg", **sections))
    assert (base.fingerprint() == other.fingerprint()) is same


def test_a_configuration_is_frozen():
    parsed = config.parse(tiny.table("fedavg"))
    with pytest.raises(ValueError, match="frozen"):
        parsed.rounds = 5
    with pytest.raises(UserError, match="must be a table"):
        config.parse({"method": {"name": "fedavg"}, "model": 3})
