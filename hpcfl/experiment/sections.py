"""Sections of an experiment file: every key with its type, limits and description."""

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

# Stands for every value but the default in ``Section.readers``.
SET = "set"


class Section(BaseModel):
    """A table of the experiment file.

    Unknown keys, wrong types, NaN and infinities are errors.

    Attributes:
        readers: By key, the further keys that each of its values reads. Its other values
            leave these keys unread. SET stands for all values but the default.
        largest: Limit of all integers except ``seed``.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False
    )

    readers: ClassVar[Mapping[str, Mapping[Any, tuple[str, ...]]]] = {}
    # Larger sizes would exhaust the memory before any check.
    largest: ClassVar[int] = 10_000_000

    @field_validator("*")
    @classmethod
    def _check_largest(cls, value: Any, info: ValidationInfo) -> Any:
        if info.field_name != "seed" and _find_greatest(value) > cls.largest:
            raise ValueError(f"must be at most {cls.largest:,}")
        return value

    def find_unread(self) -> dict[str, list[str]]:
        """Return the changed keys without effect, by the key whose value leaves them
        unread.

        A key that several others leave unread is returned once.
        """
        found = {}
        changed = list_changed_keys(self)
        for choice, keys_by_value in self.readers.items():
            value = getattr(self, choice)
            values = [*value] if isinstance(value, list) else [value]
            if choice in changed:
                values.append(SET)
            unread = set().union(*keys_by_value.values())
            for one in values:
                unread -= set(keys_by_value.get(one, ()))
            found[choice] = sorted(changed & unread)
            changed -= unread
        return found

    def describe_unread(self, prefix: str = "") -> list[str]:
        """Return a line for each choice that leaves changed keys unread.

        Args:
            prefix: Beginning of each key in the lines, such as ``time.``.
        """
        lines = []
        for choice, keys in self.find_unread().items():
            value = getattr(self, choice)
            state = f"with {prefix}{choice} = {value!r}"
            if value is None:
                state = f"without {prefix}{choice}"
            if keys:
                names = ", ".join(prefix + key for key in keys)
                lines.append(f"{names}: not read {state}")
        return lines

    def refuse_unread(self) -> None:
        """Raise ValueError if the value of another key leaves a changed key unread."""
        if lines := self.describe_unread():
            raise ValueError(lines[0])


def list_changed_keys(section: Section) -> set[str]:
    """Return the keys whose values differ from their defaults.

    A key that the user set to its default does not count: a stored configuration has
    all keys, so the difference is lost.
    """
    return set(section.model_dump(exclude_defaults=True))


def _find_greatest(value: Any) -> int:
    """Return the greatest magnitude of the integers in a value or a list of values."""
    if isinstance(value, list | tuple):
        return max(map(_find_greatest, value), default=0)
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
        description="path of your own file or folder, relative to the working folder, for data "
        "sets such as npz, leaf and pfllib",
    )
    samples: PositiveInt | None = Field(
        None,
        description="number of training samples to use, for quick trials (of all samples if there "
        "is no official split); test samples are reduced by the same factor",
    )
    redraw: bool = Field(
        False,
        description="draw the data.samples with partition.seed, so that partitions use different "
        "samples; false: all partitions use the same samples",
    )
    imbalance: float = Field(
        1.0,
        ge=1,
        le=1e6,
        description="long tail: ratio of training samples between the most and the least frequent "
        "class",
    )
    imbalance_order: Literal["index", "random"] = Field(
        "index",
        description="order of the classes by frequency: from class 0 down, or random",
    )
    normalise: Literal["half", "statistics"] = Field(
        "half",
        description="half: subtract 0.5 and divide by 0.5; statistics: use the data set's mean and "
        "standard deviation per channel or column, computed from all training samples if unknown",
    )
    augment: bool = Field(
        False,
        description="train on randomly flipped images, cropped at random after padding by 4",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="further keys of the data set: the parameters of its `read`",
    )

    readers = {"imbalance": {SET: ("imbalance_order",)}}


class Partition(Section):
    """Common keys of partition schemes. Schemes add keys (``hpcfl/data/partitions``).

    Attributes:
        by_number: Whether a client's samples depend on its number, so that neighbouring
            clients are similar or sizes ascend.
    """

    by_number: ClassVar[bool] = False

    scheme: str = Field(
        "dirichlet", description="rule that splits the samples between clients"
    )
    clients: PositiveInt = Field(20, description="total number of clients")
    seed: Seed = Field(
        1,
        description="seed of the partition; default 'seed': the experiment's seed + 1",
    )
    train: float = Field(
        0.75, gt=0, lt=1, description="share of a client's samples used for training"
    )
    file: str | None = Field(
        None,
        description="file with a stored partition, which is used instead of drawing one",
    )


Share = Annotated[float, Field(ge=0, le=1)]
# Groups of clients under two shifts: unchanged, only by the first, only by the second,
# by both.
CELLS = ("plain", "first", "second", "both")


class Shift(Section):
    """Common keys of distribution shifts, the tables of ``[[shift]]``. Kinds add keys
    (``hpcfl/data/shifts``).
    """

    kind: str = Field(
        description="kind of distribution shift between groups of clients"
    )
    assign: Literal["blocks", "random"] | None = Field(
        None,
        description="groups of neighbouring clients, or of random clients; default: blocks, or "
        "random if the partition's scheme depends on the clients' numbers",
    )
    share: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of clients with a shift, in groups of equal size; the rest is "
        "unchanged. Default: all groups of the kind have equal size",
    )
    cells: dict[str, Share] | None = Field(
        None,
        description="only for the second of two shifts: shares of clients that are unchanged "
        "(plain), changed by the first shift only, by the second only, by both",
    )
    replicate: bool = Field(
        False,
        description="split the whole data set once for each group of clients, so that groups share "
        "samples; false: split it once for all clients",
    )
    test: Literal["shifted", "clean"] = Field(
        "shifted",
        description="test samples: shifted like the training samples, or unchanged",
    )
    at: list[Annotated[int, Field(ge=2)]] = Field(
        default_factory=list,
        validate_default=True,
        description="drift: rounds at which clients move to the next group of the kind",
    )
    who: Literal["all", "staggered"] | Share = Field(
        "all",
        description="drift: clients that drift: all, a share of them, or staggered: each client "
        "once, in equal parts at the rounds in at",
    )
    gradual: PositiveInt = Field(
        1,
        description="drift: number of rounds over which the share of drifted samples grows to 1",
    )
    score: Literal["same", "next"] = Field(
        "same",
        description="drift: test on the distribution of this round, or of the next one",
    )
    table: str | None = Field(
        None,
        description="drift: file of integers, the group of each client (columns) at the beginning "
        "and from each round in at (rows)",
    )

    @model_validator(mode="after")
    def _refuse_conflicts(self) -> Self:
        if problem := self._find_problem():
            raise ValueError(problem)
        return self

    def _find_problem(self) -> str:
        """Return the first conflict between keys, "" without one."""
        if self.at:
            return self._find_problem_of_drift()
        without = sorted(list_changed_keys(self) & {"who", "gradual", "score", "table"})
        if without:
            return f"{without[0]} describes a drift, which needs at = [rounds]"
        if self.cells is None:
            return ""
        if set(self.cells) != set(CELLS) or abs(sum(self.cells.values()) - 1) > 1e-6:
            return f"cells must be shares of {', '.join(CELLS)} that sum to 1"
        return "share and cells exclude each other" if self.share is not None else ""

    def _find_problem_of_drift(self) -> str:
        for key in ("share", "cells", "replicate"):
            if getattr(self, key):
                return f"{key} cannot be combined with a drift (at); use who or table"
        for before, after in pairwise(self.at):
            if after - before < self.gradual:
                return f"at must ascend in steps of at least gradual = {self.gradual}"
        if self.table is not None and self.who != "all":
            return "table already defines the clients that drift; leave out who"
        return ""


class Model(Section):
    name: str = Field(
        "mlp", description="name of a built-in model, or your own 'module:callable'"
    )
    head: Literal["linear", "cosine"] = Field(
        "linear",
        description="output layer; cosine: features and weight rows are scaled to unit length",
    )
    head_scale: float = Field(
        1.0,
        gt=0,
        description="cosine: initial value of the learnable scale of the logits",
    )
    init: str | None = Field(
        None,
        description="safetensors file with the initial model, with the module's names of tensors; "
        "default: random initialisation",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="further keys of the model: the parameters of its callable",
    )

    readers = {"head": {"cosine": ("head_scale",)}}


class Adapter(Section):
    """Adapter: the trained part of a model above a frozen base that all clients share.

    The specification is ``models/adapters.md``.
    """

    kind: Literal["none", "lora", "bottleneck", "prompt", "head", "bias"] = Field(
        "none",
        description="parameters to train in addition to the output layer; none: all parameters; "
        "lora: low-rank corrections; bottleneck: narrow layers after blocks; prompt: tokens in "
        "front of a sequence; head: no others; bias: biases. All other parameters are frozen",
    )
    base: str | None = Field(
        None,
        description="safetensors file, or folder of such files, with the frozen parameters; "
        "default: model.init, or random initialisation",
    )
    init: str | None = Field(
        None,
        description="folder with the initial adapter in PEFT's format, for the base; its "
        "adapter_config.json sets kind, rank, alpha, scale, dropout and targets",
    )
    names: str | dict[str, str | list[str]] = Field(
        default_factory=dict,
        description="naming of the tensors in the base: 'bert', 'roberta', 'gpt2', 'vit', or a "
        "table from patterns such as 'encoder.*.q.*' to the model's names",
    )
    targets: list[str] = Field(
        default_factory=list,
        description="lora: patterns of the layers to correct, such as 'blocks.*.qkv'; default: "
        "queries and values. bottleneck: patterns of the modules that it follows; default: the "
        "blocks",
    )
    train: list[str] = Field(
        default_factory=list,
        description="patterns of further parameters to train",
    )
    rank: PositiveInt = Field(8, description="lora: rank r of a correction")
    alpha: float = Field(
        16.0,
        gt=0,
        le=1e6,
        description="lora: numerator α of the factor on a correction",
    )
    scale: Literal["alpha/r", "alpha/sqrt(r)"] = Field(
        "alpha/r", description="lora: factor on a correction; alpha/sqrt(r) is rsLoRA"
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="lora: dropout rate of the input of a correction"
    )
    train_a: bool = Field(
        True,
        description="lora: train matrix A; false keeps its random initial value (FFA-LoRA), for an "
        "embedding that of B",
    )
    width: int = Field(
        64, ge=1, le=1 << 16, description="bottleneck: width of the narrowest layer"
    )
    tokens: int = Field(
        20, ge=1, le=1 << 16, description="prompt: number of tokens before a sequence"
    )
    norms: bool = Field(False, description="bias: also train layer norm")

    readers = {
        "kind": {
            "lora": (
                "train",
                "targets",
                "rank",
                "alpha",
                "scale",
                "dropout",
                "train_a",
            ),
            "bottleneck": ("train", "targets", "width"),
            "prompt": ("train", "tokens"),
            "head": ("train",),
            "bias": ("train", "norms"),
        }
    }

    @property
    def is_used(self) -> bool:
        """Return whether the model has an adapter, or a base from files."""
        return self.kind != "none" or self.base is not None

    @model_validator(mode="after")
    def _refuse_keys_of_other_kinds(self) -> Self:
        # With kind = "none" the other keys may stay, so that changing one key is enough
        # to switch the adapter off.
        if self.kind != "none":
            self.refuse_unread()
        return self


class MethodSection(Section):
    """Common keys of methods. ``hpcfl/methods/base.py`` extends it, and methods add
    keys.

    Attributes:
        needs_rounds: Whether a round depends on the total number of rounds, so that a
            run cannot be continued with another number.
        unheeded: Keys of ``[training]`` that the method's separate steps ignore.
    """

    name: str = Field(
        description="name of the method's file, or your own 'module:Class'"
    )

    needs_rounds: ClassVar[bool] = False
    unheeded: ClassVar[tuple[str, ...]] = ()

    def list_unheeded(self) -> tuple[str, ...]:
        """Return the keys of ``[training]`` that the method's separate steps ignore."""
        return self.unheeded


