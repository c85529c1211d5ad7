"""``hpcfl export``: write models of a run to files."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcfl.errors import UserError
from hpcfl.report.text import escape
from hpcfl.trained import loading
from hpcfl.trained.export import export as write
from hpcfl.trained.models import LoadedModel, RunModels


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
    """Write models of a run into a folder and print a line for each.

    Args:
        folder: Folder of the run.
        clients: Ids of the clients to export; None for all clients.
        of_server: Whether to export the server's models too.
        moment: Models before or after local training, as for ``Run.model``.
        at: Round of the models, as for ``Run.model``.
        own: User modules that may be imported, as for ``loading.load_run``.
        out: Folder of the files.
        adapters: Whether to write adapters without their base model.

    Raises:
        UserError: If the run or the models do not exist.
        RunFailure: If a file cannot be written.
    """
    if clients is not None and not clients and not of_server:
        raise UserError("name the models to export: --client N, --all or --global")
    runs = loading.list_runs(folder, own)
    models = runs[0].models
    if loading.is_sweep(folder, runs):
        raise UserError(
            f"{folder}: is a sweep; export a single run, such as {runs[0].folder}"
        )
    chosen = _choose_models(
        models=models,
        clients=clients,
        of_server=of_server,
        moment=moment,
        at=at,
    )
    for line in write(models, chosen, out, adapters):
        print(escape(line))


def _choose_models(
    models: RunModels,
    clients: Sequence[int] | None,
    of_server: bool,
    moment: str | None,
    at: str,
) -> Iterator[LoadedModel]:
    if of_server:
        yield from models.of_server(at=at)
    if clients is None:
        left_out = len(models.everyone)
        for model in models.of_clients(models.everyone, moment, at):
            left_out -= 1
            yield model
        if left_out:
            print(
                f"note: {left_out} clients took no part in the round and have no model"
            )
    else:
        for client in clients:
            yield models.model(client, moment, at)
