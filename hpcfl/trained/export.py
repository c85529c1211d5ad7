"""Export of a run's models to files that can be used without hpcfl.

For each model, ``NAME.safetensors`` holds its tensors by their names in the module, and
``NAME.json`` describes the model and its accuracy. Each kind of model also has a
program, such as ``client.pt2``: the module's forward as written by ``torch.export``,
including a method's own prediction. The tensors of any model of the kind can be loaded
into it.

Instead of whole models, low-rank corrections (``adapters/peft.py``) can be exported: a
folder ``NAME`` for each model, and the base once, as ``base.safetensors``.
"""

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hpcfl import __version__
from hpcfl.adapters import lora, peft
from hpcfl.clients.setup import INITIAL, Setup
from hpcfl.errors import UserError
from hpcfl.experiment import plugins, user_code
from hpcfl.files import atomic
from hpcfl.models import mixed
from hpcfl.models.layer_replacements import restore_layers
from hpcfl.rows import constants, randomness
from hpcfl.storage.clients import digest_tensors
from hpcfl.trained.models import LoadedModel, RunModels, predict_classes
from hpcfl.trained.module import PREDICTION, Predicting


def export(
    models: RunModels, chosen: Iterable[LoadedModel], out: Path, adapters: bool = False
) -> list[str]:
    """Write models into a new folder.

    If one of the models is unavailable, nothing is written.

    Args:
        models: models of a run.
        chosen: models to write.
        out: the folder.
        adapters: Whether to write only the low-rank corrections, in PEFT's format.

    Returns:
        A line for each model and for each omission.

    Raises:
        UserError: A model is unavailable, the folder is not empty, or the models have
            no corrections.
        RunFailure: The folder cannot be written.
    """
    atomic.check_folder(out)
    with atomic.explain_errors(out):
        if out.exists() and any(out.iterdir()):
            raise UserError(f"{out}: already exists; choose another --out")
    if adapters:
        _require_corrections(models)
    with atomic.write_folder(out) as folder:
        if adapters:
            return _write_adapters(models, chosen, folder)
        return _write_models(models, chosen, folder)


def _write_models(
    models: RunModels, chosen: Iterable[LoadedModel], folder: Path
) -> list[str]:
    """Write models into a folder; return the lines of ``export``."""
    lines: list[str] = []
    programs: dict[str, str | None] = {}  # file name of the program by kind of model
    for model in chosen:
        kind = model.name.split()[0]
        if kind not in programs:
            x, _ = models.samples(model.clients[:1])
            content, problem = _export_program(model.module, x)
            programs[kind] = f"{kind}.pt2" if content else None
            if content:
                atomic.write(folder / f"{kind}.pt2", content)
            else:
                lines.append(
                    f"{kind}.pt2 is not written, because torch cannot export the model "
                    f"({problem}); its tensors are written"
                )
        _write_tensors(folder / f"{_write_stem(model)}.safetensors", model.module)
        lines.append(_write_about(folder, models, model, programs[kind]))
    return lines


def _require_corrections(models: RunModels) -> None:
    """Raise UserError if a run's models have no low-rank corrections."""
    kind = models.replay.prepared.config.adapter.kind
    if kind != "lora":
        raise UserError(
            f"{models.replay.folder}: adapter.kind = '{kind}', but --adapter needs 'lora'; "
            "remove --adapter to export whole models"
        )


def _write_adapters(
    models: RunModels, chosen: Iterable[LoadedModel], folder: Path
) -> list[str]:
    """Write corrections and their base into a folder; return the lines of ``export``."""
    lines: list[str] = []
    prepared = models.replay.prepared
    _write_tensors(folder / "base.safetensors", _make_base(prepared.setup))
    for model in chosen:
        if isinstance(model.module, Predicting):
            raise UserError(
                f"{model.name} predicts by {_name_place(model.module.predict)}, which an adapter "
                "cannot contain; remove --adapter to export whole models"
            )
        assert model.corrections is not None
        alone = folder / _write_stem(model)
        alone.mkdir()
        files = peft.make_files(model.corrections, prepared.config.adapter)
        for name, content in files.items():
            atomic.write(alone / name, content)
        lines.append(_write_about(folder, models, model, None))
    return lines


def _make_base(setup: Setup) -> nn.Module:
    """Return the initial model of all clients, whose corrections are zero."""
    build = setup.build_initial or setup.build
    with randomness.seeded(setup.seed, *INITIAL):
        model = build()
    plain = mixed.restore(constants.release(model))
    return restore_layers(lora.merge(plain))


