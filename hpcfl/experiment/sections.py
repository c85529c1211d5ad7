"""The sections of an experiment file: every key with its type, limits and meaning."""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

# the largest integer but a seed; larger sizes would fill the memory before any error
LARGEST = 10_000_000


class Section(BaseModel):
    """A table of the experiment file.

    It refuses unknown keys, wrong types, NaN and infinities.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False
    )

    @field_validator("*")
    @classmethod
    def _countable(cls, value: Any, info: ValidationInfo) -> Any:
        if info.field_name != "seed" and _greatest(value) > LARGEST:
            raise ValueError(f"must be at most {LARGEST:,}")
        return value


def changed(section: Section) -> set[str]:
    """Return the keys whose values differ from their defaults.

    A stored configuration has all keys, so it does not matter which ones the user set.
    """
    return set(section.model_dump(exclude_defaults=True))


def _greatest(value: Any) -> int:
    """Return the greatest magnitude of the integers in a value or a list of values."""
    if isinstance(value, list | tuple):
        return max(map(_greatest, value), default=0)
    return abs(value) if isinstance(value, int) else 0


Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Data(Section):
    dataset: str = Field(
        "digits", description="name of a data set; `hpcfl datasets` lists them"
    )
    root: str | None = Field(
        None, description="folder that holds the data sets; default $HPCFL_DATA"
    )
    file: str | None = Field(
        None,
        description="your own file or folder, for data sets such as npz, leaf and pfllib",
    )
    samples: PositiveInt | None = Field(
        None,
        description="for a quick try only so many training samples, of all where there is no "
        "official split, and as large a share of the test samples",
    )
    redraw: bool = Field(
        False,
        description="draw data.samples by the partition's seed, so that each partition has "
        "samples of its own; otherwise all partitions have the same",
    )
    imbalance: float = Field(
        1.0,
        ge=1,
        le=1e6,
        description="long tail: how many times as many training samples the most frequent class "
        "keeps as the least frequent one",
    )
    imbalance_order: Literal["index", "random"] = Field(
        "index", description="which class is the most frequent: 0, or drawn"
    )
    normalise: Literal["half", "statistics"] = Field(
        "half",
        description="subtract and divide by 0.5, or by the mean and standard deviation of the data "
        "set, by channel or column; where they are not known, of all training samples",
    )
    augment: bool = Field(
        False,
        description="train on images cropped at random after padding by 4, and flipped",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="the data set's own keys, checked by how it is read",
    )


class Partition(Section):
    """The common keys of partition schemes; a scheme adds its own (see
    ``hpcfl/data/partitions``).

    by_number: whether a client's samples depend on its number, so that neighbours are
    alike or sizes ascend.
    """

    by_number: ClassVar[bool] = False

    scheme: str = Field("dirichlet", description="how samples are spread over clients")
    clients: PositiveInt = Field(20, description="number of clients in total")
    seed: Seed = Field(
        1,
        description="seed of the partition; default 'seed': that of the experiment + 1, so "
        "that each has its own",
    )
    train: float = Field(
        0.75, gt=0, lt=1, description="share of a client's samples used for training"
    )
    file: str | None = Field(
        None,
        description="reuse the partition stored in this file instead of drawing one",
    )


Share = Annotated[float, Field(ge=0, le=1)]
# The clients that two shifts change: neither, the first alone, the second alone, both.
CELLS = ("plain", "first", "second", "both")


class Shift(Section):
    """The common keys of shifts, tables of ``[[shift]]``; a kind adds its own (see
    ``hpcfl/data/shifts``).
    """

    kind: str = Field(description="what the clients of a group see differently")
    assign: Literal["blocks", "random"] | None = Field(
        None,
        description="groups of neighbouring clients, or of clients drawn at random; default: "
        "blocks, but random where the partition's scheme goes by the clients' numbers itself",
    )
    share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of clients that are changed, in equal groups; the others stay as "
        "they are. Default: the groups of the kind are of equal size",
    )
    cells: dict[str, Share] | None = Field(
        None,
        description="of the second of two shifts: the shares of clients that are plain, changed "
        "by the first, by the second, by both",
    )
    replicate: bool = Field(
        False,
        description="deal out the whole data set to each group, not to all clients together",
    )
    test: Literal["shifted", "clean"] = Field(
        "shifted", description="clean leaves test samples as they are in the data set"
    )
    at: list[Annotated[int, Field(ge=2)]] = Field(
        default_factory=list,
        validate_default=True,
        description="drift: the rounds from which on clients see the next of the kind's groups",
    )
    who: Literal["all", "staggered"] | Share = Field(
        "all",
        description="drift: all clients, a share of them, or each once in its own of the rounds",
    )
    gradual: PositiveInt = Field(
        1,
        description="drift: rounds over which the share of samples that follow grows to all",
    )
    score: Literal["same", "next"] = Field(
        "same",
        description="drift: test samples as in this round, or as in the next one",
    )
    table: str | None = Field(
        None,
        description="drift: file of whole numbers, the group of each client (columns) at the "
        "beginning and from each of the rounds in at (rows)",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problem = self._problem()
        if problem:
            raise ValueError(problem)
        return self

    def _problem(self) -> str:
        """Return the first conflict between keys, "" without one."""
        if self.at:
            return self._problem_of_drift()
        of_drift = ("who", "gradual", "score", "table")
        fields = type(self).model_fields
        if without := [
            key for key in of_drift if getattr(self, key) != fields[key].default
        ]:
            return f"{without[0]} is about a drift, which needs at = [rounds]"
        if self.cells is None:
            return ""
        if set(self.cells) != set(CELLS) or abs(sum(self.cells.values()) - 1) > 1e-6:
            return f"cells must be shares of {', '.join(CELLS)} that sum to 1"
        return "share and cells exclude each other" if self.share is not None else ""

    def _problem_of_drift(self) -> str:
        for key in ("share", "cells", "replicate"):
            if getattr(self, key):
                return f"{key} is about groups that stay; a drift has who and table"
        for before, after in pairwise(self.at):
            if after - before < self.gradual:
                return f"at must ascend in steps of at least gradual = {self.gradual}"
        if self.table is not None and self.who != "all":
            return "table says who drifts; leave out who"
        return ""


class Model(Section):
    name: str = Field(
        "mlp", description="a built-in model or your own 'module:callable'"
    )
    head: Literal["linear", "cosine"] = Field(
        "linear", description="cosine: features and rows of the head at unit length"
    )
    head_scale: float = Field(
        1.0, gt=0, description="initial scale of a cosine head's logits, learnable"
    )
    init: str | None = Field(
        None,
        description="safetensors file of the model that all begin with, its tensors named as in "
        "the module; default: drawn",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="the model's own keys, checked by its signature",
    )


class Adapter(Section):
    """The trained part of a model above a frozen base that all clients share.

    The specification is ``models/adapters.md``.

    Attributes:
        of_kind: the keys that only one kind reads.
    """

    kind: Literal["none", "lora", "bottleneck", "prompt", "head", "bias"] = Field(
        "none",
        description="what is trained beside the output layer: all; corrections of low rank; "
        "narrow layers behind blocks; tokens in front of a sequence; nothing; biases. "
        "The rest is frozen",
    )
    base: str | None = Field(
        None,
        description="safetensors file, or folder of such, with what is frozen; default: "
        "model.init, or drawn",
    )
    init: str | None = Field(
        None,
        description="folder with an adapter of PEFT that all begin with, above the base; "
        "its adapter_config.json sets kind, rank, alpha, scale and targets",
    )
    names: str | dict[str, str | list[str]] = Field(
        default_factory=dict,
        description="names in the base: 'bert', 'roberta', 'gpt2', 'vit', or a table of patterns, "
        "such as 'encoder.*.q.*', and the model's names",
    )
    targets: list[str] = Field(
        default_factory=list,
        description="lora: patterns of the layers to correct, such as 'blocks.*.qkv'; default: "
        "queries and values. bottleneck: of those that it follows; default: the blocks",
    )
    train: list[str] = Field(
        default_factory=list,
        description="patterns of further parameters to train",
    )
    rank: PositiveInt = Field(8, description="lora: rank r of a correction")
    alpha: float = Field(
        16.0, gt=0, le=1e6, description="lora: α, by which corrections are scaled"
    )
    scale: Literal["alpha/r", "alpha/sqrt(r)"] = Field(
        "alpha/r", description="lora: factor on a correction; alpha/sqrt(r) is rsLoRA"
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="lora: dropout of what enters a correction"
    )
    train_a: bool = Field(
        True,
        description="lora: train A, too; false leaves it, of an embedding B, as it was "
        "drawn (FFA-LoRA)",
    )
    width: int = Field(
        64, ge=1, le=1 << 16, description="bottleneck: numbers at the narrowest place"
    )
    tokens: int = Field(
        20, ge=1, le=1 << 16, description="prompt: tokens in front of a sequence"
    )
    norms: bool = Field(False, description="bias: train layer norm, too")

    of_kind: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "lora": ("targets", "rank", "alpha", "scale", "dropout", "train_a"),
        "bottleneck": ("targets", "width"),
        "prompt": ("tokens",),
        "bias": ("norms",),
    }

    @property
    def is_used(self) -> bool:
        """Return whether the model has an adapter, or a base from files."""
        return self.kind != "none" or self.base is not None

    @property
    def unread(self) -> list[str]:
        """Return the changed keys that the adapter's kind does not read."""
        if self.kind == "none":
            return sorted(changed(self) - {"base", "names", "init"})
        of_kinds = {key for keys in self.of_kind.values() for key in keys}
        of_others = of_kinds - set(self.of_kind.get(self.kind, ()))
        return sorted(changed(self) & of_others)

    @model_validator(mode="after")
    def _of_its_kind(self) -> Self:
        # Without an adapter these keys may stay, so that one key switches it off.
        if self.kind != "none" and self.unread:
            key = self.unread[0]
            kinds = [kind for kind, keys in self.of_kind.items() if key in keys]
            known = " and ".join(f"'{kind}'" for kind in kinds)
            raise ValueError(f"{key} belongs to kind = {known}, not '{self.kind}'")
        return self


