"""Configuration of an experiment, read from a TOML file and validated once.

``load`` converts a file and ``--set`` overrides to a ``Config``. Each mistake becomes a
line of a ``UserError`` with the file, the key, the value, the allowed values and the
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
    parse_override,
    read_table,
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
    list_changed_keys,
)

Made = TypeVar("Made")
MOST_SHIFTS = 10
NAME_BYTES = 200  # bytes of a folder's name; file systems take 255

# Sections that define several runs. The configuration of a single run lacks them.
OF_MANY_RUNS = ("sweep", "tune")


def _check_length(name: str) -> str:
    if len(name.encode()) > NAME_BYTES:
        raise ValueError(f"must be at most {NAME_BYTES} bytes long")
    return name


class Config(Section):
    """Configuration of one experiment, made by ``parse``. Every key except
    ``method.name`` has a default.
    """

    name: Annotated[str, AfterValidator(_check_length)] = Field(
        "experiment",
        pattern=r"^[\w+=,][\w.+=,-]*$",
        description="name of the experiment and of its results folder",
    )
    seed: Seed = Field(
        0,
        description="seed of all random numbers except the partition's (partition.seed)",
    )
    protocol: str | None = Field(
        None,
        description="paper whose settings are the defaults: cwfedavg, fedala, "
        "diversifed, fednh",
    )
    rounds: PositiveInt = Field(100, description="number of federated rounds")
    data: Data = Data()
    partition: SerializeAsAny[Partition]
    shift: list[SerializeAsAny[Shift]] = Field(
        default_factory=list,
        max_length=MOST_SHIFTS,
        description="distribution shifts between clients, applied in this order",
    )
    model: Model
    adapter: Adapter = Adapter()
    method: SerializeAsAny[MethodSection]
    overlay: list[SerializeAsAny[OverlaySection]] = Field(
        default_factory=list,
        description="your own overlays, which change all messages, the innermost first",
    )
    transform: list[SerializeAsAny[TransformSection]] = Field(
        default_factory=list,
        description="transforms of the clients' updates before they are sent, in this order",
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
        is_given = any(section is not None for section in given)
        return forges or is_given or bool(self.transform) or self.hides_clients

    @property
    def hides_clients(self) -> bool:
        """Return whether ``[privacy]`` protects clients (``unit = "client"``)."""
        return self.privacy is not None and self.privacy.unit == "client"

    @property
    def hides_samples(self) -> bool:
        """Return whether ``[privacy]`` protects samples (``unit = "sample"``)."""
        return self.privacy is not None and self.privacy.unit == "sample"

    @property
    def needs_rounds(self) -> bool:
        """Return whether a round depends on the total number of rounds, so that a
        resumed run must keep it.
        """
        spends_epsilon = self.privacy is not None and self.privacy.epsilon is not None
        depends = self.method.needs_rounds or self.training.schedule == "cosine"
        return depends or spends_epsilon

    @property
    def notes(self) -> list[str]:
        """Return a note for each key that was changed without effect or misleads."""
        training, lines = self.training, []
        if training.warmup > self.rounds:
            lines.append(
                f"training.warmup = {training.warmup}: with rounds = {self.rounds} the learning rate "
                "never reaches its full value"
            )
        if late := [round for round in training.milestones if round >= self.rounds]:
            lines.append(
                f"training.milestones: {late} come after the last of {self.rounds} rounds"
            )
        tuning = [*self.evaluation.tune_epochs, getattr(self.method, "tune_epochs", 0)]
        if training.schedule == "cosine" and any(tuning):
            lines.append(
                "tune_epochs: with training.schedule = 'cosine' the learning rate is 0 after the "
                "last round, so the scores after it are those without tuning; use 'constant' or "
                "'step'"
            )
        slow = self.participation.stragglers
        cohort = self.participation.count(self.partition.clients)
        if slow and self.participation.scheme == "fixed" and slow * cohort + 1e-9 < 1:
            lines.append(
                f"participation.stragglers = {slow:g}: slows none of {cohort} clients in a "
                f"round; take at least {1 / cohort:g}"
            )
        lines += self._list_unread()
        if self.privacy and not (self.privacy.noise or self.privacy.epsilon):
            lines.append(
                "privacy: without noise ε is infinite; set privacy.noise or privacy.epsilon"
            )
        for place, shift in enumerate(self.shift):
            lines += self._note_shift(f"shift.{place}", shift)
        unheeded = list_changed_keys(training) & {*self.method.list_unheeded()}
        keys = [
            f"training.{key} = {getattr(training, key)!r}" for key in sorted(unheeded)
        ]
        if keys:
            lines.append(
                f"{', '.join(keys)}: ignored in the separate plain SGD steps of "
                f"{self.method.name}"
            )
        return lines

    def _note_shift(self, place: str, shift: Shift) -> list[str]:
        """Return notes on rounds without effect, clean tests and a share of no client."""
        lines = []
        if late := [round for round in shift.at if round > self.rounds + 1]:
            lines.append(
                f"{place}.at: {late} come after the last of {self.rounds} rounds"
            )
        if shift.test == "clean":
            lines.append(
                f"{place}.test = 'clean': test samples are unchanged, unlike the clients' "
                "training samples"
            )
        clients = self.partition.clients
        for key in ("share", "who"):
            share = getattr(shift, key)
            if isinstance(share, int | float) and share * clients + 1e-9 < 1:
                lines.append(
                    f"{place}.{key} = {share:g}: changes none of {clients} clients; take at "
                    f"least {1 / clients:g}"
                )
        return lines

    def _list_unread(self) -> list[str]:
        """Return a note for each key that another key leaves unread."""
        lines = []
        for name in SECTIONS | OPTIONAL:
            if section := getattr(self, name):
                lines += section.describe_unread(f"{name}.")
        for place, shift in enumerate(self.shift):
            lines += shift.describe_unread(f"shift.{place}.")
        return lines

    def resolved(self) -> dict[str, Any]:
        """Return all keys with their values as a table for JSON, nested like an
        experiment file.
        """
        table = self.model_dump(mode="json")
        for section in plugins.WITH_OPTIONS:
            table[section] |= table[section].pop("options")
        for section in (*OPTIONAL, "overlay", "transform"):
            if not table[section]:
                del table[section]  # keeps the identity of runs of earlier versions
        return table

    def fingerprint(self) -> str:
        """Return the configuration's fingerprint, see ``experiment_file.fingerprint``."""
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

