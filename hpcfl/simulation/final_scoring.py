"""The scoring of the models that the last aggregation made, as round R + 1.

It has no cohort: no client uploads, and private state stays as it is. Newcomers are
scored before and after their own training, where they do any.
"""

import torch

from hpcfl.clients.fleet import Fleet
from hpcfl.communication.message import Inbox, Message
from hpcfl.simulation import record
from hpcfl.simulation.round import COMPOSE, REPORT, SEND, LocalWork, Round
from hpcfl.simulation.stages import Stage
from hpcfl.storage.result_rounds import AFTER, BEFORE


def score(round: Round) -> None:
    """Score this rank's clients by the method's ``finish``."""
    nobody = round.fleet(round.plan.cohort)
    observers = round.fleet(round.plan.audience)
    round.observe(observers, round.inbox, "finish")
    round.fleets = [nobody, observers]
    round.work = LocalWork(
        nobody.ids, {}, nobody.state, torch.ones(0, dtype=torch.bool)
    )
    round.numbers = [(observers.ids, record.numbers(observers, None, None))]


def score_newcomers(round: Round) -> None:
    """Send newcomers the method's message to newcomers, and score them. Collective
    call.

    Their columns have separate names, so they do not count in the means of other
    clients.
    """
    newcomers = round.plan.newcomers
    if not len(newcomers):
        return
    message: Message = {}
    if round.communicator.is_server:
        message = round.compose("send_to_newcomers", newcomers)
    inbox, _ = round.send(newcomers, message)
    fleet = round.prepared.new_fleet(round.fleet_type)
    if len(fleet.ids):
        with round.on_clients(fleet):
            _train_newcomers(round, fleet, inbox)
    columns = {"pre": BEFORE, "post": AFTER}
    scores = {}
    for name, sums in fleet.scores.items():
        if name in columns:
            scores[columns[name]] = sums
    fleet.scores, fleet.recorded = scores, {}
    numbers = fleet.ids, record.numbers(fleet, None, None)
    round.numbers = [*round.numbers, numbers]


def _train_newcomers(round: Round, fleet: Fleet, inbox: Inbox) -> None:
    """Score newcomers before and after their training, if they do any."""
    method = round.prepared.method
    arrived = round.prepared.hooks.open(fleet, inbox)[-1]
    method.init_newcomers(fleet, arrived)
    if round.prepared.config.newcomers.epochs:
        method.train_newcomers(fleet, arrived)
    else:
        method.observe(fleet, arrived)


SCORE = Stage("work", "train", "local work", score)
NEWCOMERS = Stage("newcomers", "train", "local work", score_newcomers, collective=True)
FINAL_SCORING = (COMPOSE, SEND, SCORE, NEWCOMERS, REPORT)