class MethodSection(Section):
    """The common keys of methods; ``hpcfl/methods/base.py`` extends it, and methods add
    keys.

    needs_rounds: whether a round depends on the number of rounds, so that a run cannot
    go on with another number. unheeded: keys of ``[training]`` without effect on the
    steps that the method takes itself.
    """

    name: str = Field(
        description="name of the method's file, or your own 'module:Class'"
    )

    needs_rounds: ClassVar[bool] = False
    unheeded: ClassVar[tuple[str, ...]] = ()


class OverlaySection(Section):
    """The common key of overlays, tables of ``[[overlay]]``;
    ``hpcfl/methods/overlays/base.py`` extends it, and overlays add keys.
    """

    kind: str = Field(description="your own 'module:Class'")


class TransformSection(Section):
    """The common key of transforms of the clients' updates, ``[compression]`` and tables
    of ``[[transform]]``; ``hpcfl/updates/base.py`` extends it, and transforms add keys.
    """

    kind: str = Field(description="what happens to an update before it is sent")


class AggregationSection(Section):
    """The common keys of aggregation rules; ``hpcfl/updates/base.py`` extends it, and
    rules add keys.
    """

    rule: str = Field(
        "mean", description="how the server combines the clients' updates"
    )
    secure: bool = Field(
        False,
        description="simulated secure aggregation: the server learns the sum of the "
        "updates alone, as whole numbers modulo 2^bits",
    )


