"""Compressed downloads and their bits.

The server makes a new version of its message in each round with clients. A client with
an earlier version receives all changes since then; each change is quantised once for
all clients. A client without a version receives the whole version, as does a client
whose changes would take more bits. All clients of a round thus start from the same
version.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from hpcfl.communication.message import Field, Message, wrap_entries
from hpcfl.errors import UserError
from hpcfl.experiment.config import Config
from hpcfl.methods.base import Audience, Cohort, Overlay, Setup, State
from hpcfl.rows import randomness
from hpcfl.updates.compression import WORD, Compression
from hpcfl.updates.entries import DOWNLOAD
from hpcfl.updates.overlay import Compose, Initial, count_sent, make_updates
from hpcfl.updates.transforms.qsgd import count_quantised_bits, quantise
from hpcfl.updates.vectors import find_widths, join, split_columns

SENT, NUMBER, VERSIONS = "download.sent", "download.number", "download.versions"


@dataclass(frozen=True)
class Downloads(Overlay):
    """Overlay that sends quantised changes of the server's message.

    Server: ``download.sent`` [W], the last version; ``download.number`` [1], its
    number; ``download.versions`` [M], the number of each client's version, 0 for none.

    Attributes:
        levels: Number of levels of QSGD.
        compose: Function that makes the server's message from its state.
        initial: Function that makes the server's state before round 1.
        seed: Seed of the experiment.
    """

    levels: int
    compose: Compose
    initial: Initial
    seed: int

    def server_state(self, setup: Setup) -> State:
        return {
            SENT: torch.zeros(count_sent(self.compose, self.initial, setup)),
            NUMBER: torch.zeros(1, dtype=torch.int64),
            VERSIONS: torch.zeros(setup.clients, dtype=torch.int64),
        }

    def send(self, server: State, audience: Audience, message: Message) -> Message:
        if audience.are_newcomers or not (message and len(audience.ids)):
            return message
        widths = find_widths(message)
        if others := sorted(wrap_entries(message).keys() - widths.keys()):
            raise UserError(
                f"compression.downloads = 'qsgd': the entry '{others[0]}' of the message "
                "differs between clients; take 'whole'"
            )
        version = self._make_version(server, audience.round, message)
        bits = self.count_bits(server, audience.ids, sum(widths.values()))
        sent: dict[str, Field] = {DOWNLOAD: Field(bits[:, None], floats=bits / WORD)}
        for name, part in split_columns(version, widths).items():
            sent[name] = Field(part, floats=0)
        return sent

    def aggregate(self, server: State, cohort: Cohort, uplink: State) -> State:
        audience = Audience(cohort.ids, cohort.setup, cohort.round)
        message = self.compose(server, audience)
        if not (message and len(cohort.ids)):
            return uplink
        server[SENT] = self._make_version(server, cohort.round, message)
        server[NUMBER] = server[NUMBER] + 1
        versions = server[VERSIONS].clone()
        versions[torch.from_numpy(cohort.ids)] = server[NUMBER]
        server[VERSIONS] = versions
        return uplink

    def describe(
        self,
        rounds: int,
        cohort: Callable[[int], np.ndarray],
        uploads: Mapping[str, int],
    ) -> list[str]:
        bits = count_quantised_bits(1, self.levels) - WORD
        return [
            f"downloads: {bits} bits per number for each change since a client's version, "
            f"or {WORD} bits per number for the whole version"
        ]

    def _make_version(self, server: State, round: int, message: Message) -> Tensor:
        """Return the version [W] of a round: the last version plus the quantised
        change.
        """
        widths = find_widths(message)
        entries = wrap_entries(message)
        whole = join([entries[name].tensor for name in widths])
        if not server[NUMBER].item():
            return whole
        last = server[SENT]
        random = randomness.generator(self.seed, "updates", "download", round)
        uniforms = torch.from_numpy(random.random((1, len(whole))))
        return last + quantise((whole - last)[None], self.levels, uniforms)[0]

    def count_bits(self, server: State, ids: np.ndarray, width: int) -> Tensor:
        """Return the bits of each client's download, float64 [n].

        Args:
            server: The server's state.
            ids: The clients [n].
            width: The numbers W in a version.
        """
        versions = server[VERSIONS][torch.from_numpy(ids)]
        changes = server[NUMBER] + 1 - versions
        bits = changes * count_quantised_bits(width, self.levels)
        has_none = versions == 0
        return bits.clamp(max=WORD * width).masked_fill(has_none, WORD * width).double()


def list_makers(
    config: Config,
) -> list[Callable[[Config, Compose, Initial], Overlay]]:
    """Return the functions that make the overlays of an experiment, the innermost
    first.
    """
    if getattr(config.compression, "downloads", "whole") == "whole":
        return [make_updates]
    return [make_downloads, make_updates]


def make_downloads(config: Config, compose: Compose, initial: Initial) -> Downloads:
    """Return the overlay of an experiment with ``compression.downloads = "qsgd"``."""
    section = cast(Compression, config.compression)
    return Downloads(section.download_levels, compose, initial, config.seed)
