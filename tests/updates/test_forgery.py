"""Attackers of a round and their forged updates."""

import numpy as np
import torch
from own_updates import Imitate, Negate

from hpcfl.updates.attacks.collusion import LittleIsEnough
from hpcfl.updates.base import Context
from hpcfl.updates.forgery import Forgery

UPDATES = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


def make_context(ids=(0, 2, 3), round=2):
    return Context(1, round, np.array(ids), 4)


def forge(kind, **context):
    forgery = Forgery(kind(kind="own", clients=[2], since=2), seed=1)
    own = forgery.forge_own(UPDATES, make_context(**context))
    _, attacks = forgery.forge_knowingly(UPDATES, make_context(**context))
    return own, attacks.tolist()


def test_own_updates_are_forged_by_the_clients():
    own, attacks = forge(Negate)
    assert own.tolist() == [[1, 2], [-3, -4], [5, 6]] and not any(attacks)


def test_an_attack_that_needs_the_honest_ones_is_made_on_the_server():
    own, attacks = forge(Imitate)
    assert torch.equal(own, UPDATES) and attacks == [False, True, False]


def test_nothing_is_forged_before_the_first_round_or_without_attackers():
    for context in ({"round": 1}, {"ids": (0, 1, 3)}):
        for kind in (Negate, Imitate):
            own, attacks = forge(kind, **context)
            assert torch.equal(own, UPDATES) and not any(attacks)


def test_without_honest_clients_attackers_send_their_own():
    forgery = Forgery(Imitate(kind="own", clients=[1, 2]), seed=1)
    alone = make_context(ids=(1, 2))
    _, attacks = forgery.forge_knowingly(UPDATES[:2], alone)
    assert not attacks.any()


def test_attackers_send_their_own_where_the_attack_is_impossible():
    """ALIE needs two honest clients. The attackers' updates pass through transforms
    only once.
    """
    forgery = Forgery(LittleIsEnough(kind="alie", clients=[2, 3], z=1.0), seed=1)
    _, attacks = forgery.forge_knowingly(UPDATES, make_context())
    assert not attacks.any()
    forgery = Forgery(LittleIsEnough(kind="alie", clients=[2], z=1.0), seed=1)
    _, attacks = forgery.forge_knowingly(UPDATES, make_context())
    assert attacks.tolist() == [False, True, False]
