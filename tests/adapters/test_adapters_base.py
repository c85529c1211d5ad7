"""The base of an adapter, read from files."""

import json
import os
import tomllib
from pathlib import Path

import pytest
import torch
from places import ROOT
from playing import prepare_tiny
from refusals import expect_refusal
from safetensors.torch import save_file

from hpcfl.adapters import base
from hpcfl.adapters.published import PUBLISHED
from hpcfl.experiment import config
from hpcfl.experiment.sections import Adapter
from hpcfl.models.mlp import MLP
from hpcfl.rows import constants
from hpcfl.simulation.start_checks import refuse_other_frozen

LORA = {"kind": "lora", "targets": ["hidden*"], "rank": 2}
BODY = {
    "net.0.weight": torch.arange(30.0).view(6, 5),
    "net.0.bias": torch.arange(6.0),
}
ONE = torch.tensor([1])
NAMES = {"net.*.*": r"hidden\1+1.\2"}


@pytest.fixture
def saved(tmp_path):
    """Return ``saved(tensors, name)``, which writes a file of these tensors and returns
    its path.
    """

    def save(tensors=BODY, name="base.safetensors"):
        save_file(tensors, tmp_path / name)
        return str(tmp_path / name)

    return save


def read(file, names=NAMES, **keys):
    """Read the base of a model of which a head is trained."""
    torch.manual_seed(3)
    adapter = Adapter(kind="head", base=str(file), names=names, **keys)
    return base.read(adapter, MLP((5,), 4, hidden=(6,)))


def prepared_with(model=None, **adapter):
    sections = {"model": model} if model else {}
    return prepare_tiny("fedavg", adapter=adapter, **sections)


def test_parameters_missing_in_the_file_are_drawn(saved):
    adapted = prepared_with(**LORA, base=saved(), names=NAMES)
    drawn = prepared_with(**LORA)
    frozen = constants.collect(adapted.resources.kernel.module)
    assert torch.equal(frozen["hidden1.weight"], BODY["net.0.weight"])
    assert torch.equal(frozen["hidden1.bias"], BODY["net.0.bias"])
    assert torch.equal(adapted.setup.initial(), drawn.setup.initial())
    assert adapted.fixed_digest != drawn.fixed_digest
    [note] = [note for note in adapted.notes if "adapter.base" in note]
    assert note.startswith("adapter.base: ")
    assert note.endswith(": head.weight, head.bias")


def test_trained_parameters_in_the_file_begin_with_its_values(saved):
    head = {"head.weight": torch.ones(4, 6), "head.bias": torch.zeros(4)}
    file = saved(BODY | head)
    adapted = prepared_with(**LORA, base=file, names=NAMES)
    layout = adapted.setup.layout
    first = layout.split(adapted.setup.initial())
    assert torch.equal(first["head.weight"], head["head.weight"])
    other = layout.split(adapted.setup.initial(1))
    assert not torch.equal(other["head.weight"], head["head.weight"])
    # of the trained parameters only the head may differ without an adapter
    whole = prepared_with(base=file, names={**NAMES, "head.*": []})
    first = whole.setup.layout.split(whole.setup.initial())
    assert torch.equal(first["hidden1.weight"], BODY["net.0.weight"])
    plain = prepared_with().setup
    drawn = plain.layout.split(plain.initial())["head.weight"]
    assert torch.equal(first["head.weight"], drawn)
    with expect_refusal(r"adapter\.base = .*hidden1\.weight"):
        prepared_with(base=saved(head))


def test_short_types_are_converted_and_folders_are_joined(saved, tmp_path):
    for name, value in BODY.items():
        saved({name: value.bfloat16()}, f"{name}.safetensors")
    found = read(tmp_path)
    assert found.tensors["hidden1.weight"].dtype == torch.float32
    assert torch.equal(found.tensors["hidden1.weight"], BODY["net.0.weight"])
    saved(BODY, "again.safetensors")
    with expect_refusal(r"adapter\.base = .*'net\.0\.bias'"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"net.0.bias": None}, r"hidden1\.bias; .* adapter\.names"),
        (
            {"net.0.bias": None, "b": torch.ones(6)},
            r"hidden1\.bias; .*: b; .* adapter\.names",
        ),
        (
            {"net.0.weight": BODY["net.0.weight"].index_fill(1, ONE, float("nan"))},
            r"'net\.0\.weight': .*'hidden1\.weight'\[0, 1\] is nan",
        ),
        (
            {"net.0.bias": BODY["net.0.bias"].half().index_fill(0, ONE, float("inf"))},
            r"'net\.0\.bias': .*'hidden1\.bias'\[1\] is inf",
        ),
        ({"net.0.bias": torch.ones(6).double()}, r"'net\.0\.bias' .*float64 \[6\]"),
        ({"net.0.bias": torch.ones(6).long()}, r"'net\.0\.bias' .*I64 \[6\]"),
        (
            {"net.0.bias": torch.ones(6).to(torch.float8_e4m3fn)},
            r"'net\.0\.bias' .*F8_E4M3 \[6\]",
        ),
        (
            {"net.0.bias": torch.ones(5), "net.0.weight": torch.ones(6)},
            r"'net.0.weight' .* \[6\] .*, 'net.0.bias' .* \[5\]",
        ),
    ],
)
def test_missing_and_unsuitable_tensors_are_named(saved, change, words):
    tensors = {
        name: value for name, value in (BODY | change).items() if value is not None
    }
    with expect_refusal(words):
        read(saved(tensors))