class OverlaySection(Section):
    """Common key of overlays, the tables of ``[[overlay]]``.

    ``hpcfl/methods/overlays/base.py`` extends it, and overlays add keys.
    """

    kind: str = Field(description="class of the overlay, your own 'module:Class'")


class TransformSection(Section):
    """Common key of transforms of the clients' updates: ``[compression]`` and the
    tables of ``[[transform]]``.

    ``hpcfl/updates/base.py`` extends it, and transforms add keys.
    """

    kind: str = Field(description="transform of an update before it is sent")


class AggregationSection(Section):
    """Common keys of aggregation rules. ``hpcfl/updates/base.py`` extends it, and rules
    add keys.
    """

    rule: str = Field(
        "mean", description="rule by which the server combines the clients' updates"
    )
    secure: bool = Field(
        False,
        description="simulated secure aggregation: the server learns only the sum of the "
        "updates, as integers modulo 2^bits",
    )


class AttackSection(Section):
    """Common keys of attacks. ``hpcfl/updates/base.py`` extends it, and attacks add
    keys.

    Attributes:
        changes_updates: Whether attackers forge updates and do not only change their
            samples.
    """

    kind: str = Field(description="attack on the updates or on the training samples")
    share: Share | None = Field(None, description="share of the clients that attack")
    clients: list[NonNegativeInt] | None = Field(
        None, description="numbers of the clients that attack, instead of share"
    )
    since: PositiveInt = Field(1, description="first round with an attack")

    changes_updates: ClassVar[bool] = True