class AttackSection(Section):
    """The common keys of attacks; ``hpcfl/updates/base.py`` extends it, and attacks add
    keys.

    changes_updates: whether attackers forge updates, not only their samples.
    """

    kind: str = Field(description="what attackers send, or train on")
    share: Share | None = Field(None, description="share of the clients that attack")
    clients: list[NonNegativeInt] | None = Field(
        None, description="the numbers of the clients that attack, instead of a share"
    )
    since: PositiveInt = Field(1, description="first round with an attack")

    changes_updates: ClassVar[bool] = True


# keys of ``[privacy]`` for updates of clients
CLIENT_KEYS = {
    *("clip_per", "accountant", "local"),
    *("adaptive_clip", "clip_quantile", "clip_rate", "clip_noise"),
}


class Privacy(Section):
    """Differential privacy of what clients upload (``updates/updates.md``, U1), or of
    their samples (U2).
    """

    unit: Literal["client", "sample"] = Field(
        description="what the guarantee hides: all data of a client, or one sample of a "
        "client"
    )
    clip: float | None = Field(
        None,
        gt=0,
        description="largest norm C of a client's update, or of a sample's gradient; "
        "default: no clip",
    )
    clip_per: Literal["update", "layer"] = Field(
        "update",
        description="clip whole updates, or each of their L layers to C/√L",
    )
    noise: float | None = Field(
        None,
        ge=0,
        le=1e6,
        description="noise multiplier σ: the deviation of the noise is σC; default: 0, or "
        "calibrated for epsilon",
    )
    epsilon: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="the ε that all rounds together may cost, instead of noise",
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="the probability δ beside ε")
    accountant: Literal["rdp", "pld"] = Field(
        "rdp",
        description="Rényi divergences, or privacy loss distributions, which are tighter "
        "and take seconds",
    )
    local: bool = Field(
        False, description="each client adds the noise itself, and the server adds none"
    )
    adaptive_clip: bool = Field(
        False, description="let the clip follow a quantile of the clients' norms"
    )
    clip_quantile: float = Field(
        0.5, gt=0, lt=1, description="adaptive_clip: the quantile γ"
    )
    clip_rate: float = Field(
        0.2,
        gt=0,
        le=10,
        description="adaptive_clip: the step η of the clip's logarithm",
    )
    clip_noise: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="adaptive_clip: deviation σ_b of the noise on the number of updates "
        "below the clip; default: a 20th of the expected cohort",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.unit == "sample":
            of_clients = CLIENT_KEYS & changed(self)
            if of_clients:
                raise ValueError(
                    f"{min(of_clients)} belongs to unit = 'client'; leave it out"
                )
        if self.noise is not None and self.epsilon is not None:
            raise ValueError(
                "noise and epsilon exclude each other; leave one of them out"
            )
        needs_clip = {
            "noise": bool(self.noise),
            "epsilon": self.epsilon is not None,
            "adaptive_clip": self.adaptive_clip,
        }
        for key, is_set in needs_clip.items():
            if is_set and self.clip is None:
                raise ValueError(f"{key} needs clip, the largest norm of an update")
        unread = sorted(changed(self) & {"clip_noise", "clip_quantile", "clip_rate"})
        if unread and not self.adaptive_clip:
            raise ValueError(f"{unread[0]} needs adaptive_clip = true")
        if self.local and self.adaptive_clip:
            raise ValueError("local and adaptive_clip exclude each other")
        if self.local and self.epsilon is not None:
            raise ValueError(
                "local needs noise instead of epsilon: clients take part in different "
                "numbers of rounds"
            )
        return self