# Sections without defaults: a configuration has them only if its file does.
OPTIONAL: dict[str, type[Section]] = {
    "compression": TransformSection,
    "aggregation": AggregationSection,
    "attack": AttackSection,
    "privacy": Privacy,
}


def parse(table: dict[str, Any], source: str = "configuration") -> Config:
    """Return the configuration of a nested table.

    Args:
        table: Keys and values, nested like an experiment file.
        source: The table's origin, for error messages.

    Raises:
        UserError: The table has mistakes; the error has one line for each.
    """
    config, mistakes = try_parse(table)
    if config is None:
        raise UserError(*(f"{source}: {mistake}" for mistake in mistakes))
    return config


def _complete_from_folder(table: dict[str, Any]) -> dict[str, Any]:
    """Return the nested table with the keys that its pretrained folders set.

    Raises UserError for keys that contradict a folder.
    """
    if "adapter" not in table:
        return table
    from hpcfl.experiment import pretrained  # most experiments have no adapter

    return pretrained.complete(table)


def try_parse(table: dict[str, Any]) -> tuple[Config | None, list[str]]:
    """Return the configuration of a nested table, or None and a line for each mistake.

    The lines report the mistakes of all sections.
    """
    mistakes: list[str] = []

    def tried(make: Callable[[], Made], place: str = "") -> Made | None:
        """Return the result of ``make``, or None after adding its error to
        ``mistakes``.
        """
        try:
            return make()
        except pydantic.ValidationError as error:
            allowed = partial(_list_fields, place, table)
            mistakes.extend(wrong_values.explain(error, place, allowed))
        except UserError as error:
            mistakes.extend(error.args)
        return None

    completed = tried(lambda: experiment_file.add_protocol_defaults(table))
    if completed is None:
        completed = {key: value for key, value in table.items() if key != "protocol"}
    # A key that contradicts a pretrained folder would cause further, misleading lines.
    found = tried(partial(_complete_from_folder, completed))
    if found is None:
        return None, mistakes
    table = found
    sections: dict[str, Section | None] = {}
    for place, given in _list_sections(table).items():
        sections[place] = tried(partial(_parse_section, place, given), place)
    config = tried(lambda: Config(**_join_sections(table, sections)))
    for check, places in CHECKS.items():
        checkable = [sections.get(place) for place in places]
        if None not in checkable:
            tried(partial(check, *checkable))
    if config is None or mistakes:
        return None, mistakes
    config = _add_assignment(_add_partition_seed(config))
    return _choose_lane_rows(_set_equal_weights(config)), []


