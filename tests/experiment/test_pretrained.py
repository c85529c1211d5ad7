"""Folders of pretrained models in the format of the library transformers."""

import json

import pytest
from refusals import expect_refusal

from hpcfl.experiment import config

BERT = {
    "model_type": "bert",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "vocab_size": 30,
    "max_position_embeddings": 20,
    "type_vocab_size": 2,
    "pad_token_id": 0,
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.25,
    "hidden_act": "gelu",
}
ROBERTA = {**BERT, "model_type": "roberta", "pad_token_id": 1, "type_vocab_size": 1}
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 8,
    "n_layer": 3,
    "n_head": 2,
    "n_inner": None,
    "vocab_size": 30,
    "n_positions": 20,
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
}
VIT = {
    "model_type": "vit",
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 24,
    "patch_size": 4,
    "qkv_bias": True,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}


@pytest.fixture
def folder(tmp_path):
    """Return ``folder(content)``, which writes a folder with this ``config.json`` and
    returns its path.
    """

    def write(content):
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / "config.json").write_text(text)
        return str(tmp_path)

    return write


def parse(base, model=None, **adapter):
    return config.parse(
        {
            "method": {"name": "fedavg"},
            "model": model or {},
            "adapter": {"kind": "head", "base": base, **adapter},
        }
    ).resolved()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            BERT,
            {
                "name": "bert",
                "width": 8,
                "depth": 1,
                "heads": 2,
                "hidden": 12,
                "vocabulary": 30,
                "positions": 20,
                "types": 2,
                "padding": 0,
                "dropout": 0.25,
                "first_position": 0,
            },
        ),
        (ROBERTA, {"name": "bert", "padding": 1, "first_position": 2, "types": 1}),
        (GPT2, {"name": "gpt", "width": 8, "depth": 3, "hidden": 32, "positions": 20}),
        (VIT, {"name": "vit", "patch": 4, "head_width": 4, "bias": True, "depth": 2}),
    ],
    ids=["bert", "roberta", "gpt2", "vit"],
)
@pytest.mark.parametrize("is_file", [False, True])
def test_a_folder_sets_the_keys_of_its_model(folder, content, expected, is_file):
    base = folder(content)
    found = parse(f"{base}/model.safetensors" if is_file else base)
    assert found["adapter"]["names"] == content["model_type"]
    assert expected.items() <= found["model"].items()


def test_the_experiment_may_repeat_a_key_and_choose_the_dropout(folder):
    model = {"name": "bert", "width": 8, "dropout": 0.0}
    found = parse(folder(BERT), model, names="bert")["model"]
    assert (found["width"], found["dropout"], found["depth"]) == (8, 0.0, 1)


@pytest.mark.parametrize(
    ("content", "keys", "words"),
    [
        (BERT, {"model": {"width": 16}}, ["model.width = 16", "8"]),
        (BERT, {"model": {"name": "gpt"}}, ["model.name = 'gpt'", "'bert'"]),
        (BERT, {"names": "gpt2"}, ["adapter.names = 'gpt2'", "'bert'"]),
        ({**BERT, "hidden_act": "relu"}, {}, ["hidden_act = 'relu'", "'gelu'"]),
        (
            {**GPT2, "scale_attn_by_inverse_layer_idx": True},
            {},
            ["scale_attn_by_inverse_layer_idx = True"],
        ),
        ({**VIT, "num_attention_heads": 0}, {}, ["num_attention_heads = 0"]),
        ("[]", {}, ["config.json"]),
    ],
    ids=[
        "width",
        "model",
        "names",
        "activation",
        "attention",
        "no number",
        "no object",
    ],
)
def test_a_contradiction_is_refused_in_one_line(folder, content, keys, words):
    with expect_refusal() as refused:
        parse(folder(content), **keys)
    (line,) = refused.value.args
    for word in [*words, "config.json"]:
        assert word in line


@pytest.mark.parametrize(
    ("content", "keys"),
    [
        ({**BERT, "model_type": "t5"}, {}),
        (BERT, {"names": {"a": "b"}}),
        (BERT, {"model": {"name": "tiny:lora"}}),
    ],
    ids=["another model", "own names", "own model"],
)
def test_a_file_of_another_model_sets_nothing(folder, content, keys):
    found = parse(folder(content), **keys)
    assert "width" not in found["model"]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [({}, ["q"]), ({"targets": ["block.1.q", "q"]}, ["block.1.q", "q"])],
    ids=["whole names", "given"],
)
def test_layers_that_peft_excludes_are_no_targets(tmp_path, keys, expected):
    """Excluding ``block.q`` from the ends ``q`` leaves a layer called ``q``."""
    content = {"peft_type": "LORA", "r": 2, "target_modules": ["q"]}
    file = tmp_path / "adapter_config.json"
    for excluded, targets in ((None, ["*q"]), (["block.q"], expected)):
        file.write_text(json.dumps({**content, "exclude_modules": excluded}))
        own = keys if excluded else {}
        found = parse("base", kind="lora", init=str(tmp_path), **own)
        assert found["adapter"]["targets"] == targets
