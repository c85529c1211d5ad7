"""The whole configuration of an experiment, read from a TOML file and validated once.

``load`` converts a file and ``--set`` overrides to a ``Config``. Each mistake becomes a
line of a ``UserError``: the file, the key, the value, the allowed values and the
nearest valid name.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pydantic
from pydantic import AfterValidator, Field, PositiveInt, SerializeAsAny

from hpcfl.errors import UserError
from hpcfl.experiment import (
    experiment_file,
    measures,
    plugins,
    user_code,
    wrong_values,
)
from hpcfl.experiment.experiment_file import (
    assign,
    check_plain,
    fingerprint,
    parsed,
    split,
)
from hpcfl.experiment.sections import (
    Adapter,
    AggregationSection,
    AttackSection,
    Checkpoint,
    Data,
    Evaluation,
    MethodSection,
    Model,
    Newcomers,
    OverlaySection,
    Participation,
    Partition,
    Privacy,
    Runtime,
    Section,
    Seed,
    Shift,
    Time,
    Training,
    TransformSection,
    changed,
)

Made = TypeVar("Made")
MOST_SHIFTS = 10
LONGEST = 200  # bytes of a folder's name; file systems take 255

# Sections of a file that make many runs; a single run's configuration lacks them.
OF_MANY_RUNS = ("sweep", "tune")


def _short(name: str) -> str:
    if len(name.encode()) > LONGEST:
        raise ValueError(f"must be at most {LONGEST} bytes long")
    return name


class Config(Section):
    """A whole experiment, made by ``parse``; every key except ``method.name`` has a
    default.
    """

    name: Annotated[str, AfterValidator(_short)] = Field(
        "experiment",
        pattern=r"^[\w+=,][\w.+=,-]*$",
        description="names the results folder",
    )
    seed: Seed = Field(
        0,
        description="seed of everything that is drawn; of the partition see partition.seed",
    )
    protocol: str | None = Field(
        None,
        description="a paper's settings as defaults: cwfedavg, fedala, "
        "diversifed, fednh",
    )
    rounds: PositiveInt = Field(100, description="federated rounds")
    data: Data = Data()
    partition: SerializeAsAny[Partition]
    shift: list[SerializeAsAny[Shift]] = Field(
        default_factory=list,
        max_length=MOST_SHIFTS,
        description="what else sets clients apart, in this order",
    )
    model: Model
    adapter: Adapter = Adapter()
    method: SerializeAsAny[MethodSection]
    overlay: list[SerializeAsAny[OverlaySection]] = Field(
        default_factory=list,
        description="your own changes of all messages, the innermost first",
    )
    transform: list[SerializeAsAny[TransformSection]] = Field(
        default_factory=list,
        description="changes of the clients' updates before they are sent, in this order",
    )
    compression: SerializeAsAny[TransformSection] | None = None
    aggregation: SerializeAsAny[AggregationSection] | None = None
    attack: SerializeAsAny[AttackSection] | None = None
    privacy: Privacy | None = None
    training: Training = Training()
    participation: SerializeAsAny[Participation] = Participation()
    time: Time = Time()
    newcomers: Newcomers = Newcomers()
    evaluation: Evaluation = Evaluation()
    checkpoint: Checkpoint = Checkpoint()
    runtime: Runtime = Runtime()

    @property
    def changes_updates(self) -> bool:
        """Return whether a section changes the clients' updates or their mean."""
        forges = self.attack is not None and self.attack.changes_updates
        given = self.compression, self.aggregation
        changed = any(section is not None for section in given)
        return forges or changed or bool(self.transform) or self.hides_clients

    @property
    def hides_clients(self) -> bool:
        """Return whether ``[privacy]`` hides clients, and not samples of theirs."""
        return self.privacy is not None and self.privacy.unit == "client"

    @property
    def hides_samples(self) -> bool:
        """Return whether ``[privacy]`` hides samples of clients."""
        return self.privacy is not None and self.privacy.unit == "sample"

    @property
    def needs_rounds(self) -> bool:
        """Return whether a round depends on the number of rounds, which must not change
        then.
        """
        spends_epsilon = self.privacy is not None and self.privacy.epsilon is not None
        depends = self.method.needs_rounds or self.training.schedule == "cosine"
        return depends or spends_epsilon

    @property
    def notes(self) -> list[str]:
        """Return a line for each key that differs from its default without any effect."""
        training, lines = self.training, []
        if training.warmup > self.rounds:
            lines.append(
                f"training.warmup = {training.warmup}: no round of {self.rounds} has the whole rate"
            )
        if late := [round for round in training.milestones if round >= self.rounds]:
            lines.append(
                f"training.milestones: {late} come after the last of {self.rounds} rounds"
            )
        if self.newcomers.epochs and not self.newcomers.clients:
            lines.append(
                f"newcomers.epochs = {self.newcomers.epochs}: there are none, newcomers.clients = 0"
            )
        if unread := self._unread_of_time():
            lines.append(
                f"{', '.join(unread)}: not read with time.mode = '{self.time.mode}'"
            )
        if unread := self.adapter.unread:
            keys = ", ".join(f"adapter.{key}" for key in unread)
            lines.append(f"{keys}: not read with adapter.kind = '{self.adapter.kind}'")
        for place, shift in enumerate(self.shift):
            if late := [round for round in shift.at if round > self.rounds + 1]:
                lines.append(
                    f"shift.{place}.at: {late} come after the last of {self.rounds} rounds"
                )
            if shift.test == "clean":
                lines.append(
                    f"shift.{place}.test = 'clean': test samples are as in the data set, not as "
                    "clients see theirs"
                )
        if unheeded := [
            f"training.{key} = {getattr(training, key)!r}"
            for key in self.method.unheeded
            if getattr(training, key) != Training.model_fields[key].default
        ]:
            lines.append(
                f"{', '.join(unheeded)}: ignored, {self.method.name} takes plain SGD steps "
                "of its own"
            )
        return lines

    def _unread_of_time(self) -> list[str]:
        """Return the changed keys of ``[time]`` that its mode does not read."""
        keys = changed(self.time) - {"mode"}
        if self.time.mode != "none":
            others = {**self.time.of_mode}
            del others[self.time.mode]
            keys &= {key for of_other in others.values() for key in of_other}
        return [f"time.{key}" for key in sorted(keys)]

    def resolved(self) -> dict[str, Any]:
        """Return every key with its value, JSON-able, as nested as in the experiment
        file.
        """
        table = self.model_dump(mode="json")
        for section in ("data", "model"):
            table[section] |= table[section].pop("options")
        for section in (*OPTIONAL, "overlay", "transform"):
            if not table[section]:
                del table[section]  # which runs of earlier versions lack
        return table

    def fingerprint(self) -> str:
        """Return the configuration's fingerprint, as from ``experiment_file``."""
        return fingerprint(self.resolved())