def _list_sections(table: dict[str, Any]) -> dict[str, Any]:
    """Return the values of all sections by their place, such as ``data`` or
    ``shift.0`` for the first table of ``[[shift]]``.
    """
    places = {name: table.get(name, {}) for name in SECTIONS}
    places |= {name: table[name] for name in OPTIONAL if name in table}
    for name in plugins.LISTS:
        given = table.get(name)
        for position, entry in enumerate(given if isinstance(given, list) else []):
            places[f"{name}.{position}"] = entry
    return places


def _join_sections(
    table: dict[str, Any], sections: dict[str, Section | None]
) -> dict[str, Any]:
    """Return the table with its sections, where unchecked defaults replace sections
    with mistakes.

    Args:
        table: Nested table.
        sections: Sections by place; None for a section with mistakes.
    """
    joined = dict(table)
    nameless: dict[str, Any] = {"kind": ""}  # key without a default in some sections
    listed: dict[str, list[Section]] = {}
    for place, section in sections.items():
        name, _, position = place.partition(".")
        if section is None and name not in OPTIONAL:
            section = _find_class(name).model_construct(**nameless)
        if section is not None and position:
            listed.setdefault(name, []).append(section)
        else:
            joined[name] = section
    return joined | listed


def _find_class(section: str) -> type[Section]:
    """Return the class with the common keys of a section."""
    known = (SECTIONS | OPTIONAL).get(section)
    return known or plugins.find_common_keys(section)


def _parse_section(place: str, given: Any) -> Section:
    """Return a section of the experiment file, with the keys of its plugin.

    Args:
        place: The section, or a place such as ``shift.0``.
        given: The section's value in the file.

    Raises:
        UserError: The value is no table, or a user's code fails; then the error names
            file and line.
        pydantic.ValidationError: A key or value is wrong.
    """
    if not isinstance(given, dict):
        raise UserError(
            f"{place} = {wrong_values.shorten(given)}: must be a table, [{place}]"
        )
    name = place.partition(".")[0]
    if name not in plugins.PLUGINS:
        return _find_class(name)(**given)
    if place == "partition":
        given = _drop_seed_word(given)
    try:
        return plugins.make_section(place, given)
    except (UserError, pydantic.ValidationError):
        raise
    except Exception as error:
        # Wrong arguments of the plugin's __init__ raise outside the plugin's code.
        plugin = plugins.find_in_section(place, given)
        where = user_code.locate(error, plugin)
        if not where:
            raise
        raise UserError(f"{where}{user_code.describe_error(error)}") from error


def _check_stragglers(participation: Participation, training: Training) -> None:
    """Raise UserError if there are stragglers but only one local epoch."""
    if (share := participation.stragglers) and training.epochs == 1:
        raise UserError(
            f"participation.stragglers = {share}: a straggler cannot train for less than 1 "
            "local epoch; set training.epochs to more than 1"
        )


