"""``hpcfl table --against ROW``: the clients' gains beside a reference row.

Every client is its own control: its number under a method less its number under the
reference, in the same repetition of the same partition, is its *gain*. A mean over
clients hides the clients that lose by the method, so their share and their loss stand
beside it.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcfl.errors import UserError
from hpcfl.experiment import plugins
from hpcfl.report import search_spending
from hpcfl.report.arrangement import Arrangement, Placed
from hpcfl.report.grid import SPENT, Sheet, spent_text
from hpcfl.report.inference import Interval, interval, partitions_needed
from hpcfl.report.reading import At, counts_of, of_clients, own_column
from hpcfl.report.significance import LEVEL, holm, signed_rank
from hpcfl.report.summary import Run
from hpcfl.scores._described import Measure

if TYPE_CHECKING:
    import pandas

GAIN = "gain ± 95 %"
WORST = 0.1  # the share of clients with the lowest gains
MARGIN = 0.5  # of equivalence, in the unit that is shown
NOTE = (
    "gain: of each client its number less that under {reference}, mean over clients and "
    "then over {partitions} partitions, ± half of its 95 % interval (bootstrap over "
    "partitions with clients within), and Holm's p for {tests} comparisons; same: within "
    "± {margin:g} at the level of 5 %, open: neither; hurt: clients with a gain below 0, "
    "and by how much in the mean; worst tenth: mean of the lowest gains; Gini: of the "
    "clients' numbers, 0 where all are alike"
)
NOTE_ON_POWER = (
    "needs: with so many partitions a difference of {difference:g} is seen with a chance of "
    "80 %, at the level {level:.2g} that Holm's correction may ask for"
)
PAIRS = "p (pairs of client and seed independent)"
NOTE_ON_PAIRS = (
    f"{PAIRS}: Wilcoxon's signed-rank test on {{pairs}} pairs with Holm's correction for "
    "{tests} comparisons; clients of a partition share its draw, so that the test says "
    "nothing about other partitions"
)
ONE_PARTITION = "no interval: one partition alone has none; play other seeds"
UNMATCHED = "{column}: {row} left out, it shares no repetition with {reference}"


@dataclass(frozen=True)
class Gains:
    """A row beside the reference on the same clients of the same partitions.

    Attributes:
        of_clients: Of each partition the clients' gains ``[n_r]``, positive where the
            row is better, mean over the repetitions that share the partition.
        gini: Of the row's own numbers over clients, mean over partitions.
        interval: Of the mean gain.
        of_pairs: The finite gains of all pairs of client and repetition, ``[pairs]``.
    """

    of_clients: list[np.ndarray]
    gini: float
    interval: Interval
    of_pairs: np.ndarray

    @property
    def hurt(self) -> float:
        """The share of clients that lose, mean over partitions."""
        shares = [float((gains < 0).mean()) for gains in self.of_clients]
        return float(np.mean(shares))

    @property
    def loss(self) -> float:
        """The mean gain of those that lose, NaN where none does."""
        everyone = np.concatenate(self.of_clients)
        losing = everyone[everyone < 0]
        return float(losing.mean()) if len(losing) else math.nan

    @property
    def worst_tenth(self) -> float:
        """The mean of the lowest tenth of gains, at least one, over partitions."""
        means = []
        for gains in self.of_clients:
            count = max(1, int(WORST * len(gains)))
            means.append(float(np.sort(gains)[:count].mean()))
        return float(np.mean(means))


def sheet(
    arranged: Arrangement,
    column: str,
    reference: str,
    measure: Measure,
    at: At,
    models: str = "",
    margin: float = MARGIN,
    power: float | None = None,
    pairs: bool = False,
) -> Sheet:
    """Return one column of a table, each row beside the reference.

    Args:
        arranged: The finished runs.
        column: The label of a column.
        reference: The label of a row.
        measure: Whose numbers are compared; each client's own number of its score is.
        at: Where they are read.
        models: The column of models that are scored; "" for the one that counts in
            each run.
        margin: Differences below it count as none, in the unit that is shown.
        power: A difference, in the unit that is shown, of which is said how many
            partitions it needs.
        pairs: Whether a test over pairs of client and seed stands beside the intervals.

    Raises:
        UserError: No such row, or nothing to compare.
    """
    rows = arranged.column(column)
    reference = named_row(reference, list(rows))
    gains = {}
    unmatched = []
    for row in arranged.rows:
        if row == reference or row not in rows:
            continue
        found = gains_of(rows[row], rows[reference], measure, at, models)
        if found is None:
            unmatched.append(row)
        else:
            gains[row] = found
    if not gains:
        raise UserError(f"{column}: nothing to compare with {reference}")
    notes = [
        *_notes(gains, reference, margin, power, pairs),
        *(
            UNMATCHED.format(column=column, row=row, reference=reference)
            for row in unmatched
        ),
    ]
    lines = _lines(gains, margin / measure.factor)
    if power is not None:
        _add_needed(lines, gains, power / measure.factor)
    if pairs:
        _add_pairs(lines, gains)
    for row, line in lines.items():
        share = search_spending.of_runs([placed.run for placed in rows[row]])
        if share is not None:
            line[SPENT] = share
    unit = f" in {measure.unit}" if measure.unit else ""
    title = f"{column}: {measure.score}{unit} of each client beside {reference}, {at}"
    return _as_sheet(title, column, list(lines.values()), measure, notes)


def _notes(
    gains: Mapping[str, Gains],
    reference: str,
    margin: float,
    power: float | None,
    pairs: bool,
) -> list[str]:
    """Return the notes on a column's intervals and tests; arguments as for ``sheet``."""
    counts = sorted({of_row.interval.partitions for of_row in gains.values()})
    tests = _intervals(gains)
    notes = [
        NOTE.format(
            reference=reference,
            partitions=" to ".join(map(str, dict.fromkeys((counts[0], counts[-1])))),
            tests=tests,
            margin=margin,
        )
    ]
    if counts[-1] == 1:
        notes.append(ONE_PARTITION)
    if power is not None:
        level = LEVEL / max(1, tests)
        notes.append(NOTE_ON_POWER.format(difference=power, level=level))
    if pairs:
        most = max(len(of_row.of_pairs) for of_row in gains.values())
        notes.append(NOTE_ON_PAIRS.format(pairs=most, tests=len(gains)))
    return notes


