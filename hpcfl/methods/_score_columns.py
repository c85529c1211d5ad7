"""Scoring of the models that a method's hooks return."""

from hpcfl.clients import Fleet, default_prediction
from hpcfl.clients.losses import Fit
from hpcfl.methods._participants import ClientModel
from hpcfl.scores import metric_names


def score_models(fleet: Fleet, models: dict[str, ClientModel], trained: bool) -> None:
    """Score models by the names of their columns, the client's own model first.

    Before training its fine-tuned forms are scored, too.
    """
    own = next(iter(models.values()))
    if not trained and 0 in fleet.scoring.tune_epochs:
        models = models | {metric_names.name_tuned(0): own}
    for columns, model in _group_columns(models):
        fleet.score(
            columns,
            model.rows,
            predict=model.predict,
            model=model.model,
            variables=model.variables,
        )
    if not trained:
        _score_tuned(fleet, own)


def _score_tuned(fleet: Fleet, model: ClientModel) -> None:
    """Score the models that ``pre`` scores after each of ``evaluation.tune_epochs``
    epochs of fine-tuning, which is discarded.

    It is the same for every method, so that the columns compare the received models
    alone: the cross-entropy of the model's own prediction by all of its parameters,
    with the optimiser, rate and mini-batches of ``[training]``. Each number of epochs
    starts anew, in a phase of its own.
    """
    for epochs in fleet.scoring.tune_epochs:
        if not epochs:
            continue
        column = metric_names.name_tuned(epochs)
        with fleet.trial():
            rows = fleet.train(
                model.rows,
                loss=Fit(model.predict or default_prediction),
                epochs=epochs,
                phase=column,
                model=model.model,
                variables=model.variables,
            )
            fleet.score(
                column,
                rows,
                predict=model.predict,
                model=model.model,
                variables=model.variables,
            )


def _group_columns(
    models: dict[str, ClientModel],
) -> list[tuple[list[str], ClientModel]]:
    """Return each model once, with all columns that it is scored as."""
    scored: list[tuple[list[str], ClientModel]] = []
    for column, model in models.items():
        for columns, listed in scored:
            if listed.is_same(model):
                columns.append(column)
                break
        else:
            scored.append(([column], model))
    return scored
