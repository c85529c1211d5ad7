"""The schedule of a run's rounds: cohorts, stages and recorded times.

The cohort of a round depends only on the experiment's seed, the round and the clients.
Some selections also read the losses that clients reported in earlier rounds. All ranks
then receive these losses, and checkpoints store them; the method has no access to them.

Each draw is a function of the seed and a key, usually the round. Every rank therefore
makes the same draws without communication, and so does a resumed run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch

from hpcfl.clients.batch_plan import count_epoch_samples, find_fewest_samples
from hpcfl.communication.communicator import Communicator, agreed
from hpcfl.errors import UserError
from hpcfl.experiment import user_code
from hpcfl.experiment.config import Config
from hpcfl.methods.base import State
from hpcfl.rows import randomness
from hpcfl.selection.base import Known, LossReports, Selection
from hpcfl.selection.uniform import Uniform
from hpcfl.simulation.prepare import Prepared
from hpcfl.simulation.record import Gathered
from hpcfl.simulation.round import Round, RoundPlan, make_empty_ids
from hpcfl.simulation.stages import TRAINING, Stage

LOSS = "data_loss"  # metric of a client that selections read
REHEARSED = 3  # number of rounds that are rehearsed before round 1

Key = tuple[int, ...]


def is_scored(config: Config, number: int) -> bool:
    """Return whether models are scored in a round."""
    return number % config.evaluation.every == 0 or number == config.rounds


@dataclass(frozen=True)
class Draws:
    """The random draws of clients.

    Attributes:
        participation: selection of the experiment.
        clients: number of clients.
        seed: seed of the experiment.
        samples, ticks, reports: as in ``Known``. Values that the selection does not
            read may be left out.
    """

    participation: Selection
    clients: int
    seed: int
    samples: np.ndarray = field(default_factory=make_empty_ids)
    ticks: np.ndarray | None = None
    reports: LossReports = field(default_factory=lambda: LossReports(make_empty_ids()))

    def choose(self, candidates: np.ndarray, count: int, key: Key) -> np.ndarray:
        """Choose at most ``count`` clients by the experiment's selection.

        Args:
            candidates: mask of the clients that may be chosen, bool [clients].
            count: maximum number of clients.
            key: key of the draw.

        Returns:
            Ids of the chosen clients.

        Raises:
            UserError: A user's own selection returns an invalid result.
        """
        known = Known(
            key=key,
            seed=self.seed,
            candidates=candidates,
            samples=self.samples,
            ticks=self.ticks,
            reports=self.reports,
        )
        is_own = ":" in self.participation.select
        # Reading the generators takes long in a short round.
        generators = randomness.read_generators() if is_own else b""
        with user_code.locate_errors():
            chosen = self.participation.choose(known, count)
        if is_own and randomness.read_generators() != generators:
            raise UserError(
                f"{user_code.locate(type(self.participation))}participation.select = "
                f"'{self.participation.select}': draws from a global random generator, so "
                "it chooses other clients after a resume; use known.random(PURPOSE)"
            )
        return self._check(chosen, candidates, count)

    def _check(
        self, returned: np.ndarray | Sequence[int], candidates: np.ndarray, count: int
    ) -> np.ndarray:
        """Return the selection's result as ids. Raises UserError if it is invalid."""
        ids = np.asarray(returned)
        if not ids.size and not candidates.any():
            return make_empty_ids()
        if not ids.size:
            problem = "no client"
        elif ids.ndim != 1 or ids.dtype.kind not in "iu":
            problem = f"{ids.dtype} of shape {ids.shape}, not a list of ids"
        elif len(ids) > count:
            problem = f"{len(ids)} clients, but at most {count} are requested"
        elif ids.min() < 0 or ids.max() >= self.clients:
            problem = f"an id outside 0 … {self.clients - 1}"
        elif not candidates[ids].all():
            problem = f"client {ids[~candidates[ids]][0]}, which is not available"
        elif len(np.unique(ids)) < len(ids):
            problem = "a client more than once"
        else:
            return ids.astype(np.int64, copy=False)
        where = user_code.locate(type(self.participation))
        name = self.participation.select
        raise UserError(f"{where}participation.select = '{name}': chose {problem}")

    def drop_lost(self, drawn: np.ndarray, key: Key) -> np.ndarray:
        """Remove clients that drop out before they begin.

        Each client drops out with the probability ``participation.dropout``. At least
        one client of a cohort of fixed size remains.

        Args:
            drawn: ids of the chosen clients.
            key: key of the draw.
        """
        dropout = self.participation.dropout
        if not dropout or not len(drawn):
            return drawn
        luck = self._draw_uniform("dropout", key)[drawn]
        if self.participation.scheme == "fixed":
            dropout = min(dropout, luck.max())
        left: np.ndarray = drawn[luck >= dropout]
        return left

    def draw_independently(self, key: Key) -> np.ndarray:
        """Draw each client independently, with probability ``participation.fraction``.

        The result may have no clients.
        """
        luck = self._draw_uniform("poisson", key)
        return np.flatnonzero(luck < self.participation.fraction)

    def draw_epoch_shares(self, chosen: np.ndarray, key: Key) -> np.ndarray | None:
        """Draw the fraction of epochs that each client completes in its trainings.

        A fraction ``participation.stragglers`` of the chosen clients completes a number
        of epochs that is uniform in 1 … E, as in FedProx's experiments (Li et al.,
        MLSys 2020). The fraction applies to all trainings of a method in the round,
        including trainings of heads or personal models. Stragglers remain in the round.

        Args:
            chosen: ids of the clients, [n].
            key: key of the draw.

        Returns:
            Fractions [n]; None if all clients complete all epochs.
        """
        stragglers = self.participation.stragglers
        if not stragglers:
            return None
        luck = self._draw_uniform("stragglers", key)
        share = self._draw_uniform("pace", key)
        unlucky_first = np.argsort(luck[chosen], kind="stable")
        # 0.29 · 100 is 28.999… in floating point, hence 1e-9.
        count = int(stragglers * len(chosen) + 1e-9)
        slow = unlucky_first[:count]
        shares = np.ones(len(chosen))
        shares[slow] = share[chosen[slow]]
        return shares

    def _draw_uniform(self, purpose: str, key: Key) -> np.ndarray:
        """Return a number in [0, 1) for every client, [clients]."""
        return randomness.uniform(self.seed, purpose, *key, skip=0, count=self.clients)


