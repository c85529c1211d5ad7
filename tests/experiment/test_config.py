"""Bad input: one line that names file, key, value and the allowed values; exit code 2;
no file written.
"""

import os

import pytest
import tiny
from every_method import NAMES, kind
from playing import read_files, set_keys
from refusals import expect_refusal

from hpcfl.experiment import config, experiment_file
from hpcfl.experiment.sweep import expand

GOOD = '[method]\nname = "cwfedavg"\n[training]\nlr = 0.1\n[partition]\nclients = 5\nbeta = 0.5\n'

# --set → required content of the line
WRONG = {
    "trainig.lr=1": "unknown key 'trainig'; did you mean 'training'? allowed: name,",
    "sweeep.seed=[0]": "unknown key 'sweeep'; did you mean 'sweep'? allowed: name,",
    "tunes.trials=4": "unknown key 'tunes'; did you mean 'tune'? allowed: name,",
    "roundz=3": "unknown key 'roundz'; did you mean 'rounds'?",
    "training.epoch=3": "unknown key 'training.epoch'; did you mean 'epochs'?",
    "training=3": "training = 3: ",
    "method.name=fedavgg": "method.name = 'fedavgg' is unknown; did you mean",
    "method.name=3": "method.name = 3: ",
    "method.wdrr=1.0": "unknown key 'method.wdrr'; did you mean 'wdr'? allowed: ",
    "method.layers=outptu": "method.layers = 'outptu': must be 'all' or 'output' or",
    "method.layers=0": "method.layers = 0: must be 'all' or 'output' or must be",
    "method.layers=9": "method.layers = 9: ",
    "method.wdr=-1.0": "method.wdr = -1.0: ",
    "method.distribution=wd": "method.distribution = 'wd': must be 'true', 'norm' or",
    "method.name=nowhere:Method": "method.name = 'nowhere:Method': ",
    "method.name=tiny:Fedavg": "method.name = 'tiny:Fedavg': 'tiny' has no 'Fedavg';",
    "data.dataset=digit": "data.dataset = 'digit' is unknown; did you mean 'digits'?",
    "model.name=mpl": "model.name = 'mpl' is unknown; did you mean 'mlp'? allowed: ",
    "model.hidde=[8]": "unknown key 'model.hidde'; did you mean 'hidden'? allowed:",
    "model.hidden=[8, 0]": "model.hidden.1 = 0: ",
    "model.options.hidden=[8]": "unknown key 'model.options'; allowed: ",
    "data.options.split='all'": "unknown key 'data.options'; allowed: ",
    "training.milestones=[3]": "training.milestones = [3]: ",
    "training.schedule=step": "training.milestones = []: ",
    "training={schedule='step', milestones=[3, 3]}": "training.milestones = [3, 3]: ",
    "participation.dropout=1.0": "participation.dropout = 1.0: ",
    "participation.stragglers=0.5": "participation.stragglers = 0.5: ",
    "model.hidden=8": "model.hidden = 8: ",
    "partition.scheme=dirichlett": "partition.scheme = 'dirichlett' is unknown; did",
    "partition.clients=-2": "partition.clients = -2: ",
    "partition.clients=2000": "partition.clients = 2000: ",
    "training.lr=nan": "training.lr = nan: ",
    "training.lr=inf": "training.lr = inf: ",
    "training.lr='0.1'": "training.lr = '0.1': ",
    "training.epochs=0": "training.epochs = 0: ",
    "training.batch_size=2.5": "training.batch_size = 2.5: ",
    "training.optimizer=rmsprop": "training.optimizer = 'rmsprop': must be 'sgd',",
    "rounds=0": "rounds = 0: ",
    "rounds=true": "rounds = True: ",
    "seed=-1": "seed = -1: ",
    "participation.fraction=0.0": "participation.fraction = 0.0: ",
    "time.hours=1e-12": "time.hours = 1e-12: ",
    "time.factors=[1e300, 2, 3]": "time.factors.0 = 1e+300: ",
    "time.factors=[1, 0, 3]": "time.factors.1 = 0: ",
    "evaluation.clients=some": "evaluation.clients = 'some': must be 'all' or 'cohort'",
    "runtime.lanes=0": "runtime.lanes = 0: must be greater than 0 or must be 'auto'",
    "runtime.device=gpu": "runtime.device = 'gpu': ",
    "name=a/b": "name = 'a/b': ",
    "name=..": "name = '..': ",
    "name=.hidden": "name = '.hidden': ",
    "name=-rf": "name = '-rf': ",
    f"name={'ä' * 101}": " 200 bytes",
    f"rounds={'9' * 5000}": "rounds = '9999",
    f"rounds=0x{'9' * 5000}": "--set rounds: ",
    "rounds=10000001": "rounds = 10000001: ",
    "seed=9223372036854775808": "seed = 9223372036854775808: ",
    "partition.clients=100000000": "partition.clients = 100000000: ",
    "training.epochs=100000000": "training.epochs = 100000000: ",
    "training.batch_size=100000000": "training.batch_size = 100000000: ",
    "checkpoint.every=100000000": "checkpoint.every = 100000000: ",
    "runtime.threads=100000000": "runtime.threads = 100000000: ",
    "runtime.lanes=100000000": "runtime.lanes = 100000000: ",
    "runtime.memory=1e30": "runtime.memory = 1e+30: ",
    "runtime.hang_after=1e30": "runtime.hang_after = 1e+30: ",
    "model.hidden=[100000000000]": "model.hidden = [100000000000]: ",
    "model.hidden=[1000000, 1000000]": "model.hidden: 2 layers with 1,000,076,000,010",
    f"model.hidden={[1] * 1001}": "model.hidden: 1,001 layers with 2,085 parameters",
    f"model.hidden={'[' * 50}{']' * 50}": "--set model.hidden: ",
    f"model.hidden={'[' * 5000}": "model.hidden = '[[[",
    f"{'x.' * 5000}y=1": "x.y: ",
    "evaluation.metric=wieghted": "evaluation.metric = 'wieghted' is unknown; did you",
    "evaluation.metric=macro_f1/best": "evaluation.metric = 'macro_f1/best' is",
    "evaluation.metric=std": "evaluation.metric = 'std' is unknown; allowed:",
    "evaluation.metric=os:system": "evaluation.metric = 'os:system' is of type",
    "evaluation.scores=macro-f1": "evaluation.scores = 'macro-f1': ",
    'evaluation.scores=["macro-f2"]': "evaluation.scores = 'macro_f2' is unknown; did",
    "evaluation.scores=[1]": "evaluation.scores.0 = 1: ",
    "method.name=os:system": "method.name = 'os:system' is of type",
    "method.name=tiny:zero_head": "method.name = 'tiny:zero_head' is of type function;",
    "method.name=hpcfl.methods.base:Method": "method.name =",
    "model.name=subprocess:Popen": "model.name = 'subprocess:Popen' must be called as",
    "model.name=os:execv": "model.name = 'os:execv' must be called as (shape,",
    "model.name=os:sep": "model.name = 'os:sep' is of type str; expected a class or",
    "partition.scheme=os:system": "partition.scheme = 'os:system' is of type",
    "data.dataset=os:system": "data.dataset = 'os:system' is of type",
    "rounds": "--set rounds: ",
    "rounds.x=1": "--set rounds.x: 'rounds' ",
}