class Privacy(Section):
    """Differential privacy of clients (``updates/updates.md``, U1) or of samples (U2)."""

    unit: Literal["client", "sample"] = Field(
        description="unit of the guarantee: all data of a client, or one sample of a client"
    )
    clip: float | None = Field(
        None,
        gt=0,
        description="maximal norm C of a client's update, or of a sample's gradient; "
        "default: no clipping",
    )
    clip_per: Literal["update", "layer"] = Field(
        "update",
        description="clip the whole update to C, or each of its L layers to C/√L",
    )
    noise: float | None = Field(
        None,
        ge=0,
        le=1e6,
        description="noise multiplier σ: the noise has standard deviation σC; default: 0, or "
        "calibrated for epsilon",
    )
    epsilon: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="privacy budget ε of all rounds together, instead of noise",
    )
    delta: float = Field(
        1e-5, gt=0, lt=1, description="probability δ of the (ε, δ) guarantee"
    )
    accountant: Literal["rdp", "pld"] = Field(
        "rdp",
        description="accountant: rdp: Rényi divergences; pld: privacy loss distributions, "
        "which are tighter and take seconds",
    )
    local: bool = Field(
        False, description="add the noise on each client instead of on the server"
    )
    adaptive_clip: bool = Field(
        False, description="adapt the clip to a quantile of the clients' norms"
    )
    clip_quantile: float = Field(
        0.5, gt=0, lt=1, description="adaptive_clip: quantile γ of the norms"
    )
    clip_rate: float = Field(
        0.2,
        gt=0,
        le=10,
        description="adaptive_clip: learning rate η of the clip's logarithm",
    )
    clip_noise: float | None = Field(
        None,
        gt=0,
        le=1e6,
        description="adaptive_clip: standard deviation σ_b of the noise on the number of "
        "updates below the clip; default: a 20th of the expected cohort",
    )

    readers = {
        "unit": {
            "client": (
                "accountant",
                "adaptive_clip",
                "clip_noise",
                "clip_per",
                "clip_quantile",
                "clip_rate",
                "local",
            )
        },
        "adaptive_clip": {SET: ("clip_noise", "clip_quantile", "clip_rate")},
    }

    @model_validator(mode="after")
    def _refuse_conflicts(self) -> Self:
        self.refuse_unread()
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
                raise ValueError(f"{key} needs clip, the maximal norm of an update")
        if self.local and self.adaptive_clip:
            raise ValueError("local and adaptive_clip exclude each other")
        if self.local and self.epsilon is not None:
            raise ValueError(
                "local needs noise instead of epsilon: clients take part in different "
                "numbers of rounds"
            )
        return self


