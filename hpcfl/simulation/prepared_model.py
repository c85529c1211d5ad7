"""Preparation of an experiment's model: its builders and its frozen values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from hpcfl import models
from hpcfl.clients.losses import Tensors
from hpcfl.clients.setup import INITIAL
from hpcfl.data.datasets import Dataset
from hpcfl.errors import UserError
from hpcfl.experiment.config import Config
from hpcfl.experiment.experiment_file import MIXED
from hpcfl.methods.base import Method
from hpcfl.models import usable
from hpcfl.models.layer_replacements import replace_layers
from hpcfl.rows import constants, layout, randomness
from hpcfl.storage.clients import digest_tensors

Build = Callable[[], nn.Module]


@dataclass(frozen=True)
class ModelAdapter:
    """An adapter for the model, made by the caller of the engine from ``[adapter]``.

    Attributes:
        insert: function that inserts the adapter into a new model, freezes the other
            parameters, and returns the model.
        read: function that reads the initial model's tensors from files, given a model
            without the adapter. It returns tensors by name, and notes. None without
            files.
    """

    insert: Callable[[nn.Module], nn.Module]
    read: Callable[[nn.Module], tuple[Tensors, list[str]]] | None = None


@dataclass(frozen=True)
class PreparedModel:
    """The model of a client.

    Attributes:
        build: function that makes the model with new random parameters, adapted to the
            method.
        build_initial: function that makes the initial model of all clients, possibly
            from a file.
        fixed_digest: digest of the values that the seed does not determine: frozen values
            and values from the file; None without any.
        template: initial model on the CPU.
        parameters: layout of the trained parameters.
        buffers: layout of the batch-norm statistics.
        notes: notes on the file and on the output layer.
    """

    build: Build
    build_initial: Build
    fixed_digest: str | None
    template: nn.Module
    parameters: layout.Layout
    buffers: layout.Layout
    notes: list[str]


def prepare_model(
    config: Config, method: Method, dataset: Dataset, adapter: ModelAdapter | None
) -> PreparedModel:
    """Build the model of a client.

    Frozen values come from the random draw of the initial model, because trained values
    may be computed from them.

    Args:
        config: configuration of the experiment.
        method: method, which can adapt the model.
        dataset: data set.
        adapter: adapter of the experiment; None without one.

    Raises:
        UserError: The model cannot be built or trained.
        ValueError: The experiment has an adapter, but ``adapter`` is None.
    """
    if config.adapter.is_used and adapter is None:
        raise ValueError(
            "the experiment has an adapter; pass it as the argument 'adapter'"
        )
    # The function refers to facts of the data set, because samples would stay in memory.
    facts = dataset.shape, dataset.classes, dataset.vocabulary
    build_base = partial(models.build, config.model, *facts)
    build = partial(build_model, config, method, adapter, build_base)
    given, notes = read_given(config, build_base, adapter)
    statistics = find_own_statistics(config, build, dataset)
    if adapter is not None and ":" in config.model.name:
        refuse_unread_adapter(config, build_base, adapter, dataset)
    with randomness.seeded(config.seed, *INITIAL):
        frozen = copy_frozen_values(config, build(given), statistics)
    for name in frozen:
        given.pop(name, None)  # avoids a second copy in memory
    build_initial = partial(build, given=given, frozen=frozen)
    with randomness.seeded(config.seed, "template"):
        template = build_initial()
    parameters = layout.lay_out_parameters(template)
    refuse_frozen(config, method, parameters)
    return PreparedModel(
        build=partial(build, frozen=frozen),
        build_initial=build_initial,
        fixed_digest=digest_fixed(frozen, given),
        template=template,
        parameters=parameters,
        buffers=layout.lay_out_buffers(template),
        notes=notes + list_head_notes(template, parameters),
    )


def build_model(
    config: Config,
    method: Method,
    adapter: ModelAdapter | None,
    build_base: Build,
    given: Tensors | None = None,
    frozen: Tensors | None = None,
) -> nn.Module:
    """Return a new model with its adapter, its precision and the method's changes.

    Args:
        config: configuration of the experiment.
        method: method, which can adapt the model.
        adapter: adapter of the experiment; None without one.
        build_base: function that makes the model without all of these.
        given: values that replace random ones, by name.
        frozen: constants of the model, by name.
    """
    module = build_base()
    if given:
        module.load_state_dict(given, strict=False)
    if adapter is not None:
        # The adapter comes first, so that it does not freeze layers that a method adds.
        module = adapter.insert(module)
    if config.runtime.precision == MIXED:
        from hpcfl.models import mixed

        # Mixed precision comes before the method: layers that it adds use float32.
        module = mixed.mix(replace_layers(module))
    module = replace_layers(method.adapt(module))
    return constants.hold(module, frozen or {})


def copy_frozen_values(
    config: Config, module: nn.Module, statistics: set[str]
) -> Tensors:
    """Return copies of a model's frozen values by name, in the precision of the run.

    Args:
        config: configuration of the experiment.
        module: initial model.
        statistics: names of own buffers that the forward pass changes.
    """
    adapted = config.adapter.kind != "none"
    values = constants.copy_frozen(module, adapted, statistics)
    if config.runtime.precision != MIXED:
        return values
    from hpcfl.models import mixed

    return mixed.stored(module, values)


def digest_fixed(frozen: Tensors, given: Tensors) -> str | None:
    """Return the digest of frozen values and of values from a file; None without any."""
    fixed = dict(frozen)
    for name, value in given.items():
        fixed[f"init.{name}"] = value
    # Bytes, because NumPy lacks some dtypes of torch.
    content = {
        name: value.contiguous().flatten().view(torch.uint8)
        for name, value in fixed.items()
    }
    return digest_tensors(content) if content else None


def find_own_statistics(config: Config, build: Build, dataset: Dataset) -> set[str]:
    """Return the names of a model's own buffers that its forward pass changes.

    Args:
        config: configuration of the experiment.
        build: function that makes the model.
        dataset: data set with samples for the forward pass.

    Raises:
        UserError: The model cannot be trained.
    """
    name, x = config.model.name, dataset.normalise(dataset.x[:2])
    with randomness.seeded(config.seed, "statistics"):
        module = build()
    try:
        usable.refuse_unusable(module)
        own = ":" in name or any(constants.list_own_buffers(module))
        if not own:  # built-in models have no state other than norm statistics
            return set()
        return usable.find_statistics(module, x, config.seed)
    except UserError:
        raise
    except Exception as error:
        raise usable.explain(error, name, x) from error


def refuse_unread_adapter(
    config: Config, build_base: Build, adapter: ModelAdapter, dataset: Dataset
) -> None:
    """Raise UserError if a user's model does not read what the adapter adds to it.

    A forward pass that uses the weight of a layer, instead of calling the layer, has
    the same output with and without the adapter.
    """
    with randomness.seeded(config.seed, "statistics"):
        module = build_base()
        own = dict(module.named_parameters()).keys()
        module = adapter.insert(module)
        output = module(dataset.normalise(dataset.x[:2]))
    added = {
        name: parameter
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and name not in own
    }
    if not added:
        return
    gradients: Sequence[torch.Tensor | None] = [None] * len(added)
    if output.requires_grad:
        gradients = torch.autograd.grad(
            output.sum(), [*added.values()], allow_unused=True
        )
    for name, gradient in zip(added, gradients, strict=True):
        if gradient is None:
            raise UserError(
                f"adapter.kind = '{config.adapter.kind}': the output of {config.model.name} "
                f"does not depend on '{name}'; let its forward call the layer instead of "
                "reading its weight, or name other layers in adapter.targets"
            )


def read_given(
    config: Config, build: Build, adapter: ModelAdapter | None
) -> tuple[Tensors, list[str]]:
    """Read the initial model's tensors from files.

    Args:
        config: configuration of the experiment.
        build: function that makes the model without an adapter.
        adapter: adapter of the experiment; None without one.

    Returns:
        Tensors by name, and notes.

    Raises:
        UserError: A file cannot be read or does not fit.
    """
    with randomness.seeded(config.seed, *INITIAL):
        if adapter is not None and adapter.read is not None:
            return adapter.read(build())
        if config.model.init is None:
            return {}, []
        from hpcfl.models import initial

        return initial.read(config.model.init, build()), []


def refuse_frozen(config: Config, method: Method, parameters: layout.Layout) -> None:
    """Raise UserError if the model freezes parameters that must be trained."""
    if not parameters.frozen:
        return
    how = "requires_grad = False"
    if config.adapter.kind != "none":
        how = f"adapter.kind = '{config.adapter.kind}'"
    if not parameters.width:
        raise UserError(
            f"model.name = '{config.model.name}': all its parameters are frozen "
            "(requires_grad = False), so there is nothing to train; unfreeze some of them"
        )
    for group, why in method.trains.items():
        if not parameters.list_members([group]):
            raise UserError(
                f"method.name = '{method.name}': all of the model's {group} is frozen "
                f"({how}), so {why}; unfreeze some of it, or choose another method"
            )


def list_head_notes(module: nn.Module, parameters: layout.Layout) -> list[str]:
    """Return a note on each parameter of the output layer that belongs to another layer.

    A row has tied parameters once, under their first name.

    Args:
        module: model of one client.
        parameters: layout of its trained parameters.
    """
    first, notes = {}, []
    for name, tensor in constants.list_parameters(module):
        first[id(tensor)] = name
    for name, tensor in module.state_dict(keep_vars=True).items():
        layer = first.get(id(tensor), name)
        if name.startswith("head.") and name != layer:
            notes.append(
                f"the model's '{name}' is tied to '{layer}' and belongs to that layer; methods "
                f"and adapters take '{parameters.head_name}' without it as the output layer"
            )
    return notes
