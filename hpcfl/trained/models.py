"""Access to the models of a run: by client or name, column and round."""

import operator
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hpcfl.adapters.peft import Corrections
from hpcfl.clients import name_buffers
from hpcfl.clients.scoring import BLOCK
from hpcfl.data import checks
from hpcfl.errors import UserError, suggest
from hpcfl.experiment import user_code
from hpcfl.rows.declared import describe_form, refuse_other_than_tensors
from hpcfl.scores.metric_names import MetricName, name_attackers
from hpcfl.simulation import torch_settings
from hpcfl.simulation.hooks import call_hook
from hpcfl.storage.manifest import list_damaged, name_manifest
from hpcfl.storage.metrics import AFTER, BEFORE, compute_client_scores
from hpcfl.storage.results import Results
from hpcfl.trained.module import make_module
from hpcfl.trained.recorder import ModelRecorder
from hpcfl.trained.replay import RoundReplay

At = str | int  # "last", "best", or the number of a round
GLOBAL = "global"  # column of the model that all clients received


@dataclass(frozen=True)
class LoadedModel:
    """A model of a run.

    Attributes:
        name: "client 7", "global", "class 3" …
        module: module in evaluation mode; its forward is the scored prediction.
        corrections: low-rank corrections, which the module's weights include, or None.
        moment: column in which the model was scored; None for an unscored model of the
            server.
        round: round of the model.
        recorded: recorded accuracy, in [0, 1], or None.
        clients: clients whose test samples the accuracy counts.
    """

    name: str
    module: nn.Module
    corrections: Corrections | None
    moment: str | None
    round: int
    recorded: float | None
    clients: list[int]


