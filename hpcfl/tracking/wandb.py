"""Weights & Biases: a run with the name of the experiment.

Without a login, or with WANDB_MODE=offline, data remain in the run's folder until
``wandb sync`` uploads them. The folder has the id of the W&B run, which a resumed run
continues. A new run in the same place begins another one.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcfl.tracking.base import Tracker, find_id


class WeightsAndBiases(Tracker):
    package = "wandb"

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        import wandb

        for old in folder.glob("offline-run-*"):
            shutil.rmtree(old)
        offline = "WANDB_MODE" not in os.environ and not wandb.api.api_key
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "hpcfl"),
            name=config["name"],
            config=dict(config),
            id=find_id(folder),
            resume="allow",
            dir=folder.parent,
            mode="offline" if offline else None,
            settings=wandb.Settings(console="off", silent=True),
        )

    def write(self, round: int, numbers: Mapping[str, float]) -> None:
        self._run.log(dict(numbers), step=round)

    def close(self) -> None:
        self._run.finish()


plugin = WeightsAndBiases