def _intervals(gains: Mapping[str, Gains]) -> int:
    """Return the number of rows that have an interval."""
    return sum(not math.isnan(of_row.interval.p) for of_row in gains.values())


def _lines(gains: Mapping[str, Gains], margin: float) -> dict[str, dict[str, Any]]:
    """Return the numbers of each row, in the unit in which they are recorded."""
    corrected = _corrected({row: of_row.interval.p for row, of_row in gains.items()})
    lines = {}
    for row, of_row in gains.items():
        p = corrected.get(row, math.nan)
        lines[row] = {"row": row, **_line(of_row, p, margin)}
    return lines


def _add_needed(
    lines: dict[str, dict[str, Any]], gains: Mapping[str, Gains], power: float
) -> None:
    """Add the number of partitions in which a difference ``power`` is seen."""
    level = LEVEL / max(1, _intervals(gains))
    for row, of_row in gains.items():
        lines[row]["needs"] = _needed(of_row.interval.deviation, power, level)


def _add_pairs(lines: dict[str, dict[str, Any]], gains: Mapping[str, Gains]) -> None:
    """Add Holm's p-values of the test over pairs of client and seed."""
    tested = {row: signed_rank(of_row.of_pairs) for row, of_row in gains.items()}
    for row, p in _corrected(tested).items():
        lines[row]["p_pairs"] = p


def gains_of(
    cells: Sequence[Placed],
    reference: Sequence[Placed],
    measure: Measure,
    at: At,
    models: str = "",
) -> Gains | None:
    """The gains of one row; None where it shares no repetition with the reference.

    The arguments are as for ``sheet``. Raises UserError where repetitions with the same
    seeds have other clients.
    """
    by_seeds = {_seeds(placed): placed for placed in reference}
    of_partition: dict[Hashable, list[np.ndarray]] = {}
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
        numbers = _numbers(placed.run, models, measure, at)
        gained = measure.rank(1.0) * (
            numbers - _numbers(other.run, models, measure, at)
        )
        of_partition.setdefault(partition_of(placed), []).append(gained)
        own.append(gini(numbers[np.isfinite(numbers)]))
    gains = []
    for repetitions in of_partition.values():
        mean = np.mean(repetitions, axis=0)
        known = mean[np.isfinite(mean)]
        if len(known):
            gains.append(known)
    if not gains:
        return None
    everyone = [repetition for one in of_partition.values() for repetition in one]
    of_pairs = np.concatenate(everyone)
    known_pairs = of_pairs[np.isfinite(of_pairs)]
    return Gains(gains, float(np.mean(own)), interval(gains), known_pairs)


def _numbers(run: Run, models: str, measure: Measure, at: At) -> np.ndarray:
    """Each client's own number, [clients]; NaN for those without one."""
    return of_clients(run, own_column(run, models), measure, at)