class Training(Section):
    epochs: PositiveInt = Field(1, description="local epochs a round")
    batch_size: PositiveInt = Field(10, description="samples a mini-batch")
    drop_last: bool = Field(
        False, description="leave out an epoch's last batch if it is smaller"
    )
    optimizer: Literal["sgd", "adam", "adamw"] = Field(
        "sgd", description="its state is reset every round"
    )
    lr: float = Field(0.005, gt=0, description="local learning rate")
    plain_lr: float | None = Field(
        None,
        gt=0,
        description="learning rate of steps that a method does itself,"
        " plain whatever the optimiser; default: lr",
    )
    lr_decay: float = Field(
        1.0, gt=0, le=1, description="factor on the learning rates after every round"
    )
    schedule: Literal["constant", "cosine", "step"] = Field(
        "constant",
        description="what else the rates follow: cosine falls to 0 after the last round, step "
        "falls at milestones",
    )
    milestones: list[PositiveInt] = Field(
        default_factory=list,
        validate_default=True,
        description="rounds after which schedule = 'step' takes a tenth of the rates",
    )
    warmup: NonNegativeInt = Field(
        0, description="first rounds, in which the rates rise evenly"
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of SGD")
    weight_decay: float = Field(
        0.0,
        ge=0,
        description="L2 penalty added to the gradient; with adamw what "
        "weights lose in a step, times lr",
    )
    clip: float | None = Field(
        None, gt=0, description="largest norm of a client's gradient"
    )
    buffers: Literal["local", "average"] = Field(
        "local", description="batch-norm statistics: each client's own, or averaged"
    )
    validation: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of each client's training samples held out "
        "to choose the best round on",
    )
    on_divergence: Literal["stop", "exclude"] = Field(
        "stop",
        description="a client with NaN or Inf: stop the run, or leave the client out of the round",
    )

    @field_validator("momentum")
    @classmethod
    def _of_sgd(cls, momentum: float, info: ValidationInfo) -> float:
        if momentum and info.data.get("optimizer") in ("adam", "adamw"):
            raise ValueError(
                f"must be 0 with optimizer = '{info.data['optimizer']}', which keeps moments of its own"
            )
        return momentum

    @field_validator("milestones")
    @classmethod
    def _of_steps(cls, milestones: list[int], info: ValidationInfo) -> list[int]:
        schedule = info.data.get("schedule")  # None if the schedule itself is wrong
        if schedule and bool(milestones) != (schedule == "step"):
            raise ValueError("must be given where schedule = 'step', and only there")
        return milestones


