"""``hpcfl export``: which models of a run are written, and what is said of it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcfl.errors import UserError
from hpcfl.report.text import plain
from hpcfl.trained import loading
from hpcfl.trained.export import export as write
from hpcfl.trained.models import Models, Trained


def export(
    folder: Path,
    clients: Sequence[int] | None,
    of_server: bool,
    moment: str | None,
    at: str,
    own: Sequence[str],
    out: Path,
    adapters: bool = False,
) -> None:
    """Write models of the run in a folder into ``out``, and print a line for each.

    clients: by number; None for all. of_server: also the server's models. moment, at,
    own: as for ``Run.model`` and ``loading.load_run``. adapters: without their base. Raises
    UserError, RunFailure.
    """
    if clients is not None and not clients and not of_server:
        raise UserError("which models? --client N, --all or --global")
    runs = loading.list_runs(folder, own)
    run = runs[0]
    if loading.is_sweep(folder, runs):
        raise UserError(
            f"{folder}: is a sweep; export one of its runs, such as {run.folder}"
        )
    chosen = _chosen(
        models=run.models,
        clients=clients,
        of_server=of_server,
        moment=moment,
        at=at,
    )
    for line in write(run.models, chosen, out, adapters):
        print(plain(line))


def _chosen(
    models: Models,
    clients: Sequence[int] | None,
    of_server: bool,
    moment: str | None,
    at: str,
) -> Iterator[Trained]:
    if of_server:
        yield from models.of_server(at=at)
    if clients is None:
        yield from models.of_clients(models.everyone, moment, at)
    else:
        for client in clients:
            yield models.model(client, moment, at)