@dataclass(frozen=True)
class RunModels:
    """Models of the run in a folder.

    Attributes:
        folder: folder of the run.
        config: resolved configuration.
        results: results of the run.
        score: primary column.
        best: best round, or None.
        is_finished: Whether the run is finished.
        own: user's own plugins, as in ``experiment.read_again``.
    """

    folder: Path
    config: Mapping[str, Any]
    results: Results
    score: str
    best: int | None
    is_finished: bool
    own: Collection[str]

    @cached_property
    def replay(self) -> RoundReplay:
        """Return the object that replays rounds; nothing is read yet."""
        return RoundReplay(self.folder, self.config, self.own)

    @property
    def everyone(self) -> list[int]:
        """Return the ids of all clients."""
        return list(range(self.replay.prepared.setup.clients))

    @torch_settings.plain()
    def model(
        self, who: int | str, moment: str | None = None, at: At = "last"
    ) -> LoadedModel:
        """Return a model of the run.

        Args:
            who: id of a client, or name of a model of the server.
            moment: column in which it was scored, as in ``of_clients``.
            at: round, as in ``of_clients``.

        Raises:
            UserError: The model does not exist or its state is not stored.
        """
        if isinstance(who, str):
            return self.of_server([who], at)[0]
        client = _convert_number("client", who)
        for model in self.of_clients([client], moment, at):
            return model
        column = moment or self.score
        raise UserError(
            f"{self.folder}: client {client} has no model '{column}' of round "
            f"{self._find_round(column, at)}, because it did not take part in this round"
        )

    def of_clients(
        self, clients: Sequence[int], moment: str | None = None, at: At = "last"
    ) -> Iterator[LoadedModel]:
        """Yield the models of clients; clients without a scored model in the round are
        skipped.

        Args:
            clients: ids of the clients.
            moment: column in which the models were scored, such as ``pre`` or ``post``;
                None for the primary column.
            at: "last" or "best" round in which the column was scored, or number of a
                round.

        Raises:
            UserError: The column was not scored, or the state is not stored.
        """
        column = moment or self.score
        round = self._find_round(column, at)
        is_final = self._is_final(round)
        chosen = sorted(set(clients) - self._find_unscored(column, round))
        for fleet in self.replay.play(round, is_final, chosen):
            if column not in fleet.models:
                continue
            for position, client in enumerate(fleet.ids.tolist()):
                model, corrections = self._make_module(fleet, column, position)
                yield LoadedModel(
                    name=f"client {client}",
                    module=model,
                    corrections=corrections,
                    moment=column,
                    round=round,
                    recorded=self._find_recorded(column, round, client),
                    clients=[client],
                )

    def of_server(
        self, names: Sequence[str] = (), at: At = "last"
    ) -> list[LoadedModel]:
        """Return models of the server: the global model, and models of classes or
        clusters.

        Args:
            names: names of the models; empty for all.
            at: round, as in ``of_clients``.

        Raises:
            UserError: The server has no model, or none with a given name, or the
                method does not return models.
        """
        has_global = np.isfinite(self._get_accuracies(GLOBAL)).any()
        newest = (
            self._find_newest_round()
            if at == "last"
            else self._find_round(self.score, at)
        )
        method = self.replay.prepared.method
        rows = call_hook(method, "server_models", dict, self.replay.server(newest))
        with user_code.locate_definition(method.server_models):
            refuse_other_than_tensors(rows, "server_models")
        width = self.replay.prepared.setup.layout.width
        for name, row in rows.items():
            if list(row.shape) != [width]:
                raise UserError(
                    f"{user_code.locate(method.server_models)}{type(method).__name__}."
                    f"server_models returns '{name}' as {describe_form(row)}; expected "
                    f"[{width}]"
                )
        known = [GLOBAL, *rows] if has_global else list(rows)
        server = f"{self.folder}: the server of {method.name}"
        if not known:
            raise UserError(f"{server} has no model; use the model of a client")
        models = []
        for name in names or known:
            if name not in known:
                raise UserError(f"{server} has no model '{name}'{suggest(name, known)}")
            if name == GLOBAL:
                models.append(self._load_global(at))
            else:
                models.append(self._load_unscored(name, rows[name], newest))
        return models

    @torch_settings.plain()
    def samples(self, clients: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return test samples of clients: model inputs x [n, *shape] and class numbers
        y [n].
        """
        samples = self.replay.prepared.resources.samples
        positions = [samples.test[client] for client in clients]
        x, y = samples.take(np.concatenate(positions))
        return x.cpu(), y.cpu()

    @torch_settings.plain()
    def convert_samples(self, x: Any) -> Tensor:
        """Return a user's samples as model input.

        Args:
            x: array or tensor [n, *shape] in the format of the data set; token ids may
                have any length.

        Raises:
            UserError: The samples have another shape, or the data set cannot hold them.
        """
        samples = self.replay.prepared.resources.samples
        dataset = self.config["data"]["dataset"]
        try:
            given = torch.as_tensor(x)
        except (RuntimeError, TypeError, ValueError) as error:
            raise UserError(
                f"{self.folder}: samples of {dataset} must be an array of numbers ({error})"
            ) from None
        shape = given.shape[1:] if samples.has_tokens else samples.x.shape[1:]
        if given.dim() != samples.x.dim() or given.shape[1:] != shape:
            expected = ", ".join(["n", *map(str, samples.x.shape[1:])])
            raise UserError(
                f"{self.folder}: samples of {dataset} must have the shape "
                f"[{expected}], with n = 1 for a single sample; these have {list(given.shape)}"
            )
        dtype = samples.x.dtype
        mistake = checks.describe_inputs(given, dtype, samples.vocabulary)
        if mistake:
            raise UserError(f"{self.folder}: samples of {dataset}: {mistake}")
        if not samples.has_tokens:
            dtype = torch.promote_types(dtype, torch.float32)
        normalised: Tensor = samples.normalise(given.to(dtype))
        return normalised

    def _find_round(self, column: str, at: At) -> int:
        """Return the number of a round in which a column was scored. Raises UserError."""
        if not isinstance(column, str):
            raise UserError(f"moment = {column!r} is not a column; for a round pass at")
        if not isinstance(at, str):
            at = _convert_number("at", at)
        elif at not in ("last", "best"):
            raise UserError(f"at = '{at}'{suggest(at, ['last', 'best'])}")
        scored = self._list_scored_rounds(column)
        if at == "best":
            wanted = self.best
            if wanted is None or wanted not in scored:
                raise UserError(
                    f"{self.folder}: the best round, {wanted}, has no '{column}'; "
                    f"at = 'last' loads the model of round {scored[-1]}"
                )
        elif isinstance(at, int):
            wanted = at
            if wanted not in scored:
                raise UserError(
                    f"{self.folder}: '{column}' was not scored in round {at}; "
                    f"evaluation.every = {self.config['evaluation']['every']}"
                )
        elif self.is_finished:
            wanted = scored[-1]
        else:  # an unfinished run has models up to the last stored state
            kept = [round for round in scored if round in self.replay.rounds]
            wanted = max(kept, default=scored[-1])
        self._refuse_unkept(wanted)
        return wanted

    def _list_scored_rounds(self, column: str) -> list[int]:
        """Return the rounds in which a column was scored, at least one. Raises
        UserError.
        """
        rounds = self.results.rounds[np.isfinite(self._get_accuracies(column))]
        scored: list[int] = rounds.tolist()
        of_newcomers = (BEFORE, AFTER)
        if scored and column in of_newcomers:
            raise UserError(
                f"{self.folder}: '{column}' belongs to newcomers, whose models are not stored"
            )
        if scored and "/" in column:  # other scores of models, or of other clients
            models = column.rpartition("/")[2]
            raise UserError(
                f"{self.folder}: '{column}' has scores of the models '{models}'; load "
                f"moment = '{models}'"
            )
        if scored:
            return scored
        columns = sorted(
            name.column
            for name in self.results.names
            if name.number == "weighted" and "/" not in name.column
        )
        raise UserError(
            f"{self.folder}: '{column}' was not scored{suggest(column, columns)}"
        )

    def _find_newest_round(self) -> int:
        """Return the last round whose preceding state is stored.

        Raises UserError if a finished run has lost its last state.
        """
        newest = max(self.replay.rounds)
        if self.is_finished:
            newest = int(self.results.rounds.max())
        self._refuse_unkept(newest)
        return newest

    def _refuse_unkept(self, round: int) -> None:
        """Raise UserError if the state before a round is not stored.

        The error names the damage, or the keys that would store the state.
        """
        kept = self.replay.rounds
        if round in kept:
            return
        only = f"only that before {', '.join(map(str, sorted(kept)))}"
        lost = list_damaged(self.replay.checkpoints, self.replay.run)
        why = lost.get(name_manifest(round - 1))
        if why is None and kept == {1}:  # no checkpoint is readable
            why = next(iter(lost.values()), None)
        if why is not None:
            raise UserError(
                f"{self.folder}: the state before round {round} is lost, {only} is stored: {why}"
            )
        raise UserError(
            f"{self.folder}: the state before round {round} is not stored, {only}; "
            "checkpoint.best = true stores that of the best round, checkpoint.every = 1 with "
            f"checkpoint.keep = {self.config['rounds'] - round + 2} that of this round"
        )

    def _is_final(self, round: int) -> bool:
        """Return whether a round is the scoring after the last aggregation."""
        return not self.results.played[self.results.rounds == round].any()

    def _get_accuracies(self, column: str) -> np.ndarray:
        """Return the recorded accuracy in a column, [T]; NaN in rounds without it."""
        return self.results.get_series(MetricName("weighted", column))

    def _find_unscored(self, column: str, round: int) -> set[int]:
        """Return the clients that ``evaluation.clients = "cohort"`` did not score."""
        if self.config["evaluation"].get("clients") != "cohort":
            return set()
        samples = np.fmax(
            self._count_scored_samples(column, round),
            self._count_scored_samples(name_attackers(column), round),
        )
        return {client for client in self.everyone if np.isnan(samples[client])}

    def _count_scored_samples(self, column: str, round: int) -> np.ndarray:
        """Return the number of scored samples of each client, NaN without a score."""
        row = int(np.searchsorted(self.results.rounds, round))
        total = MetricName("total", column, of_clients=True)
        samples: np.ndarray = self.results.select_rounds([row]).get_series(total)[0]
        return samples

    def _find_recorded(self, column: str, round: int, client: int) -> float | None:
        of_round = self.results.select_rounds(
            np.flatnonzero(self.results.rounds == round)
        )
        accuracies = compute_client_scores(of_round, column, "accuracy")
        assert accuracies is not None
        accuracy = float(accuracies[0, client])
        return accuracy if np.isfinite(accuracy) else None

    def _make_module(
        self, fleet: ModelRecorder, column: str, position: int
    ) -> tuple[nn.Module, Corrections | None]:
        """Return the model of a client, as ``make_module`` does.

        Args:
            fleet: replayed fleet of the client.
            column: column of the model.
            position: position of the client in the fleet.
        """
        scored = fleet.models[column]
        row = scored.rows if scored.rows.dim() == 1 else scored.rows[position]
        variables = {
            name: tensor[position] for name, tensor in scored.variables.items()
        }
        statistics = scored.buffers[position]
        return make_module(
            fleet.resources,
            row,
            statistics,
            predict=scored.predict,
            variables=variables,
        )

    def _load_global(self, at: At) -> LoadedModel:
        """Return the global model as the first client received it. Raises UserError."""
        self._refuse_own_statistics(GLOBAL)
        round = self._find_round(GLOBAL, at)
        fleets = self.replay.play(round, self._is_final(round), [0])
        fleet = next(fleet for fleet in fleets if GLOBAL in fleet.models)
        row = int(np.searchsorted(self.results.rounds, round))
        scored = np.flatnonzero(np.isfinite(self._count_scored_samples(GLOBAL, round)))
        model, corrections = self._make_module(fleet, GLOBAL, 0)
        return LoadedModel(
            name=GLOBAL,
            module=model,
            corrections=corrections,
            moment=GLOBAL,
            round=round,
            recorded=float(self._get_accuracies(GLOBAL)[row]),
            clients=scored.tolist(),
        )

    def _load_unscored(self, name: str, row: Tensor, round: int) -> LoadedModel:
        """Return a model [P] of the server before a round."""
        self._refuse_own_statistics(name)
        slot = name_buffers("model")
        statistics = self.replay.server(round).get(slot, torch.zeros(0))
        model, corrections = make_module(
            self.replay.prepared.resources, row, statistics
        )
        return LoadedModel(
            name=name,
            module=model,
            corrections=corrections,
            moment=None,
            round=round,
            recorded=None,
            clients=self.everyone,
        )

    def _refuse_own_statistics(self, name: str) -> None:
        """Raise UserError if only clients, and not the server, have batch-norm
        statistics.
        """
        prepared = self.replay.prepared
        stay_local = prepared.config.training.buffers == "local"
        if prepared.resources.buffers.width and stay_local:
            raise UserError(
                f"{self.folder}: '{name}' has no batch-norm statistics, because each client "
                "uses its own; load moment = 'global' of a client, or train with "
                "training.buffers = 'average'"
            )


def _convert_number(argument: str, value: Any) -> int:
    """Return an integer of Python or NumPy. Raises UserError for another value."""
    try:
        return operator.index(value)
    except TypeError:
        raise UserError(f"{argument} = {value!r} is not a whole number") from None


@torch_settings.plain()
def predict_classes(model: nn.Module, x: Tensor) -> Tensor:
    """Return the predicted classes [n] of model inputs x [n, *shape]."""
    with torch.no_grad():
        blocks = [model(block).argmax(dim=1) for block in x.split(BLOCK)]
    return torch.cat(blocks) if blocks else torch.zeros(0, dtype=torch.int64)


def count_confusion(predicted: Tensor, labels: Tensor, classes: int) -> np.ndarray:
    """Return the number of samples by true class i and predicted class j, int64
    [classes, classes].

    Args:
        predicted: predicted class of each sample [n].
        labels: true class of each sample [n].
        classes: number of classes.
    """
    pairs = labels * classes + predicted
    counts = torch.bincount(pairs, minlength=classes**2)
    matrix: np.ndarray = counts.view(classes, classes).numpy()
    return matrix
