"""Draw the loss of one client while FedALA learns its blending weights.

Each round with a stored state is repeated for this client with at least six epochs of
learning the weights, as in FedALA, Figure 3. ``checkpoint.keep`` sets the number of stored
rounds.
"""

from math import ceil
from typing import TYPE_CHECKING

import numpy as np
from steps import make_step_recorder

from hpcfl.clients import StepContext
from hpcfl.errors import UserError
from hpcfl.methods.fedavg import ServerModel
from hpcfl.report.arrangement import arrange
from hpcfl.report.sheet import Sheet, choose_looks, set_whole_ticks
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PHASE = "ala"
FEWEST = 6  # minimum number of epochs in a round


def draw(runs: list[Run], sheet: Sheet, *, client: int = 0) -> "Figure":
    """Draw one panel per run with the epochs of all rounds in sequence.

    Vertical lines separate the rounds.

    Args:
        runs: Runs, at least one.
        sheet: Sheet to draw on; notes are added to it.
        client: Id of the client.
    """
    arranged = arrange(runs)
    figure, panels = sheet.panels(len(arranged.runs), height=2.2)
    titles = [f"{placed.row} {placed.column}" for placed in arranged.placed]
    looks = choose_looks({run.summary.method: run.summary.method for run in runs})
    for panel, run, title in zip(panels, arranged.runs, titles, strict=True):
        done = 0
        for round, of_epochs in collect_losses(run, client).items():
            panel.plot(
                done + np.arange(1, len(of_epochs) + 1),
                of_epochs,
                color=looks[run.summary.method].color,
                marker="o",
                markersize=2,
            )
            panel.axvline(done + 0.5, color="black", linewidth=0.5, linestyle=":")
            panel.annotate(
                f"round {round}",
                (done + 1, 1),
                xycoords=("data", "axes fraction"),
                rotation=90,
                va="top",
                fontsize="small",
            )
            done += len(of_epochs)
        low, high = panel.get_ylim()
        panel.set_ylim(low, high + 0.35 * (high - low))  # room for the names of rounds
        panel.set(title=sheet.title(title), xlabel="epoch of learning the weights")
        set_whole_ticks(panel.xaxis)
    panels[0].set_ylabel(sheet.upright(f"training loss of client {client}"))
    sheet.notes.append(
        f"client {client}; rounds were played again with at least {FEWEST} epochs each"
    )
    return figure


def collect_losses(run: Run, client: int) -> dict[int, np.ndarray]:
    """Return the mean loss over mini-batches in each epoch, [epochs], by round.

    Raises:
        UserError: If the method does not blend models, or the run stored no round with
            blending.
    """
    again = run.models.replay
    method = again.prepared.method
    by_round: dict[int, np.ndarray] = {}
    if not isinstance(method, ServerModel) or not method.ala:
        raise UserError(
            f"{run.folder}: {method.name} does not learn how to blend models"
        )
    played = set(run.results.rounds[run.results.played].tolist())
    for round in sorted(again.rounds & played):
        seen: list[float] = []

        def look(phase: str, context: StepContext, seen: list[float] = seen) -> None:
            if phase == PHASE:
                seen.append(float(context.losses[0, 0]))

        fleets = make_step_recorder(look, {PHASE: FEWEST})
        for fleet in again.play(round, False, [client], fleets):
            pool = max(
                1, int(method.adaptive_aggregation().share * int(fleet.samples[0]))
            )
            steps = ceil(pool / fleet.setup.training.batch_size)
        if seen:
            by_round[round] = np.array(seen).reshape(-1, steps).mean(axis=1)
    if not by_round:
        raise UserError(
            f"{run.folder}: no round is kept in which weights are learned; run with "
            f"checkpoint.every = 1 and checkpoint.keep = {run.config['rounds']}, which keeps all"
        )
    return by_round
