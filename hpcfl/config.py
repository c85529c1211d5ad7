"""The experiment: typed, frozen, validated once, read from TOML.

``load`` turns a file and ``--set`` overrides into a ``Config``; everything that is wrong becomes one ``UserError`` line
with the file, the key, the value, what is allowed and the nearest valid name.
"""

import hashlib
import inspect
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, SerializeAsAny

from hpcfl import plugins, protocols
from hpcfl.errors import UserError

# Keys that do not belong to a run's identity: where and how fast it runs, not what it computes.
NOT_IDENTITY = ("name", "protocol", "runtime", "checkpoint", "rounds")


class Section(BaseModel):
    """One table of the experiment file: unknown keys, wrong types, NaN and infinities are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Data(Section):
    dataset: str = Field("digits", description="name of a data set; `hpcfl datasets` lists them")
    root: str | None = Field(None, description="folder that holds the data sets; default $HPCFL_DATA")
    file: str | None = Field(None, description="your own data, for dataset = 'npz'")
    normalise: Literal["half", "statistics"] = Field(
        "half", description="subtract and divide by 0.5, or by the data set's own mean and standard deviation")
    augment: bool = Field(False, description="train on images cropped at random after padding by 4, and flipped")


class Partition(Section):
    """What every partition scheme shares; a scheme adds its own keys (see ``hpcfl/data/partitions``)."""

    scheme: str = Field("dirichlet", description="how samples are spread over clients")
    clients: PositiveInt = Field(20, description="number of clients in total")
    seed: int = Field(1, ge=0, description="seed of the partition alone, so that all runs share one partition")
    train: float = Field(0.75, gt=0, lt=1, description="share of a client's samples used for training")
    file: str | None = Field(None, description="reuse the partition stored in this file instead of drawing one")


class Model(Section):
    name: str = Field("mlp", description="a built-in model or your own 'module:callable'")
    head: Literal["linear", "cosine"] = Field("linear", description="cosine: features and rows of the head at unit length")
    head_scale: float = Field(1.0, gt=0, description="initial scale of a cosine head's logits, learnable")
    options: dict[str, Any] = Field(default_factory=dict, description="the model's own keys, checked by its signature")


class Training(Section):
    epochs: PositiveInt = Field(1, description="local epochs a round")
    batch_size: PositiveInt = Field(10, description="samples a mini-batch")
    optimizer: Literal["sgd", "adam"] = Field("sgd", description="its state is reset every round")
    lr: float = Field(0.005, gt=0, description="local learning rate")
    lr_decay: float = Field(1.0, gt=0, le=1, description="factor on the learning rate after every round")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of SGD")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty added to the gradient")
    clip: float | None = Field(None, gt=0, description="largest norm of a client's gradient")
    buffers: Literal["local", "average"] = Field("local", description="batch-norm statistics: each client's own, or averaged")
    on_divergence: Literal["stop", "exclude"] = Field(
        "stop", description="a client with NaN or Inf: stop the run, or leave the client out of the round")


class Participation(Section):
    fraction: float = Field(1.0, gt=0, le=1, description="share of clients drawn each round, at least one")


class Evaluation(Section):
    every: PositiveInt = Field(1, description="score every so many rounds, and the last")
    clients: Literal["all", "cohort"] = Field("all", description="score all clients, or only those of the round")
    score: str = Field("method", description="the score that `best` is about: pre, post … (local training), or the method's own")
    metric: Literal["weighted", "mean", "worst_tenth", "pm_v", "pm_l"] = Field(
        "weighted", description="its summary over clients: by samples, plain mean, PM(V) and PM(L) on a global test set")


class Checkpoint(Section):
    every: PositiveInt | Literal["auto"] = Field(
        "auto", description="rounds between checkpoints; auto: so rarely that they cost less than 2 % of the time")


class Runtime(Section):
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda or cuda:N")
    lanes: PositiveInt | Literal["auto"] = Field("auto", description="clients trained side by side in one step")
    threads: PositiveInt = Field(1, description="CPU threads a rank; changes the last bits of results")
    memory: float = Field(
        8192.0, gt=0, description="MB of client state, and on rank 0 of all models, kept in memory; the rest in $TMPDIR")
    hang_after: float = Field(600.0, gt=0, description="seconds of silence after which a rank counts as lost")


def _options(function: Callable[..., Any], skip: int) -> type[BaseModel]:
    """A section whose keys are a callable's parameters after the first ``skip``: types, defaults and constraints."""
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())[skip:]
    fields: dict[str, Any] = {
        p.name: (Any if p.annotation is p.empty else p.annotation, ... if p.default is p.empty else p.default)
        for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return pydantic.create_model("Options", __base__=Section, **fields)


_COMMON_MODEL_KEYS = [key for key in Model.model_fields if key != "options"]


def _model(**table: Any) -> Model:
    """``name`` picks the callable; keys that not all models have must fit its signature after (shape, classes)."""
    common = {key: table.pop(key) for key in _COMMON_MODEL_KEYS if key in table}
    name = common.get("name", Model.model_fields["name"].default)
    return Model(**common, options=_model_keys(name)(**table).model_dump())


def _model_keys(name: str) -> type[BaseModel]:
    return _options(plugins.find("hpcfl.models", "model.name", name), skip=2)


def _partition_class(table: dict[str, Any]) -> type[Partition]:
    name = table.get("scheme", Partition.model_fields["scheme"].default)
    return plugins.find("hpcfl.data.partitions", "partition.scheme", name)


def _method_class(table: dict[str, Any]) -> type[Section]:
    if "name" not in table:
        raise UserError(f"'method.name' is missing; allowed: {', '.join(plugins.names('hpcfl.methods'))}")
    return plugins.find("hpcfl.methods", "method.name", table["name"])


class Config(Section):
    """A whole experiment, made by ``parse``. Sections not given take their defaults; ``method.name`` must be given."""

    name: str = Field("experiment", pattern=r"^[\w.+=,-]+$", description="names the results folder")
    seed: int = Field(0, ge=0, description="seed of everything but the partition")
    protocol: str | None = Field(None, description="a paper's settings as defaults: cwfedavg, fedala, diversifed, fednh")
    rounds: PositiveInt = Field(100, description="federated rounds")
    data: Data = Data()
    partition: SerializeAsAny[Partition]
    model: Model
    method: SerializeAsAny[Section]
    training: Training = Training()
    participation: Participation = Participation()
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()
    runtime: Runtime = Runtime()

    def resolved(self) -> dict[str, Any]:
        """Every key with its value, JSON-ready, in the shape of the experiment file."""
        table = self.model_dump(mode="json")
        table["model"] |= table["model"].pop("options")
        return table

    def identity(self) -> dict[str, Any]:
        """What makes two runs the same run: the resolved configuration without NOT_IDENTITY and places of files."""
        table = {key: value for key, value in self.resolved().items() if key not in NOT_IDENTITY}
        table["data"].pop("root")
        table["partition"].pop("file")
        return table

    def fingerprint(self) -> str:
        """SHA-256 of the identity, hexadecimal."""
        return hashlib.sha256(json.dumps(self.identity(), sort_keys=True).encode()).hexdigest()


def parse(table: dict[str, Any], source: str = "configuration") -> Config:
    """A validated Config from a nested table. Raises UserError naming ``source``, key, value and what is allowed."""
    sections = {"partition": lambda given: _partition_class(given)(**given), "model": lambda given: _model(**given),
                "method": lambda given: _method_class(given)(**given)}
    place = ""
    try:
        table = protocols.complete(table)
        built = {}
        for place, build in sections.items():
            given = table.get(place, {})
            if not isinstance(given, dict):
                raise UserError(f"{place} = {given!r}: must be a table, [{place}]")
            built[place] = build(given)
        place = ""
        return Config(**{**table, **built})
    except pydantic.ValidationError as error:
        raise UserError(f"{source}: {_explain(error, place, table)}") from None
    except UserError as error:
        raise UserError(f"{source}: {error}") from None


def read(path: str | Path, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """The nested table of an experiment file, TOML or what ``Config.resolved`` says as ``.json``, with ``section.key=value``
    overrides applied, not yet validated."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        table = json.loads(text) if Path(path).suffix == ".json" else tomllib.loads(text)
    except FileNotFoundError:
        raise UserError(f"{path}: no such experiment file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: not valid {'JSON' if Path(path).suffix == '.json' else 'TOML'} ({error})") from None
    for override in overrides:
        assign(table, *_split(override))
    return table


def load(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """The experiment in a TOML file. Raises UserError."""
    return parse(read(path, overrides), str(path))


def assign(table: dict[str, Any], key: str, value: Any) -> None:
    """Set ``table["a"]["b"] = value`` for the dotted key ``a.b``, making tables on the way."""
    *sections, last = key.split(".")
    for section in sections:
        table = table.setdefault(section, {})
        if not isinstance(table, dict):
            raise UserError(f"--set {key}: '{section}' is a value, not a section")
    table[last] = value


def _split(override: str) -> tuple[str, Any]:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {override}: write it as section.key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text  # a bare word is a string
    return key.strip(), value


def _explain(error: pydantic.ValidationError, place: str, table: dict[str, Any]) -> str:
    """One line for the first thing that is wrong in the section ``place`` ("" for the whole file)."""
    errors = error.errors(include_url=False)
    first = errors[0]
    location = _location(first["loc"], place, table)
    key = ".".join(location)
    if first["type"] == "extra_forbidden":
        kind = "section" if isinstance(first["input"], dict) and len(location) == 1 else "key"
        return f"unknown {kind} '{key}'{plugins.nearest(location[-1], _fields_of(location[:-1], table))}"
    if first["type"] == "missing":
        return f"'{key}' is missing"
    if first["type"] in ("model_type", "dict_type"):
        return f"{key} = {first['input']!r}: must be a table, [{key}]"
    wanted = [_wanted(one) for one in errors if _location(one["loc"], place, table) == location]  # several for a union
    field = _fields_of(location[:1], table).get(location[1]) if len(location) > 1 else Config.model_fields[key]
    meaning = f" ({field.description})" if field is not None and field.description else ""
    return f"{key} = {first['input']!r}: must be {' or '.join(wanted)}{meaning}"


def _wanted(error: Any) -> str:
    """What would be allowed, to stand after "must be"."""
    if error["type"] in ("sequence_str", "list_type"):
        return "a list"
    words = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ").removeprefix("String should ")
    return words.replace("match pattern", "of the form").replace("a valid ", "a ").replace("a integer", "an integer")


def _location(loc: tuple[int | str, ...], place: str, table: dict[str, Any]) -> list[str]:
    """The key that an error is about, without the members of a union that pydantic tries."""
    whole = [*([place] if place else []), *loc]
    depth = 2 if isinstance(table.get(str(whole[0])), dict) else 1
    return [str(part) for part in [*whole[:depth], *(part for part in whole[depth:] if isinstance(part, int))]]


def _fields_of(location: list[str], table: dict[str, Any]) -> Mapping[str, Any]:
    """The valid keys of the section at ``location``, each with its pydantic field where it has one."""
    if not location:
        return Config.model_fields
    section, given = location[0], table.get(location[0], {})
    if section == "model":
        own = _model_keys(given.get("name", Model.model_fields["name"].default)).model_fields
        return {**dict.fromkeys(_COMMON_MODEL_KEYS), **own}
    find = {"method": _method_class, "partition": _partition_class}.get(section)
    return (find(given) if find else Config.model_fields[section].annotation).model_fields