class Participation(Section):
    """The common keys of selections; a selection adds its own (see
    ``hpcfl/selection``).

    Attributes:
        by_losses, by_time: whether the choice depends on the clients' reported losses,
            and on their durations.
    """

    by_losses: ClassVar[bool] = False
    by_time: ClassVar[bool] = False

    select: str = Field(
        "uniform", description="how clients are chosen, or your own 'module:Class'"
    )
    fraction: float = Field(
        1.0, gt=0, le=1, description="share of clients drawn each round, at least one"
    )
    scheme: Literal["fixed", "poisson"] = Field(
        "fixed",
        description="as many clients in every round, or each client by itself with the "
        "probability fraction; such a round may have no client",
    )
    rounding: Literal["down", "up"] = Field(
        "down",
        description="a share that is no whole number of clients: ⌊γK⌋, as codes have it, or "
        "⌈γK⌉, as texts do",
    )
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="chance that a drawn client is lost before a round; "
        "one always stays",
    )
    stragglers: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of a round's clients that do a random part of the epochs of "
        "each of their local trainings, at least one",
    )

    def count(self, clients: int) -> int:
        """Return the number of clients that are drawn each round, of so many."""
        share = self.fraction * clients
        if self.rounding == "up":
            return math.ceil(share - 1e-9)
        return max(1, int(share + 1e-9))


