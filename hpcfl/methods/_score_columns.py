"""Scoring of the models that a method's hooks return."""

from hpcfl.clients import Fleet, default_prediction
from hpcfl.clients.losses import Fit
from hpcfl.methods._participants import ClientModel
from hpcfl.rows.declared import describe_form
from hpcfl.scores import metric_names


def score_models(
    fleet: Fleet, models: list[tuple[str, ClientModel]], trained: bool
) -> None:
    """Score the models of a round.

    Before local training, the fine-tuned forms of the first model are scored too.

    Args:
        fleet: The clients to score.
        models: Names of columns with their models; the first one is the method's
            ``client_model``.
        trained: Whether the round's local training is done.

    Raises:
        UserError: Two models have the same column.
    """
    _, own = models[0]
    if not trained and 0 in fleet.scoring.tune_epochs:
        models = [*models, (metric_names.name_tuned(0), own)]
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
    """Score the model of ``pre`` after fine-tuning for each number of epochs in
    ``evaluation.tune_epochs``; discard the fine-tuned models.

    Fine-tuning is the same for every method, so that the columns compare only the
    received models. It minimises the cross-entropy of the model's prediction over all
    of its parameters, with the optimiser, learning rate and mini-batches of
    ``[training]``. Each number of epochs starts from the received model and has a
    separate phase of random numbers.
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
    models: list[tuple[str, ClientModel]],
) -> list[tuple[list[str], ClientModel]]:
    """Return each distinct model once, with the names of all its columns."""
    scored: list[tuple[list[str], ClientModel]] = []
    for column, model in models:
        if not isinstance(model, ClientModel):
            raise TypeError(
                f"the model of the column '{column}' is {describe_form(model)}; expected a "
                "ClientModel"
            )
        for columns, listed in scored:
            if listed.is_same(model):
                columns.append(column)
                break
        else:
            scored.append(([column], model))
    return scored
