"""``hpcfl table --against ROW``: the clients' gains over a reference row.

The *gain* of a client is its score under a method minus its score under the reference,
in the same repetition of the same partition. The mean gain hides clients that lose, so
the table also has their share and their mean loss.
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pandas import DataFrame, Series

from hpcfl.errors import UserError, suggest
from hpcfl.files.wording import list_first
from hpcfl.report import search_spending
from hpcfl.report.arrangement import SEARCH, Arrangement, Placed
from hpcfl.report.inference import (
    LEVEL,
    Interval,
    compare_signed_ranks,
    correct,
    count_needed_partitions,
    estimate_interval,
)
from hpcfl.report.metric_values import (
    Reading,
    describe_column,
    describe_missing,
    find_client_measure,
    find_counts,
    read_clients,
    resolve_recorded,
)
from hpcfl.report.search_spending import SEARCHES
from hpcfl.report.table_formats import MISSING, Table
from hpcfl.report.text import NAMED, format_clients
from hpcfl.scores.metric_names import Measure, MetricName, is_of_newcomers
from hpcfl.storage.tune_folder import SPENT

GAIN = "gain ± 95 %"
WORST = 0.1  # fraction of clients with the lowest gains
# Gains of several searches that cancel have a mean of about 1e-18 instead of 0.
ROUNDING = 1e-12
MARGIN = 0.5  # margin of equivalence, in the displayed unit
PAIRS = "p (pairs of client and seed independent)"
# Half-width of the interval from the bootstrap.
BOOTSTRAP = "± by bootstrap"
# Optional columns of a table: name of the numbers, heading, format.
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
# Explanation of the columns that only the table has; the HTML page lacks them.
COLUMNS = (
    "p: with Holm's correction; hurt: clients with a gain below 0; hurt by: their mean "
    "gain; worst tenth: mean of the lowest tenth of the gains; Gini: 0 if all clients "
    "have the same score"
)
SEARCHED = (
    "with several searches the interval and p come from a mixed model of search, partition "
    "and training seed; the bootstrap resamples searches and partitions"
)
ONE_PARTITION = "no interval: it needs two partitions; run more seeds"
PART = "gains cover only clients that both runs have scored: {rows}"
UNMATCHED = (
    "{column}: left out, no seed or client's score in common with {reference}: {rows}"
)


@dataclass(frozen=True)
class Reference:
    """The reference row and the options of a comparison.

    Attributes:
        row: Label of the reference row.
        margin: Margin of equivalence in the displayed unit; smaller differences count
            as none.
        power: Difference in the displayed unit for which the table gives the number of
            partitions needed to detect it; None to leave the column out.
        tests_pairs: Whether to add a test over pairs of client and seed.
    """

    row: str
    margin: float = MARGIN
    power: float | None = None
    tests_pairs: bool = False


@dataclass(frozen=True)
class Gains:
    """Gains of a row over the reference on the same clients of the same partitions.

    Attributes:
        of_clients: Gains of the clients of each partition, ``[n_r]``; positive if the row
            is better; averaged over repetitions that share the partition.
        gini: Gini coefficient of the row's scores over clients, averaged over
            partitions.
        interval: Confidence interval of the mean gain.
        of_pairs: Finite gains of all pairs of client and repetition, ``[pairs]``.
        searches: Number of searches that the interval includes.
        bootstrap: Half-width of the interval from the bootstrap; NaN for one
            search.
        missing: Labels of compared runs in which no client has the score.
    """

    of_clients: list[np.ndarray]
    gini: float
    interval: Interval
    of_pairs: np.ndarray
    searches: int = 1
    bootstrap: float = math.nan
    missing: Sequence[str] = ()

    @property
    def hurt(self) -> float:
        """Return the fraction of clients that lose, averaged over partitions."""
        losing = [(gains < -ROUNDING).mean() for gains in self.of_clients]
        return float(np.mean(losing))

    @property
    def loss(self) -> float:
        """Return the mean gain of the clients that lose, NaN if no client loses."""
        gains = np.concatenate(self.of_clients)
        losing = gains[gains < -ROUNDING]
        return float(losing.mean()) if len(losing) else math.nan

    @property
    def worst_tenth(self) -> float:
        """Return the mean of the lowest tenth of gains, averaged over partitions.

        The lowest tenth has at least one client.
        """
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
    """Return a table that compares each row of one column with the reference.

    Args:
        arranged: Finished runs.
        column: Label of the column.
        against: Reference row and options of the comparison.
        reading: Per-client score to compare, by its resolved name, and rounds at which
            it is read.

    Raises:
        UserError: If the reference row or the score is missing, or there is no row to
            compare.
    """
    measure = find_client_measure(arranged.runs, reading.metric)
    name = resolve_recorded(arranged.runs, reading.metric).name
    rows = arranged.column(column)
    reference = find_row(against.row, list(rows), f"column '{column}'")
    gains, unmatched = {}, []
    for row in arranged.rows:
        if row == reference or row not in rows:
            continue
        found = compute_gains(rows[row], rows[reference], reading)
        if found is None:
            unmatched.append(row)
        else:
            gains[row] = found
    if not gains:
        raise UserError(
            f"{column}: nothing to compare with {reference}, no other row has a seed and a "
            "client's score in common with it"
        )
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
    score = f"{measure.score}{describe_column(name, reading.metric)}{unit}"
    title = f"{column}: {score} of each client against {reference}"
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
    missing = [label for of_row in gains.values() for label in of_row.missing]
    notes = [
        note,
        COLUMNS,
        *describe_missing(missing, reading.metric),
        *_describe_clients(gains, rows, reading.metric),
    ]
    if SEARCHES in numbers:
        notes.append(SEARCHED)
    if counts[-1] == 1:
        notes.append(ONE_PARTITION)
    if unmatched:
        rows_text = list_first(unmatched, NAMED)
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


def _describe_clients(
    gains: Mapping[str, Gains], rows: Mapping[str, Sequence[Placed]], metric: str
) -> list[str]:
    """Return a note on the rows whose gains lack some clients; empty without such rows.

    Args:
        gains: Gains by row.
        rows: Runs by row.
        metric: Name of the score; there is no note on scores of newcomers.
    """
    if is_of_newcomers(MetricName.parse(metric).column):
        return []
    parts = []
    for row, of_row in gains.items():
        clients = rows[row][0].setting.get("partition.clients")
        compared = format_clients([len(one) for one in of_row.of_clients])
        if clients is not None and compared != str(clients):
            parts.append(f"{row} {compared} of {clients}")
    return [PART.format(rows=list_first(parts))] if parts else []


def tabulate(gains: Mapping[str, Gains], against: Reference, factor: int) -> DataFrame:
    """Return the numbers of each row in the displayed unit.

    Args:
        gains: Gains by row.
        against: Reference row and options of the comparison.
        factor: Factor from the recorded to the displayed unit.

    Returns:
        A frame with a row for each row of the table and the columns ``gain``, ``half``,
        ``p``, ``verdict``, ``hurt`` (in %), ``hurt_by``, ``worst_tenth``, ``gini`` and,
        if requested, ``needs`` and ``p_pairs``.
    """
    of_rows = Series(gains)
    intervals = of_rows.map(lambda one: one.interval)
    frame = DataFrame(
        {
            "gain": intervals.map(lambda one: factor * one.mean),
            "half": intervals.map(lambda one: factor * one.half),
            "p": correct(intervals.map(lambda one: one.p)),
        }
    ).rename_axis("row")
    same = intervals.map(lambda one: one.is_within(against.margin / factor))
    better = frame["gain"].gt(0).map({True: "better", False: "worse"})
    verdict = same.map({True: "same", False: "open"})
    verdict = verdict.mask(frame["p"] < LEVEL, better)
    frame["verdict"] = verdict.mask(frame["p"].isna(), "")
    frame["hurt"] = of_rows.map(lambda one: 100 * one.hurt)
    frame["hurt_by"] = of_rows.map(lambda one: factor * one.loss)
    frame["worst_tenth"] = of_rows.map(lambda one: factor * one.worst_tenth)
    frame["gini"] = of_rows.map(lambda one: one.gini)
    if against.power is not None:
        power = against.power / factor
        level = LEVEL / max(1, frame["p"].count())
        needed = intervals.map(
            lambda one: count_needed_partitions(one.deviation, power, level)
        )
        frame["needs"] = needed.astype(float)
    if against.tests_pairs:
        frame["p_pairs"] = correct(
            of_rows.map(lambda one: compare_signed_ranks(one.of_pairs))
        )
    return frame


def _write_cells(frame: DataFrame, measure: Measure) -> DataFrame:
    """Return the numbers of ``tabulate`` as texts."""
    form = ".2f" if measure.is_percent else ".4g"

    def write(name: str, form: str) -> Series:
        numbers = frame[name].astype(float)
        return numbers.map(lambda one: MISSING if math.isnan(one) else f"{one:{form}}")

    half = (" ± " + write("half", form)).mask(frame["half"].isna(), "")
    columns = {
        GAIN: write("gain", f"+{form}") + half,
        "p": write("p", ".2g"),
        "verdict": frame["verdict"],
        "hurt %": write("hurt", ".1f"),
        "hurt by": write("hurt_by", f"+{form}"),
        "worst tenth": write("worst_tenth", f"+{form}"),
        "Gini": write("gini", ".3f"),
    }
    for name, heading, form in OPTIONAL:
        if name in frame:
            columns[heading] = write(name, form)
    return DataFrame(columns).rename_axis(None)


def compute_gains(
    cells: Sequence[Placed], reference: Sequence[Placed], reading: Reading
) -> Gains | None:
    """Return the gains of one row over the reference.

    Args:
        cells: Runs of the row.
        reference: Runs of the reference row.
        reading: Per-client score to compare, and rounds at which it is read.

    Returns:
        Gains; None if the row shares no repetition with the reference.

    Raises:
        UserError: If repetitions with the same seeds have different clients.
    """
    runs = [placed.run for placed in (*cells, *reference)]
    measure = find_client_measure(runs, reading.metric)
    of_partition: dict[Hashable, list[np.ndarray]] = {}
    of_search: dict[Hashable, dict[int, np.ndarray]] = {}
    ginis: list[float] = []
    missing: list[str] = []
    for placed, other in _pair_repetitions(cells, reference):
        scores = []
        for run in (placed.run, other.run):
            scores.append(read_clients(run, reading.metric, reading.at))
            if np.isnan(scores[-1]).all():
                missing.append(run.label)
        numbers, reference_numbers = scores
        gained = measure.orient(1.0) * (numbers - reference_numbers)
        partition = find_partition(placed)
        of_partition.setdefault(partition, []).append(gained)
        of_search.setdefault(partition, {})[placed.setting.get(SEARCH, 0)] = gained
        ginis.append(compute_gini(numbers[np.isfinite(numbers)]))
    known = []
    for repetitions in of_partition.values():
        mean = np.mean(repetitions, axis=0)
        finite = mean[np.isfinite(mean)]
        if finite.size:
            known.append(finite)
    if not known:
        return None
    pairs = np.concatenate([np.concatenate(one) for one in of_partition.values()])
    gains = Gains(
        of_clients=known,
        gini=float(np.mean(ginis)),
        interval=estimate_interval(known),
        of_pairs=pairs[np.isfinite(pairs)],
        missing=missing,
    )
    return _include_searches(gains, of_search)


def _pair_repetitions(
    cells: Sequence[Placed], reference: Sequence[Placed]
) -> Iterator[tuple[Placed, Placed]]:
    """Yield each run of a row with the reference's run of the same seeds, if any.

    Raises:
        UserError: If such runs have different clients.
    """
    by_seeds = {_find_seeds(placed): placed for placed in reference}
    for placed in cells:
        other = by_seeds.get(_find_seeds(placed))
        if other is None:
            continue
        counts, others = find_counts(placed.run, "test"), find_counts(other.run, "test")
        if not np.array_equal(counts, others):
            raise UserError(
                f"{placed.run.folder}: its clients differ from the clients of "
                f"{other.run.folder}"
            )
        yield placed, other


def _include_searches(
    gains: Gains, of_search: Mapping[Hashable, Mapping[int, np.ndarray]]
) -> Gains:
    """Return the gains with an interval that includes searches, if there are several.

    Args:
        gains: Gains with an interval over partitions.
        of_search: Gains of the clients, ``[n_r]``, by partition and number of the
            search. Partitions that lack a search are left out.
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
    of_mean, half = variance.estimate_interval(complete)
    return replace(gains, interval=of_mean, searches=len(numbers), bootstrap=half)