@pytest.fixture
def run(hpcfl, tmp_path):
    """Return ``run(*arguments)``, which runs GOOD in an empty folder and returns the
    exit code, the output and the remaining files.
    """
    (tmp_path / "good.toml").write_text("rounds = 2\n" + GOOD)

    def play(*arguments, file="good.toml"):
        code, _, output = hpcfl("run", file, *arguments)
        left = {path.name for path in tmp_path.iterdir()} - {"good.toml"}
        return code, output, left

    return play


@pytest.mark.parametrize("override", WRONG)
def test_bad_input_gives_one_line_and_writes_no_file(run, override):
    code, output, left = run("--set", override)
    assert code == 2
    assert output.startswith("hpcfl: ") and output.count("\n") == 1
    assert WRONG[override] in output
    assert not left


@pytest.mark.parametrize(
    ("method", "key"),
    [
        ("creff", "features_each"),
        ("fedem", "components"),
        ("ifca", "clusters"),
        ("pfedhn", "embedding"),
        ("pfedhn", "hidden"),
        ("pfedhn", "hidden_layers"),
    ],
)
def test_sizes_of_methods_that_would_fill_the_memory_are_refused(method, key):
    table = {"method": {"name": method, key: 1_000_000}}
    with expect_refusal(rf"method\.{key} = 1000000: "):
        config.parse(table)


