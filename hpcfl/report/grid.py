"""A table of results: rows × columns of means and standard deviations over repetitions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

MISSING = "–"  # of what was not run, or has no such number
SPENT = "spent/budget"  # the heading of the budgets that a row's search took
UNREACHED = "not reached"  # of what has no time because it never came
READ = {
    "best": "at each run's best round by {best_by} samples",
    "last": "of the last round",
    "tail": "as mean of the last tenth of the rounds",
}


@dataclass(frozen=True)
class Sheet:
    """A table as it is shown, not yet in any format.

    Attributes:
        title: What its numbers are, in a line.
        texts: Its cells, rows × columns.
        best: Which of them are set in bold, of the same shape.
        numbers: The same for other programs: a line for each entry, in full precision.
        notes: Lines to show below.
    """

    title: str
    texts: "pandas.DataFrame"
    best: "pandas.DataFrame"
    numbers: "pandas.DataFrame"
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Grid:
    """A table of results, not yet in any format.

    Attributes:
        entries: A row for each experiment, by the labels ``row`` and ``column`` of its
            place, with the ``mean`` and the ``std`` over its ``runs`` repetitions, NaN
            for a single one; how many of these have ``none``, whose number is NaN; of
            how many ``clients`` each number is, such as "20" or "9 to 10", "" if that
            was not recorded; by which samples the best rounds were
            chosen, ``best_by`` "test" or "validation", "" for numbers that are not of
            these rounds; and whether the mean is the ``best`` of its column.
        rows: The labels of the rows, in their order.
        columns: The labels of the columns, in their order.
        metric: What the numbers are, as the user named it.
        percent: Whether the numbers are in %.
        at: Where in each run they are read: a key of READ, or in other words.
        notes: Lines to show below the table.
        until: Whether the numbers are seconds until something was reached.
        spent: The budgets that a row's search took, for rows that a tuning has chosen.
    """

    entries: "pandas.DataFrame"
    rows: list[str]
    columns: list[str]
    metric: str
    percent: bool
    at: str
    notes: list[str]
    until: bool = False
    spent: Mapping[str, float] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """Describe the numbers in a line."""
        unit = " in %" if self.percent else ""
        best_by = sorted(set(self.entries["best_by"]))
        rounds = READ.get(self.at, self.at).format(best_by=" or ".join(best_by))
        counts = set(self.entries["clients"]) - {""}
        clients = f", of {counts.pop()} clients" if len(counts) == 1 else ""
        seeds = self.entries["runs"].max()
        repetitions = "one seed"
        if seeds > 1:
            repetitions = f"mean ± sample standard deviation over {seeds} seeds"
        return f"{self.metric}{unit} {rounds}{clients}, {repetitions}"

    @cached_property
    def numbers(self) -> "pandas.DataFrame":
        """Return a line for each entry: row, column, metric, at, mean, std, runs, clients,
        best_by.
        """
        from pandas import MultiIndex

        cells = MultiIndex.from_product([self.rows, self.columns])
        filled = cells.intersection(self.entries.index, sort=False)
        entries = self.entries.reindex(filled).drop(columns=["best", "none"])
        lines = entries.rename_axis(["row", "column"]).reset_index()
        lines.insert(2, "metric", self.metric)
        lines.insert(3, "at", self.at)
        if self.spent:
            lines[SPENT] = lines["row"].map(self.spent)
        return lines

    @cached_property
    def texts(self) -> "pandas.DataFrame":
        """Return the entries as ``85.31 ± 0.42``, rows × columns, with ``(2)`` behind one that
        has only 2 runs where others have more.
        """
        import pandas

        form = ".2f" if self.percent else ".4g"
        if self.until:
            form = ",.1f"
        most_runs = self.entries["runs"].max()
        texts = []
        for entry in self.entries.itertuples():
            text = f"{entry.mean:{form}}"
            if entry.runs > 1:
                text += f" ± {entry.std:{form}}"
            if entry.runs < most_runs:
                text += f" ({entry.runs})"
            if entry.none:
                text = self._nothing(entry.none, entry.runs)
            texts.append(text)
        shown = self._laid_out(pandas.Series(texts, self.entries.index), MISSING)
        if self.spent:
            shown[SPENT] = [spent_text(self.spent.get(row)) for row in self.rows]
        return shown

    @cached_property
    def best(self) -> "pandas.DataFrame":
        """Mark the entries that are the best of their columns, rows × columns."""
        best = self._laid_out(self.entries["best"], False)
        if self.spent:
            best[SPENT] = False
        return best

    def ordered(self, rows: Sequence[str]) -> "Grid":
        """Return the same with its rows in the order of ``rows``, others last."""
        first = [row for row in rows if row in self.rows]
        last = [row for row in self.rows if row not in rows]
        return replace(self, rows=[*first, *last])

    def _nothing(self, none: int, runs: int) -> str:
        """Return the text of an entry whose number ``none`` of its runs lack."""
        if not self.until:
            return MISSING
        return UNREACHED if none == runs else f"{UNREACHED} ({none} of {runs})"

    def _laid_out(
        self, of_entries: "pandas.Series[Any]", missing: object
    ) -> "pandas.DataFrame":
        """Return a number or text of each entry, rows × columns."""
        table = of_entries.unstack(fill_value=missing)
        table = table.reindex(self.rows, columns=self.columns, fill_value=missing)
        return table.rename_axis(index=None, columns=None)


def spent_text(share: float | None) -> str:
    """Return a search's spent/budget as text, a dash where it is not known."""
    return MISSING if share is None or math.isnan(share) else f"{share:.2f}"