def test_long_names_of_tensors_are_shortened(saved):
    long = {"x" * 10**6: torch.ones(1), "line\nbreak": torch.ones(1)}
    with expect_refusal("xxx…") as caught:
        read(saved(long))
    assert len(str(caught.value)) < 1000


def test_notes_list_drawn_parameters_and_unused_tensors(saved):
    more = {f"more{number}": torch.ones(1) for number in range(7)}
    file = saved({"net.0.weight": BODY["net.0.weight"], **more})
    found = read(file, train=["hidden1.bias"])
    drawn, unused = found.notes
    assert drawn.endswith(": hidden1.bias, head.weight, head.bias")
    assert unused.endswith(": more0, more1, more2, more3, more4 and 2 more")


def test_a_file_stores_tied_parameters_once(saved):
    module = MLP((6,), 4, hidden=(6, 6))
    module.hidden2.weight = module.hidden1.weight
    biases = {f"hidden{number}.bias": torch.ones(6) for number in (1, 2)}
    file = saved({"hidden2.weight": torch.ones(6, 6), **biases})
    found = base.read(Adapter(kind="head", base=file), module)
    module.load_state_dict(found.tensors, strict=False)
    assert torch.equal(module.hidden1.weight, torch.ones(6, 6))


@pytest.mark.parametrize("content", [b"", b"no tensors at all"])
def test_a_broken_file_is_refused(tmp_path, content):
    path = tmp_path / "base.safetensors"
    path.write_bytes(content)
    with expect_refusal(r"adapter\.base: .*base\.safetensors: "):
        read(path, names={})


def test_a_base_without_a_file_is_refused(tmp_path):
    with expect_refusal(r"adapter\.base: .*none: "):
        read(tmp_path / "none", names={})
    with expect_refusal(r"adapter\.base = .*\*\.safetensors"):
        read(tmp_path, names={})
    os.mkfifo(tmp_path / "pipe")
    with expect_refusal(r"adapter.base: .*pipe: "):
        read(tmp_path / "pipe", names={})


def test_keys_that_a_base_excludes_or_needs_are_named(saved):
    with expect_refusal(r"model\.init .* adapter\.base"):
        prepared_with({"name": "mlp", "init": "x"}, kind="head", base=saved())
    with expect_refusal(r"adapter\.names: .* adapter\.base"):
        prepared_with(kind="head", names="bert")


def test_another_base_is_refused_with_its_file_and_both_digests(saved, tmp_path):
    keys = {"kind": "head", "names": NAMES}
    prepared = prepared_with(**keys, base=saved())
    changed = {name: value + 1 for name, value in BODY.items()}
    other = prepared_with(**keys, base=saved(changed))
    words = rf"base\.safetensors, .*{prepared.fixed_digest}, .*{other.fixed_digest}"
    with expect_refusal(words):
        refuse_other_frozen(other, {"frozen": prepared.fixed_digest}, tmp_path)


def test_the_tutorials_experiment_is_valid(tmp_path, monkeypatch):
    page = ROOT / "launch" / "site" / "tutorials" / "own-model.md"
    _, _, rest = page.read_text(encoding="utf-8").partition("# pretrained.toml\n")
    table = tomllib.loads(rest.partition("```")[0])
    monkeypatch.chdir(tmp_path)
    folder = Path(table["adapter"]["base"])
    folder.mkdir()
    content = {"model_type": "bert", "hidden_size": 768, "vocab_size": 30522}
    (folder / "config.json").write_text(json.dumps(content))
    experiment = config.parse(table)
    assert experiment.adapter.names in PUBLISHED
    assert experiment.model.options["vocabulary"] == 30522
    with expect_refusal(r"adapter\.base"):
        base.describe(str(experiment.adapter.base))
