"""``hpcfl table --against ROW``: the clients' gains beside a reference row.

Every client is its own control: its number under a method less its number under the
reference, in the same repetition of the same partition, is its *gain*. A mean over
clients hides the clients that lose by the method, so their share and their loss stand
beside it.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pandas import DataFrame, Series

from hpcfl.errors import UserError, suggest
from hpcfl.report import search_spending
from hpcfl.report.arrangement import SEARCH, Arrangement, Placed
from hpcfl.report.inference import (
    LEVEL,
    Interval,
    correct,
    interval,
    partitions_needed,
    signed_rank,
)
from hpcfl.report.metric_values import (
    Reading,
    counts_of,
    find_client_measure,
    of_clients,
)
from hpcfl.report.search_spending import SEARCHES
from hpcfl.report.table_formats import MISSING, Table
from hpcfl.report.text import list_first
from hpcfl.scores.metric_names import Measure
from hpcfl.storage.tune_folder import SPENT

GAIN = "gain ± 95 %"
WORST = 0.1  # the share of clients with the lowest gains
MARGIN = 0.5  # of equivalence, in the unit that is shown
PAIRS = "p (pairs of client and seed independent)"
# Half of the interval by the nested bootstrap, in the unit that is shown.
BOOTSTRAP = "± by bootstrap"
# Columns that only some tables have: their numbers, headings and formats.
OPTIONAL = (
    ("needs", "needs", ".0f"),
    ("p_pairs", PAIRS, ".2g"),
    (BOOTSTRAP, BOOTSTRAP, ".2f"),
    (SEARCHES, SEARCHES, ".0f"),
    (SPENT, SPENT, ".2f"),
)
NOTE = (
    "gain: a client's {score} minus its {score} under {reference}, mean over clients and "
    "then over partitions ({partitions}), ± half of its 95 % interval; better, worse and "
    "same (within ± {margin:g}) are decided at the level of 5 %, with Holm's correction"
)
# the columns that a table has and a page has not
COLUMNS = (
    "p: with Holm's correction; hurt: clients with a gain below 0; hurt by: their mean "
    "gain; worst tenth: mean of the lowest tenth of the gains; Gini: 0 where all clients "
    "have the same number"
)
SEARCHED = (
    "with several searches the interval and p are of a mixed model of search, partition and "
    "seed of training; the nested bootstrap draws searches, partitions and their clients"
)
ONE_PARTITION = "no interval: one partition alone has none; play other seeds"
UNMATCHED = "{column}: left out, no seed in common with {reference}: {rows}"


@dataclass(frozen=True)
class Reference:
    """A row with which all others are compared.

    Attributes:
        row: Its label.
        margin: Differences below it count as none, in the unit that is shown.
        power: A difference in the same unit; the table shows how many partitions are
            needed to find it.
        pairs: Adds a test over pairs of client and seed.
    """

    row: str
    margin: float = MARGIN
    power: float | None = None
    pairs: bool = False


@dataclass(frozen=True)
class Gains:
    """A row compared with the reference on the same clients of the same partitions.

    Attributes:
        of_clients: Of each partition the clients' gains ``[n_r]``, positive where the
            row is better, mean over the repetitions that share the partition.
        gini: Of the row's own numbers over clients, mean over partitions.
        interval: Of the mean gain.
        of_pairs: The finite gains of all pairs of client and repetition, ``[pairs]``.
        searches: The number of searches that the interval includes.
        bootstrap: Half of the interval by the nested bootstrap; NaN for one search.
    """

    of_clients: list[np.ndarray]
    gini: float
    interval: Interval
    of_pairs: np.ndarray
    searches: int = 1
    bootstrap: float = math.nan

    @property
    def hurt(self) -> float:
        """Return the share of clients that lose, mean over partitions."""
        return float(np.mean([(gains < 0).mean() for gains in self.of_clients]))

    @property
    def loss(self) -> float:
        """Return the mean gain of clients that lose, NaN where none does."""
        gains = np.concatenate(self.of_clients)
        losing = gains[gains < 0]
        return float(losing.mean()) if len(losing) else math.nan

    @property
    def worst_tenth(self) -> float:
        """Return the mean of the lowest tenth of gains, at least one, over partitions."""
        means = []
        for gains in self.of_clients:
            count = max(1, int(WORST * len(gains)))
            means.append(float(np.sort(gains)[:count].mean()))
        return float(np.mean(means))


def make_table(
    arranged: Arrangement,
    column: str,
    against: Reference,
    reading: Reading,
) -> Table:
    """Return one column of a table, each row compared with the reference.

    Args:
        arranged: The finished runs.
        column: The label of a column.
        against: The reference.
        reading: The score that is compared, of each client, by its resolved name.

    Raises:
        UserError: No such row or score, or nothing to compare.
    """
    measure = find_client_measure(arranged.runs[0], reading.metric)
    rows = arranged.column(column)
    reference = find_row(against.row, list(rows))
    gains, unmatched = {}, []
    for row in arranged.rows:
        if row == reference or row not in rows:
            continue
        found = gains_of(rows[row], rows[reference], reading)
        if found is None:
            unmatched.append(row)
        else:
            gains[row] = found
    if not gains:
        raise UserError(f"{column}: nothing to compare with {reference}")
    numbers = tabulate(gains, against, measure.factor)
    compared = [one for row in gains for one in rows[row]]
    if shares := search_spending.find_shares(replace(arranged, placed=compared)):
        numbers[SPENT] = shares
    if any(one.searches > 1 for one in gains.values()):
        numbers[SEARCHES] = {row: one.searches for row, one in gains.items()}
        numbers[BOOTSTRAP] = {
            row: measure.factor * one.bootstrap for row, one in gains.items()
        }
    unit = f" in {measure.unit}" if measure.unit else ""
    title = f"{column}: {measure.score}{unit} of each client beside {reference}, {reading.at}"
    texts = _write_cells(numbers, measure)
    best = texts.map(lambda text: False)
    best.loc[numbers["verdict"] == "better", GAIN] = True
    numbers.insert(0, "column", column)
    counts = sorted({of_row.interval.partitions for of_row in gains.values()})
    note = NOTE.format(
        score=measure.score,
        reference=reference,
        partitions=" to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))),
        margin=against.margin,
    )
    notes = [note, COLUMNS]
    if SEARCHES in numbers:
        notes.append(SEARCHED)
    if counts[-1] == 1:
        notes.append(ONE_PARTITION)
    if unmatched:
        rows_text = list_first(unmatched)
        notes.append(
            UNMATCHED.format(column=column, reference=reference, rows=rows_text)
        )
    return Table(
        title=title,
        texts=texts,
        best=best,
        numbers=numbers.reset_index(),
        notes=notes,
    )


def tabulate(gains: Mapping[str, Gains], against: Reference, factor: int) -> DataFrame:
    """Return the numbers of each row, in the unit in which they are recorded."""
    of_rows = Series(gains)
    intervals = of_rows.map(lambda one: one.interval)
    frame = DataFrame(
        {
            "gain": intervals.map(lambda one: one.mean),
            "half": intervals.map(lambda one: one.half),
            "p": correct(intervals.map(lambda one: one.p)),
        }
    ).rename_axis("row")
    same = intervals.map(lambda one: one.within(against.margin / factor))
    better = frame["gain"].gt(0).map({True: "better", False: "worse"})
    verdict = same.map({True: "same", False: "open"})
    verdict = verdict.mask(frame["p"] < LEVEL, better)
    frame["verdict"] = verdict.mask(frame["p"].isna(), "")
    for name in ("hurt", "loss", "worst_tenth", "gini"):
        frame[name] = {row: getattr(one, name) for row, one in gains.items()}
    if against.power is not None:
        power = against.power / factor
        level = LEVEL / max(1, frame["p"].count())
        needed = intervals.map(
            lambda one: partitions_needed(one.deviation, power, level)
        )
        frame["needs"] = needed.astype(float)
    if against.pairs:
        frame["p_pairs"] = correct(of_rows.map(lambda one: signed_rank(one.of_pairs)))
    return frame


def _write_cells(frame: DataFrame, measure: Measure) -> DataFrame:
    """Return the numbers of ``tabulate`` as texts."""
    form = ".2f" if measure.is_percent else ".4g"

    def write(name: str, form: str, factor: int = 1) -> Series:
        numbers = factor * frame[name].astype(float)
        return numbers.map(lambda one: MISSING if math.isnan(one) else f"{one:{form}}")

    factor = measure.factor
    half = (" ± " + write("half", form, factor)).mask(frame["half"].isna(), "")
    columns = {
        GAIN: write("gain", f"+{form}", factor) + half,
        "p": write("p", ".2g"),
        "verdict": frame["verdict"],
        "hurt %": write("hurt", ".1f", 100),
        "hurt by": write("loss", f"+{form}", factor),
        "worst tenth": write("worst_tenth", f"+{form}", factor),
        "Gini": write("gini", ".3f"),
    }
    for name, heading, form in OPTIONAL:
        if name in frame:
            columns[heading] = write(name, form)
    return DataFrame(columns).rename_axis(None)


def gains_of(
    cells: Sequence[Placed], reference: Sequence[Placed], reading: Reading
) -> Gains | None:
    """Return the gains of one row; None where it shares no repetition with the reference.

    The arguments are as for ``make_table``. Raises UserError where repetitions with the same
    seeds have other clients.
    """
    measure = find_client_measure(cells[0].run, reading.metric)
    by_seeds = {_seeds(placed): placed for placed in reference}
    of_partition: dict[Hashable, list[np.ndarray]] = {}
    of_search: dict[Hashable, dict[int, np.ndarray]] = {}
    own: list[float] = []
    for placed in cells:
        other = by_seeds.get(_seeds(placed))
        if other is None:
            continue
        counts, others = counts_of(placed.run, "test"), counts_of(other.run, "test")
        if not np.array_equal(counts, others):
            raise UserError(
                f"{placed.run.folder}: its clients are not those of {other.run.folder}"
            )
        numbers, reference_numbers = (
            of_clients(run, reading.metric, reading.at)
            for run in (placed.run, other.run)
        )
        gained = measure.rank(1.0) * (numbers - reference_numbers)
        partition = partition_of(placed)
        of_partition.setdefault(partition, []).append(gained)
        of_search.setdefault(partition, {})[placed.setting.get(SEARCH, 0)] = gained
        own.append(gini(numbers[np.isfinite(numbers)]))
    if not own:
        return None
    means = [np.mean(gains, axis=0) for gains in of_partition.values()]
    known = [mean[np.isfinite(mean)] for mean in means]
    known = [mean for mean in known if len(mean)]
    if not known:
        return None
    pairs = np.concatenate([one for gains in of_partition.values() for one in gains])
    pairs = pairs[np.isfinite(pairs)]
    gains = Gains(known, float(np.mean(own)), interval(known), pairs)
    return _include_searches(gains, of_search)


def _include_searches(
    gains: Gains, of_search: Mapping[Hashable, Mapping[int, np.ndarray]]
) -> Gains:
    """Return the gains with an interval over searches too, if there are several.

    Partitions that lack a search are left out. of_search: the clients' gains of each
    partition by the number of the search.
    """
    numbers = sorted(set().union(*of_search.values()))
    if len(numbers) < 2:
        return gains
    from hpcfl.report import variance  # needs statsmodels

    complete = []
    for of_partition in of_search.values():
        if len(of_partition) == len(numbers):
            stacked = np.stack([of_partition[number] for number in numbers])
            stacked = stacked[:, np.isfinite(stacked).all(axis=0)]
            if stacked.size:
                complete.append(stacked)
    if not complete:
        return gains
    of_mean, half = variance.interval(complete)
    return replace(gains, interval=of_mean, searches=len(numbers), bootstrap=half)


def gini(numbers: np.ndarray) -> float:
    """Return the Gini coefficient of numbers ``[n]`` that are not negative: half of the mean
    absolute difference over the mean, 0 where all are alike; NaN for a mean of 0.
    """
    mean = numbers.mean() if len(numbers) else 0.0
    if mean == 0:
        return math.nan
    count = len(numbers)
    ranks = np.arange(1, count + 1)
    weighted = ((2 * ranks - count - 1) * np.sort(numbers)).sum()
    return float(weighted / (count**2 * mean))


def find_row(name: str, rows: Sequence[str]) -> str:
    """Find the row with the label ``name``, or the only one with it as first word.

    Raises UserError where there is none.
    """
    if name in rows:
        return name
    beginning = [row for row in rows if row.split(" ")[0] == name]
    if len(beginning) == 1:
        return beginning[0]
    hint = suggest(name, rows)
    raise UserError(f"--against {name}: no row of this table{hint}")


def _seeds(placed: Placed) -> tuple[str, str]:
    """Return the seeds of a run, in which repetitions differ."""
    setting = placed.setting
    return repr(setting.get("seed")), repr(setting.get("partition.seed"))


def partition_of(placed: Placed) -> Hashable:
    """Return the key of a run's partition: the samples of each client if a file has it,
    its own seed, or the run's where it has none.
    """
    setting = placed.setting
    if setting.get("partition.file") is not None:
        return counts_of(placed.run, "test").tobytes()
    own = setting.get("partition.seed")
    return repr(setting.get("seed") if own is None else own)
