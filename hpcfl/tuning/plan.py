"""Plan of a tuning: the drawn configurations of each method and their runs.

The plan depends only on the experiment file, so every process computes the same one.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from typing import Any

from hpcfl.data import datasets
from hpcfl.errors import UserError, suggest
from hpcfl.experiment import plugins
from hpcfl.experiment.config import Config
from hpcfl.experiment.experiment_file import Setting
from hpcfl.experiment.sweep import parse_changed
from hpcfl.files.file_names import make_file_name
from hpcfl.report import variance
from hpcfl.rows import randomness
from hpcfl.scores.metric_names import name_tuned
from hpcfl.tuning import halving
from hpcfl.tuning.halving import Rung
from hpcfl.tuning.section import Range, Tune, parse, parse_range, split_entry

ATTEMPTS = 100  # maximum number of draws for a valid experiment
DIGITS = 3  # significant digits of a drawn number, so that it is easy to type
UNTUNED = "untuned"  # label of a method's configuration in the file


@dataclass(frozen=True)
class Candidate:
    """A configuration of a method.

    Attributes:
        method: Entry of ``tune.methods``.
        label: Label that is unique for the method; part of file names.
        setting: Drawn values and overrides by dotted key.
    """

    method: str
    label: str
    setting: Setting

    @property
    def name(self) -> str:
        return f"{make_file_name(self.method)},{self.label}"

    @property
    def description(self) -> str:
        """Return the setting as text."""
        parts = [f"{key} = {value}" for key, value in self.setting.items()]
        return ", ".join(parts) or "nothing is set"


@dataclass(frozen=True)
class Cell:
    """A candidate on the partition of one seed."""

    candidate: Candidate
    seed: int

    @property
    def name(self) -> str:
        return f"{self.candidate.name},seed={self.seed}"


@dataclass(frozen=True)
class Draws:
    """Configurations that were drawn for a method.

    Attributes:
        candidates: All draws in order. For a method with whole runs, the budget may allow
            only some of them.
        needs_rounds: Whether a configuration depends on the number of rounds.
    """

    candidates: list[Candidate]
    needs_rounds: bool


@dataclass(frozen=True, eq=False)
class TuningPlan:
    """Plan of a tuning or of one of its searches.

    Attributes:
        source: Name of the experiment file, for errors.
        base: Table of the experiment without ``[tune]``.
        section: Section ``[tune]`` with the seeds of the search.
        number: Number of the search; the plan of the tuning is that of search 0.
    """

    source: str
    base: dict[str, Any]
    section: Tune
    number: int = 0

    @property
    def table(self) -> dict[str, Any]:
        """Return the whole tuning as a table for ``read``."""
        return {**self.base, "tune": self.section.model_dump(mode="json")}

    @cached_property
    def searches(self) -> list["TuningPlan"]:
        """Return the plans of the searches, each with its draws and partitions."""
        return [self._search(number) for number in range(self.section.searches)]

    def _search(self, number: int) -> "TuningPlan":
        section = self.section
        if number == 0:
            return self
        seeds = [_draw_seed(seed, "partition", number) for seed in section.search_seeds]
        seed = _draw_seed(section.seed, "draws", number)
        own = section.model_copy(update={"seed": seed, "search_seeds": seeds})
        return replace(self, section=own, number=number)

    @property
    def prefix(self) -> str:
        """Return the prefix of labels. It names the search if there are several."""
        return f"search={self.number}," if self.section.searches > 1 else ""

    @cached_property
    def most_rounds(self) -> int:
        """Return the maximum number of rounds of a run. Raises UserError."""
        method = {"method.name": split_entry(self.section.methods[0])[0]}
        config, mistakes = parse_changed(self.base, method)
        if config is None:
            raise UserError(*(f"{self.source}: {line}" for line in mistakes))
        return config.rounds

    def find_method(self, cell: str) -> str:
        """Return the method of a run by the run's name.

        Raises:
            UserError: If no method of the tuning has such a run.
        """
        for method in self.section.methods:
            if cell.startswith(f"{make_file_name(method)},"):
                return method
        raise UserError(f"{self.source}: this tuning has no run '{cell}'")

    def find_ranges(self, method: str) -> dict[str, Range]:
        """Return the range of each searched key of a method.

        Ranges come from the method's keys, from ``tune.search`` and from the method's
        overrides; later ones take precedence.
        """
        given = {**self.base.get("method", {}), "name": split_entry(method)[0]}
        declared: dict[str, Range] = {}
        for key, described in plugins.list_fields("method", given).items():
            extra = getattr(described, "json_schema_extra", None)
            if isinstance(extra, Mapping) and "search" in extra:
                declared[f"method.{key}"] = list(extra["search"])
        ranges = declared | self.section.search
        for key, value in self._overrides(method).items():
            ranges.pop(key, None)
            found = parse_range(value)
            if found is not None:
                ranges[key] = found
        return dict(sorted(ranges.items()))

    def find_fixed(self, method: str) -> Setting:
        """Return the method's overrides with a single value.

        If the entry or ``tune.at`` names a column, ``evaluation.score`` is included.
        """
        overrides = self._overrides(method)
        fixed = {
            key: value for key, value in overrides.items() if parse_range(value) is None
        }
        column = self.find_column(method)
        return {"evaluation.score": column} | fixed if column else fixed

    def find_column(self, method: str) -> str:
        """Return the column that scores a method; "" for the choice in the file."""
        at = "" if self.section.at == "method" else self.section.at
        return split_entry(method)[1] or at

    def find_overridden(self, entry: str) -> str:
        """Return the key of an entry's overrides: the entry, or else its method."""
        return entry if entry in self.section.overrides else split_entry(entry)[0]

    def _overrides(self, entry: str) -> dict[str, Any]:
        """Return the overrides of an entry of ``tune.methods``."""
        return self.section.overrides.get(self.find_overridden(entry), {})

    def make_untuned(self, method: str) -> Candidate:
        """Return the method's configuration with the values of the file and defaults."""
        return Candidate(method, f"{self.prefix}{UNTUNED}", self.find_fixed(method))

    def make_tuned(self, method: str) -> Candidate:
        """Return the chosen configuration by its name only, as known before the search."""
        return Candidate(method, f"{self.prefix}tuned", {})

    def list_references(self, method: str) -> list[Candidate]:
        """Return the configurations to play in addition to the trials.

        This is the untuned configuration, unless it is a trial itself.
        """
        return [] if self.section.is_capped else [self.make_untuned(method)]

    def list_trials(self, method: str) -> list[Candidate]:
        """Return the configurations drawn for a method that the first rung plays."""
        first = self.list_rungs(method)[0]
        return self._draw(method).candidates[: first.trials]

    def list_rungs(self, method: str) -> list[Rung]:
        """Return the rungs of a method's search."""
        section = self.section
        arguments = section.trials, section.eta, section.rungs
        if self.plays_whole(method):
            measured = Fraction(0)  # under a hard cap the run's share includes it
            if not section.is_capped:
                every = self.make_config(
                    self.make_untuned(method), 0, 1
                ).evaluation.every
                first = min(self.most_rounds, halving.count_measured_rounds(every))
                measured = Fraction(first, self.most_rounds)
            return halving.list_whole_runs(*arguments, measured)
        return halving.list_rungs(*arguments)

    def plays_whole(self, method: str) -> bool:
        """Return whether a run of the method cannot continue with more rounds.

        This is the case if its rounds depend on the total number of rounds.
        """
        return self._draw(method).needs_rounds

    def make_config(self, candidate: Candidate, seed: int, rounds: int) -> Config:
        """Return the experiment of a candidate. Raises UserError if it is invalid."""
        config, mistakes = self._try_config(candidate, seed, rounds)
        if config is None:
            place = f"{self.source} [tune] {candidate.name}"
            raise UserError(*(f"{place}: {line}" for line in mistakes))
        return config

    def make_final_config(self, candidate: Candidate, seed: int, rounds: int) -> Config:
        """Return the experiment of a final run on the partition of ``seed``.

        Each search has different training seeds.
        """
        config = self.make_config(candidate, seed, rounds)
        if self.number == 0:
            return config
        partition = {"partition.seed": config.partition.seed}
        dealt = replace(candidate, setting=candidate.setting | partition)
        return self.make_config(
            dealt, _draw_seed(seed, "training", self.number), rounds
        )

    def find_mistake(self, method: str, key: str, value: Any) -> str:
        """Return why no draw with a value of a key is valid; "" if one is."""
        ranges, mistakes = self.find_ranges(method), list[str]()
        for attempt in range(ATTEMPTS):
            drawn = draw(ranges, self.section.seed, 0, attempt) | {key: value}
            candidate = Candidate(method, "", self.find_fixed(method) | drawn)
            config, mistakes = self._try_config(candidate, 0, 1)
            if config is not None:
                return ""
        return mistakes[0]

    def _try_config(
        self, candidate: Candidate, seed: int, rounds: int
    ) -> tuple[Config | None, list[str]]:
        base = {**copy.deepcopy(self.base), "seed": seed, "rounds": rounds}
        name, _ = split_entry(candidate.method)
        setting = {"method.name": name, **candidate.setting}
        config, mistakes = parse_changed(base, setting)
        if config is not None:
            name = f"{config.name}-{candidate.name}"
            config = config.model_copy(update={"name": name})
        return config, mistakes

    @cache  # noqa: B019
    def _draw(self, method: str) -> Draws:
        """Draw the configurations of a method, once."""
        ranges, fixed = self.find_ranges(method), self.find_fixed(method)
        width = len(str(self.section.trials - 1))
        candidates = [] if self.list_references(method) else [self.make_untuned(method)]
        needs_rounds = any(
            self.make_config(one, 0, 1).needs_rounds for one in candidates
        )
        for trial in range(len(candidates), self.section.trials):
            mistakes: list[str] = []
            for attempt in range(ATTEMPTS):
                drawn = draw(ranges, self.section.seed, trial, attempt)
                label = f"{self.prefix}trial={trial:0{width}}"
                candidate = Candidate(method, label, fixed | drawn)
                config, mistakes = self._try_config(candidate, 0, 1)
                if config is not None:
                    candidates.append(candidate)
                    needs_rounds |= config.needs_rounds
                    break
            else:
                raise UserError(
                    f"{self.source} [tune]: {method}: none of {ATTEMPTS} draws is a valid "
                    f"experiment, {mistakes[0]}"
                )
        return Draws(candidates, needs_rounds)