class Training(Section):
    epochs: PositiveInt = Field(1, description="local epochs per round")
    batch_size: PositiveInt = Field(10, description="samples per mini-batch")
    drop_last: bool = Field(
        False, description="leave out the last mini-batch of an epoch if it is smaller"
    )
    optimizer: Literal["sgd", "adam", "adamw"] = Field(
        "sgd", description="local optimizer; its state is reset every round"
    )
    lr: float = Field(0.005, gt=0, description="local learning rate")
    plain_lr: float | None = Field(
        None,
        gt=0,
        description="learning rate of a method's separate plain SGD steps, which do not "
        "use the optimizer; default: lr",
    )
    lr_decay: float = Field(
        1.0, gt=0, le=1, description="factor on the learning rates after each round"
    )
    schedule: Literal["constant", "cosine", "step"] = Field(
        "constant",
        description="further schedule of the learning rates: cosine decay to 0 after the last "
        "round, or a step at each milestone",
    )
    milestones: list[PositiveInt] = Field(
        default_factory=list,
        validate_default=True,
        description="rounds after which schedule = 'step' divides the learning rates by 10",
    )
    warmup: NonNegativeInt = Field(
        0, description="number of first rounds with linearly rising learning rates"
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of SGD")
    weight_decay: float = Field(
        0.0,
        ge=0,
        description="factor of the L2 penalty in the gradient; with adamw of the "
        "decoupled weight decay",
    )
    clip: float | None = Field(
        None, gt=0, description="maximal norm of a client's gradient"
    )
    buffers: Literal["local", "average"] = Field(
        "local",
        description="batch-norm statistics: separate for each client, or averaged",
    )
    validation: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of each client's training samples that is held out to choose "
        "the best round",
    )
    on_divergence: Literal["stop", "exclude"] = Field(
        "stop",
        description="reaction to NaN or Inf in a client: stop the run, or exclude the client from "
        "the round",
    )

    @field_validator("momentum")
    @classmethod
    def _require_sgd(cls, momentum: float, info: ValidationInfo) -> float:
        if momentum and info.data.get("optimizer") in ("adam", "adamw"):
            raise ValueError(
                f"must be 0 with optimizer = '{info.data['optimizer']}'; only 'sgd' uses it"
            )
        return momentum

    @field_validator("milestones")
    @classmethod
    def _require_steps(cls, milestones: list[int], info: ValidationInfo) -> list[int]:
        schedule = info.data.get("schedule")  # None if the schedule itself is wrong
        if schedule and bool(milestones) != (schedule == "step"):
            raise ValueError("must be given if, and only if, schedule = 'step'")
        if len(set(milestones)) < len(milestones):
            raise ValueError("must not contain a round twice")
        return milestones


