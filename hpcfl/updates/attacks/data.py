"""Attacks that change the attackers' training samples."""

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from hpcfl.data.poison import AttackFacts, Poison
from hpcfl.data.shifts.base import Concept
from hpcfl.updates.attacks.own import Scale
from hpcfl.updates.base import Attack, Context


class DataAttack(Attack):
    """Base class of attacks that only change training samples."""

    changes_updates = False

    def forge(self, updates: Tensor, honest: Tensor | None, context: Context) -> Tensor:
        return updates


class LabelFlip(DataAttack):
    """Flipped labels: attackers train with K − 1 − y instead of each label y."""

    kind: str = "label-flip"

    def poison(self, attackers: np.ndarray, facts: AttackFacts) -> Poison:
        flipped = np.arange(facts.classes)[::-1].copy()
        concept = Concept("flipped labels", labels=flipped)
        return Poison(concept, attackers, self.since, share=1, facts=facts)


class Backdoor(DataAttack):
    """Backdoor: some of the attackers' images get a white patch in a corner and the
    target class as label.

    Bagdasaryan, Veit, Hua, Estrin & Shmatikov, "How to backdoor federated learning",
    AISTATS 2020. ``attack_success`` is the share of patched test samples of other
    classes that are predicted as the target.
    """

    is_absolute = True
    kind: str = "backdoor"
    target: NonNegativeInt = Field(0, description="target class of the backdoor")
    patch: PositiveInt = Field(2, description="side of the square patch in pixels")
    samples: float = Field(
        0.5, gt=0, le=1, description="share of an attacker's samples with the patch"
    )

    def poison(self, attackers: np.ndarray, facts: AttackFacts) -> Poison:
        facts.require_images(self.kind)
        if self.target >= facts.classes:
            raise facts.make_error(
                "target", f"{self.target}: there are {facts.classes} classes"
            )
        if self.patch > min(facts.shape[1:]):
            raise facts.make_error(
                "patch", f"{self.patch} exceeds the images' {facts.shape[1:]} pixels"
            )
        white = facts.scale

        def add_patch(images: Tensor, numbers: np.ndarray) -> Tensor:
            patched = images.clone()
            patched[..., -self.patch :, -self.patch :] = white
            return patched

        wanted = np.full(facts.classes, self.target)
        concept = Concept("patch", add_patch, wanted)
        return Poison(
            concept,
            attackers,
            self.since,
            share=self.samples,
            facts=facts,
            is_scored=True,
        )


class ModelReplacement(Backdoor, Scale):
    """Model replacement: a backdoor whose update is scaled such that it replaces the
    server's model by the attacker's.

    Bagdasaryan, Veit, Hua, Estrin & Shmatikov, AISTATS 2020.
    """

    changes_updates = True
    kind: str = "model-replacement"

    def forge(self, updates: Tensor, honest: Tensor | None, context: Context) -> Tensor:
        return Scale.forge(self, updates, honest, context)


plugins: dict[str, type[Attack]] = {
    "label-flip": LabelFlip,
    "backdoor": Backdoor,
    "model-replacement": ModelReplacement,
}
