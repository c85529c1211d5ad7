"""Plug-ins that a configuration names are found; an error in a user's module gives one
line with its place.
"""

import importlib
import sys

import pytest
from refusals import expect_refusal

from hpcfl.experiment import config, plugins

METHODS = "hpcfl.methods"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return ``own(name, text)``, which makes a user's module in the current folder
    that is forgotten after the test.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    yield lambda name, text: (tmp_path / f"{name}.py").write_text(text)
    for name in [
        name
        for name, module in sys.modules.items()
        if str(tmp_path) in str(getattr(module, "__file__", ""))
    ]:
        del sys.modules[name]


METHOD = "from hpcfl.methods.fedavg import FedAvg\nclass Mine(FedAvg): pass\n"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (
            "class Mine:\n    def loss(self\n        pass\n",
            2,
            "SyntaxError: ",
        ),
        (
            "import torch\n\nlayers = undefined\n",
            3,
            "NameError: name 'undefined'",
        ),
        ("import sys\nsys.exit('done')\n", 2, "SystemExit: done"),
        ("raise ValueError('one\\ntwo' + 1000 * 'x')\n", 1, "ValueError: one two"),
    ],
)
def test_a_module_that_fails_is_named_with_its_line(own, text, line, words):
    own("users", text)
    with expect_refusal() as failed:
        plugins.find(METHODS, "method.name", "users:Mine")
    message = str(failed.value)
    assert message.startswith(
        f"users.py:{line}: method.name = 'users:Mine' cannot be imported: {words}"
    )
    assert "\n" not in message
    assert len(message) < 500
    assert failed.value.__cause__ is not None


def test_a_key_without_a_type_is_named_with_its_line(own):
    own("users", METHOD.replace("pass", "strength = 0.1"))
    with expect_refusal(r"^users\.py:2: .*`strength = 0\.1`"):
        plugins.find(METHODS, "method.name", "users:Mine")


def test_an_own_key_with_the_name_of_a_common_key_is_refused(own):
    """``head`` is a key of [model], so the parameter would never get a value."""
    own("users", "\ndef net(shape, classes, head: bool = True): pass\n")
    with expect_refusal(r"^users\.py:2: model\.name = 'users:net': .*'head'"):
        plugins.find_plugin_class("model", {"name": "users:net"})


def test_a_mistake_in_a_module_that_it_imports_is_named_there(own):
    own("helpers", "\nhalf = 1 / 0\n")
    own("users", "import helpers\n")
    expected = r"^helpers\.py:2: method\.name = 'users:Mine' .*: ZeroDivisionError"
    with expect_refusal(expected):
        plugins.find(METHODS, "method.name", "users:Mine")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("users:Mien", "'users' has no 'Mien'; did you mean 'Mine'? allowed: "),
        (
            "missing:Mine",
            "'missing' (ModuleNotFoundError: ",
        ),
        (":Mine", "cannot import ''"),
        (".users:Mine", "cannot import '.users'"),
        ("users.py:Mine", "'users:Mine'"),
    ],
)
def test_an_unknown_plugin_is_refused_with_alternatives(own, name, words):
    own("users", METHOD)
    with expect_refusal() as failed:
        plugins.find(METHODS, "method.name", name)
    assert words in str(failed.value)


@pytest.mark.parametrize("name", ["random", "wave", "hpcfl", "torch"])
def test_a_users_module_named_like_another_is_refused(own, tmp_path, name):
    """Also if the other module has not been imported yet."""
    before = sys.modules.get(name)
    (tmp_path / f"{name}.py").write_text(METHOD)
    with expect_refusal(rf"'{name}' .*{name}\.py"):
        plugins.find(METHODS, "method.name", f"{name}:Mine")
    assert sys.modules.get(name) is before


def test_the_current_folder_is_looked_into_for_users_modules_only(own, tmp_path):
    own("users", METHOD)
    before = list(sys.path)
    assert plugins.find(METHODS, "method.name", "users:Mine").__name__ == "Mine"
    assert sys.path == before
    (tmp_path / "broken.py").write_text("1 / 0")
    with expect_refusal():
        plugins.find(METHODS, "method.name", "broken:Mine")
    assert sys.path == before


def test_a_module_may_be_on_the_python_path(own, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "users.py").write_text(METHOD)
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    assert plugins.find(METHODS, "method.name", "users:Mine").__name__ == "Mine"