def compute_gini(numbers: np.ndarray) -> float:
    """Return the Gini coefficient of non-negative numbers.

    The coefficient is half of the mean absolute difference divided by the mean. It is 0
    if all numbers are equal.

    Args:
        numbers: Numbers, ``[n]``.

    Returns:
        Coefficient; NaN for a mean of 0.
    """
    mean = numbers.mean() if len(numbers) else 0.0
    if mean == 0:
        return math.nan
    count = len(numbers)
    places = np.arange(1, count + 1)
    weighted = ((2 * places - count - 1) * np.sort(numbers)).sum()
    return float(weighted / (count**2 * mean))


def find_row(name: str, rows: Sequence[str], place: str = "this table") -> str:
    """Find the row with the label ``name``, or the only row whose first word is ``name``.

    Args:
        name: Label or first word.
        rows: Labels of the rows.
        place: Name of the part of a table with these rows, for errors.

    Raises:
        UserError: If no row or several rows match.
    """
    if name in rows:
        return name
    beginning = [row for row in rows if row.split(" ")[0] == name]
    if len(beginning) == 1:
        return beginning[0]
    hint = suggest(name, rows)
    raise UserError(f"--against {name}: no row of {place}{hint}")


def _find_seeds(placed: Placed) -> tuple[str, str]:
    """Return the seeds that identify a repetition."""
    setting = placed.setting
    return repr(setting.get("seed")), repr(setting.get("partition.seed"))


def find_partition(placed: Placed) -> Hashable:
    """Return a key that identifies a run's partition.

    The key is the table of samples if the partition comes from a file. Otherwise it is
    the partition's seed, or the run's seed if the partition has none.
    """
    setting = placed.setting
    if setting.get("partition.file") is not None:
        return find_counts(placed.run, "test").tobytes()
    own = setting.get("partition.seed")
    return repr(setting.get("seed") if own is None else own)
