"""The experiment of a finished or stopped run, prepared again to load its models."""

from collections.abc import Collection, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from hpcfl.data.partition import Split
from hpcfl.errors import UserError
from hpcfl.experiment import config, experiment_file, plugins
from hpcfl.experiment.config import Config
from hpcfl.files.atomic import Damaged
from hpcfl.storage.forms import check_run
from hpcfl.storage.run_folder import PARTITION, RUN


def read_again(folder: Path, table: Mapping[str, Any], own: Collection[str]) -> Config:
    """Return the experiment of the run in a folder, adapted to this machine.

    Args:
        folder: folder of the run.
        table: resolved configuration of the run.
        own: user's own plugins that may be imported. Code that only the folder names is
            never run.

    Raises:
        UserError: A plugin may not be imported, or the partition belongs to another
            run.
    """
    partition = folder / PARTITION
    try:
        check_run(Split.load(partition).run, experiment_file.fingerprint(table))
    except Damaged as error:
        raise UserError(f"{partition}: {error}") from None
    wanted: dict[str, Any] = deepcopy(dict(table))
    # The resolved configuration already contains the defaults of a protocol.
    wanted["protocol"] = None
    # The partition is read from its file, so its scheme is not needed.
    wanted["partition"] = {
        "scheme": "iid",
        "file": str(partition),
        "clients": table["partition"]["clients"],
        "seed": table["partition"]["seed"],
    }
    for key in ("scores", "metric"):
        wanted["evaluation"].pop(key, None)
    if wanted["runtime"]["device"] != "cpu":
        wanted["runtime"]["device"] = "auto"
    plugins.refuse_unnamed(wanted, own, folder)
    # A configuration refuses ``data.redraw`` with ``partition.file``, because the file may
    # belong to another draw. The file of this run belongs to its own draw.
    redraw = wanted["data"].pop("redraw", False)
    experiment = config.parse(wanted, str(folder / RUN))
    data = experiment.data.model_copy(update={"redraw": redraw})
    return experiment.model_copy(update={"data": data})