SECTIONS: dict[str, type[Section]] = {
    "data": Data,
    "partition": Partition,
    "model": Model,
    "adapter": Adapter,
    "method": MethodSection,
    "training": Training,
    "participation": Participation,
    "time": Time,
    "newcomers": Newcomers,
    "evaluation": Evaluation,
    "checkpoint": Checkpoint,
    "runtime": Runtime,
}

# Sections that an experiment lacks unless its file has them, and that no defaults fill.
OPTIONAL: dict[str, type[Section]] = {
    "compression": TransformSection,
    "aggregation": AggregationSection,
    "attack": AttackSection,
    "privacy": Privacy,
}


def parse(table: dict[str, Any], source: str = "configuration") -> Config:
    """Return the configuration of a nested table.

    source: the origin of the table, for errors. Raises UserError with a line for each
    mistake.
    """
    config, mistakes = checked(table)
    if config is None:
        raise UserError(*(f"{source}: {mistake}" for mistake in mistakes))
    return config


def _complete_from_folder(table: dict[str, Any]) -> dict[str, Any]:
    """Return the nested table with the keys that a pretrained folder determines.

    Raises UserError for keys that contradict the folder.
    """
    if "adapter" not in table:
        return table
    from hpcfl.experiment import pretrained  # most experiments have no adapter

    return pretrained.complete(table)