class RoundSchedule:
    """The rounds of a synchronous server without virtual time.

    Attributes:
        config: configuration of the experiment.
        draws: random draws of clients.
        notes: notes for the user before round 1.
        reports: losses reported by clients, if the selection reads them. A cohort is
            then known only after the reports of all earlier rounds. None if all cohorts
            are known in advance.
        stored_as: prefix of the names of ``get_state`` in a checkpoint.
    """

    stored_as = "selection."

    def __init__(self, prepared: Prepared, draws: Draws) -> None:
        self.config = prepared.config
        self.draws = draws
        self.notes: list[str] = []
        self.reports = draws.reports if self.config.participation.by_losses else None
        self._cohorts: list[np.ndarray] = []

    def get_cohort(self, number: int) -> np.ndarray:
        """Return the ids [n] of the clients that train in a round, ascending.

        Raises:
            UserError: There is no such round, or the selection fails.
        """
        if self.reports is None:
            return self._choose(number)
        assert self.is_known(number)
        while len(self._cohorts) < number:
            self._cohorts.append(self._choose(len(self._cohorts) + 1))
        return self._cohorts[number - 1]

    def _choose(self, number: int) -> np.ndarray:
        """Choose the clients of a round.

        Of M clients ⌊ρM⌋ are drawn, at least one. ρ is ``participation.fraction``
        (protocols.md E2). With ``participation.scheme = "poisson"`` each client is
        drawn independently. Each drawn client drops out with the probability
        ``participation.dropout`` and receives nothing in this round. In a cohort of
        fixed size the client with the largest draw always remains.
        """
        clients = self.draws.clients
        if self.config.participation.scheme == "poisson":
            drawn = self.draws.draw_independently((number,))
        else:
            count = self.config.participation.count(clients)
            drawn = self.draws.choose(np.ones(clients, bool), count, (number,))
        return np.sort(self.draws.drop_lost(drawn, (number,)))

    def get_epoch_shares(self, number: int) -> np.ndarray | None:
        """Return the fraction of epochs that each client of a cohort completes, [n].

        None if all clients complete all epochs.
        """
        return self.draws.draw_epoch_shares(self.get_cohort(number), (number,))

    def is_known(self, number: int) -> bool:
        """Return whether the cohort of a round is already known."""
        return self.reports is None or number <= self.reports.rounds + 1

    def plan(self, number: int) -> RoundPlan:
        """Return the plan of a round."""
        chosen = self.get_cohort(number)
        scored = is_scored(self.config, number)
        audience = chosen
        if scored and self.config.evaluation.clients == "all":
            audience = np.arange(self.draws.clients)
        shares = self.get_epoch_shares(number)
        return RoundPlan(number, chosen, audience, scored, epoch_shares=shares)

    def plan_final(self, newcomers: np.ndarray) -> RoundPlan:
        """Return the plan of the scoring after the last aggregation, as round R + 1.

        It has all clients or the last cohort, and the newcomers.

        Args:
            newcomers: ids of the newcomers.
        """
        rounds = self.config.rounds
        audience = np.arange(self.draws.clients)
        if self.config.evaluation.clients == "cohort":
            audience = self.get_cohort(rounds)
        return RoundPlan(
            number=rounds + 1,
            cohort=make_empty_ids(),
            audience=audience,
            is_scored=True,
            newcomers=newcomers,
            is_final=True,
        )

    def list_stages(self, round: Round) -> Sequence[Stage]:
        """Return the stages of a round."""
        return TRAINING

    def get_times(self, number: int) -> dict[str, Any]:
        """Return the recorded times of a round by name.

        Round R + 1 is the final scoring.
        """
        return {}

    def list_decisions(self) -> dict[str, str]:
        """Return decisions that change the last bits, by subject."""
        return {}

    def describe(self) -> list[str]:
        """Return lines on the schedule for ``hpcfl check``."""
        return []

    def get_constants(self) -> dict[str, np.ndarray]:
        """Return constants of each client that the results record once, by name."""
        return {}

    def begin(
        self,
        prepared: Prepared,
        communicator: Communicator,
        done: int,
        last: int,
        state: State,
    ) -> None:
        """Begin to play the rounds after ``done`` up to ``last``. Collective call.

        Args:
            prepared: experiment with the clients to play.
            communicator: communicator of all ranks.
            done: number of the last completed round.
            last: number of the last round to play.
            state: result of ``get_state`` after the round ``done``, on rank 0.

        Raises:
            UserError: The selection now chooses other clients; raised on all ranks.
        """
        if self.reports is None:
            return
        history = {name: tensor.tolist() for name, tensor in state.items()}
        history = communicator.bcast(history)
        ids = np.array(history.get("clients", []), np.int64)
        losses = np.array(history.get("losses", []))
        first = 0
        for number in range(1, done + 1):
            cohort = self.get_cohort(number)
            end = first + len(cohort)
            if not np.array_equal(cohort, ids[first:end]):
                raise UserError(
                    f"participation.select: in round {number} the run chose other clients than "
                    "the selection chooses now; restore the selection with which it began, or "
                    "choose another --out or --fresh"
                )
            if number > self.reports.rounds:
                self.reports.add(cohort, losses[first:end])
            first = end

    def share_losses(
        self, communicator: Communicator, number: int, numbers: Gathered
    ) -> None:
        """Send the losses of a round's clients to all ranks. Collective call.

        Args:
            communicator: communicator of all ranks.
            number: number of the round.
            numbers: numbers of all clients, on rank 0.
        """
        if self.reports is None:
            return
        cohort = self.get_cohort(number)
        reported = []
        if communicator.is_server:
            reported = numbers.select(LOSS, cohort).tolist()
        self.reports.add(cohort, np.array(communicator.bcast(reported)))

    def get_state(self) -> State:
        """Return the state of the schedule after the last round.

        Checkpoints store it with the server's state.
        """
        if self.reports is None:
            return {}
        ids, losses = self.reports.history
        return {"clients": torch.from_numpy(ids), "losses": torch.from_numpy(losses)}

    def get_stored_state(self) -> State:
        """Return ``get_state`` by its names in a checkpoint."""
        state = self.get_state()
        return {self.stored_as + name: tensor for name, tensor in state.items()}

    def split_state(self, stored: State) -> tuple[State, State]:
        """Split the state in a checkpoint into the states of server and schedule."""
        server, of_schedule = State(), State()
        for name, tensor in stored.items():
            if name.startswith(self.stored_as):
                of_schedule[name.removeprefix(self.stored_as)] = tensor
            else:
                server[name] = tensor
        return server, of_schedule

    def rehearse(self) -> None:
        """Choose the clients of the rounds, to find errors before round 1.

        With ``reports`` only the first rounds are chosen, as if all clients reported
        the same loss. The schedule cannot be played afterwards.
        """
        rounds = self.config.rounds
        if self.reports is None:
            for number in range(1, rounds + 1):
                self.get_cohort(number)
            return
        for number in range(1, min(rounds, REHEARSED) + 1):
            cohort = self.get_cohort(number)
            self.reports.add(cohort, np.ones(len(cohort)))


def make_untimed(prepared: Prepared, communicator: Communicator) -> RoundSchedule:
    """Return the schedule of an experiment without virtual time. Collective call.

    Raises:
        UserError: The selection fails. All ranks raise the same error.
    """
    selection = cast(Selection, prepared.config.participation)
    clients, seed = prepared.setup.clients, prepared.config.seed
    if isinstance(selection, Uniform):
        return RoundSchedule(prepared, Draws(selection, clients, seed))
    samples = np.array(list_epoch_samples(prepared))

    def make() -> RoundSchedule:
        reports = LossReports(samples)
        draws = Draws(selection, clients, seed, samples, reports=reports)
        return RoundSchedule(prepared, draws)

    with agreed(communicator):
        make().rehearse()
    return make()


def list_epoch_samples(prepared: Prepared) -> list[int]:
    """Return the number of samples that each client uses in an epoch."""
    training = prepared.config.training
    fewest = find_fewest_samples(training, prepared.resources.buffers.width > 0)
    return [
        count_epoch_samples(count, training.batch_size, fewest, None)
        for count in prepared.setup.samples.long().tolist()
    ]
