"""A user's transforms, rules and attacks, named 'own_updates:…'."""

import torch

from hpcfl.methods.fedavg import FedAvg
from hpcfl.updates.base import Attack, Rule, SkippedRound, Transform


class Identity(Transform):
    def has_effect(self, width):
        return False

    def apply(self, updates, context):
        raise AssertionError("a transform without effect is not called")


class Halve(Transform):
    """Transform that sends half of its input, with 5 bits per number, and remembers the
    rest.
    """

    def list_memory(self):
        return ("rest",)

    def list_server_memory(self):
        return ("total",)

    def apply(self, updates, context):
        made = updates + context.memory["rest"]
        context.memory["rest"] = made / 2
        return made / 2

    def count_bits(self, updates, bits):
        return torch.full_like(bits, 5.0 * updates.shape[1])

    def finish(self, result, context):
        context.memory["total"] = context.memory["total"] + result
        return result


class Largest(Rule):
    """Rule that returns the update with the largest norm; rounds with fewer than
    ``least`` are skipped.
    """

    least: int = 1

    def find_problem(self, clients):
        return "" if clients >= self.least else f"needs {self.least} clients"

    def list_memory(self):
        return ("last",)

    def combine(self, updates, weights, context):
        if len(updates) < self.least:
            raise SkippedRound
        best = updates.double().norm(dim=1).argmax()
        context.memory["last"] = updates[best]
        return updates[best]


class Negate(Attack):
    def forge(self, updates, honest, context):
        assert honest is None
        return -updates


class Imitate(Attack):
    """Attack that sends three times the first honest update, and a keyed number at one
    position.
    """

    needs_honest = True

    def forge(self, updates, honest, context):
        forged = 3 * honest[:1].expand(len(updates), -1).clone()
        for row, client in zip(forged, context.ids.tolist(), strict=True):
            row[0] = context.random_of("imitate", client).random()
        return forged


class Counting(FedAvg):
    """FedAvg whose server counts the clients of a round."""

    def aggregate(self, server, cohort, uplink):
        super().aggregate(server, cohort, uplink)
        assert len(cohort.ids)