def checked(table: dict[str, Any]) -> tuple[Config | None, list[str]]:
    """Return the configuration of a nested table, or None and a line for each mistake.

    A section with a mistake does not hide those in others.
    """
    mistakes: list[str] = []

    def tried(make: Callable[[], Made], place: str = "") -> Made | None:
        """Return the result of ``make``, or None after adding its error to
        ``mistakes``.
        """
        try:
            return make()
        except pydantic.ValidationError as error:
            allowed = partial(_fields_of, place, table | _tables(table))
            mistakes.extend(wrong_values.explain(error, place, allowed))
        except UserError as error:
            mistakes.extend(error.args)
        return None

    completed = tried(lambda: experiment_file.complete(table))
    if completed is None:
        completed = {key: value for key, value in table.items() if key != "protocol"}
    # keys that contradict a pretrained folder would be wrong in other lines, too
    found = tried(partial(_complete_from_folder, completed))
    if found is None:
        return None, mistakes
    table = found
    kinds = SECTIONS | {
        place: kind for place, kind in OPTIONAL.items() if place in table
    }
    sections = {
        place: tried(partial(_section, place, kind, table.get(place, {})), place)
        for place, kind in kinds.items()
    }
    # the stand-in of a section with mistakes is not checked
    valid = {
        place: section
        or (kinds[place].model_construct() if place in SECTIONS else None)
        for place, section in sections.items()
    }
    everything: dict[str, Any] = {**table, **valid}
    nameless: dict[str, Any] = {"kind": ""}
    listed: dict[str, list[Section]] = {}
    for place, given in _tables(table).items():
        name = place.partition(".")[0]
        kind = plugins.find_common_keys(name)
        section = tried(partial(_section, place, kind, given), place)
        listed.setdefault(name, []).append(section or kind.model_construct(**nameless))
    everything |= listed
    config = tried(lambda: Config(**everything))
    for check, places in CHECKS.items():
        checkable = [sections.get(place) for place in places]
        if None not in checkable:
            tried(partial(check, *checkable))
    if config is None or mistakes:
        return None, mistakes
    config = _with_assignment(_with_partition_seed(config))
    return _with_lane_rows(_with_equal_weights(config)), []


def _tables(table: dict[str, Any]) -> dict[str, Any]:
    """Return the tables in LISTS by their place, ``shift.0`` and so on.

    A key that is no list has none.
    """
    places = {}
    for name in plugins.LISTS:
        given = table.get(name)
        for position, entry in enumerate(given if isinstance(given, list) else []):
            places[f"{name}.{position}"] = entry
    return places


def _section(place: str, kind: type[Section], given: Any) -> Section:
    """Return a section of the experiment file, with the keys of the plugin that it
    names.

    kind: the class that all such sections share. Raises UserError, with file and line
    for a failure in a user's code, or pydantic's ValidationError.
    """
    if not isinstance(given, dict):
        raise UserError(
            f"{place} = {wrong_values.shorten(given)}: must be a table, [{place}]"
        )
    name = place.partition(".")[0]
    if name not in plugins.PLUGINS:
        return kind(**given)
    if place == "partition":
        given = _without_word(given)
    try:
        return plugins.make_section(place, given)
    except (UserError, pydantic.ValidationError):
        raise
    except Exception as error:
        # wrong arguments of its __init__ fail outside of its code
        plugin = plugins.find_in_section(place, given)
        where = user_code.locate(plugin, error)
        if not where:
            raise
        raise UserError(f"{where}{user_code.describe_error(error)}") from error


def _check_stragglers(participation: Participation, training: Training) -> None:
    """Raise UserError if no client can do fewer local epochs than others."""
    if (share := participation.stragglers) and training.epochs == 1:
        raise UserError(
            f"participation.stragglers = {share}: no client can do less than one local "
            "epoch; set training.epochs to more than 1"
        )