def test_the_file_is_named(run):
    assert run("--set", "trainig.lr=1")[1].startswith("hpcfl: good.toml: ")


def test_all_mistakes_are_reported_at_once_on_separate_lines(run):
    """This includes errors about two sections, sections of unknown plug-ins, and
    unknown keys; a value that depends on a wrong one gives no error.
    """
    overrides = {
        "trainig.lr=1": "unknown key 'trainig'; did you mean 'training'?",
        "training.lr=-1.0": "training.lr = -1.0: must be greater than 0",
        "training.schedule=stepp": "training.schedule = 'stepp': must be 'constant'",
        "training.milestones=[1]": None,
        "method.name=fedavgg": "method.name = 'fedavgg' is unknown; did you mean",
        "model.hidden=[0, 0]": "model.hidden.0 = 0: must be greater than 0",
        "partition.clients=0": "partition.clients = 0: must be greater than 0",
        "partition.betta=1.0": "unknown key 'partition.betta'; did you mean 'beta'?",
        "evaluation.metric=acuracy": "evaluation.metric = 'acuracy' is unknown; did",
        "protocol=fedalla": "protocol = 'fedalla' is unknown; did you mean 'fedala'?",
        "rounds=0": "rounds = 0: must be greater than 0",
    }
    code, output, left = run(*set_keys(*overrides))
    expected = [text for text in overrides.values() if text]
    lines = output.splitlines()
    assert code == 2 and not left and len(lines) == len(expected)
    for text in expected:
        assert any(line.startswith(f"hpcfl: good.toml: {text}") for line in lines), text
    two = set_keys("participation.stragglers=0.5", "seed=-1")
    assert run(*two)[1].count("hpcfl: good.toml: ") == 2


@pytest.mark.slow
def test_mistakes_are_reported_together_with_an_occupied_folder(run, tmp_path):
    """The folder belongs to another seed; too few samples for the clients are found
    only when the data are read.
    """
    assert run("--set", "rounds=1", "--out", "taken")[0] == 0
    before = read_files(tmp_path)
    keys = set_keys("seed=5", "partition.clients=2000")
    code, output, _ = run("--out", "taken", *keys)
    lines = output.splitlines()
    assert code == 2 and len(lines) == 2
    assert lines[0].startswith("hpcfl: taken: belongs to another configuration (")
    assert lines[1].startswith("hpcfl: partition.clients = 2000: ")
    assert run("--out", "taken", "--set", "seed=5")[1].count("\n") == 1
    assert read_files(tmp_path) == before


NESTED = "tables and lists may be nested at most 10 deep"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("bad.toml", None, ""),
        ("bad.toml", b"\xff\xfe", ""),
        ("bad.toml", b"rounds = 3", "'method.name' is missing; allowed: "),
        ("bad.toml", b"method = 'fedavg'", "method = 'fedavg': "),
        ("bad.toml", b"rounds = " + b"9" * 5000, "not valid TOML ("),
        ("bad.toml", b"rounds = 0x" + b"9" * 5000, NESTED),
        ("bad.toml", b"x = " + b"[" * 20 + b"]" * 20, NESTED),
        ("bad.toml", b"#" * 1_000_001, "cannot be read (longer than 1,000,000 bytes)"),
        ("bad.json", b"[" * 100_000, "not valid JSON ("),
        ("bad.json", b"[1]", ""),
        ("bad.json", b'{"seed": 0, "seed": 1}', "not valid JSON ('seed' occurs twice"),
    ],
)
def test_an_invalid_experiment_is_refused_in_one_line(
    run, tmp_path, file, content, message
):
    if content is not None:
        (tmp_path / file).write_bytes(content)
    code, output, left = run(file=file)
    assert code == 2
    assert f"{file}: {message}" in output
    assert output.count("\n") == 1
    assert left <= {file}