class Time(Section):
    """The clients' own time, computed from their work and never measured
    (``clock/time.md``).

    Attributes:
        of_mode: the keys that only one mode reads.
    """

    mode: Literal["none", "synchronous", "asynchronous"] = Field(
        "none",
        description="none: there is no time; synchronous: a round waits for its clients; "
        "asynchronous: the server takes a step whenever enough uploads have arrived",
    )
    devices: Literal["equal", "lognormal", "zipf", "pareto", "classes", "file"] = Field(
        "lognormal", description="how fast clients are"
    )
    sigma: float = Field(
        0.6, ge=0, le=10, description="lognormal: standard deviation of the log"
    )
    exponent: float = Field(
        1.0, gt=0, le=10, description="zipf's exponent, pareto's shape"
    )
    slowest: float = Field(
        60.0, ge=1, le=1e6, description="pareto: the most times slower than the fastest"
    )
    shares: list[float] = Field(
        [0.53, 0.46, 0.01], description="classes: share of the clients in each"
    )
    factors: list[float] = Field(
        [1.0, 2.8, 9.0], description="classes: how many times slower each is"
    )
    file: str | None = Field(
        None,
        description="JSON with each client's computation (ms of inference on a sample, as "
        "in FedScale's files; training takes 3 times that) or training (ms of training on "
        "a sample), and communication (kbit/s), for devices = 'file'",
    )
    sample_ms: float | None = Field(
        None,
        gt=0,
        le=1e9,
        description="milliseconds for which the median device trains on one sample; default: "
        "counted for the model, at 1 GFLOP/s",
    )
    down: float = Field(
        34.0, gt=0, le=1e6, description="median Mbit/s from the server to a client"
    )
    up: float = Field(
        26.0, gt=0, le=1e6, description="median Mbit/s from a client to the server"
    )
    down_sigma: float = Field(
        0.5, ge=0, le=10, description="standard deviation of the log of down"
    )
    up_sigma: float = Field(
        0.7, ge=0, le=10, description="standard deviation of the log of up"
    )
    latency: float = Field(
        0.05, ge=0, le=1e6, description="seconds that each way takes beside"
    )
    availability: Literal["always", "day", "markov", "file"] = Field(
        "always", description="when clients are on"
    )
    hours: float = Field(8.0, gt=0, le=24, description="day: hours of 24 on")
    zones: PositiveInt | None = Field(
        None, description="day: so many time zones; default: any hour of the day"
    )
    on: float = Field(
        3600.0, gt=0, le=1e9, description="markov: mean seconds of a period on"
    )
    off: float = Field(
        3600.0, gt=0, le=1e9, description="markov: mean seconds of a period off"
    )
    availability_file: str | None = Field(
        None,
        description="JSON with lists of when each client comes on (active) and goes off "
        "(inactive) until finish_time, in seconds, for availability = 'file'",
    )
    over_selection: float = Field(
        1.0,
        ge=1,
        le=1000,
        description="synchronous: times as many clients are asked as a round waits for",
    )
    deadline: float | None = Field(
        None, gt=0, le=1e9, description="synchronous: most seconds of a round"
    )
    least: float = Field(
        0.0,
        ge=0,
        le=1,
        description="synchronous: share of a round's clients without which the server takes no step",
    )
    late: Literal["drop", "partial"] = Field(
        "drop",
        description="synchronous: who would miss the deadline is left out, or does as many "
        "whole epochs as fit",
    )
    rule: Literal["fedbuff", "fedasync", "semi"] = Field(
        "fedbuff", description="asynchronous: what a step of the server is"
    )
    concurrency: PositiveInt | None = Field(
        None,
        description="asynchronous: most clients at work at once; default: a cohort",
    )
    buffer: PositiveInt | None = Field(
        None,
        description="asynchronous: arrivals that make a step; default: 10, at most "
        "concurrency, fedasync: 1",
    )
    period: float | None = Field(
        None, gt=0, le=1e9, description="semi: seconds between steps of the server"
    )
    staleness: Literal["constant", "polynomial", "hinge"] = Field(
        "polynomial",
        description="asynchronous: how an update counts less that started τ steps ago",
    )
    a: float | None = Field(
        None,
        gt=0,
        le=1000,
        description="polynomial: (1 + τ)^−a, 0.5; hinge: 1/(a(τ − b) + 1) beyond b, 10",
    )
    b: NonNegativeInt = Field(4, description="hinge: the τ that still counts whole")
    alpha: float = Field(
        0.9, gt=0, le=1, description="fedasync: share of the clients' model in a step"
    )
    server_lr: float = Field(
        1.0, gt=0, le=1000, description="fedbuff, semi: learning rate of the server"
    )
    max_staleness: NonNegativeInt | None = Field(
        None, description="asynchronous: staler updates are dropped"
    )

    of_mode: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "synchronous": ("over_selection", "deadline", "least", "late"),
        "asynchronous": (
            "rule",
            "concurrency",
            "buffer",
            "period",
            "staleness",
            "a",
            "b",
            "alpha",
            "server_lr",
            "max_staleness",
        ),
    }