def test_a_file_of_several_plugins_describes_each():
    for name in ("bloodmnist", "breastmnist"):
        source, about = plugins.find_built_in("hpcfl.data.sources", name)
        assert source.known.about == about and name in about.lower()
    scheme, about = plugins.find_built_in("hpcfl.data.partitions", "dirichlet-min")
    assert scheme.__name__ == "DirichletMin" and "FedNH" in about


@pytest.mark.parametrize(
    ("own", "overrides", "found"),
    [
        ("model.hidden = [8]", ["model.name=cnn"], {"name": "cnn"}),
        (
            "model.head = 'cosine'\nmodel.hidden = [8]",
            ["model.name=cnn"],
            {"name": "cnn", "head": "cosine"},
        ),
        (
            "model.name = 'cnn'",
            ["model.hidden=[8]", "model.name=mlp"],
            {"name": "mlp", "hidden": [8]},
        ),
        ("model.hidden = [8]", ["model.name=mlp"], {"name": "mlp", "hidden": [8]}),
        (
            "partition.beta = 0.3\npartition.clients = 4",
            ["partition.scheme=iid"],
            {"scheme": "iid", "clients": 4},
        ),
        (
            "partition.beta = 0.3",
            ["partition.scheme=dirichlet-min"],
            {"scheme": "dirichlet-min", "beta": 0.3},
        ),
        (
            "method.name = 'ditto'\nmethod.lam = 2",
            ["method.name=fedavg"],
            {"name": "fedavg"},
        ),
    ],
)
def test_another_plugin_replaces_the_keys_of_the_one_before(
    tmp_path, own, overrides, found
):
    (tmp_path / "f.toml").write_text(own)
    table = config.read(tmp_path / "f.toml", overrides)
    assert table == {overrides[-1].split(".")[0]: found}


def test_a_models_keys_are_the_parameters_of_the_callable_that_makes_it():
    fields = plugins.list_fields("model", {"name": "mlp"})
    assert "hidden" in fields and "head" in fields and "options" not in fields


def test_own_plugins_of_all_sections_are_found_and_paths_are_not():
    table = {
        "data": {"dataset": "csv", "file": "C:/my.csv"},
        "method": {"name": "my:Method"},
        "transform": [{"kind": "top-k"}, {"kind": "my:Transform"}],
        "aggregation": {"rule": "my:Rule"},
        "attack": {"kind": "my:Attack"},
        "evaluation": {"scores": ["my:Score"], "metric": "my:Other/worst_tenth"},
    }
    names = {"my:Method", "my:Transform", "my:Rule", "my:Attack"}
    names |= {"my:Score", "my:Other"}
    assert plugins.find_own_names(table) == names
    plugins.refuse_unnamed(table, names, "run")
    with expect_refusal(r"run: .*--own my:Rule"):
        plugins.refuse_unnamed(table, names - {"my:Rule"}, "run")
    for forged in ({"evaluation": {"scores": None}}, {"attack": "my:Attack"}):
        with expect_refusal(r"^run: .*\("):
            plugins.refuse_unnamed(forged, names, "run")


def test_hashes_include_own_modules_that_a_plugin_imports(own, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    own("strength", "STEP = 1")
    own("uses_strength", "import json, strength\n" + METHOD)
    plugins.find(METHODS, "method.name", "uses_strength:Mine")
    table = {"method": {"name": "uses_strength:Mine"}}
    assert list(plugins.hash_own_files(table)) == ["strength.py", "uses_strength.py"]
    own("strength", "STEP = 2")
    [note] = plugins.describe_edited(table)
    assert note.startswith("strength.py ")


def test_the_hash_of_an_own_file_is_that_of_the_imported_code(
    own, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    table = {"method": {"name": "mine:Mine"}}
    own("mine", METHOD)
    plugins.find(METHODS, "method.name", "mine:Mine")
    imported = plugins.hash_own_files(table)
    assert list(imported) == ["mine.py"] and plugins.describe_edited(table) == []

    own("mine", METHOD + "# edited\n")
    plugins.find(METHODS, "method.name", "mine:Mine")
    assert plugins.hash_own_files(table) == imported
    [note] = plugins.describe_edited(table)
    assert note.startswith("mine.py ")

    importlib.reload(sys.modules["mine"])
    plugins.find(METHODS, "method.name", "mine:Mine")
    assert plugins.hash_own_files(table) != imported
    assert plugins.describe_edited(table) == []