class Participation(Section):
    """Common keys of client selections. Selections add keys (``hpcfl/selection``).

    Attributes:
        by_losses: Whether the selection depends on the losses that clients reported.
        by_time: Whether the selection depends on the clients' durations.
    """

    by_losses: ClassVar[bool] = False
    by_time: ClassVar[bool] = False

    select: str = Field(
        "uniform",
        description="rule that selects clients, built-in or your own 'module:Class'",
    )
    fraction: float = Field(
        1.0, gt=0, le=1, description="share of clients selected per round, at least one"
    )
    scheme: Literal["fixed", "poisson"] = Field(
        "fixed",
        description="fixed: the same number of clients in every round; poisson: each client "
        "independently with probability fraction, so that a round may be empty",
    )
    rounding: Literal["down", "up"] = Field(
        "down",
        description="rounding of the number of clients: ⌊γK⌋, as in published code, or ⌈γK⌉, as "
        "in papers",
    )
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="probability that a selected client drops out before the round; at "
        "least one stays",
    )
    stragglers: float = Field(
        0.0,
        ge=0,
        le=1,
        description="share of a round's clients that train for a random number of epochs, "
        "from 1 to training.epochs",
    )

    readers = {"scheme": {"fixed": ("rounding",)}}

    def count(self, clients: int) -> int:
        """Return the number of clients selected per round from a total of ``clients``."""
        share = self.fraction * clients
        if self.rounding == "up":
            return math.ceil(share - 1e-9)
        return max(1, int(share + 1e-9))


# keys of ``[time]`` that all devices read but those of a file
DRAWN = ("sample_ms", "down", "up", "down_sigma", "up_sigma")


