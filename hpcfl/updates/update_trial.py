"""Trial of a user's transforms, rules and attacks on synthetic updates before round 1.

An error in a user's code is left to the preflight, because synthetic updates have
another width than those of the experiment.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcfl.errors import UserError
from hpcfl.experiment import user_code
from hpcfl.rows import randomness
from hpcfl.rows.declared import describe_form
from hpcfl.updates.base import Attack, Context, Rule, Transform
from hpcfl.updates.compression import Compression
from hpcfl.updates.entries import FLOAT_BITS

CLIENTS, WIDTH = 3, 1000
LAYERS = (slice(0, 900), slice(900, WIDTH))


def try_transform(transform: Transform) -> None:
    """Raise UserError if a transform of the user returns an invalid result.

    A row of its result may not depend on the other rows: the ranks with clients, and
    so the rows that it receives, differ between runs.
    """
    if ":" not in transform.kind or not transform.has_effect(WIDTH):
        return
    updates, context = make_updates()
    place = f"{user_code.locate(type(transform))}transform '{transform.kind}'"
    with suppress_errors():
        given = updates.clone()
        whole = apply(transform, given, context)
        require_updates(f"{place}: 'apply'", whole, CLIENTS)
        if isinstance(transform, Compression):
            transform.compress(given, context)
        if not torch.equal(given, updates):
            raise UserError(
                f"{place} changes the updates that it receives, which error feedback "
                "and the method still read; return new tensors"
            )
        for client in range(CLIENTS):
            own = context.select(context.ids == client)
            [alone] = apply(transform, updates[[client]], own)
            if not torch.allclose(alone, whole[client], rtol=1e-4, equal_nan=True):
                raise UserError(
                    f"{place}: the update of a client depends on other clients; 'apply' "
                    "must compute each row from itself, because a rank has only some rows"
                )
        bits = torch.full((CLIENTS,), float(FLOAT_BITS * WIDTH)).double()
        counted = transform.count_bits(whole, bits)
        is_valid = isinstance(counted, Tensor) and counted.shape == bits.shape
        if not is_valid or not ((counted >= 0) & counted.isfinite()).all():
            raise UserError(
                f"{place}: 'count_bits' must return a number of bits for each row, "
                "float64 [n], finite and not negative"
            )


def try_rule(rule: Rule) -> None:
    """Raise UserError if a rule of the user returns an invalid result."""
    if ":" not in rule.rule or not rule.needs_rows:
        return
    updates, context = make_updates()
    memory = {name: torch.zeros(WIDTH) for name in rule.list_memory()}
    place = f"{user_code.locate(type(rule))}aggregation.rule = '{rule.rule}'"
    with suppress_errors():
        bounded = rule.bound_updates(updates)
        require_updates(f"{place}: 'bound_updates'", bounded, CLIENTS)
        weights = torch.ones(CLIENTS, dtype=torch.float64)
        shares = np.full(CLIENTS, 1 / CLIENTS)
        known = replace(context, memory=memory, weight=1.0, shares=shares)
        result = rule.combine(bounded, weights, known)
        is_update = isinstance(result, Tensor) and result.shape == (WIDTH,)
        if not is_update or not result.isfinite().all():
            raise UserError(
                f"{place}: 'combine' must return one update [{WIDTH}] for finite updates "
                f"[{CLIENTS}, {WIDTH}], without NaN and Inf"
            )


def try_attack(attack: Attack) -> None:
    """Raise UserError if an attack of the user forges updates of an invalid form."""
    if ":" not in attack.kind:
        return
    updates, context = make_updates()
    attacks = np.array([True, False, False])
    honest = updates[1:] if attack.needs_honest else None
    place = f"{user_code.locate(type(attack))}attack.kind = '{attack.kind}'"
    with suppress_errors():
        forged = attack.forge(updates[:1], honest, context.select(attacks))
        require_updates(f"{place}: 'forge'", forged, 1)


def apply(transform: Transform, updates: Tensor, context: Context) -> Tensor:
    """Return the updates after a transform, whose memory is zero."""
    memory = {name: torch.zeros_like(updates) for name in transform.list_memory()}
    return transform.apply(updates, replace(context, memory=memory))


@contextmanager
def suppress_errors() -> Iterator[None]:
    """Suppress errors in a block except UserErrors."""
    try:
        yield
    except UserError:
        raise
    except Exception:
        return


def make_updates() -> tuple[Tensor, Context]:
    """Return reproducible updates [CLIENTS, WIDTH], and facts about their rows."""
    numbers = randomness.generator(0, "made-up updates").standard_normal
    context = Context(
        seed=0, round=1, ids=np.arange(CLIENTS), clients=CLIENTS, layers=LAYERS
    )
    return torch.from_numpy(numbers((CLIENTS, WIDTH))).float(), context


def require_updates(place: str, result: Any, rows: int) -> None:
    """Raise UserError unless a result is updates, floating-point [rows, WIDTH]."""
    floats = isinstance(result, Tensor) and result.is_floating_point()
    if floats and result.shape == (rows, WIDTH):
        return
    raise UserError(
        f"{place} returns {describe_form(result)} for updates [{rows}, {WIDTH}]; "
        "expected updates of this form, float32"
    )