def _draw_seed(seed: int, purpose: str, number: int) -> int:
    """Return a seed of a search, derived from a seed of the file."""
    random = randomness.generator(seed, "tune.searches", purpose, number)
    return int(random.integers(2**31))


def draw(
    ranges: Mapping[str, Range], seed: int, trial: int, attempt: int = 0
) -> Setting:
    """Draw a configuration as a function of seed, trial and key.

    All methods get the same draws, such as the same learning rates, so that chance
    favours no method. With separate draws, eight copies of FedAvg differed by up to
    1.2 ± 0.4 points (results/tuned).

    Args:
        ranges: Range of each key.
        seed: Seed of the draws.
        trial: Number of the trial.
        attempt: Number of earlier draws of this trial, which gave invalid experiments.
    """
    setting = {}
    for key, values in ranges.items():
        purpose = "tune", trial, attempt, key
        [luck] = randomness.uniform(seed, *purpose, skip=0, count=1).tolist()
        setting[key] = _pick(values, luck)
    return setting


def _pick(values: Range, luck: float) -> Any:
    """Return the value of a range at the fraction ``luck`` in [0, 1)."""
    if isinstance(values, list):
        return values[int(luck * len(values))]
    low, high = values.low, values.high
    if values.log:
        low, high = math.log(low), math.log(high)
    number = low + luck * (high - low)
    if values.log:
        number = math.exp(number)
    return float(f"{number:.{DIGITS}g}")


