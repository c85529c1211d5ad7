"""A table of results: rows × columns of means and standard deviations over repetitions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

MISSING = "–"  # of what was not run, or has no such number


@dataclass(frozen=True)
class Grid:
    """A table of results, not yet in any format.

    Attributes:
        entries: A row for each experiment, by the labels ``row`` and ``column`` of its
            place, with the ``mean`` and the ``std`` over its ``runs`` repetitions, NaN
            for a single one; of how many ``clients`` each number is, such as "20" or "9
            to 10", "" if that was not recorded; by which samples the best rounds were
            chosen, ``best_by`` "test" or "validation", "" for numbers that are not of
            these rounds; and whether the mean is the ``best`` of its column.
        rows: The labels of the rows, in their order.
        columns: The labels of the columns, in their order.
        metric: What the numbers are, as the user named it.
        kind: The summary over clients that they are, such as "mean"; "" for numbers of
            no score.
        percent: Whether the numbers are in %.
        at: Where in each run they are read: best, last or tail.
        spread: Which standard deviation: population or sample.
        notes: Lines to show below the table.
    """

    entries: "pandas.DataFrame"
    rows: list[str]
    columns: list[str]
    metric: str
    kind: str
    percent: bool
    at: str
    spread: str
    notes: list[str]

    @cached_property
    def texts(self) -> "pandas.DataFrame":
        """The entries as ``85.31 ± 0.42``, rows × columns, with ``(2)`` behind one that
        has only 2 runs where others have more.
        """
        import pandas

        form = ".2f" if self.percent else ".4g"
        most_runs = self.entries["runs"].max()
        texts = []
        for entry in self.entries.itertuples():
            text = f"{entry.mean:{form}}"
            if entry.runs > 1:
                text += f" ± {entry.std:{form}}"
            if entry.runs < most_runs:
                text += f" ({entry.runs})"
            texts.append(MISSING if entry.mean != entry.mean else text)
        return self._laid_out(pandas.Series(texts, self.entries.index), MISSING)

    @cached_property
    def best(self) -> "pandas.DataFrame":
        """Which entries are the best of their columns, rows × columns."""
        return self._laid_out(self.entries["best"], False)

    def ordered(self, rows: Sequence[str]) -> "Grid":
        """The same with its rows in the order of ``rows``; those that are not among
        them come last.
        """
        first = [row for row in rows if row in self.rows]
        last = [row for row in self.rows if row not in rows]
        return replace(self, rows=[*first, *last])

    def _laid_out(
        self, of_entries: "pandas.Series[Any]", missing: object
    ) -> "pandas.DataFrame":
        """Something of each entry, rows × columns."""
        table = of_entries.unstack(fill_value=missing)
        table = table.reindex(self.rows, columns=self.columns, fill_value=missing)
        return table.rename_axis(index=None, columns=None)