def _write_stem(model: LoadedModel) -> str:
    """Return the beginning of a model's file names."""
    return model.name.replace(" ", "-")


def _write_tensors(path: Path, module: nn.Module) -> None:
    from safetensors.torch import save

    # copied, because the format does not support tensors that share memory (tied ones)
    tensors = {
        key: tensor.clone(memory_format=torch.contiguous_format)
        for key, tensor in module.state_dict().items()
    }
    atomic.write(path, save(tensors, {"format": "pt"}))


def _write_about(
    folder: Path, models: RunModels, model: LoadedModel, program: str | None
) -> str:
    """Write the description of a model; return a line on it, with a warning if its
    accuracy differs from the one that the run recorded.
    """
    about = _describe(models, model, program)
    text = json.dumps(about, indent=1)
    atomic.write(folder / f"{_write_stem(model)}.json", text.encode())
    accuracy = about["accuracy"]
    column = model.moment or "never scored"
    line = f"{model.name}: {column}, round {model.round}, {100 * accuracy:.2f} %"
    if model.recorded is None or model.recorded == accuracy:
        return line
    return (
        f"{line}; the run recorded {100 * model.recorded:.2f} %; last bits depend on "
        "processor, GPU and libraries, and bfloat16 rounds"
    )


def _export_program(module: nn.Module, x: torch.Tensor) -> tuple[bytes, str]:
    """Return the exported forward of a module for any number of samples.

    Args:
        module: the module.
        x: example samples [n, *shape].

    Returns:
        The bytes of the program and "", or b"" and the reason why it cannot be
        exported.
    """
    example = torch.cat([x[:1], x[:1]])  # torch treats a dimension of 1 as a constant
    content = io.BytesIO()
    try:
        shapes = ({0: torch.export.Dim("samples")},)
        program = torch.export.export(module, (example,), dynamic_shapes=shapes)
        torch.export.save(program, content)
    except Exception as error:  # a user's module may raise any exception
        return b"", user_code.describe_error(error)
    return content.getvalue(), ""


def _describe(
    models: RunModels, model: LoadedModel, program: str | None
) -> dict[str, Any]:
    """Return the description of a model, for its JSON file."""
    prepared = models.replay.prepared
    x, y = models.samples(model.clients)
    right = int((predict_classes(model.module, x) == y).sum())
    return {
        "model": model.name,
        "moment": model.moment,
        "round": model.round,
        "accuracy": right / len(y),
        "recorded": model.recorded,
        "correct": right,
        "samples": len(y),
        "program": program,
        "prediction": _describe_prediction(model.module),
        "input": {
            "shape": list(x.shape[1:]),
            "dtype": str(x.dtype).removeprefix("torch."),
            "from": _describe_normalisation(models),
        },
        "classes": prepared.setup.classes,
        "constructor": _describe_constructor(models, model.module),
        "digest": models.replay.digest(model.round),
        "sha256": digest_tensors(model.module.state_dict()),
        "configuration": models.config,
        "hpcfl": __version__,
    }


def _describe_prediction(module: nn.Module) -> str | dict[str, Any]:
    """Return the origin of the logits: the module's forward, or a function of its
    buffers.
    """
    if not isinstance(module, Predicting):
        return "forward"
    names = module.state_dict()
    reads = [name for name in names if name.startswith(f"{PREDICTION}.")]
    return {"function": _name_place(module.predict), "reads": reads}


def _describe_normalisation(models: RunModels) -> str | dict[str, Any]:
    """Return the transformation of the data set's samples to the model's input."""
    samples = models.replay.prepared.resources.samples
    if samples.has_tokens:
        return "token ids"
    return {"formula": "(x / scale - mean) / std", **vars(samples.normalise)}


def _describe_constructor(models: RunModels, module: nn.Module) -> dict[str, Any]:
    """Return function and parts from which the module can be rebuilt."""
    experiment = models.replay.prepared.config
    made_by = plugins.find("hpcfl.models", "model.name", experiment.model.name)
    method = type(experiment.method)
    leaves = {
        name: repr(part)
        for name, part in module.named_modules()
        if not list(part.children())
    }
    return {
        "function": _name_place(made_by),
        "options": experiment.model.options,
        "head": experiment.model.head,
        "adapted_by": f"{_name_place(method)}.adapt",
        "parts": leaves,
    }


def _name_place(function: Any) -> str:
    """Return the place of a function's or class's definition, ``module:name``."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{function.__module__}:{name}"