def read(table: dict[str, Any], source: str, cell: str = "") -> TuningPlan:
    """Return the tuning in the table of an experiment file.

    Args:
        table: Content of the file.
        source: Name of the file, for errors.
        cell: Name of a run; if given, only its method is checked.

    Raises:
        UserError: If the tuning is invalid.
    """
    if not isinstance(table.get("tune"), dict):
        raise UserError(
            f"{source}: has no section [tune]; add it with methods, budget, search_seeds and "
            "final_seeds"
        )
    for key, instead in (
        ("sweep", "tune.search and tune.overrides replace it"),
        ("seed", "tune.search_seeds and tune.final_seeds replace it"),
    ):
        if key in table:
            raise UserError(f"{source}: {key} is not allowed with [tune]; {instead}")
    section = parse(table["tune"], source)
    base = {key: value for key, value in table.items() if key != "tune"}
    plan = TuningPlan(source, base, section)
    _check(plan, cell)
    return plan


def _check(plan: TuningPlan, cell: str) -> None:
    """Raise UserError for mistakes that would otherwise stop a search later."""
    if plan.section.searches > 1 and not cell:
        variance.check_library()
    entries = plan.section.methods
    used = set(map(plan.find_overridden, entries))
    for method in plan.section.overrides:
        if method not in used:
            hint = suggest(method, sorted(used.union(entries)))
            raise UserError(
                f"{plan.source}: tune.overrides: '{method}' applies to no entry of "
                f"tune.methods{hint}"
            )
    if len({make_file_name(method) for method in entries}) < len(entries):
        raise UserError(
            f"{plan.source}: tune.methods: two entries have the same folder"
        )
    for method in [plan.find_method(cell)] if cell else entries:
        config = plan.make_config(plan.make_untuned(method), 0, plan.most_rounds)
        datasets.find(config.data.dataset)
        if not config.training.validation:
            raise UserError(
                f"{plan.source}: training.validation = 0: [tune] needs held-out samples "
                "to choose configurations; set training.validation = 0.2 or another share"
            )
        _check_partitions(plan, method)
        _check_lists(plan, method)
        _check_column(plan, method, config)
        plan.list_trials(method)


