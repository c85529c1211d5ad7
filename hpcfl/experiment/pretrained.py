"""Keys of ``[model]`` and ``[adapter]`` that are read from a pretrained folder.

``config.json`` of the library transformers, in the folder of ``adapter.base``, contains
the sizes of the model. ``adapter_config.json`` of PEFT, in the folder ``adapter.init``,
contains the sizes of an adapter. An experiment may repeat such a key only with the same
value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcfl.errors import UserError
from hpcfl.files import untrusted_files

CONFIG, ADAPTER_CONFIG = "config.json", "adapter_config.json"
# Keys that the experiment may set to other values than the file, because no tensor
# depends on them.
FREE = ("dropout",)
# Values of PEFT's ``init_lora_weights`` with which the base stays as published. Others,
# such as "pissa", subtract the initial correction from it.
UNCHANGED = (True, False, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True)
class Form:
    """The keys of one type of published model.

    Attributes:
        model: The value of ``model.name``.
        keys: The key of the file for each key of ``[model]``.
        built_in: Keys of the file with the only value that hpcfl's model supports.
    """

    model: str
    keys: Mapping[str, str]
    built_in: Mapping[str, Any] = field(default_factory=dict)


ENCODER = {
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "hidden": "intermediate_size",
    "dropout": "hidden_dropout_prob",
    "norm_eps": "layer_norm_eps",
}
BERT = {
    **ENCODER,
    "vocabulary": "vocab_size",
    "positions": "max_position_embeddings",
    "types": "type_vocab_size",
    "padding": "pad_token_id",
}
GPT2 = {
    "width": "n_embd",
    "depth": "n_layer",
    "heads": "n_head",
    "hidden": "n_inner",
    "dropout": "resid_pdrop",
    "vocabulary": "vocab_size",
    "positions": "n_positions",
}
EXACT = {"hidden_act": "gelu"}
ABSOLUTE = {**EXACT, "position_embedding_type": "absolute"}
TANH = {
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
}
# Forms by ``model_type`` of the file, which is also the value of ``adapter.names``.
FORMS = {
    "bert": Form("bert", BERT, ABSOLUTE),
    "roberta": Form("bert", BERT, ABSOLUTE),
    "gpt2": Form("gpt", GPT2, TANH),
    "vit": Form("vit", {**ENCODER, "patch": "patch_size", "bias": "qkv_bias"}, EXACT),
}


def complete(table: dict[str, Any]) -> dict[str, Any]:
    """Return the experiment's nested table with the keys of its pretrained folders.

    Raises UserError for a key that contradicts a folder, and for a folder with a model
    that hpcfl does not support.
    """
    adapter, model = table.get("adapter"), table.get("model", {})
    if not isinstance(adapter, dict) or not isinstance(model, dict):
        return table
    if isinstance(base := adapter.get("base"), str):
        table = table | _complete_model(Path(base), model, adapter)
    if isinstance(folder := adapter.get("init"), str):
        completed = _complete_adapter(Path(folder), table["adapter"])
        table = table | {"adapter": completed}
    return table


def _complete_model(
    base: Path, model: dict[str, Any], adapter: dict[str, Any]
) -> dict[str, Any]:
    """Return ``[model]`` and ``[adapter]`` with the keys of the base's ``config.json``.

    The result is empty for a user's model, for a table of names, and without a file.
    """
    path = (base if base.is_dir() else base.parent) / CONFIG
    names, name = adapter.get("names"), model.get("name", "")
    if isinstance(names, dict) or ":" in str(name) or not path.is_file():
        return {}
    content = untrusted_files.read_user_json(path, dict[str, Any])
    kind = content.get("model_type")
    form = FORMS.get(str(kind))
    if form is None:
        return {}
    for key, value in form.built_in.items():
        if content.get(key, value) != value:
            raise UserError(
                f"{path}: {key} = {content[key]!r}: hpcfl's model '{form.model}' supports "
                f"only {value!r}"
            )
    found = {
        key: content[of] for key, of in form.keys.items() if content.get(of) is not None
    }
    if kind == "gpt2":
        found.setdefault("hidden", 4 * _read_number(content, "n_embd", path))
    if kind == "roberta":
        found["first_position"] = _read_number(content, "pad_token_id", path) + 1
    if kind == "vit":
        heads = _read_number(content, "num_attention_heads", path)
        found["head_width"] = _read_number(content, "hidden_size", path) // heads
    named = _agree("adapter", adapter, {"names": kind}, path)
    return {
        "model": _agree("model", model, {"name": form.model, **found}, path),
        "adapter": named,
    }


def _complete_adapter(folder: Path, adapter: dict[str, Any]) -> dict[str, Any]:
    """Return ``[adapter]`` with the keys of the ``LoraConfig`` in a folder."""
    path = folder / ADAPTER_CONFIG
    content = untrusted_files.read_user_json(path, dict[str, Any])
    if content.get("peft_type") != "LORA" or content.get("alpha_pattern"):
        raise UserError(
            f"{path}: must be a LoRA (peft_type = 'LORA') with one alpha for all layers"
        )
    begun = content.get("init_lora_weights", True)
    if begun not in UNCHANGED:
        raise UserError(
            f"{path}: init_lora_weights = {begun!r}: PEFT's base differs from the published "
            "one; save the adapter with path_initial_model_for_weight_conversion"
        )
    found = {"kind": "lora", "rank": _read_number(content, "r", path)}
    found["scale"] = "alpha/sqrt(r)" if content.get("use_rslora") else "alpha/r"
    renamed = {"alpha": "lora_alpha", "dropout": "lora_dropout"}
    found |= {key: content[of] for key, of in renamed.items() if of in content}
    targets = content.get("target_modules")
    excluded = content.get("exclude_modules")
    # A list has ends of names; a string is a regular expression, which is not read. If
    # layers are excluded, the experiment names the targets, or they are whole names.
    if isinstance(targets, list) and not (excluded and "targets" in adapter):
        start = "" if excluded else "*"
        found["targets"] = [f"{start}{target}" for target in targets]
    return _agree("adapter", adapter, found, path)


def _read_number(content: dict[str, Any], key: str, path: Path) -> int:
    """Return the positive integer at a key of a file's content. Raises UserError."""
    number = content.get(key)
    if not isinstance(number, int) or number < 1:
        raise UserError(f"{path}: {key} = {number!r}: must be a whole number above 0")
    return number


def _agree(
    section: str, given: dict[str, Any], found: dict[str, Any], path: Path
) -> dict[str, Any]:
    """Return a section with the values of a file added.

    Args:
        section: The section's name, for error messages.
        given: The section in the experiment.
        found: The keys and values in the file.
        path: The file.

    Raises:
        UserError: The experiment has another value for a key outside FREE.
    """
    for key, value in found.items():
        if key not in FREE and given.get(key, value) != value:
            raise UserError(
                f"{section}.{key} = {given[key]!r}: contradicts {path}, which gives "
                f"{value!r}; leave {section}.{key} out"
            )
    return found | given