@pytest.mark.parametrize("plant", [os.mkdir, os.mkfifo])
def test_an_experiment_that_is_no_file_is_refused(run, tmp_path, plant):
    plant(tmp_path / "bad.toml")
    code, output, _ = run(file="bad.toml")
    assert code == 2 and output.startswith("hpcfl: bad.toml: ")
    assert output.count("\n") == 1


def test_momentum_is_refused_with_adam(run):
    code, output, left = run(
        "--set", "training.momentum=0.9", "--set", "training.optimizer=adam"
    )
    assert code == 2 and not left
    assert "training.momentum = 0.9: must be 0 with optimizer = 'adam'" in output
    with_protocol = {
        "protocol": "fednh",
        "method": {"name": "fednh"},
        "training": {"optimizer": "adam"},
    }
    assert config.parse(with_protocol).training.momentum == 0


def test_keys_that_no_plugin_has_stay_mistakes(run, tmp_path):
    (tmp_path / "f.toml").write_text("model.hiden = [8]\nmethod.name = 'fedavg'")
    assert (
        "unknown key 'model.hiden'" in run("--set", "model.name=cnn", file="f.toml")[1]
    )


def test_a_launcher_with_other_ranks_than_mpi_is_refused(run, monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "4")
    code, output, left = run()
    assert code == 2 and " 4 ranks " in output and not left


def test_a_resolved_configuration_is_an_experiment_again():
    first = tiny.parse(
        {"name": "cwfedavg", "layers": 2, "wdr": 3.0},
        model={"name": "mlp", "hidden": [6, 5]},
    )
    table = first.resolved()
    assert table["model"]["hidden"] == [6, 5] and table["method"]["layers"] == 2
    without = {
        section: {key: value for key, value in keys.items() if value is not None}
        if isinstance(keys, dict)
        else keys
        for section, keys in table.items()
        if keys is not None
    }
    again = config.parse(without)
    assert again.resolved() == table and again.fingerprint() == first.fingerprint()


@pytest.mark.parametrize(
    ("sections", "same"),
    [
        ({"rounds": 9}, True),
        ({"name": "other"}, True),
        ({"runtime": {"lanes": 2}}, True),
        ({"checkpoint": {"every": 1}}, True),
        ({"data": {"root": "/elsewhere"}}, True),
        ({"seed": 4}, False),
        ({"partition": {"seed": 2}}, False),
    ],
)
def test_fingerprint_contains_only_keys_that_define_a_run(sections, same):
    base, other = (
        tiny.parse("fedavg"),
        tiny.parse("fedavg", **sections),
    )
    assert (base.fingerprint() == other.fingerprint()) is same


@pytest.mark.parametrize(
    ("sections", "section", "key", "other"),
    [
        ({}, "participation", "rounding", "up"),
        ({"method": {"name": "fednh"}}, "method", "prototypes", "simplex"),
        ({"method": {"name": "fedala"}}, "method", "adaptation", "initial"),
        ({"data": {"dataset": "csv", "file": "t.csv"}}, "data", "encode", "one-hot"),
    ],
)
def test_the_default_of_a_new_key_keeps_the_fingerprint(sections, section, key, other):
    table = {"method": {"name": "fedavg"}, **sections}
    parsed = config.parse(table)
    before = parsed.resolved()
    del before[section][key]
    assert experiment_file.fingerprint(before) == parsed.fingerprint()
    changed = config.parse({**table, section: {**table.get(section, {}), key: other}})
    assert changed.fingerprint() != parsed.fingerprint()


def test_a_configuration_is_frozen():
    parsed = tiny.parse("fedavg")
    with pytest.raises(ValueError, match="frozen"):
        parsed.rounds = 5
    with expect_refusal(r"model = 3: .*[model]"):
        config.parse({"method": {"name": "fedavg"}, "model": 3})