def _check_column(plan: TuningPlan, method: str, config: Config) -> None:
    """Raise UserError if a method is chosen by a column after tuning epochs that is not
    scored.
    """
    column = plan.find_column(method)
    epochs = column.removeprefix(name_tuned(""))
    scored = map(str, config.evaluation.tune_epochs)
    if column != epochs and epochs not in scored:
        raise UserError(
            f"{plan.source}: tune.methods: {method} is chosen at {column}, which is not "
            f"scored; add {epochs} to evaluation.tune_epochs"
        )


def _check_lists(plan: TuningPlan, method: str) -> None:
    """Raise UserError for a listed value that its key does not allow.

    Draws with such a value would be replaced without a message.
    """
    for key, values in plan.find_ranges(method).items():
        for value in values if isinstance(values, list) else []:
            mistake = plan.find_mistake(method, key, value)
            if mistake.startswith(f"{key} = "):
                raise UserError(f"{plan.source} [tune]: {mistake}")


def _check_partitions(plan: TuningPlan, method: str) -> None:
    """Raise UserError if all seeds share a partition because of a file or protocol."""
    candidate = plan.make_untuned(method)
    partitions = [plan.make_config(candidate, seed, 1).partition for seed in (0, 1)]
    seeds = {partition.seed for partition in partitions}
    files = {partition.file for partition in partitions}
    if len(seeds) == 1 or files != {None}:
        raise UserError(
            f"{plan.source}: search and final runs would share one partition; leave out "
            "partition.file and set partition.seed = 'seed' to give each seed its own "
            "partition"
        )


def count_whole_runs(plan: TuningPlan) -> Fraction:
    """Return the cost of a search on one partition in whole runs."""
    section = plan.section
    return halving.compute_cost(
        halving.list_rungs(section.trials, section.eta, section.rungs)
    )


def count_search_budget(plan: TuningPlan) -> int:
    """Return the sample gradients that each method's search may use."""
    section = plan.section
    return int(count_whole_runs(plan) * section.budget) * len(section.search_seeds)


def describe_refusal(plan: TuningPlan, method: str, measured: int) -> str:
    """Return an error line if a method's search exceeds its budget, else "".

    Args:
        plan: Plan of the search.
        method: Entry of ``tune.methods``.
        measured: Sample gradients of the first rounds of all trials. A run that cannot
            continue plays these rounds twice, once to measure its cost.
    """
    needed = 2 * measured if plan.plays_whole(method) else measured
    budget = count_search_budget(plan)
    if needed <= budget:
        return ""
    of_one_seed = Fraction(needed, len(plan.section.search_seeds))
    enough = math.ceil(of_one_seed / count_whole_runs(plan))
    otherwise = "" if plan.section.is_capped else ", or tune.overspend = true"
    return (
        f"{plan.source}: tune.budget = {plan.section.budget}: the first rounds of all "
        f"trials of {method} take {needed:,} gradients of samples, but its search may "
        f"take {budget:,}; set tune.budget = {enough} or more{otherwise}"
    )