def _check_selection(participation: Participation, time: Time) -> None:
    """Raise UserError if the inputs of a selection are unknown when it is made."""
    key = f"participation.select = '{participation.select}'"
    if participation.by_time and time.mode == "none":
        raise UserError(
            f"{key}: depends on the clients' durations; set time.mode, for example to "
            "'synchronous'"
        )
    if participation.by_losses and time.mode == "asynchronous":
        raise UserError(
            f"{key}: depends on reported losses, but with time.mode = 'asynchronous' the "
            "clients are selected before training; take 'uniform' or 'fastest'"
        )
    if participation.scheme == "poisson" and participation.select != "uniform":
        raise UserError(
            f"{key}: participation.scheme = 'poisson' draws each client independently; "
            "take 'uniform'"
        )
    if participation.scheme == "poisson" and time.mode != "none":
        raise UserError(
            "participation.scheme = 'poisson': a round with virtual time waits for a "
            "fixed number of clients; set time.mode = 'none'"
        )


def _check_base(model: Model, adapter: Adapter) -> None:
    """Raise UserError for ``adapter.names`` or ``adapter.init`` without a base, and for
    two files with initial weights.
    """
    if adapter.names and adapter.base is None:
        raise UserError(
            "adapter.names: needs adapter.base, the file with the named tensors"
        )
    if adapter.init and adapter.base is None:
        raise UserError("adapter.init: needs adapter.base, the adapter's base model")
    if adapter.base is not None and model.init is not None:
        raise UserError("model.init and adapter.base exclude each other")


def _check_time(time: Time) -> None:
    """Raise UserError if a key of ``[time]`` needs another key that is missing."""
    if time.mode == "none":
        return
    for key, file in (("devices", "file"), ("availability", "availability_file")):
        if getattr(time, key) == "file" and getattr(time, file) is None:
            raise UserError(f"time.{key} = 'file': set time.{file} to the file's path")
    if time.mode == "asynchronous" and time.rule == "semi" and time.period is None:
        raise UserError(
            "time.rule = 'semi': set time.period, the seconds between two steps"
        )
    if len(time.shares) != len(time.factors):
        raise UserError(
            f"time.shares = {time.shares}: must have the length of time.factors, "
            f"{len(time.factors)}"
        )
    if min(time.shares, default=0) < 0 or sum(time.shares) <= 0:
        raise UserError(
            f"time.shares = {time.shares}: each must be at least 0, one above 0"
        )


def _check_samples(data: Data, partition: Partition) -> None:
    """Raise UserError if the keys for a part of a data set contradict others."""
    if data.redraw and data.samples is None:
        raise UserError(
            "data.redraw = true: needs data.samples; set it to the number of training samples "
            "to draw"
        )
    if data.redraw and partition.file is not None:
        raise UserError(
            f"data.redraw = true: partition.file = '{partition.file}' contains the samples of "
            "another draw; leave out one of the two keys"
        )
    if partition.scheme != "by-client":
        return
    if data.imbalance > 1:
        raise UserError(
            f"data.imbalance = {data.imbalance:g}: with partition.scheme = 'by-client' the data set "
            "defines the samples of each client; take another scheme"
        )
    if data.samples:
        raise UserError(
            f"data.samples = {data.samples}: with partition.scheme = 'by-client' the data set "
            "defines the samples of each client; reduce partition.clients instead"
        )


# Checks that compare sections, with the sections that each one takes.
CHECKS: dict[Callable[..., Any], tuple[str, ...]] = {
    _check_samples: ("data", "partition"),
    _check_base: ("model", "adapter"),
    measures.find_scores: ("evaluation",),
    measures.check_best_by: ("evaluation", "training"),
    _check_stragglers: ("participation", "training"),
    _check_selection: ("participation", "time"),
    _check_time: ("time",),
}


def _drop_seed_word(given: dict[str, Any]) -> dict[str, Any]:
    """Return ``[partition]`` without ``seed = "seed"``, which means the default."""
    return {
        key: value for key, value in given.items() if (key, value) != ("seed", "seed")
    }


def _change(config: Config, section: str, **values: Any) -> Config:
    """Return the configuration with changed values in a section."""
    copy = getattr(config, section).model_copy(update=values)
    return config.model_copy(update={section: copy})