def gini(numbers: np.ndarray) -> float:
    """The Gini coefficient of numbers ``[n]`` that are not negative: half of the mean
    absolute difference over the mean, 0 where all are alike; NaN for a mean of 0.
    """
    mean = numbers.mean() if len(numbers) else 0.0
    if mean == 0:
        return math.nan
    count = len(numbers)
    ranks = np.arange(1, count + 1)
    weighted = ((2 * ranks - count - 1) * np.sort(numbers)).sum()
    return float(weighted / (count**2 * mean))


def named_row(name: str, rows: Sequence[str]) -> str:
    """The row that is called ``name``, or whose first word is it where only one's is.

    Raises UserError where there is none.
    """
    if name in rows:
        return name
    beginning = [row for row in rows if row.split(" ")[0] == name]
    if len(beginning) == 1:
        return beginning[0]
    hint = plugins.suggest_from_many(name, rows)
    raise UserError(f"--against {name}: no row of this table{hint}")


def _seeds(placed: Placed) -> tuple[str, str]:
    """What tells the repetitions of an experiment apart."""
    setting = placed.setting
    return repr(setting.get("seed")), repr(setting.get("partition.seed"))


def partition_of(placed: Placed) -> Hashable:
    """The key of a run's partition: who holds how many samples where a file says it,
    its own seed, or the run's where it has none.
    """
    setting = placed.setting
    if setting.get("partition.file") is not None:
        return counts_of(placed.run, "test").tobytes()
    own = setting.get("partition.seed")
    return repr(setting.get("seed") if own is None else own)


def _corrected(p: Mapping[str, float]) -> dict[str, float]:
    """Return Holm's p-values of the rows that have one."""
    tested = {row: one for row, one in p.items() if not math.isnan(one)}
    values = holm(np.array(list(tested.values())))
    return dict(zip(tested, values.tolist(), strict=True))


def _line(gains: Gains, p: float, margin: float) -> dict[str, Any]:
    """The numbers of one row, in the unit in which they are recorded."""
    of_mean = gains.interval
    verdict = ""
    if p < LEVEL:
        verdict = "better" if of_mean.mean > 0 else "worse"
    elif not math.isnan(p):
        verdict = "same" if of_mean.within(margin) else "open"
    return {
        "gain": of_mean.mean,
        "half": of_mean.half,
        "p": p,
        "verdict": verdict,
        "hurt": gains.hurt,
        "loss": gains.loss,
        "worst_tenth": gains.worst_tenth,
        "gini": gains.gini,
    }


def _needed(deviation: float, difference: float, level: float) -> float:
    """``partitions_needed``, NaN where it is not known or too many."""
    if math.isnan(deviation):
        return math.nan
    return partitions_needed(deviation, difference, level) or math.nan


def _as_sheet(
    title: str,
    column: str,
    lines: list[dict[str, Any]],
    measure: Measure,
    notes: list[str],
) -> Sheet:
    """The numbers as texts, and for other programs as they are."""
    import pandas

    frame = pandas.DataFrame(lines).set_index("row")
    form = ".2f" if measure.percent else ".4g"

    def shown(name: str, sign: str = "+") -> "pandas.Series[str]":
        values = measure.factor * frame[name]
        return values.map(lambda number: _text(number, sign + form))

    texts = pandas.DataFrame(
        {
            GAIN: shown("gain") + " ± " + shown("half", sign=""),
            "p": frame["p"].map(lambda number: _text(number, ".2g")),
            "": frame["verdict"],
            "hurt %": frame["hurt"].map(lambda share: f"{100 * share:.1f}"),
            "by": shown("loss"),
            "worst tenth": shown("worst_tenth"),
            "Gini": frame["gini"].map(lambda number: _text(number, ".3f")),
        }
    ).rename_axis(None)
    if "needs" in frame:
        texts["needs"] = frame["needs"].map(
            lambda number: "–" if math.isnan(number) else f"{number:.0f}"
        )
    if "p_pairs" in frame:
        texts[PAIRS] = frame["p_pairs"].map(lambda number: _text(number, ".2g"))
    if SPENT in frame:
        texts[SPENT] = frame[SPENT].map(spent_text)
    best = texts.map(lambda text: False)
    best.loc[frame["verdict"] == "better", GAIN] = True
    numbers = frame.reset_index()
    numbers.insert(1, "column", column)
    return Sheet(title, texts, best, numbers, notes)


def _text(number: float, form: str) -> str:
    return "–" if math.isnan(number) else format(number, form)