class Time(Section):
    """Virtual time of the clients, computed from their work and never measured
    (``clock/time.md``).
    """

    mode: Literal["none", "synchronous", "asynchronous"] = Field(
        "none",
        description="none: no virtual time; synchronous: a round ends when its clients have "
        "finished; asynchronous: the server takes a step when enough uploads have arrived",
    )
    devices: Literal["equal", "lognormal", "zipf", "pareto", "classes", "file"] = Field(
        "lognormal", description="distribution of the clients' speeds"
    )
    sigma: float = Field(
        0.6, ge=0, le=10, description="lognormal: standard deviation of the log"
    )
    exponent: float = Field(
        1.0, gt=0, le=10, description="zipf: exponent; pareto: shape"
    )
    slowest: float = Field(
        60.0,
        ge=1,
        le=1e6,
        description="pareto: upper limit of the factor by which a client is slower than the "
        "fastest",
    )
    shares: list[float] = Field(
        [0.53, 0.46, 0.01], description="classes: share of clients in each class"
    )
    factors: list[Annotated[float, Field(gt=0, le=1e6)]] = Field(
        [1.0, 2.8, 9.0], description="classes: factor by which each class is slower"
    )
    file: str | None = Field(
        None,
        description="devices = 'file': JSON file with each client's computation (ms of "
        "inference on a sample, as in FedScale's files; training takes 3 times as long) or "
        "training (ms of training on a sample), and communication (kbit/s)",
    )
    sample_ms: float | None = Field(
        None,
        gt=0,
        le=1e9,
        description="milliseconds of training on one sample on the median device; default: "
        "the model's operations at 1 GFLOP/s",
    )
    down: float = Field(
        34.0, gt=0, le=1e6, description="median download bandwidth of clients in Mbit/s"
    )
    up: float = Field(
        26.0, gt=0, le=1e6, description="median upload bandwidth of clients in Mbit/s"
    )
    down_sigma: float = Field(
        0.5, ge=0, le=10, description="standard deviation of the log of down"
    )
    up_sigma: float = Field(
        0.7, ge=0, le=10, description="standard deviation of the log of up"
    )
    latency: float = Field(
        0.05, ge=0, le=1e6, description="latency of each download and upload in seconds"
    )
    availability: Literal["always", "day", "markov", "file"] = Field(
        "always", description="model of the hours in which clients are online"
    )
    hours: float = Field(8.0, ge=0.001, le=24, description="day: online hours per day")
    zones: PositiveInt | None = Field(
        None,
        description="day: number of time zones; default: clients start at any hour of the day",
    )
    on: float = Field(
        3600.0, gt=0, le=1e9, description="markov: mean seconds of an online period"
    )
    off: float = Field(
        3600.0, gt=0, le=1e9, description="markov: mean seconds of an offline period"
    )
    availability_file: str | None = Field(
        None,
        description="availability = 'file': JSON file with the times in seconds at which each "
        "client goes online (active) and offline (inactive), until finish_time",
    )
    over_selection: float = Field(
        1.0,
        ge=1,
        le=1000,
        description="synchronous: ratio of the selected clients to those that a round waits for",
    )
    deadline: float | None = Field(
        None, gt=0, le=1e9, description="synchronous: maximal seconds per round"
    )
    least: float = Field(
        0.0,
        ge=0,
        le=1,
        description="synchronous: share of a round's clients that the server needs to take a step",
    )
    late: Literal["drop", "partial"] = Field(
        "drop",
        description="synchronous: a client that would miss the deadline is dropped, or trains "
        "for the whole epochs that fit",
    )
    rule: Literal["fedbuff", "fedasync", "semi"] = Field(
        "fedbuff", description="asynchronous: rule of the server's step"
    )
    concurrency: PositiveInt | None = Field(
        None,
        description="asynchronous: maximal number of clients that train at once; default: the "
        "size of a cohort",
    )
    buffer: PositiveInt | None = Field(
        None,
        description="asynchronous: number of uploads per step; default: 10 or concurrency if "
        "that is smaller, fedasync: 1",
    )
    period: float | None = Field(
        None, gt=0, le=1e9, description="semi: seconds between two steps of the server"
    )
    staleness: Literal["constant", "polynomial", "hinge"] = Field(
        "polynomial",
        description="asynchronous: weight of an update that started τ steps ago",
    )
    a: float | None = Field(
        None,
        gt=0,
        le=1000,
        description="exponent or slope of the weight. polynomial: (1 + τ)^−a, default 0.5; hinge: "
        "1/(a(τ − b) + 1) for τ > b, default 10",
    )
    b: NonNegativeInt = Field(4, description="hinge: largest τ with weight 1")
    alpha: float = Field(
        0.9, gt=0, le=1, description="fedasync: share of the clients' model in a step"
    )
    server_lr: float = Field(
        1.0, gt=0, le=1000, description="fedbuff, semi: learning rate of the server"
    )
    max_staleness: NonNegativeInt | None = Field(
        None, description="asynchronous: largest τ; staler updates are dropped"
    )

    readers = {
        "mode": {
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
        },
        "deadline": {SET: ("late",)},
        "devices": {
            "equal": DRAWN,
            "lognormal": (*DRAWN, "sigma"),
            "zipf": (*DRAWN, "exponent"),
            "pareto": (*DRAWN, "exponent", "slowest"),
            "classes": (*DRAWN, "shares", "factors"),
            "file": ("file",),
        },
        "availability": {
            "day": ("hours", "zones"),
            "markov": ("on", "off"),
            "file": ("availability_file",),
        },
        "rule": {
            "fedbuff": ("buffer", "server_lr"),
            "fedasync": ("buffer", "alpha"),
            "semi": ("period", "server_lr"),
        },
        "staleness": {"polynomial": ("a",), "hinge": ("a", "b")},
    }

    def find_unread(self) -> dict[str, list[str]]:
        if self.mode == "none":
            return {"mode": sorted(list_changed_keys(self) - {"mode"})}
        return super().find_unread()


