"""Corrections in the files of the library PEFT."""

import json

import pytest
import torch
from playing import prepare_tiny, read_files
from refusals import expect_refusal
from safetensors.torch import load, load_file, save_file
from torch import nn

from hpcfl.adapters import kinds, peft
from hpcfl.commands.export import export
from hpcfl.experiment.sections import Adapter

LORA = {"kind": "lora", "targets": ["hidden*"], "rank": 2}
PREFIX = "base_model.model."


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.q = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)


class Net(nn.Module):
    """A model of tokens 0 … 6 with padding 0, names with equal ends, and a parameter of
    the model itself.
    """

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 3, padding_idx=0)
        self.token = nn.Parameter(torch.zeros(3))
        self.q = nn.Linear(3, 4)
        self.block = Block()
        self.head = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def adapted(**keys):
    adapter = Adapter(kind="lora", rank=2, **keys)
    module = kinds.adapt(Net(), adapter)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module, adapter


def files_of(module, adapter):
    """Return the tensors of a model's files, without the prefix of their names, and the
    content of the JSON.
    """
    known = peft.make_files(peft.find_corrections(module), adapter)
    tensors = load(known["adapter_model.safetensors"])
    assert all(name.startswith(PREFIX) for name in tensors)
    named = {name.removeprefix(PREFIX): value for name, value in tensors.items()}
    return named, json.loads(known["adapter_config.json"])


def test_names_shapes_and_configuration_are_those_of_peft():
    module, adapter = adapted(targets=["q"], scale="alpha/sqrt(r)", dropout=0.25)
    tensors, config = files_of(module, adapter)
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == {
        "q.lora_A.weight": [2, 3],
        "q.lora_B.weight": [4, 2],
        "head.0.weight": [4, 4],
        "head.0.bias": [4],
        "head.2.weight": [2, 4],
        "head.2.bias": [2],
    }
    assert torch.equal(tensors["q.lora_A.weight"], module.q.A)
    assert torch.equal(tensors["q.lora_B.weight"], module.q.B)
    assert config == {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": 2,
        "lora_alpha": 16,
        "use_rslora": True,
        "lora_dropout": 0.25,
        "target_modules": ["q"],
        "exclude_modules": ["block.q"],  # PEFT also accepts names that end in ".q"
        "modules_to_save": ["head.0", "head.2"],
        "bias": "none",
        "fan_in_fan_out": False,
    }


def test_the_correction_of_an_embedding_excludes_padding():
    """PEFT adds s·(B·A)ᵀ to the table, s = 16/2."""
    module, adapter = adapted(targets=["table"])
    tensors, _ = files_of(module, adapter)
    down, up = tensors["table.lora_embedding_A"], tensors["table.lora_embedding_B"]
    assert down.shape == (2, 7) and up.shape == (3, 2)
    assert torch.equal(down[:, 1:], module.table.A[:, 1:]) and not down[:, 0].any()
    assert torch.equal(up, module.table.B)
    assert torch.equal(8 * (up @ down).T, module.table.compute_correction())


def test_further_trained_parameters_are_saved_as_whole_layers():
    further = ["token", "table", "q.bias", "block.norm.weight", "block.q"]
    module, adapter = adapted(targets=["q", "table"], train=further)
    tensors, config = files_of(module, adapter)
    # with its statistics, and with the frozen bias
    whole = {f"block.norm.{name}" for name in module.block.norm.state_dict()}
    assert len(whole) == 5 and whole <= set(tensors)
    assert "block.norm" in config["modules_to_save"]
    assert "block.q" in config["modules_to_save"]
    # the model and its targets cannot be saved completely
    assert torch.equal(tensors["table.base_layer.weight"], module.table.weight)
    assert torch.equal(tensors["token"], module.token)
    assert torch.equal(tensors["q.base_layer.bias"], module.q.bias)
    assert "q.base_layer.weight" not in tensors and config["bias"] == "lora_only"


def test_layers_with_a_common_suffix_are_saved_by_parameter():
    """PEFT would save both as "q", but the layer in the block is a target."""
    module, adapter = adapted(targets=["block.q"], train=["q", "block.scale"])
    tensors, config = files_of(module, adapter)
    assert torch.equal(tensors["q.weight"], module.q.weight)
    # as in a layer that contains a target
    assert torch.equal(tensors["block.scale"], module.block.scale)
    assert "block.norm.weight" not in tensors
    assert config["modules_to_save"] == ["head.0", "head.2"]
    assert config["target_modules"] == ["block.q"]
    assert config["exclude_modules"] is None


