"""The outermost overlay, which changes the clients' updates and their mean.

Every entry of the upload must be a Mean of a value that all clients received under the
same name. Each client sends its update, the difference between the two. On rank 0 the
rule's result is added to the sent value, and the sum replaces the mean.

The parts of the overlay are in separate files:

* ``coverage.py`` checks that a message consists of updates,
* ``forgery.py`` replaces the updates of attackers,
* ``chain.py`` applies transforms,
* ``entries.py`` makes and reads the entries of messages,
* ``privacy.py`` clips updates and adds noise,
* ``secure.py`` simulates secure sums.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients import Fleet
from hpcfl.communication.message import Field, Inbox, Mean, Message, wrap_entries
from hpcfl.experiment.config import Config
from hpcfl.methods.base import Audience, Cohort, Overlay, Setup, State
from hpcfl.rows import mixing
from hpcfl.updates.base import Context, Rule, SkippedRound
from hpcfl.updates.chain import Chain
from hpcfl.updates.checks import (
    check_experiment,
    find_attack,
    find_rule,
    list_transforms,
)
from hpcfl.updates.coverage import check_upload
from hpcfl.updates.entries import (
    BELOW,
    DOWNLOAD,
    FLOAT_BITS,
    Arrived,
    count_message_bits,
    join_updates,
    list_received,
    list_widths,
    pack,
    unpack,
)
from hpcfl.updates.forgery import Forgery
from hpcfl.updates.memory import MEMORY, name_memory, open_memory
from hpcfl.updates.privacy import ClientPrivacy
from hpcfl.updates.privacy_setup import make_privacy
from hpcfl.updates.secure import SecureSum, make_secure_sum
from hpcfl.updates.vectors import (
    CLIP,
    add_changes,
    find_columns,
    find_layers,
    find_widths,
    split_columns,
)

SKIPPED = MEMORY + "skipped"
Compose = Callable[[State, Audience], Message]
Initial = Callable[[Setup], State]


@dataclass(frozen=True)
class Updates(Overlay):
    """Overlay with the transforms, attack, rule, privacy and secure sum of a run.

    Server and client: ``update.PLUGIN.NAME`` [W] for each row of a plug-in's state. W
    is the total width of all floating-point values that the server sends equally to all
    clients; the P columns of the uploaded values are used. Server, if updates travel as
    rows: ``update.skipped``, the number of rounds that the rule has skipped.

    Attributes:
        chain: Transforms of the updates.
        rule: Aggregation rule.
        forgery: Attack on updates, or None.
        privacy: Clip and noise for the privacy of clients, or None.
        secure: Simulated secure sum, or None.
        cohort: Expected number of clients in a round.
        compose: Function that makes the server's message from its state.
        initial: Function that makes the server's state before round 1.
        seed: Seed of the experiment.
    """

    chain: Chain
    rule: Rule
    forgery: Forgery | None
    privacy: ClientPrivacy | None
    secure: SecureSum | None
    cohort: int
    compose: Compose
    initial: Initial
    seed: int

    # State before round 1

    def server_state(self, setup: Setup) -> State:
        names = [name_memory("rule", name) for name in self.rule.list_memory()]
        state = self._make_zeros(names + self.chain.list_server_memory(), setup)
        if self._needs_rows:
            state[SKIPPED] = torch.zeros(1, dtype=torch.int64)
        if self.secure is not None:
            state |= self.secure.make_server_state()
        if self.privacy is not None:
            state |= self.privacy.make_server_state(setup.clients)
        return state

    def client_state(self, setup: Setup) -> State:
        return self._make_zeros(self.chain.list_memory(), setup)

    def _make_zeros(self, names: list[str], setup: Setup) -> State:
        """Return a row [W] of zeros for each name."""
        if not names:
            return {}
        width = count_sent(self.compose, self.initial, setup)
        return {name: torch.zeros(width) for name in names}

    # Messages to clients

    def send(self, server: State, audience: Audience, message: Message) -> Message:
        """Return the message with the bits of each download, and with the adaptive clip
        if the run has one.
        """
        sent = dict(message)
        if self._adapts_clip:
            sent[CLIP] = server[CLIP][:1]
        if DOWNLOAD not in sent:
            bits = count_message_bits(wrap_entries(sent).values(), len(audience.ids))
            sent[DOWNLOAD] = Field(bits[:, None], floats=0)
        return sent

    def receive(self, fleet: Fleet, inbox: Inbox) -> Inbox:
        own = CLIP, DOWNLOAD
        return {name: value for name, value in inbox.items() if name not in own}

    # Messages to the server

    def upload(self, fleet: Fleet, inbox: Inbox, message: Message) -> Message:
        """Return the message with the transformed updates."""
        means = check_upload(inbox, message)
        widths = {name: mean.tensor.shape[1] for name, mean in means.items()}
        fleet.record("bits_down", inbox[DOWNLOAD][:, 0])
        bits = count_message_bits(means.values(), len(fleet.ids))
        if not means or not self._has_effect(sum(widths.values())):
            fleet.record("bits_up", bits)
            return message
        context = Context(
            seed=self.seed,
            round=fleet.round,
            ids=fleet.ids,
            clients=fleet.setup.clients,
            layers=find_layers(fleet.layout, widths),
        )
        updates = join_updates(means, inbox)
        if self.forgery is not None:
            updates = self.forgery.forge_own(updates, context)
        columns = find_columns(inbox, list_received(means))
        updates, bits = self.chain.apply(
            fleet.state, updates, bits, context=context, columns=columns
        )
        updates = self.rule.bound_updates(updates)
        added: dict[str, Mean | Field] = {}
        if self.privacy is not None and self.privacy.clips:
            clip = float(inbox[CLIP]) if self._adapts_clip else self.privacy.first_clip
            updates, norms, is_clipped = self.privacy.clip(updates, clip, context)
            fleet.record("clipped", is_clipped.double())
            if self._adapts_clip:
                below = (norms <= clip).double()
                weights = next(iter(means.values())).weights
                added[BELOW] = Mean(below[:, None].to(updates.device), weights)
        if self.secure is not None:
            updates = self.secure.encode(updates, context)
            bits = self.secure.count_bits(updates)
        fleet.record("bits_up", bits)
        return added | pack(means, updates, bits, self._needs_rows)

    # Steps of the server

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> State | None:
        """Return the sent values plus the combined updates, by name; None in a round
        that the rule skips.
        """
        arrived = unpack(uplink, len(cohort.ids))
        widths = arrived.widths
        if not widths or not self._has_effect(sum(widths.values())):
            return uplink
        sent = self.compose(server, Audience(cohort.ids, cohort.setup, cohort.round))
        before = {name: entry.tensor for name, entry in wrap_entries(sent).items()}
        columns = find_columns(before, arrived.received)
        context = Context(
            seed=self.seed,
            round=cohort.round,
            ids=cohort.ids,
            clients=cohort.setup.clients,
            weight=find_weight(self.show_cohort(cohort)),
            shares=(arrived.weights / arrived.weights.sum()).numpy(),
            layers=find_layers(cohort.layout, widths),
        )
        try:
            result = self._combine(server, arrived, context, columns)
        except SkippedRound:
            server[SKIPPED] = server[SKIPPED] + 1
            if self.privacy is not None and self.privacy.section.local:
                # The server has the noisy uploads, so they count.
                self.privacy.remember(server, cohort.ids, 0.0, cohort.round)
            return None
        result = self._release(server, cohort, result)
        if self.privacy is not None:
            self.privacy.remember(server, cohort.ids, arrived.below, cohort.round)
        result = self.chain.finish(server, result, context, columns)
        return add_changes(before, split_columns(result.double(), widths))

    def _combine(
        self, server: State, arrived: Arrived, context: Context, columns: Tensor
    ) -> Tensor:
        """Return the rule's result [P] for the updates that arrived.

        Raises SkippedRound if the rule cannot combine them.
        """
        updates = arrived.join()
        if not self._needs_rows:
            return updates
        if not len(updates):
            return updates.new_zeros(updates.shape[1])
        updates = self._forge_knowingly(server, updates, context)
        names = self.rule.list_memory()
        with open_memory(server, "rule", names, columns) as memory:
            remembering = replace(context, memory=memory)
            return self.rule.combine(updates, arrived.weights, remembering)

    def _forge_knowingly(
        self, server: State, updates: Tensor, context: Context
    ) -> Tensor:
        """Return the updates [n, P] after an attack that knows the honest updates. The
        forged updates pass through the transforms, the rule's bound and the clip.
        """
        if self.forgery is None:
            return updates
        forged, attacks = self.forgery.forge_knowingly(updates, context)
        if not attacks.any():
            return updates
        attackers = context.select(attacks)
        forged = self.chain.apply_to_forged(forged, attackers)
        forged = self.rule.bound_updates(forged)
        if self.privacy is not None and self.privacy.clips:
            clip = self.privacy.find_clip(server)
            forged, _, _ = self.privacy.clip(forged, clip, attackers)
        positions = torch.from_numpy(np.flatnonzero(attacks))
        return mixing.replace(updates, positions, forged)

    def _release(self, server: State, cohort: Cohort, result: Tensor) -> Tensor:
        """Return the update [P] that the server may read: decoded if the sum is secure,
        and with the noise of ``[privacy]``.
        """
        clients = len(cohort.ids)
        rounding = 0.0
        if self.secure is not None:
            result, rounding = self.secure.receive(server, result, clients)
        if self.privacy is None:
            return result
        clip = self.privacy.find_clip(server)
        return self.privacy.release(result, clients, clip + rounding, cohort.round)

    def acts_on_empty_cohorts(self) -> bool:
        """Return whether the server also takes a step with an empty cohort, because
        with ``[privacy]`` it adds noise to every sum.
        """
        return self.privacy is not None

    def show_cohort(self, cohort: Cohort) -> Cohort:
        if self.privacy is None or not self.privacy.has_effect:
            return cohort
        return cast(Cohort, self.privacy.hide_clients(cohort))

    # Lines and numbers for users

    def notes(self) -> list[str]:
        lines = self.rule.list_notes(self.cohort)
        return lines if self.secure is None else lines + self.secure.list_notes()

    def measure(self, server: State, round: int) -> dict[str, float]:
        numbers: dict[str, float] = {}
        rounding = 0.0
        if SKIPPED in server:
            numbers["aggregation/skipped"] = float(server[SKIPPED])
        if self.secure is not None:
            numbers["aggregation/wrapped"], rounding = self.secure.measure(server)
        if self.privacy is not None:
            numbers |= self.privacy.measure(server, round, rounding)
        return numbers

    def list_decisions(self) -> dict[str, str]:
        if self.privacy is None or self.privacy.section.epsilon is None:
            return {}
        return {"the calibrated noise multiplier is": f"{self.privacy.sigma:g}"}

    def describe(
        self,
        rounds: int,
        cohort: Callable[[int], np.ndarray],
        uploads: Mapping[str, int],
    ) -> list[str]:
        private = []
        if self.privacy is not None:
            private = self.privacy.describe(rounds if uploads else 0, cohort)
        if not uploads:
            return private
        lines = []
        width = sum(list_widths(uploads))
        clients = len(cohort(1))
        if self.chain.transforms or self.secure is not None:
            lines.append(self._describe_bits(width))
        if self.rule.has_effect():
            text = self.rule.describe(clients)
            lines.append(f"aggregation.rule = '{self.rule.rule}' {text}")
        if self._needs_rows:
            size = clients * width * FLOAT_BITS / 8e6
            lines.append(
                f"each client's update travels to rank 0: {clients} × {width:,} numbers, "
                f"{size:,.1f} MB per round"
            )
        if self.secure is not None:
            lines.append(self.secure.describe())
        return lines + private

    def count_server_bytes(self, clients: int, uploads: Mapping[str, int]) -> int:
        if not self._needs_rows:
            return 0
        widths = list_widths(uploads)
        width = sum(widths)
        of_rows = clients * width * torch.float32.itemsize
        total = self.rule.count_bytes(clients, width)
        if len(widths) > 1:
            total += of_rows  # the concatenated entries
        if self.forgery is not None and self.forgery.attack.needs_honest:
            total += 2 * of_rows  # the honest updates, and all with the forged ones
        return total

    def _describe_bits(self, width: int) -> str:
        """Return a line on the bits of an update of P = ``width`` numbers."""
        plain = FLOAT_BITS * width
        bits = self.chain.count_bits(width)
        if self.secure is not None:
            bits = self.secure.count_bits(torch.ones(1, width))
        return (
            f"uploads: {bits.item():,.0f} bits per client and round, "
            f"{(plain / bits).item():.3g} times fewer than {plain:,.0f} of float32"
        )

    # Properties of several parts

    @property
    def _adapts_clip(self) -> bool:
        """Return whether the clip adapts to the clients' norms."""
        return self.privacy is not None and self.privacy.section.adaptive_clip

    @property
    def _needs_rows(self) -> bool:
        """Return whether rank 0 needs each client's update."""
        if self.forgery is not None and self.forgery.attack.needs_honest:
            return True
        return self.rule.needs_rows

    def _has_effect(self, width: int) -> bool:
        """Return whether any part may change updates of P = ``width`` numbers or their
        mean.
        """
        if self.rule.has_effect() or self.forgery is not None:
            return True
        if self.privacy is not None and self.privacy.has_effect:
            return True
        return self.secure is not None or self.chain.has_effect(width)


def make_updates(config: Config, compose: Compose, initial: Initial) -> Updates:
    """Return the overlay of an experiment.

    Args:
        config: The experiment.
        compose: Function that makes the server's message from its state.
        initial: Function that makes the server's state before round 1.

    Raises:
        UserError: Sections exclude each other.
    """
    check_experiment(config)
    attack = find_attack(config)
    return Updates(
        chain=Chain(list_transforms(config)),
        rule=find_rule(config),
        forgery=None if attack is None else Forgery(attack, config.seed),
        privacy=make_privacy(config),
        secure=make_secure_sum(config),
        cohort=config.participation.count(config.partition.clients),
        compose=compose,
        initial=initial,
        seed=config.seed,
    )


def count_sent(compose: Compose, initial: Initial, setup: Setup) -> int:
    """Return the numbers that the server sends equally to all clients in round 1."""
    everyone = Audience(np.arange(setup.clients), setup, 1)
    return sum(find_widths(compose(initial(setup), everyone)).values())


def find_weight(cohort: Cohort) -> float:
    """Return the weight of a cohort as a share of the weight of all clients."""
    if cohort.uniform:
        return cohort.share_of_clients
    return float(cohort.shares.sum() / cohort.setup.samples.sum())
