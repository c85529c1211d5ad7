"""The outermost overlay, which changes the clients' updates and their mean.

Every entry of the upload must be a Mean of a value that all clients received under the
same name. Each client sends its update, the difference of both. On rank 0 the result of
the rule is added to what was sent, and the sum takes the place of the mean.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import cast

import numpy as np
import torch
from torch import Tensor

from hpcfl.clients import Fleet
from hpcfl.communication.message import Field, Inbox, Mean, Message, fields
from hpcfl.errors import UserError
from hpcfl.experiment.config import Config
from hpcfl.methods.base import Audience, Cohort, Overlay, Setup, State
from hpcfl.rows.layout import Layout
from hpcfl.updates.base import Attack, Context, Rule, SkippedRound, Transform
from hpcfl.updates.rules.mean import Mean as MeanRule

# the entry with the clients' weights, beside updates that travel as rows
WEIGHTS = "weights of updates"
MEMORY = "update."  # the beginning of names in the clients' and the server's state
SKIPPED = MEMORY + "skipped"
FLOAT_BITS = 32


@dataclass(frozen=True)
class Updates(Overlay):
    """Transforms, an attack and a rule.

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
    compose: Callable[[State, Audience], Message]
    initial: Callable[[Setup], State]
    seed: int

    def server_state(self, setup: Setup) -> State:
        names = [memory_name("rule", name) for name in self.rule.list_memory()]
        for number, transform in enumerate(self.transforms):
            for name in transform.list_server_memory():
                names.append(memory_name(number, name))
        state = self._zeros(names, setup)
        for number, transform in enumerate(self.transforms):
            for name in transform.list_numbers():
                state[memory_name(number, name)] = torch.zeros(1).double()
        if self._needs_rows:
            state[SKIPPED] = torch.zeros(1, dtype=torch.int64)
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

    def upload(self, fleet: Fleet, inbox: Inbox, message: Message) -> Message:
        """Return the message with the transformed updates."""
        means = check_upload(inbox, message)
        bits = torch.zeros(len(fleet.ids)).double()
        for mean in means.values():
            floats = torch.as_tensor(mean.logical_floats()).double().cpu()
            bits += FLOAT_BITS * floats
        widths = {name: mean.tensor.shape[1] for name, mean in means.items()}
        if not means or not self._has_effect(sum(widths.values())):
            fleet.record("bits_up", bits)
            return message
        own = [mean.tensor - inbox[name] for name, mean in means.items()]
        updates = join(own)
        context = Context(
            seed=self.seed,
            round=fleet.round,
            ids=fleet.ids,
            clients=fleet.setup.clients,
            layers=find_layers(fleet.layout, widths),
        )
        if self.attack is not None and not self.attack.needs_honest:
            updates = self._forge(updates, None, context)
        columns = find_columns(inbox, widths)
        for number, transform in enumerate(self.transforms):
            names = transform.list_memory()
            memory = Memory(fleet.state, number, names, columns)
            updates = transform.apply(updates, context.remembering(memory))
            bits = transform.count_bits(updates, bits)
        updates = self.rule.bound_updates(updates)
        fleet.record("bits_up", bits)
        weights = next(iter(means.values())).weights
        sent: dict[str, Mean | Field] = {}
        for name, rows in split_columns(updates, widths).items():
            counted: float | Tensor = bits / FLOAT_BITS if not sent else 0.0
            sent[name] = (
                Field(rows, counted)
                if self._needs_rows
                else Mean(rows, weights, counted)
            )
        if self._needs_rows:
            sent[WEIGHTS] = Field(weights.double()[:, None], floats=0)
        return sent

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> State | None:
        """Return the sums of what was sent and of the combined updates, by name; None
        in a round that the rule skips.
        """
        arrived = dict(uplink)
        weights = arrived.pop(WEIGHTS, torch.ones(len(cohort.ids), 1).double())[:, 0]
        names = sorted(arrived)
        widths = {name: arrived[name].shape[-1] for name in names}
        if not names or not self._has_effect(sum(widths.values())):
            return uplink
        sent = self.compose(server, Audience(cohort.ids, cohort.setup, cohort.round))
        before = {name: entry.tensor for name, entry in fields(sent).items()}
        updates = join([arrived[name] for name in names])
        context = Context(
            seed=self.seed,
            round=cohort.round,
            ids=cohort.ids,
            clients=cohort.setup.clients,
            weight=find_weight(cohort),
            shares=(weights / weights.sum()).numpy(),
            layers=find_layers(cohort.layout, widths),
        )
        columns = find_columns(before, widths)
        result = updates
        if self._needs_rows:
            memory = Memory(server, "rule", self.rule.list_memory(), columns)
            try:
                updates = self._forge_knowingly(updates, context)
                remembering = context.remembering(memory)
                result = self.rule.combine(updates, weights, remembering)
            except SkippedRound:
                server[SKIPPED] = server[SKIPPED] + 1
                return None
        for number, transform in reversed([*enumerate(self.transforms)]):
            names_of_server = transform.list_server_memory()
            memory = Memory(server, number, names_of_server, columns)
            result = transform.finish(result, context.remembering(memory))
            for name in transform.list_numbers():
                value = torch.tensor([context.numbers[name]]).double()
                server[memory_name(number, name)] = value
        changes = split_columns(result.double(), widths)
        return {
            name: (before[name].double() + changes[name]).to(before[name].dtype)
            for name in names
        }

    @property
    def _needs_rows(self) -> bool:
        """Return whether rank 0 needs each client's update."""
        knows_others = self.attack is not None and self.attack.needs_honest
        return self.rule.needs_rows or knows_others

    def _has_effect(self, width: int) -> bool:
        """Return whether a message or a mean of P = ``width`` numbers may change."""
        if self.rule.has_effect() or self.attack is not None:
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

    def _forge_knowingly(self, updates: Tensor, context: Context) -> Tensor:
        """Return the updates [n, P] on rank 0 with those of attackers that know the
        honest ones. The forged updates pass through the transforms.

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
    if config.aggregation is not None and config.aggregation.secure:
        from hpcfl.updates.secure import make_secure_sum

        transforms.append(make_secure_sum(config))
    overlay = Updates(
        transforms=tuple(cast(list[Transform], transforms)),
        rule=cast(Rule, config.aggregation or MeanRule()),
        attack=cast(Attack, config.attack) if forges else None,
        compose=compose,
        initial=initial,
        seed=config.seed,
    )
    check_sections(config, overlay)
    return overlay


def check_sections(config: Config, overlay: Updates) -> None:
    """Raise UserError for sections that exclude each other."""
    if config.time.mode == "asynchronous":
        raise UserError(
            "time.mode = 'asynchronous': late updates are changes of other models, "
            "which [transform], [compression], [attack] and [aggregation] do not "
            "support; take 'synchronous'"
        )
    for place, transform in enumerate(config.transform):
        if getattr(transform, "downloads", "whole") != "whole":
            raise UserError(
                f"transform.{place}.downloads: [compression] alone changes downloads; "
                "put this table there"
            )
    rule, attack = overlay.rule, overlay.attack
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
        check_attack(config, attack, overlay.transforms, fixed)


def check_attack(
    config: Config,
    attack: Attack,
    transforms: tuple[Transform, ...],
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


def check_upload(inbox: Inbox, message: Message) -> dict[str, Mean]:
    """Return the entries of an upload, which must be means of received values with the
    same weights.

    Raises UserError that names another entry.
    """
    means: dict[str, Mean] = {}
    for name, entry in fields(message).items():
        if problem := _find_problem(name, entry, inbox):
            raise UserError(
                f"the clients' upload '{name}' {problem}; [transform], [compression], "
                "[attack] and [aggregation] need means of what the clients received "
                "under the same name"
            )
        assert isinstance(entry, Mean)
        means[name] = entry
        first = next(iter(means.values())).weights
        if not torch.equal(entry.weights, first):
            raise UserError(
                f"the clients' upload '{name}' has other weights than "
                f"'{next(iter(means))}'; set method.weights = 'uniform' or take another "
                "method"
            )
    return means


def _find_problem(name: str, entry: Field | Mean, inbox: Inbox) -> str:
    """Return why an entry of an upload has no update, "" if it has one."""
    if not isinstance(entry, Mean):
        return "is each client's own"
    if name not in inbox:
        return "was not received"
    received = inbox[name]
    if not isinstance(received, Tensor) or received.dim() != 1:
        return "was received with a value for each client"
    if entry.tensor.dim() != 2 or entry.weights.dim() != 1:
        return "has several means"
    if entry.tensor.shape[1:] != received.shape:
        return "has another shape than what was received"
    return ""


def find_weight(cohort: Cohort) -> float:
    """Return the weight of a cohort as a share of that of all clients."""
    of_all = cohort.setup.clients if cohort.uniform else cohort.setup.counts.sum()
    return float(cohort.shares.sum() / of_all)


def memory_name(plugin: int | str, name: str) -> str:
    """Return the name in the state of a row that a plug-in remembers."""
    return f"{MEMORY}{plugin}.{name}"


class Memory(MutableMapping[str, Tensor]):
    """The rows that a plug-in remembers, P columns of those in a state."""

    def __init__(
        self,
        state: MutableMapping[str, Tensor],
        plugin: int | str,
        names: tuple[str, ...],
        columns: Tensor,
    ) -> None:
        """Set the state, the plug-in and its names, and the P ``columns`` of W."""
        self._state, self._columns = state, columns
        self._names = {name: memory_name(plugin, name) for name in names}

    def __getitem__(self, name: str) -> Tensor:
        stored = self._state[self._names[name]]
        return stored[..., self._columns.to(stored.device)]

    def __setitem__(self, name: str, value: Tensor) -> None:
        stored = self._state[self._names[name]].clone()
        stored[..., self._columns.to(stored.device)] = value
        self._state[self._names[name]] = stored

    def __delitem__(self, name: str) -> None:
        raise TypeError(f"memory['{name}'] cannot be deleted")

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def find_widths(sent: Mapping[str, object]) -> dict[str, int]:
    """Return the width of each floating-point value that all clients receive alike, in
    the order of names.
    """
    widths = {}
    for name, value in sorted(sent.items()):
        tensor = value.tensor if isinstance(value, Field) else value
        if not isinstance(tensor, Tensor) or tensor.dim() != 1:
            continue
        if tensor.is_floating_point():
            widths[name] = len(tensor)
    return widths


def find_columns(sent: Mapping[str, object], uploaded: Mapping[str, int]) -> Tensor:
    """Return the columns of the uploaded entries among those of all that was sent,
    int64 [P].
    """
    parts, start = [], 0
    for name, width in find_widths(sent).items():
        if name in uploaded:
            parts.append(torch.arange(start, start + width))
        start += width
    return torch.cat(parts)


def find_layers(layout: Layout, widths: Mapping[str, int]) -> list[slice]:
    """Return the columns of each layer of a joined vector.

    An entry as wide as the model, its lower layers or its upper layers has their
    layers. Any other entry is one layer.
    """
    lengths: list[int] = []
    sizes = [columns.stop - columns.start for columns in layout.layers]
    for width in widths.values():
        parts = [sizes[:count] for count in range(1, len(sizes) + 1)]
        parts += [sizes[first:] for first in range(1, len(sizes))]
        fitting = [part for part in parts if sum(part) == width]
        lengths += fitting[0] if fitting else [width]
    ends = [0, *accumulate(lengths)]
    return [slice(start, stop) for start, stop in pairwise(ends)]


def join(parts: list[Tensor]) -> Tensor:
    """Return tensors side by side; a single one is returned as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)


def split_columns(joined: Tensor, widths: Mapping[str, int]) -> dict[str, Tensor]:
    """Return the entries of a joined tensor by name."""
    parts = torch.split(joined, [*widths.values()], dim=-1)
    return dict(zip(widths, parts, strict=True))
