"""An episode: a new run, one to three faults one after the other, and a comparison of
its end.
"""

import random
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import around
import damage
import faults
import judge
import scene
import strangers
from scene import Scene, Undisturbed
from zygote import Zygote

KINDS = {
    **faults.ALL,
    **damage.ALL,
    **strangers.ALL,
    **around.ALL,
}
NEEDS_RANKS = (
    "kill -9 of mpiexec",
    "SIGSTOP of a rank",
)
NEEDS_ROOT = ("full disk", "another user")


@dataclass
class Event:
    """One fault: its kind, its run and moment, the end of the job, and the errors
    found.

    ``seed`` replays the episode with all its faults.
    """

    seed: str
    method: str
    kind: str
    moment: str
    detail: str
    code: int | None
    seconds: float
    wrong: list[str] = field(default_factory=list)


@dataclass
class Stage:
    """Place of episodes: ``disk`` is a folder on the file system that can be filled."""

    zygote: Zygote
    disk: Path
    methods: Sequence[str]
    kinds: Sequence[str]
    most_ranks: int
    most_faults: int
    _known: dict[str, tuple[Path, Undisturbed]] = field(default_factory=dict)

    def play(self, seed: str) -> list[Event]:
        """Run the episode of a seed "campaign/number"; the number determines the kinds,
        so that all have equal frequency.
        """
        chance = random.Random(seed)
        method = chance.choice(self.methods)
        file, undisturbed = self._experiment(method)
        before = [
            chance.choice(self.kinds) for _ in range(chance.randrange(self.most_faults))
        ]
        place = Path(tempfile.mkdtemp(dir=self.disk))
        place.chmod(0o755)
        stage = Scene(self.zygote, file, place, undisturbed, chance, self.most_ranks)
        events = [
            self._strike(stage, seed, kind) for kind in (*before, self._dealt(seed))
        ]
        events[-1].wrong += [f"in the end: {line}" for line in judge.complete(stage)]
        for folder in self.disk.glob(f"{place.name}*"):
            shutil.rmtree(folder)
        return events

    def _strike(self, stage: Scene, seed: str, kind: str) -> Event:
        before, lost = stage.stamp(), stage.lost()
        outcome = KINDS[kind](stage)
        stage.done.append(kind)
        refused = lost and outcome.code == 2  # before the fault could occur
        if refused and kind not in damage.ALL:  # faults that change files themselves
            outcome.wrong = judge.unchanged(before, stage.stamp())
        # A run that was stopped before it wrote a file is reported as before.
        began = outcome.code != 75 or stage.stamp() != before
        wrong = outcome.wrong + judge.story(stage, outcome.code if began else None)
        if "Traceback" in outcome.output:
            wrong.append(f"a traceback: {outcome.output[-600:]}")
        return Event(
            seed,
            stage.file.stem,
            kind,
            outcome.moment,
            outcome.detail,
            outcome.code,
            round(outcome.seconds, 2),
            wrong,
        )

    def _dealt(self, seed: str) -> str:
        campaign, _, number = seed.rpartition("/")
        deck, place = divmod(int(number), len(self.kinds))
        return random.Random(f"{campaign}/deck {deck}").sample(
            list(self.kinds), len(self.kinds)
        )[place]

    def _experiment(self, method: str) -> tuple[Path, Undisturbed]:
        """Return the experiment's file and the undisturbed result, computed once."""
        if method not in self._known:
            file = scene.write(
                self.zygote.folder, method, sorted(self.methods).index(method)
            )
            place = Path(tempfile.mkdtemp(dir=self.zygote.folder))
            self._known[method] = file, scene.undisturbed(self.zygote, file, place)
        return self._known[method]
