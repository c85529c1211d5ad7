"""Sections on updates that exclude each other."""

from collections.abc import Sequence

from hpcfl.errors import UserError
from hpcfl.experiment.config import Config
from hpcfl.updates.base import Attack, Rule, Transform


def check_sections(
    config: Config, rule: Rule, attack: Attack | None, transforms: Sequence[Transform]
) -> None:
    """Raise UserError for sections that exclude each other."""
    if config.time.mode == "asynchronous":
        raise UserError(
            "time.mode = 'asynchronous': late updates are changes of other models, "
            "which [privacy], [transform], [compression], [attack] and [aggregation] do "
            "not support; take 'synchronous'"
        )
    for place, transform in enumerate(config.transform):
        if getattr(transform, "downloads", "whole") != "whole":
            raise UserError(
                f"transform.{place}.downloads: [compression] alone changes downloads; "
                "put this table there"
            )
    key = f"aggregation.rule = '{rule.rule}'"
    weights = getattr(config.method, "weights", "uniform")
    if not rule.is_weighted and weights != "uniform":
        raise UserError(f"{key} has no weights; set method.weights = 'uniform'")
    participation = config.participation
    cohort = participation.count(config.partition.clients)
    varies = participation.dropout or config.time.mode != "none"
    if not varies and (problem := rule.find_problem(cohort)):
        raise UserError(f"{key}: {problem}")
    if attack is not None:
        fixed = None if varies else cohort
        check_attack(config, attack, transforms, fixed)


def check_attack(
    config: Config,
    attack: Attack,
    transforms: Sequence[Transform],
    cohort: int | None,
) -> None:
    """Raise UserError for an attack that is impossible in every round.

    cohort: the clients of a round; None if their number varies.
    """
    for transform in transforms:
        if attack.needs_honest and transform.list_memory():
            raise UserError(
                f"attack.kind = '{attack.kind}' is made on the server, where "
                f"'{transform.kind}' has no memory of clients; set its feedback = false"
            )
    every = config.partition.clients
    attackers = len(attack.find_attackers(config.seed, every))
    if cohort != every or not attackers:
        return
    if problem := attack.find_problem(attackers, every - attackers):
        raise UserError(f"attack.kind = '{attack.kind}': {problem}")