def _add_partition_seed(config: Config) -> Config:
    """Return the configuration with a partition seed, by default the experiment's seed
    plus one.
    """
    if "seed" in config.partition.model_fields_set:
        return config
    return _change(config, "partition", seed=(config.seed + 1) % 2**63)


def _set_equal_weights(config: Config) -> Config:
    """Return the configuration with ``method.weights = "uniform"`` if ``[privacy]``
    protects clients and the file sets no weights.
    """
    method = config.method
    known = "weights" in type(method).model_fields
    if not config.hides_clients or not known or "weights" in method.model_fields_set:
        return config
    return _change(config, "method", weights="uniform")


def _choose_lane_rows(config: Config) -> Config:
    """Return the configuration with only the rows of ``runtime.lane_table`` for its
    model and precision.
    """
    runtime = config.runtime
    if runtime.lane_table is None:
        return config
    table = runtime.lane_table.select(config.model.name, runtime.precision)
    return _change(config, "runtime", lane_table=table)


def _add_assignment(config: Config) -> Config:
    """Return the configuration with ``assign`` set in each shift.

    The default is random if the partition scheme depends on the clients' numbers, so
    that groups do not coincide with the scheme's order of clients.
    """
    by_default = "random" if config.partition.by_number else "blocks"
    shifts = []
    for shift in config.shift:
        assign = shift.assign or by_default
        shifts.append(shift.model_copy(update={"assign": assign}))
    return config.model_copy(update={"shift": shifts})


def read(path: str | Path, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Return the nested table of an experiment file with overrides, not validated.

    If an override selects another plugin (``model.name``, ``method.name``,
    ``partition.scheme``), the file's keys that only the old plugin has are removed;
    keys of other overrides stay.

    Args:
        path: The experiment file.
        overrides: Overrides of the form ``section.key=value``.

    Raises:
        UserError: The file cannot be read, or an override is wrong.
    """
    table = read_table(path)
    try:
        pairs = list(map(parse_override, overrides))
        _refuse_swept(table, [key for key, _ in pairs])
        for key, value in sorted(
            pairs, key=lambda pair: not plugins.is_selector(pair[0])
        ):
            section, _, swept = key.partition(".")
            in_file = table.get(section)
            if section == "sweep" and "." in swept and isinstance(in_file, dict):
                in_file.pop(swept, None)  # its key may be in quotes
            choose(table, key, value)
            check_plain(table, key)
    except UserError as error:
        raise UserError(f"{path}: --set {error}") from None
    return table


def _refuse_swept(table: dict[str, Any], keys: Iterable[str]) -> None:
    """Raise UserError for a key that every cell of the file's ``[sweep]`` sets, because
    overriding it would have no effect.
    """
    sweep = table.get("sweep")
    axes = experiment_file.flatten(sweep) if isinstance(sweep, dict) else {}
    swept = set(axes)
    for axis in axes.values():
        is_list = isinstance(axis, list) and bool(axis)
        if is_list and all(isinstance(case, dict) for case in axis):
            keys_of_cases = [set(experiment_file.flatten(case)) for case in axis]
            swept |= set.intersection(*keys_of_cases)
    for key in keys:
        if key in swept:
            instead = f", by --set 'sweep.{key}=[…]'" if key in axes else ""
            raise UserError(
                f"{key}: every cell of [sweep] sets this key; change it there{instead}"
            )


def choose(table: dict[str, Any], key: str, value: Any) -> None:
    """Set the dotted ``key`` to ``value`` in a nested table.

    If this selects another plugin for a section, the keys that only the old plugin has
    are removed. Raises UserError for a key below a value.
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
    """Return the configuration in a TOML file, with overrides as for ``read``.

    Raises UserError with a line for each mistake.
    """
    return parse(read(path, overrides), str(path))


def _list_fields(place: str, table: dict[str, Any]) -> Iterable[str]:
    """Return the valid keys of the section at ``place``, or of the whole file for ""."""
    if not place:
        return [*Config.model_fields, *OF_MANY_RUNS]
    if place.partition(".")[0] in plugins.PLUGINS:
        return plugins.list_fields(place, _list_sections(table)[place])
    return _find_class(place).model_fields
