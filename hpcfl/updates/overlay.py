"""The outermost overlay, which changes the clients' updates and their mean.

Every entry of the upload must be a Mean of a value that all clients received under the
same name. Each client sends its update, the difference of both. On rank 0 the result of
the rule is added to what was sent, and the sum takes the place of the mean.
"""

import math
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients import Fleet
from hpcfl.communication.message import Field, Inbox, Mean, Message, fields
from hpcfl.experiment.config import Config
from hpcfl.methods.base import Audience, Cohort, Overlay, Setup, State
from hpcfl.updates.base import Attack, Context, Rule, SkippedRound, Transform
from hpcfl.updates.checks import check_sections
from hpcfl.updates.memory import MEMORY, Memory, memory_name
from hpcfl.updates.privacy import ClientPrivacy, make_privacy
from hpcfl.updates.rules.mean import Mean as MeanRule
from hpcfl.updates.secure import SecureSum, make_secure_sum
from hpcfl.updates.vectors import (
    CHANGE,
    CLIP,
    FLOAT_BITS,
    add_changes,
    check_upload,
    count_message_bits,
    find_columns,
    find_layers,
    find_update,
    find_widths,
    join,
    split_columns,
)

# the entry with the clients' weights, beside updates that travel as rows
WEIGHTS = "weights of updates"
SKIPPED, RELEASES = MEMORY + "skipped", MEMORY + "releases"
BELOW = MEMORY + "below clip"
SECURE = MEMORY + "secure"  # wrapped coordinates, and what rounding adds to a norm
DOWNLOAD = "download.bits"  # the entry with the bits of each client's download