def _check_selection(participation: Participation, time: Time) -> None:
    """Raise UserError if the inputs of a selection are unknown when it chooses."""
    key = f"participation.select = '{participation.select}'"
    if participation.by_time and time.mode == "none":
        raise UserError(
            f"{key}: goes by how long clients are at work; set time.mode, such as "
            "'synchronous'"
        )
    if participation.by_losses and time.mode == "asynchronous":
        raise UserError(
            f"{key}: goes by the losses that clients tell, and with time.mode = "
            "'asynchronous' who starts when must be known before anybody trains; take "
            "'uniform' or 'fastest'"
        )
    if participation.scheme == "poisson" and participation.select != "uniform":
        raise UserError(
            f"{key}: participation.scheme = 'poisson' draws each client by itself; take "
            "'uniform'"
        )
    if participation.scheme == "poisson" and time.mode != "none":
        raise UserError(
            "participation.scheme = 'poisson': a round with virtual time waits for a "
            "fixed number of clients; set time.mode = 'none'"
        )


def _check_base(model: Model, adapter: Adapter) -> None:
    """Raise UserError for names without their file, and for two files of one model."""
    if adapter.names and adapter.base is None:
        raise UserError("adapter.names: needs adapter.base, the file that has them")
    if adapter.init and adapter.base is None:
        raise UserError("adapter.init: needs adapter.base, the model that it corrects")
    if adapter.base is not None and model.init is not None:
        raise UserError("model.init and adapter.base exclude each other")


def _check_time(time: Time) -> None:
    """Raise UserError if a key of ``[time]`` needs another key that is missing."""
    if time.mode == "none":
        return
    for key, file in (("devices", "file"), ("availability", "availability_file")):
        if getattr(time, key) == "file" and getattr(time, file) is None:
            raise UserError(f"time.{key} = 'file': give its name as time.{file}")
    if time.mode == "asynchronous" and time.rule == "semi" and time.period is None:
        raise UserError(
            "time.rule = 'semi': give the seconds between steps as time.period"
        )
    if len(time.shares) != len(time.factors):
        raise UserError(
            f"time.shares = {time.shares}: as many as time.factors, {len(time.factors)}"
        )
    if min(time.shares, default=0) < 0 or sum(time.shares) <= 0:
        raise UserError(f"time.shares = {time.shares}: 0 or more each, and not all 0")
    if min(time.factors) <= 0:
        raise UserError(f"time.factors = {time.factors}: more than 0 each")


def _check_samples(data: Data, partition: Partition) -> None:
    """Raise UserError for a part of a data set that cannot be drawn or dealt out."""
    if data.redraw and data.samples is None:
        raise UserError(
            "data.redraw = true: there is nothing to draw; set data.samples, the number of "
            "training samples"
        )
    if data.redraw and partition.file is not None:
        raise UserError(
            f"data.redraw = true: partition.file = '{partition.file}' deals out the samples of "
            "one draw; leave out one of the two keys"
        )
    if partition.scheme != "by-client":
        return
    if data.imbalance > 1:
        raise UserError(
            f"data.imbalance = {data.imbalance:g}: with partition.scheme = 'by-client' each client "
            "has samples of its own; take another scheme"
        )
    if data.samples:
        raise UserError(
            f"data.samples = {data.samples}: with partition.scheme = 'by-client' each client has "
            "samples of its own; a smaller partition.clients takes fewer of the clients"
        )


# checks of several sections, with the sections of each
CHECKS: dict[Callable[..., Any], tuple[str, ...]] = {
    _check_samples: ("data", "partition"),
    _check_base: ("model", "adapter"),
    measures.asked: ("evaluation",),
    measures.check_best_by: ("evaluation", "training"),
    _check_stragglers: ("participation", "training"),
    _check_selection: ("participation", "time"),
    _check_time: ("time",),
}


def _without_word(given: dict[str, Any]) -> dict[str, Any]:
    """Return the section ``[partition]`` without ``seed = "seed"``, which is the
    default.
    """
    return {
        key: value for key, value in given.items() if (key, value) != ("seed", "seed")
    }


def _change(config: Config, section: str, **values: Any) -> Config:
    """Return the configuration with other values in a section."""
    changed = getattr(config, section).model_copy(update=values)
    return config.model_copy(update={section: changed})


