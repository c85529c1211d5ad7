"""Draw the models of a client in the plane of their two principal components.

Circles are the models before local training, squares those after it. Only rounds with a
stored state are drawn (FedALA, Figure 4).
"""

from typing import TYPE_CHECKING

import numpy as np
from principal import project_to_plane

from hpcfl.errors import UserError
from hpcfl.report.arrangement import arrange
from hpcfl.report.sheet import Sheet, choose_looks
from hpcfl.trained.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(runs: list[Run], sheet: Sheet, *, client: int = 0) -> "Figure":
    """Draw one path per run in the principal plane of all models.

    Args:
        runs: Runs, at least one.
        sheet: Sheet to draw on; notes are added to it.
        client: Id of the client.
    """
    arranged = arrange(runs)
    paths = [collect_models(run, client) for run in arranged.runs]
    plane = project_to_plane(np.concatenate(paths))
    points = plane.points
    rounds = len(paths[0]) // 2
    figure, (panel,) = sheet.panels(1, height=min(4.0, 0.8 * sheet.width))
    labels = [placed.row for placed in arranged.placed]
    methods = [run.summary.method for run in arranged.runs]
    looks = choose_looks(dict(zip(labels, methods, strict=True)))
    for path, label in zip(paths, labels, strict=True):
        look = looks[label]
        at = points[: len(path)]
        points = points[len(path) :]
        panel.plot(
            *at.T,
            color=look.color,
            linestyle=look.linestyle,
            linewidth=0.9,
            label=label,
        )
        panel.plot(
            *at[::2].T, color=look.color, linestyle="none", marker="o", fillstyle="none"
        )
        panel.plot(*at[1::2].T, color=look.color, linestyle="none", marker="s")
        panel.annotate(
            "begin", at[0], (-4, -10), textcoords="offset points", fontsize="small"
        )
        panel.annotate(
            "end", at[-1], (5, -2), textcoords="offset points", fontsize="small"
        )
    for mark, filled, moment in (("o", "none", "before"), ("s", "full", "after")):
        panel.plot(
            [],
            [],
            color="grey",
            linestyle="none",
            marker=mark,
            fillstyle=filled,
            label=f"{moment} local training",
        )
    panel.margins(0.08)
    panel.set(**plane.axes)
    sheet.legend(figure, *panel.get_legend_handles_labels())
    sheet.notes.append(f"client {client}: {rounds} rounds")
    return figure


def collect_models(run: Run, client: int) -> np.ndarray:
    """Return the models of a client before and after local training, [2·rounds, P].

    Raises:
        UserError: If the run stored fewer than two rounds in which the client trained.
    """
    again, found = run.models.replay, []
    kept = again.rounds & set(run.results.rounds[run.results.played].tolist())
    for round in sorted(
        one for one in kept if {one - 1, one + 1} & kept
    ):  # leaves out rounds without a stored neighbour
        [fleet] = again.play(round, False, [client])
        if "post" in fleet.models:
            found += [
                fleet.rows(fleet.models[column].rows)[0].cpu().numpy()
                for column in ("pre", "post")
            ]
    if len(found) < 4:
        raise UserError(
            f"{run.folder}: a path needs the states of rounds that follow one another; run with "
            f"checkpoint.every = 1 and checkpoint.keep = {run.config['rounds']}, which keeps all"
        )
    return np.stack(found)