class Newcomers(Section):
    """Clients that never train. After the last round they receive the method's model
    for new clients.
    """

    clients: NonNegativeInt = Field(
        0,
        description="number of clients in addition to partition.clients that do not train "
        "and are scored after the last round",
    )
    epochs: NonNegativeInt = Field(
        0,
        description="epochs of one local training of newcomers, at the learning rate of round 1 "
        "without warm-up, after which they are scored again; 0: none",
    )

    readers = {"clients": {SET: ("epochs",)}}


def _normalise_score_name(name: str) -> str:
    """Return a built-in score's name with underscores, ``macro-f1`` as ``macro_f1``."""
    return name if ":" in name else name.replace("-", "_")


ScoreName = Annotated[str, AfterValidator(_normalise_score_name)]


class Evaluation(Section):
    every: PositiveInt = Field(
        1, description="rounds between two scorings; the last round is always scored"
    )
    clients: Literal["all", "cohort"] = Field(
        "all", description="score all clients, or only the round's cohort"
    )
    score: str = Field(
        "method",
        description="column that selects the best round: pre or post (before or after "
        "local training), … ; method: the method's primary column",
    )
    metric: ScoreName = Field(
        "weighted",
        description="metric of this column that selects the best round: weighted, mean or "
        "worst_tenth (of the accuracy), SCORE, SCORE/worst_tenth",
    )
    best_by: Literal["test", "validation"] | None = Field(
        None,
        description="samples that select the best round; default: validation if "
        "training.validation is above 0, else test, as in the papers",
    )
    scores: list[ScoreName] = Field(
        default_factory=list,
        description="further scores, built-in or your own 'module:Class'",
    )
    tune_epochs: list[NonNegativeInt] = Field(
        default_factory=list,
        description="numbers of epochs of plain local training, the same for every method, "
        "after which the clients' start models are scored again, as tuned_0, tuned_1 …",
    )

    @field_validator("tune_epochs")
    @classmethod
    def _refuse_repeats(cls, epochs: list[int]) -> list[int]:
        if len(set(epochs)) < len(epochs):
            raise ValueError("must not contain a number twice")
        return epochs


class Checkpoint(Section):
    every: PositiveInt | Literal["auto"] = Field(
        "auto",
        description="rounds between checkpoints; auto: at most 2 % of the time goes into checkpoints",
    )
    keep: PositiveInt = Field(
        2,
        description="number of checkpoints to keep; models can be exported from the rounds of "
        "these checkpoints",
    )
    best: bool = Field(
        False,
        description="also keep the state before the best round, from which its models can be "
        "exported; needs the same memory again",
    )
    file_size: PositiveInt | Literal["auto"] = Field(
        "auto",
        description="megabytes of state per file; a file is rewritten when the state of one "
        "of its clients changes; auto: 64, or more if that would make more than 400 files",
    )