class Newcomers(Section):
    """Clients that never take part in training.

    After the last round they get the method's model for a new client.
    """

    clients: NonNegativeInt = Field(
        0,
        description="clients held out of training, beside partition.clients, "
        "and scored after the last round",
    )
    epochs: NonNegativeInt = Field(
        0,
        description="epochs of a local training that they do then, at the rate of round 1 "
        "without warm-up, to be scored after it too; 0: none",
    )


def _score_name(name: str) -> str:
    """Return a built-in score's name like its file's, with ``macro-f1`` as
    ``macro_f1``.
    """
    return name if ":" in name else name.replace("-", "_")


ScoreName = Annotated[str, AfterValidator(_score_name)]


class Evaluation(Section):
    every: PositiveInt = Field(
        1, description="score every so many rounds, and the last"
    )
    clients: Literal["all", "cohort"] = Field(
        "all", description="score all clients, or only those of the round"
    )
    score: str = Field(
        "method",
        description="the column that `best` is about: pre, post … (local training), "
        "or the method's own",
    )
    metric: ScoreName = Field(
        "weighted",
        description="what of it counts: weighted, mean, worst_tenth "
        "accuracy, SCORE, SCORE/worst_tenth",
    )
    best_by: Literal["test", "validation"] | None = Field(
        None,
        description="samples that the best round is chosen on; default: validation where "
        "training.validation holds some out, else test, as the papers do",
    )
    scores: list[ScoreName] = Field(
        default_factory=list,
        description="further scores, built-in or your own 'module:Class'",
    )
    tune_epochs: list[NonNegativeInt] = Field(
        default_factory=list,
        description="score the models that clients start from also after so many epochs "
        "of plain training of their own, the same for every method, as tuned_0, tuned_1 …",
    )

    @field_validator("tune_epochs")
    @classmethod
    def _each_once(cls, epochs: list[int]) -> list[int]:
        if len(set(epochs)) < len(epochs):
            raise ValueError("must have each number once")
        return epochs


class Checkpoint(Section):
    every: PositiveInt | Literal["auto"] = Field(
        "auto",
        description="rounds between checkpoints; auto: so rarely that they cost less than 2 % of the time",
    )
    keep: PositiveInt = Field(
        2,
        description="how many checkpoints stay; with more of them the models of "
        "earlier rounds can be had, of each with every = 1",
    )
    best: bool = Field(
        False,
        description="keep the state before the best round too, so that its models can "
        "be had; needs as much memory again",
    )
    file_size: PositiveInt | Literal["auto"] = Field(
        "auto",
        description="megabytes of state in a file, which is written again as a whole when "
        "the state of one of its clients changes; auto: 64, or more where clients "
        "would need more than 400 files",
    )