def _with_partition_seed(config: Config) -> Config:
    """Return the configuration with a partition seed, by default the experiment's plus
    one.
    """
    if "seed" in config.partition.model_fields_set:
        return config
    return _change(config, "partition", seed=(config.seed + 1) % 2**63)


def _with_equal_weights(config: Config) -> Config:
    """Return the configuration with ``method.weights = "uniform"`` where ``[privacy]``
    is given and the file has no weights.
    """
    method = config.method
    known = "weights" in type(method).model_fields
    if not config.hides_clients or not known or "weights" in method.model_fields_set:
        return config
    return _change(config, "method", weights="uniform")


def _with_lane_rows(config: Config) -> Config:
    """Return the configuration with those rows of ``runtime.lane_table`` alone that its
    model and precision may use.
    """
    runtime = config.runtime
    if runtime.lane_table is None:
        return config
    table = runtime.lane_table.select(config.model.name, runtime.precision)
    return _change(config, "runtime", lane_table=table)


def _with_assignment(config: Config) -> Config:
    """Return the configuration with an assignment of groups in each shift.

    The default is random if the scheme depends on the clients' numbers, so that groups
    differ from the scheme's own order of clients.
    """
    by_default = "random" if config.partition.by_number else "blocks"
    shifts = []
    for shift in config.shift:
        assign = shift.assign or by_default
        shifts.append(shift.model_copy(update={"assign": assign}))
    return config.model_copy(update={"shift": shifts})


def read(path: str | Path, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Return the nested table of an experiment file with overrides, not validated.

    Overrides have the form ``section.key=value``. If an override names another plugin
    (``model.name``, ``method.name``, ``partition.scheme``), the file's keys that only
    the old plugin has are removed. Keys of other overrides stay. Raises UserError.
    """
    table = parsed(path)
    try:
        pairs = list(map(split, overrides))
        _refuse_swept(table, [key for key, _ in pairs])
        for key, value in sorted(
            pairs, key=lambda pair: not plugins.is_selector(pair[0])
        ):
            choose(table, key, value)
            check_plain(table, key)
    except UserError as error:
        raise UserError(f"{path}: --set {error}") from None
    return table


def _refuse_swept(table: dict[str, Any], keys: Iterable[str]) -> None:
    """Raise UserError for a key that every cell of the file's ``[sweep]`` sets.

    The override would have no effect.
    """
    sweep = table.get("sweep")
    axes = experiment_file.flat(sweep) if isinstance(sweep, dict) else {}
    linked = [
        [set(experiment_file.flat(case)) for case in axis]
        for axis in axes.values()
        if isinstance(axis, list)
        and axis
        and all(isinstance(case, dict) for case in axis)
    ]
    swept = set(axes).union(*(set.intersection(*cases) for cases in linked))
    for key in keys:
        if key in swept:
            instead = f", by --set 'sweep.{key}=[…]'" if key in axes else ""
            raise UserError(
                f"{key}: every cell of [sweep] sets it anew; change it there{instead}"
            )


def choose(table: dict[str, Any], key: str, value: Any) -> None:
    """Set the dotted ``key`` to ``value`` in a nested table.

    If the key names another plugin for a section, the keys that only the old plugin has
    are removed. Raises UserError.
    """
    section, _, selector = key.partition(".")
    given = table.get(section)
    if (
        plugins.is_selector(key)
        and isinstance(given, dict)
        and given.get(selector) != value
    ):
        for stale in plugins.list_stale_keys(section, given, value):
            given.pop(stale, None)
    assign(table, key, value)


def load(path: str | Path, overrides: Iterable[str] = ()) -> Config:
    """Return the experiment in a TOML file. Raises UserError."""
    return parse(read(path, overrides), str(path))


def _fields_of(place: str, table: dict[str, Any]) -> Iterable[str]:
    """Return the valid keys of a section, or of the whole file for ""."""
    if not place:
        return [*Config.model_fields, *OF_MANY_RUNS]
    if place.partition(".")[0] in plugins.PLUGINS:
        return plugins.list_fields(place, table.get(place, {}))
    return (SECTIONS | OPTIONAL)[place].model_fields