# Maximum number of lanes side by side, or the choice by a rule.
MostLanes = PositiveInt | Literal["auto"]
# Form of a convolution over lanes: one call with a group per lane, or a loop.
Form = Literal["grouped", "loop"]
# Name in a lane table for each runtime.precision.
PRECISIONS = {"exact": "float32", "tf32": "tf32", "bf16": "bf16"}


class LaneRow(BaseModel):
    """Measured time and memory of a number of lanes trained side by side."""

    model_config = Section.model_config

    model: str
    precision: Literal["float32", "tf32", "bf16"]
    lanes: PositiveInt
    form: Form
    seconds_per_sample: PositiveFloat
    peak_bytes: NonNegativeInt


class LaneTable(BaseModel):
    """Measurements on one type of GPU.

    Attributes:
        format: Version of the file format.
        device: Name of the GPU in torch.
        torch: Version of torch.
        rows: Measurements of models.
        sha256: Digest of the file; None for a table that is not from a file.
    """

    model_config = Section.model_config

    format: Literal[1]
    device: str
    torch: str
    rows: list[LaneRow]
    sha256: str | None = None

    def select(self, model: str, precision: str) -> Self:
        """Return the table with only the rows of a model and a ``runtime.precision``."""
        kind = model, PRECISIONS[precision]
        rows = [row for row in self.rows if (row.model, row.precision) == kind]
        return self.model_copy(update={"rows": rows})

    def find_fastest(self, most: int, form: Form | None) -> LaneRow | None:
        """Return the row with the fewest seconds per sample; None if no row fits.

        Among equal rows the one with the most lanes is chosen.

        Args:
            most: Maximal number of lanes.
            form: Form of convolutions, None for any.
        """
        rows = [
            row for row in self.rows if row.lanes <= most and form in (None, row.form)
        ]
        return min(
            rows, key=lambda row: (row.seconds_per_sample, -row.lanes), default=None
        )


def _read_lane_table(given: Any) -> LaneTable:
    """Return the lane table of a file name, or of a file's content.

    Raises ValueError with one line.
    """
    # Only experiments with a lane table import it.
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
        description="device of a rank: auto, cpu, cuda or cuda:N",
    )
    precision: Literal["exact", "tf32", "bf16"] = Field(
        "exact",
        description="exact: products in float32; tf32: on a GPU their inputs are rounded to TF32 "
        "(10 bits); bf16: models run in torch's autocast to bfloat16 and their frozen parameters "
        "are stored in it, which changes the run's identity",
    )
    lanes: MostLanes = Field(
        "auto",
        description="number of clients trained side by side in one step. auto: on a CPU 1 for "
        "convolutions and for models whose bits would depend on other lanes, else the number that "
        "fits its cache. With a number above 1, the last bits of convolutions, batch norm and "
        "activations other than ReLU and tanh depend on the number of ranks",
    )
    lane_table: Annotated[LaneTable, BeforeValidator(_read_lane_table)] | None = Field(
        None,
        description="file with times measured by tests/benchmarks/gpu.sh, from which lanes = 'auto' "
        "chooses on a GPU; without it convolutions have at most 8 lanes there",
    )
    convolutions: Form | Literal["auto"] = Field(
        "auto",
        description="convolutions of several clients: one grouped convolution, or a loop over "
        "clients; auto: the faster one in lane_table, else grouped",
    )
    replay: bool = Field(
        True,
        description="run frequent steps as CUDA graphs on a GPU",
    )
    threads: PositiveInt = Field(
        1, le=1024, description="CPU threads per rank; changes the last bits of results"
    )
    memory: float = Field(
        8192.0,
        gt=0,
        le=1e9,
        description="megabytes of client state, and of a round's models, that are kept in "
        "memory; the rest is stored in $TMPDIR",
    )
    track: list[str] = Field(
        default_factory=list,
        description="trackers that show the run while it trains: tensorboard, wandb, mlflow",
    )
    hang_after: float = Field(
        600.0,
        gt=0,
        le=1e7,
        description="seconds without a heartbeat after which a rank counts as lost",
    )

    @property
    def form(self) -> Form:
        """The form of convolutions over lanes if no table chooses it."""
        return "grouped" if self.convolutions == "auto" else self.convolutions