def test_keys_that_change_nothing_are_noted():
    table = {
        "method": {"name": "fedavg"},
        "rounds": 5,
        "training": {"warmup": 6, "schedule": "step", "milestones": [4, 5, 9]},
    }
    warmup, milestones = config.parse(table).notes
    assert warmup.startswith("training.warmup = 6: ")
    assert milestones.startswith("training.milestones: [5, 9] ")
    assert (
        config.parse({"method": {"name": "fedavg"}, "training": {"warmup": 100}}).notes
        == []
    )


@pytest.mark.parametrize(
    ("method", "tune_epochs", "noted"),
    [("fedbabu", [0], True), ("fedavg", [0, 5], True), ("fedavg", [0], False)],
)
def test_tuning_at_a_learning_rate_of_zero_is_noted(method, tune_epochs, noted):
    table = {
        "method": {"name": method},
        "training": {"schedule": "cosine"},
        "evaluation": {"tune_epochs": tune_epochs},
    }
    notes = config.parse(table).notes
    assert [note.startswith("tune_epochs: ") for note in notes] == [True] * noted
    assert not config.parse(table | {"training": {}}).notes


def test_a_stored_configuration_with_all_keys_has_no_notes():
    """``verify`` runs such configurations, and ``hpcfl run`` the file that a tuning
    selected.
    """
    read = {
        "time": {"mode": "synchronous", "deadline": 60.0, "late": "partial"},
        "data": {"imbalance": 10.0, "imbalance_order": "random"},
    }
    table = config.parse({"method": {"name": "fedavg"}, **read}).resolved()
    assert config.parse(table).notes == []


@pytest.mark.parametrize(
    ("unread", "choice"),
    [
        ({"time": {"buffer": 3}}, "with time.mode = 'none'"),
        (
            {"time": {"mode": "synchronous", "file": "traces.json"}},
            "with time.devices = 'lognormal'",
        ),
        (
            {"time": {"mode": "synchronous", "late": "partial"}},
            "without time.deadline",
        ),
        ({"newcomers": {"epochs": 2}}, "with newcomers.clients = 0"),
        ({"data": {"imbalance_order": "random"}}, "with data.imbalance = 1.0"),
        ({"model": {"head_scale": 3.0}}, "with model.head = 'linear'"),
        ({"adapter": {"rank": 4}}, "with adapter.kind = 'none'"),
        (
            {"aggregation": {"rule": "trimmed-mean", "f": 1}},
            "with aggregation.rule = 'trimmed-mean'",
        ),
        (
            {
                "attack": {
                    "kind": "scale",
                    "share": 0.2,
                    "factor": 2.0,
                    "server_lr": 0.5,
                }
            },
            "with attack.factor = 2.0",
        ),
        (
            {"partition": {"scheme": "quantity", "law": "linear", "sigma": 1.0}},
            "with partition.law = 'linear'",
        ),
        (
            {"partition": {"scheme": "quantity", "label_beta": 1.0}},
            "with partition.labels = 'iid'",
        ),
        (
            {"partition": {"scheme": "by-domain", "beta": 1.0}},
            "with partition.inside = 'iid'",
        ),
        (
            {"method": {"name": "fedamp", "proximal": 0.5, "lam": 2.0}},
            "with method.proximal = 0.5",
        ),
        (
            {"method": {"name": "fedala", "ala": False, "eta": 2.0}},
            "with method.ala = False",
        ),
        (
            {"method": {"name": "cwfedavg", "distribution": "norm", "wdr": 2.0}},
            "with method.distribution = 'norm'",
        ),
    ],
)
def test_keys_that_another_key_leaves_unread_are_noted(unread, choice):
    [note] = config.parse({"method": {"name": "fedavg"}, **unread}).notes
    [(section, keys)] = unread.items()
    assert note == f"{section}.{list(keys)[-1]}: not read {choice}"


@pytest.mark.parametrize(
    ("keys", "is_noted"),
    [
        ({"stragglers": 0.3}, True),
        ({"stragglers": 0.5}, False),
        ({"stragglers": 0.3, "fraction": 1.0}, False),
        ({"stragglers": 0.3, "scheme": "poisson"}, False),
    ],
)
def test_a_share_without_stragglers_is_noted(keys, is_noted):
    """Of 10 clients 2 train in a round."""
    table = {
        "method": {"name": "fedavg"},
        "partition": {"clients": 10},
        "training": {"epochs": 2},
        "participation": {"fraction": 0.2, **keys},
    }
    assert len(config.parse(table).notes) == is_noted


