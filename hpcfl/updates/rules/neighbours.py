"""Rules that select rows by the distances to their neighbours.

* Krum and multi-Krum: Blanchard, El Mhamdi, Guerraoui & Stainer, "Machine learning with
  adversaries", NeurIPS 2017.
* Bulyan: El Mhamdi, Guerraoui & Rouault, "The hidden vulnerability of distributed
  learning in Byzantium", ICML 2018.

Other implementations differ: byzfl uses n − f − 1 neighbours. Repositories of epfml
square the distances twice and sum the selected rows. An implementation by an author of
Bulyan selects by means of multi-Krum and by distances that are not squared.
"""

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from hpcfl.updates.base import Context
from hpcfl.updates.columns import (
    compute_mean,
    compute_squares,
    find_median,
    join_blocks,
)
from hpcfl.updates.row_rule import RowRule


def score_rows(squares: Tensor, neighbours: int) -> Tensor:
    """Return Krum's score of each row, float64 [n]: the sum of the squared distances to
    its nearest other rows.

    Args:
        squares: The squared distances [n, n].
        neighbours: The number of other rows in a sum.
    """
    others = squares.clone().fill_diagonal_(torch.inf)
    return others.sort(dim=1).values[:, :neighbours].sum(dim=1)


def rank_rows(rows: Tensor, tolerated: int) -> Tensor:
    """Return the positions of the rows in ascending order of their Krum scores, int64
    [n].

    Args:
        rows: The updates [n, P].
        tolerated: The number f of bad clients.
    """
    neighbours = len(rows) - tolerated - 2
    scores = score_rows(compute_squares(rows), neighbours)
    return scores.argsort(stable=True)


def select_repeatedly(squares: Tensor, tolerated: int, count: int) -> list[int]:
    """Return the positions of rows that repeated Krum selects without replacement, in
    the order of their selection.

    Each step computes the scores of the n′ remaining rows with n′ − f − 2 neighbours,
    at least one.

    Args:
        squares: The squared distances [n, n].
        tolerated: The number f of bad clients.
        count: The number of rows to select.
    """
    remaining = torch.arange(len(squares))
    selected = []
    for _ in range(count):
        among = squares[remaining[:, None], remaining]
        neighbours = max(1, len(remaining) - tolerated - 2)
        best = int(score_rows(among, neighbours).argmin())
        selected.append(int(remaining[best]))
        remaining = torch.cat([remaining[:best], remaining[best + 1 :]])
    return selected


class Krum(RowRule):
    """The update with the least sum of squared distances to its n − f − 2 nearest
    others.

    Blanchard, El Mhamdi, Guerraoui & Stainer, NeurIPS 2017.
    """

    needs_f = True
    rule: str = "krum"

    def count_least(self) -> int:
        return 2 * self.tolerated + 3

    def combine_rows(self, rows: Tensor, weights: Tensor, context: Context) -> Tensor:
        best = int(rank_rows(rows, self.tolerated)[0])
        return rows[best].double()

    def describe_rows(self, rows: int) -> str:
        nearest = rows - self.tolerated - 2
        return f"takes the one of {rows} updates that is nearest to {nearest} others"


class MultiKrum(Krum):
    """The mean of the m updates with the least Krum scores.

    Blanchard, El Mhamdi, Guerraoui & Stainer, NeurIPS 2017.
    """

    rule: str = "multi-krum"
    m: PositiveInt | None = Field(
        None, description="number of updates in the mean; default: n − f"
    )

    def count_least(self) -> int:
        return max(super().count_least(), self.m or 0)

    def count_chosen(self, rows: int) -> int:
        """Return the number m of rows in the mean."""
        return self.m or rows - self.tolerated

    def describe_rows(self, rows: int) -> str:
        chosen, nearest = self.count_chosen(rows), rows - self.tolerated - 2
        return (
            f"takes the mean of the {chosen} of {rows} updates that are nearest to "
            f"{nearest} others"
        )

    def combine_rows(self, rows: Tensor, weights: Tensor, context: Context) -> Tensor:
        chosen = self.count_chosen(len(rows))
        best = rank_rows(rows, self.tolerated)[:chosen]
        return compute_mean(rows, best.sort().values)


class Bulyan(RowRule):
    """Repeated Krum, then for each coordinate the mean of the values nearest to the
    median.

    Repeated Krum selects n − 2f rows. The mean is taken over the n − 4f selected values
    that are nearest to their median. El Mhamdi, Guerraoui & Rouault, ICML 2018.
    """

    needs_f = True
    rule: str = "bulyan"

    def count_least(self) -> int:
        return 4 * self.tolerated + 3

    def describe_rows(self, rows: int) -> str:
        selected = rows - 2 * self.tolerated
        return (
            f"selects {selected} of {rows} updates by repeated Krum, and takes the mean of "
            f"the {rows - 4 * self.tolerated} middle values of each coordinate"
        )

    def combine_rows(self, rows: Tensor, weights: Tensor, context: Context) -> Tensor:
        count = len(rows) - 2 * self.tolerated
        squares = compute_squares(rows)
        chosen = select_repeatedly(squares, self.tolerated, count)
        selected = torch.tensor(sorted(chosen))
        nearest = count - 2 * self.tolerated

        def average(block: Tensor) -> Tensor:
            values = block[selected.to(block.device)]
            distances = (values - find_median(values)).abs()
            order = distances.argsort(dim=0, stable=True)
            return values.gather(0, order[:nearest]).mean(dim=0)

        return join_blocks(average, rows)


plugins = {"krum": Krum, "multi-krum": MultiKrum, "bulyan": Bulyan}