def test_base_and_corrections_of_a_run_are_its_merged_models(played, tmp_path):
    run = played("fedavg", rounds=2, adapter=LORA)
    out = tmp_path / "out"
    export(run.folder, [1], True, None, "last", ["tiny:blobs"], out, True)
    files = {"base.safetensors", "client-1.json", "global.json"}
    for folder in ("client-1", "global"):
        files |= {
            f"{folder}/adapter_config.json",
            f"{folder}/adapter_model.safetensors",
        }
    assert read_files(out).keys() == files
    for who, name in [(1, "client-1"), ("global", "global")]:
        about = json.loads((out / f"{name}.json").read_text())
        assert about["accuracy"] == about["recorded"] and about["program"] is None
        tensors = load_file(out / name / "adapter_model.safetensors")
        model = load_file(out / "base.safetensors")
        for leaf in ("weight", "bias"):
            model[f"head.{leaf}"] = tensors[f"{PREFIX}head.{leaf}"]
        up = tensors[f"{PREFIX}hidden1.lora_B.weight"]
        down = tensors[f"{PREFIX}hidden1.lora_A.weight"]
        assert up.any()
        model["hidden1.weight"] = model["hidden1.weight"] + 16 / 2 * (up @ down)
        merged = run.models.model(who).module.state_dict()
        assert sorted(model) == sorted(merged)
        for key, value in merged.items():
            assert torch.equal(model[key], value), key


@pytest.fixture
def exported(played, tmp_path):
    """Return a folder with a trained adapter, and the keys that begin with its name."""
    run = played("fedavg", rounds=1, adapter=LORA)
    out = tmp_path / "out"
    export(run.folder, [], True, None, "last", ["tiny:blobs"], out, True)
    return out, {"base": str(out / "base.safetensors"), "init": str(out / "global")}


def test_an_exported_adapter_is_the_start_of_another_run(exported):
    out, files = exported
    started = prepare_with(files)
    keys = started.config.adapter
    assert (keys.kind, keys.rank, keys.alpha) == ("lora", 2, 16.0)
    assert keys.targets == ["*hidden1"]
    tensors = load_file(out / "global" / "adapter_model.safetensors")
    first = started.setup.layout.split(started.setup.initial())
    for leaf, name in {"A": "lora_A", "B": "lora_B"}.items():
        expected = tensors[f"{PREFIX}hidden1.{name}.weight"]
        assert torch.equal(first[f"hidden1.{leaf}"], expected)
    assert torch.equal(first["head.weight"], tensors[f"{PREFIX}head.weight"])
    drawn = prepare_with({"base": files["base"], **LORA})
    assert started.fixed_digest != drawn.fixed_digest


def prepare_with(adapter):
    return prepare_tiny("fedavg", adapter=adapter)


def refusal(adapter):
    """Return the error line for a refused adapter."""
    with expect_refusal() as refused:
        prepare_with(adapter)
    (line,) = refused.value.args
    return line


def test_an_adapter_that_does_not_fit_is_refused_in_one_line(exported):
    out, files = exported
    file = out / "global" / "adapter_config.json"
    stored = json.loads(file.read_text())
    for changes, keys, words in (
        ({"peft_type": "IA3"}, {}, "LORA"),
        ({"init_lora_weights": "pissa"}, {}, "init_lora_weights"),
        ({}, {"rank": 3}, "adapter.rank = 3"),
        ({"target_modules": ["head"]}, {"targets": ["hidden2"]}, "adapter.targets"),
        ({"r": 1}, {}, "hidden1.A"),
    ):
        file.write_text(json.dumps(stored | changes))
        assert words in refusal({**files, **keys})


def test_an_adapter_that_is_not_finite_is_refused_in_one_line(exported):
    out, files = exported
    file = out / "global" / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors[f"{PREFIX}hidden1.lora_A.weight"][1, 0] = float("nan")
    save_file(tensors, file)
    assert "hidden1.lora_A.weight'[1, 0]" in refusal(files)


def test_a_folder_without_the_file_of_tensors_is_refused_with_its_name(tmp_path):
    with expect_refusal(r"adapter\.init = .*adapter_model\.safetensors: "):
        peft.Start(str(tmp_path))


@pytest.mark.parametrize(
    ("method", "adapter", "words"),
    [
        ("fedavg", {"kind": "head"}, "adapter.kind = 'head', .*--adapter .*'lora'"),
        ("fedproto", LORA, "client 0 .*:predict_by_prototypes.* --adapter"),
    ],
)
def test_an_export_without_an_adapter_is_refused_and_writes_nothing(
    played, tmp_path, method, adapter, words
):
    run = played(method, rounds=1, adapter=adapter)
    out = tmp_path / "out"
    with expect_refusal(words):
        export(run.folder, [0], False, None, "last", ["tiny:blobs"], out, True)
    assert not out.exists()