# of a convolution over lanes: with a group for each lane, or one lane after the other
Form = Literal["grouped", "loop"]
# by runtime.precision
PRECISIONS = {"exact": "float32", "tf32": "tf32", "bf16": "bf16"}


class LaneRow(BaseModel):
    """A measurement of some lanes side by side."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False
    )

    model: str
    precision: Literal["float32", "tf32", "bf16"]
    lanes: PositiveInt
    form: Form
    seconds_per_sample: PositiveFloat
    peak_bytes: NonNegativeInt


class LaneTable(BaseModel):
    """Measurements on one type of GPU.

    Attributes:
        device: the GPU, as torch names it.
        torch: the version of torch.
        sha256: of the file; None for a table without one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1]
    device: str
    torch: str
    rows: list[LaneRow]
    sha256: str | None = None

    def select(self, model: str, precision: str) -> Self:
        """Return the table with the rows of a model in a ``runtime.precision``."""
        measured = PRECISIONS[precision]
        rows = []
        for row in self.rows:
            if (row.model, row.precision) == (model, measured):
                rows.append(row)
        return self.model_copy(update={"rows": rows})

    def fastest(self, most: int, form: Form | None) -> LaneRow | None:
        """Return the row with the fewest seconds a sample among those with at most
        ``most`` lanes, of equal ones that with the most lanes; None where there is none.

        form: the form of convolutions, None for any.
        """
        rows = []
        for row in self.rows:
            if row.lanes <= most and form in (None, row.form):
                rows.append(row)
        return min(
            rows, key=lambda row: (row.seconds_per_sample, -row.lanes), default=None
        )


def _read_lane_table(given: Any) -> LaneTable:
    """Return the table in a file, or of its content. Raises ValueError with one line."""
    # imported where an experiment names a table
    from hpcfl.experiment import lane_table

    if isinstance(given, LaneTable):
        return given
    try:
        return LaneTable.model_validate(lane_table.read_content(given))
    except ValidationError as error:
        line = lane_table.explain(error, LaneTable, LaneRow)
        raise ValueError(line) from None


class Runtime(Section):
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="auto, cpu, cuda or cuda:N",
    )
    precision: Literal["exact", "tf32", "bf16"] = Field(
        "exact",
        description="products of float32 numbers; on a GPU of these rounded to TF32's 10 bits; "
        "or models in torch's autocast to bfloat16 and what they freeze stored so, another run",
    )
    lanes: PositiveInt | Literal["auto"] = Field(
        "auto",
        description="clients trained side by side in one step; auto is 1 for convolutions on a CPU, "
        "for other models there as many as its cache holds, but one after the other where that "
        "would change their bits; with a number above 1 convolutions, batch norm and most "
        "activations but ReLU and tanh have other last bits on other numbers of ranks",
    )
    lane_table: Annotated[LaneTable, BeforeValidator(_read_lane_table)] | None = Field(
        None,
        description="file of tests/benchmarks/gpu.sh with measured times, from which lanes = "
        "'auto' is chosen on a GPU; without it convolutions have at most 8 lanes there",
    )
    convolutions: Form | Literal["auto"] = Field(
        "auto",
        description="convolutions of clients side by side: one with a group for each client, or "
        "one client after the other; auto is that of lane_table, else grouped",
    )
    replay: bool = Field(
        True,
        description="on a GPU, repeat steps that run often as CUDA graphs",
    )
    threads: PositiveInt = Field(
        1, le=1024, description="CPU threads a rank; changes the last bits of results"
    )
    memory: float = Field(
        8192.0,
        gt=0,
        le=1e9,
        description="MB of client state, and of a round's "
        "models, kept in memory; the rest in $TMPDIR",
    )
    track: list[str] = Field(
        default_factory=list,
        description="show the run elsewhere while it goes: tensorboard, wandb",
    )
    hang_after: float = Field(
        600.0,
        gt=0,
        le=1e7,
        description="seconds of silence after which a rank counts as lost",
    )