@pytest.mark.parametrize(
    ("keys", "is_noted"),
    [
        ({"share": 0.1}, True),
        ({"share": 0.25}, False),
        ({"at": [3], "who": 0.1}, True),
        ({"at": [3], "who": "staggered"}, False),
    ],
)
def test_shifts_without_clients_are_noted(keys, is_noted):
    """A tenth of four clients is no client."""
    table = {"method": {"name": "fedavg"}, "partition": {"clients": 4}}
    notes = config.parse({**table, "shift": [{"kind": "rotation", **keys}]}).notes
    assert [" none of 4 clients" in note for note in notes] == [True] * is_noted


@pytest.mark.parametrize(
    ("keys", "unread"),
    [
        ({"kind": "labels", "how": "reverse", "groups": 3}, ["groups"]),
        ({"kind": "labels", "how": "shift", "swaps": [[1, 2]]}, ["swaps"]),
        ({"kind": "labels", "how": ["reverse", "shift"], "groups": 3}, []),
        ({"kind": "corruption", "among": ["contrast"]}, ["among"]),
        ({"kind": "corruption", "corruption": "random", "among": ["contrast"]}, []),
    ],
)
def test_unread_keys_of_shifts_are_noted(keys, unread):
    table = {"method": {"name": "fedavg"}, "shift": [{"kind": "hue"}, keys]}
    notes = config.parse(table).notes
    assert [note.partition(":")[0] for note in notes] == [
        f"shift.1.{key}" for key in unread
    ]


@pytest.mark.parametrize(
    "name", ["apple", "diversifed", "fedamp", "fedfomo", "fedgh", "local"]
)
def test_weights_without_averages_are_noted(name):
    [note] = config.parse({"method": {"name": name, "weights": "uniform"}}).notes
    assert "method.weights" in note


@pytest.mark.parametrize(("noise", "notes"), [(0.0, 1), (1.0, 0)])
def test_privacy_without_noise_is_noted(noise, notes):
    privacy = {"unit": "client", "clip": 1.0, "noise": noise}
    table = {"method": {"name": "fedavg"}, "privacy": privacy}
    found = config.parse(table).notes
    assert len(found) == notes and all("ε is infinite" in note for note in found)


WITH_PLAIN_STEPS = [
    {"name": "fedrod", "order": "separate"},
    {"name": "fedpac", "head_lr": 0.1},
    *({"name": name} for name in NAMES if "momentum" in kind(name).unheeded),
]


@pytest.mark.parametrize("method", WITH_PLAIN_STEPS)
def test_methods_with_plain_steps_note_ignored_options(method):
    table = {"method": method, "training": {"momentum": 0.9, "lr": 0.1}}
    [note] = config.parse(table).notes
    assert note.startswith("training.momentum = 0.9: ") and method["name"] in note
    assert config.parse({"method": method, "training": {"lr": 0.1}}).notes == []
    assert config.parse({**table, "method": {"name": "fedavg"}}).notes == []


SWEPT = """
method.name = "fedavg"
[sweep]
seed = [0, 1]
"training.momentum" = [0.1, 0.2]
cases = [{ training.lr = 0.1, rounds = 3 }, { training.lr = 0.2 }]
"""


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "seed=5",
            r"--set seed: .*--set 'sweep\.seed=",
        ),
        (
            "training.lr=1",
            r"--set training\.lr: [^']*$",
        ),
        ("rounds=2", None),
        ("sweep.seed=[5]", None),
        ("sweep.training.momentum=[0.5]", None),
    ],
)  # not every case sets the rounds
def test_keys_set_by_every_cell_cannot_be_overridden(tmp_path, override, message):
    (tmp_path / "e.toml").write_text(SWEPT)
    if message is None:
        assert expand(config.read(tmp_path / "e.toml", [override]), "e.toml")
        return
    with expect_refusal(message):
        config.read(tmp_path / "e.toml", [override])
