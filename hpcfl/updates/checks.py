"""Checks of a configuration for sections on updates that exclude each other."""

from collections.abc import Sequence
from typing import cast

from hpcfl.errors import UserError
from hpcfl.experiment.config import Config
from hpcfl.methods.base import Method
from hpcfl.updates.base import Attack, Rule, Transform
from hpcfl.updates.compression import Compression
from hpcfl.updates.coverage import SECTIONS, check_method
from hpcfl.updates.privacy_setup import check_privacy
from hpcfl.updates.rules.mean import Mean
from hpcfl.updates.secure import make_secure_sum
from hpcfl.updates.update_trial import try_attack, try_rule, try_transform


def find_rule(config: Config) -> Rule:
    """Return the aggregation rule of an experiment, by default the mean."""
    return cast(Rule, config.aggregation or Mean())


def find_attack(config: Config) -> Attack | None:
    """Return the attack of an experiment that forges updates, or None."""
    if config.attack is None or not config.attack.changes_updates:
        return None
    return cast(Attack, config.attack)


def list_transforms(config: Config) -> list[Transform]:
    """Return the transforms of an experiment in order, the compression last."""
    transforms = list(config.transform)
    if config.compression is not None:
        transforms.append(config.compression)
    return cast(list[Transform], transforms)


def check_experiment(config: Config) -> None:
    """Raise UserError for sections on updates that exclude each other or another
    section of the experiment.
    """
    rule, attack = find_rule(config), find_attack(config)
    if config.privacy is not None and config.hides_clients:
        check_privacy(config, config.privacy, rule)
    make_secure_sum(config)
    check_sections(config, rule, attack, list_transforms(config))
    for transform in list_transforms(config):
        try_transform(transform)
    try_rule(rule)
    if attack is not None:
        try_attack(attack)


def check_sections(
    config: Config, rule: Rule, attack: Attack | None, transforms: Sequence[Transform]
) -> None:
    """Raise UserError for sections that exclude each other, and for a method that
    uploads rows in later rounds.
    """
    check_method(cast(Method, config.method))
    if config.time.mode == "asynchronous":
        raise UserError(
            f"time.mode = 'asynchronous': {SECTIONS} do not support updates that started "
            "from different models; take 'synchronous'"
        )
    for place, transform in enumerate(config.transform):
        if getattr(transform, "downloads", "whole") != "whole":
            raise UserError(
                f"transform.{place}.downloads: only [compression] changes downloads; "
                "move this table there"
            )
    key = f"aggregation.rule = '{rule.rule}'"
    weights = getattr(config.method, "weights", "uniform")
    is_clipped = make_secure_sum(config) is not None or (
        config.privacy is not None and config.hides_clients
    )
    for transform in transforms:
        estimates = isinstance(transform, Compression) and transform.remembers == "ef21"
        if estimates and (rule.has_effect() or is_clipped):
            raise UserError(
                f"{key}: with feedback = 'ef21' of '{transform.kind}' the server needs the "
                "mean of the sent updates, without a clip or noise of secure sums or "
                "[privacy]; take rule = 'mean' without these, or feedback = true"
            )
    if not rule.is_weighted and weights != "uniform":
        raise UserError(f"{key} ignores weights; set method.weights = 'uniform'")
    participation, clients = config.participation, config.partition.clients
    cohort = participation.count(clients)
    largest = clients if participation.scheme == "poisson" else cohort
    if problem := rule.find_problem(largest):
        raise UserError(f"{key}: {problem}")
    if attack is not None:
        check_attack(config, attack, transforms, largest)


def check_attack(
    config: Config, attack: Attack, transforms: Sequence[Transform], largest: int
) -> None:
    """Raise UserError for an attack that is impossible in every round.

    Args:
        config: The experiment.
        attack: The attack on updates.
        transforms: The transforms of the experiment.
        largest: The largest number of clients in a round.
    """
    for transform in transforms:
        if attack.needs_honest and transform.list_memory():
            raise UserError(
                f"attack.kind = '{attack.kind}' is computed on the server, where "
                f"'{transform.kind}' cannot read the clients' state; set its feedback = false"
            )
    participation = config.participation
    attackers = len(attack.find_attackers(config.seed, config.partition.clients))
    if not attackers:
        return
    may_shrink = participation.dropout or config.time.mode != "none"
    least = 1  # attackers in a round
    if participation.scheme == "fixed" and not may_shrink:
        least = max(1, largest + attackers - config.partition.clients)
    counts = range(least, min(attackers, largest) + 1)
    if all(attack.find_problem(count, largest - count) for count in counts):
        problem = attack.find_problem(least, largest - least)
        raise UserError(f"attack.kind = '{attack.kind}': {problem}")