@dataclass(frozen=True)
class Updates(Overlay):
    """Transforms, an attack, a rule, and the privacy of clients.

    Server and client: ``update.PLUGIN.NAME`` [W] for each row that a plug-in remembers.
    W is the width of all floating-point values that the server sends to all clients
    alike; the P columns of the uploaded ones are used. Server, if updates travel as
    rows: ``update.skipped``, the number of rounds that the rule has skipped.

    Attributes:
        compose: makes the message that the server sends, of its state.
        initial: makes the server's state before round 1.
        seed: the experiment's.
    """

    transforms: tuple[Transform, ...]
    rule: Rule
    attack: Attack | None
    privacy: ClientPrivacy | None
    secure: SecureSum | None
    compose: Callable[[State, Audience], Message]
    initial: Callable[[Setup], State]
    seed: int

    def server_state(self, setup: Setup) -> State:
        names = [memory_name("rule", name) for name in self.rule.list_memory()]
        for number, transform in enumerate(self.transforms):
            for name in transform.list_server_memory():
                names.append(memory_name(number, name))
        state = self._zeros(names, setup)
        if self._needs_rows:
            state[SKIPPED] = torch.zeros(1, dtype=torch.int64)
        if self.secure is not None:
            state[SECURE] = torch.zeros(2).double()
        if self._adapts_clip:
            state[CLIP] = torch.tensor([self._first_clip] * 2).double()
        if self.privacy is not None and self.privacy.has_effect:
            counted = setup.clients if self.privacy.section.local else 1
            state[RELEASES] = torch.zeros(counted, dtype=torch.int64)
        return state

    def client_state(self, setup: Setup) -> State:
        names = []
        for number, transform in enumerate(self.transforms):
            for name in transform.list_memory():
                names.append(memory_name(number, name))
        return self._zeros(names, setup)

    def _zeros(self, names: list[str], setup: Setup) -> State:
        """Return a row [W] of zeros for each name."""
        if not names:
            return {}
        everyone = np.arange(setup.clients)
        sent = self.compose(self.initial(setup), Audience(everyone, setup, 1))
        width = sum(find_widths(sent).values())
        return {name: torch.zeros(width) for name in names}

    def send(self, server: State, audience: Audience, message: Message) -> Message:
        """Return the message with its bits, and with the adaptive clip if there is
        one.
        """
        sent = dict(message)
        if self._adapts_clip:
            sent[CLIP] = server[CLIP][:1]
        if DOWNLOAD not in sent:
            bits = count_message_bits(fields(sent).values(), len(audience.ids))
            sent[DOWNLOAD] = Field(bits[:, None], floats=0)
        return sent

    def receive(self, fleet: Fleet, inbox: Inbox) -> Inbox:
        own = CLIP, DOWNLOAD
        return {name: value for name, value in inbox.items() if name not in own}

    def upload(self, fleet: Fleet, inbox: Inbox, message: Message) -> Message:
        """Return the message with the transformed updates."""
        means = check_upload(inbox, message)
        fleet.record("bits_down", inbox[DOWNLOAD][:, 0])
        bits = count_message_bits(means.values(), len(fleet.ids))
        widths = {name: mean.tensor.shape[1] for name, mean in means.items()}
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
        updates = join([find_update(mean, name, inbox) for name, mean in means.items()])
        if self.attack is not None and not self.attack.needs_honest:
            updates = self._forge(updates, None, context)
        received = [mean.change_of or name for name, mean in means.items()]
        columns = find_columns(inbox, received)
        updates, bits = self._transform(fleet.state, updates, bits, context, columns)
        updates = self.rule.bound_updates(updates)
        weights = next(iter(means.values())).weights
        added: dict[str, Mean | Field] = {}
        if self.privacy is not None and self.privacy.section.clip is not None:
            clip = float(inbox[CLIP]) if self._adapts_clip else self._first_clip
            updates, norms = self.privacy.clip(updates, clip, context)
            below = (norms <= clip).double()
            fleet.record("clipped", 1 - below)
            if self._adapts_clip:
                added[BELOW] = Mean(below[:, None].to(updates.device), weights)
        if self.secure is not None:
            updates = self.secure.encode(updates, context)
            bits = self.secure.count_bits(updates)
        fleet.record("bits_up", bits)
        return added | self._pack(means, updates, bits)

    def _transform(
        self,
        state: MutableMapping[str, Tensor],
        updates: Tensor,
        bits: Tensor,
        context: Context,
        columns: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the updates [n, P] after all transforms, and their bits [n].

        state: the clients' private state, which transforms may change.
        """
        for number, transform in enumerate(self.transforms):
            names = transform.list_memory()
            memory = Memory(state, number, names, columns)
            updates = transform.apply(updates, context.remembering(memory))
            bits = transform.count_bits(updates, bits)
        return updates, bits

    def _pack(
        self, means: Mapping[str, Mean], updates: Tensor, bits: Tensor
    ) -> dict[str, Mean | Field]:
        """Return the entries that carry the updates [n, P], which replace ``means``.

        All bits are counted with the first entry.
        """
        weights = next(iter(means.values())).weights
        widths = {name: mean.tensor.shape[1] for name, mean in means.items()}
        sent: dict[str, Mean | Field] = {}
        if self._needs_rows:
            sent[WEIGHTS] = Field(weights.double()[:, None], floats=0)
        counted: float | Tensor = bits / FLOAT_BITS
        for name, rows in split_columns(updates, widths).items():
            start = means[name].change_of
            wire = f"{name}{CHANGE}{start}" if start else name
            if self._needs_rows:
                sent[wire] = Field(rows, counted)
            else:
                sent[wire] = Mean(rows, weights, counted)
            counted = 0.0
        return sent

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> State | None:
        """Return the sums of what was sent and of the combined updates, by name; None
        in a round that the rule skips.
        """
        arrived = dict(uplink)
        weights = arrived.pop(WEIGHTS, torch.ones(len(cohort.ids), 1).double())[:, 0]
        below = arrived.pop(BELOW, torch.zeros(1))
        names = sorted(arrived)
        widths = {name: arrived[name].shape[-1] for name in names}
        if not names or not self._has_effect(sum(widths.values())):
            return uplink
        sent = self.compose(server, Audience(cohort.ids, cohort.setup, cohort.round))
        before = {name: entry.tensor for name, entry in fields(sent).items()}
        context = Context(
            seed=self.seed,
            round=cohort.round,
            ids=cohort.ids,
            clients=cohort.setup.clients,
            weight=find_weight(self.show_cohort(cohort)),
            shares=(weights / weights.sum()).numpy(),
            layers=find_layers(cohort.layout, widths),
        )
        received = [name.rpartition(CHANGE)[2] for name in names]
        columns = find_columns(before, received)
        updates = join([arrived[name] for name in names])
        clip = float(server[CLIP][0]) if self._adapts_clip else self._first_clip
        try:
            result = self._combine(server, updates, weights, context, columns, clip)
        except SkippedRound:
            server[SKIPPED] = server[SKIPPED] + 1
            return None
        result = self._release(server, cohort, result, clip)
        if self.privacy is not None:
            self._remember(server, cohort, clip, below.item())
        for number, transform in reversed([*enumerate(self.transforms)]):
            names_of_server = transform.list_server_memory()
            memory = Memory(server, number, names_of_server, columns)
            result = transform.finish(result, context.remembering(memory))
        return add_changes(before, split_columns(result.double(), widths))

    def _combine(
        self,
        server: State,
        updates: Tensor,
        weights: Tensor,
        context: Context,
        columns: Tensor,
        clip: float,
    ) -> Tensor:
        """Return the rule's result [P] for what arrived, rows [n, P] or their mean [P].
        Raises SkippedRound.
        """
        if not self._needs_rows:
            return updates
        if not len(updates):
            return updates.new_zeros(updates.shape[1])
        updates = self._forge_knowingly(updates, context, clip)
        memory = Memory(server, "rule", self.rule.list_memory(), columns)
        return self.rule.combine(updates, weights, context.remembering(memory))

    def _release(
        self, server: State, cohort: Cohort, result: Tensor, clip: float
    ) -> Tensor:
        """Return the update [P] that the server learns: the sum of whole numbers, if it
        is secure, as an update again, and with the noise of ``[privacy]``.
        """
        clients = len(cohort.ids)
        rounding = 0.0
        if self.secure is not None:
            result, wrapped = self.secure.decode(result, clients)
            rounding = self.secure.find_rounding(len(result))
            server[SECURE] = torch.tensor([wrapped, rounding]).double()
        if self.privacy is None:
            return result
        return self.privacy.release(result, clients, clip + rounding, cohort.round)

    def _remember(
        self, server: State, cohort: Cohort, clip: float, below: float
    ) -> None:
        """Store the next clip, and the number of noisy sums, or with local noise of
        uploads of each client.

        below: the share of clients below the clip.
        """
        assert self.privacy is not None
        if self._adapts_clip:
            count = round(below * len(cohort.ids))
            half = len(cohort.ids) / 2
            following = self.privacy.next_clip(clip, count - half, cohort.round)
            server[CLIP] = torch.tensor([following, clip]).double()
        if RELEASES in server:
            local = self.privacy.section.local
            places = torch.from_numpy(cohort.ids if local else np.zeros(1, np.int64))
            ones = torch.ones_like(places)
            server[RELEASES] = server[RELEASES].index_add(0, places, ones)

    def show_cohort(self, cohort: Cohort) -> Cohort:
        if self.privacy is None or not self.privacy.has_effect:
            return cohort
        return cast(Cohort, self.privacy.hide_clients(cohort))

    def notes(self) -> list[str]:
        return [] if self.secure is None else self.secure.notes()

    def measure(self, server: State, round: int) -> dict[str, float]:
        numbers: dict[str, float] = {}
        if SKIPPED in server:
            numbers["aggregation/skipped"] = float(server[SKIPPED])
        rounding = 0.0
        if self.secure is not None:
            wrapped, rounding = server[SECURE].tolist()
            numbers["aggregation/wrapped"] = wrapped
        if self.privacy is None:
            return numbers
        clip = float(server[CLIP][1]) if self._adapts_clip else self._first_clip
        releases = int(server[RELEASES].max()) if RELEASES in server else 0
        return numbers | self.privacy.measure(clip, round, releases, rounding)

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
        lines = []
        others = WEIGHTS, BELOW
        width = sum(uploads[name] for name in uploads if name not in others)
        clients = len(cohort(1))
        if self.transforms or self.secure is not None:
            lines.append(self._describe_bits(width))
        if self.rule.has_effect():
            text = self.rule.describe(clients)
            lines.append(f"aggregation.rule = '{self.rule.rule}' {text}")
        if self._needs_rows:
            size = clients * width * FLOAT_BITS / 8e6
            lines.append(
                f"each client's update travels to rank 0: {clients} × {width:,} numbers, "
                f"{size:,.1f} MB in a round"
            )
        if self.secure is not None:
            lines.append(self.secure.describe())
        if self.privacy is not None:
            lines += self.privacy.describe(rounds if uploads else 0, cohort)
        return lines

    def _describe_bits(self, width: int) -> str:
        """Return a line on the bits of an update of P = ``width`` numbers."""
        plain = float(FLOAT_BITS * width)
        bits, row = torch.tensor([plain]).double(), torch.ones(1, width)
        for transform in self.transforms:
            bits = transform.count_bits(row, bits)
        if self.secure is not None:
            bits = self.secure.count_bits(row)
        return (
            f"uploads: {bits.item():,.0f} bits of a client in a round, "
            f"{plain / bits.item():.3g} times fewer than {plain:,.0f} of float32"
        )

    @property
    def _first_clip(self) -> float:
        """Return the clip of round 1, infinite without one."""
        given = self.privacy and self.privacy.section.clip
        return given or math.inf

    @property
    def _adapts_clip(self) -> bool:
        """Return whether the clip follows the clients' norms."""
        return self.privacy is not None and self.privacy.section.adaptive_clip

    @property
    def _needs_rows(self) -> bool:
        """Return whether rank 0 needs each client's update."""
        knows_others = self.attack is not None and self.attack.needs_honest
        return self.rule.needs_rows or knows_others

    def _has_effect(self, width: int) -> bool:
        """Return whether a message or a mean of P = ``width`` numbers may change."""
        if self.rule.has_effect() or self.attack is not None:
            return True
        if self.privacy is not None and self.privacy.has_effect:
            return True
        if self.secure is not None:
            return True
        return any(transform.has_effect(width) for transform in self.transforms)

    def _attackers(self, context: Context) -> np.ndarray:
        """Return which of the context's clients attack in its round, bool [n]."""
        if self.attack is None or context.round < self.attack.since:
            return np.zeros(len(context.ids), bool)
        attackers = self.attack.find_attackers(self.seed, context.clients)
        return np.isin(context.ids, attackers)

    def _forge(
        self, updates: Tensor, honest: Tensor | None, context: Context
    ) -> Tensor:
        """Return the updates [n, P] with those of the attackers replaced."""
        attacks = self._attackers(context)
        if self.attack is None or not attacks.any():
            return updates
        positions = torch.from_numpy(np.flatnonzero(attacks)).to(updates.device)
        own = context.only(attacks)
        forged = self.attack.forge(updates[positions], honest, own)
        return updates.index_copy(0, positions, forged.to(updates.dtype))

    def _forge_knowingly(
        self, updates: Tensor, context: Context, clip: float
    ) -> Tensor:
        """Return the updates [n, P] on rank 0 with those of attackers that know the
        honest ones. The forged updates pass through the transforms and the clip.

        A round without attackers or without honest clients forges nothing.
        """
        attacks = self._attackers(context)
        if self.attack is None or not self.attack.needs_honest:
            return updates
        if not attacks.any() or attacks.all():
            return updates
        honest = updates[torch.from_numpy(~attacks)]
        updates = self._forge(updates, honest, context)
        positions = torch.from_numpy(np.flatnonzero(attacks))
        forged = updates[positions]
        for transform in self.transforms:
            forged = transform.apply(forged, context.only(attacks))
        forged = self.rule.bound_updates(forged)
        if self.privacy is not None and math.isfinite(clip):
            forged, _ = self.privacy.clip(forged, clip, context.only(attacks))
        return updates.index_copy(0, positions, forged)


Compose = Callable[[State, Audience], Message]
Initial = Callable[[Setup], State]


def make_updates(
    config: Config,
    compose: Compose,
    initial: Initial,
) -> Updates:
    """Return the overlay of an experiment; the arguments are attributes of it.

    Raises UserError for sections that exclude each other.
    """
    forges = config.attack is not None and config.attack.changes_updates
    transforms = list(config.transform)
    if config.compression is not None:
        transforms.append(config.compression)
    rule = cast(Rule, config.aggregation or MeanRule())
    attack = cast(Attack, config.attack) if forges else None
    overlay = Updates(
        transforms=tuple(cast(list[Transform], transforms)),
        rule=rule,
        attack=attack,
        privacy=make_privacy(config, rule),
        secure=make_secure_sum(config),
        compose=compose,
        initial=initial,
        seed=config.seed,
    )
    check_sections(config, rule, attack, overlay.transforms)
    return overlay


def find_weight(cohort: Cohort) -> float:
    """Return the weight of a cohort as a share of that of all clients."""
    if cohort.uniform:
        return cohort.share_of_clients
    return float(cohort.shares.sum() / cohort.setup.counts.sum())
