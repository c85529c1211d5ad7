"""The experiment of a run, prepared again to load its models."""

from collections.abc import Collection, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

from hpcfl.data.partition import Split
from hpcfl.errors import UserError
from hpcfl.experiment import config, experiment_file
from hpcfl.experiment.config import OPTIONAL, Config
from hpcfl.experiment.plugins import LISTS, SELECTORS
from hpcfl.files.atomic import Damaged
from hpcfl.storage.forms import check_run
from hpcfl.storage.run_folder import PARTITION, RUN

# The keys that may name a user's own code, which is needed to make the models again.
# The partition is read from the folder, and only the accuracy is computed again.
PLUGINS = (("method", "name"), ("model", "name"), ("data", "dataset"))


def own_code(table: Mapping[str, Any]) -> list[str]:
    """Return the user's own plugins, ``module:object``, that a configuration names."""
    names = [str(table[section][key]) for section, key in PLUGINS]
    for listed in LISTS:
        names += [str(entry["kind"]) for entry in table.get(listed, [])]
    names.append(str(table["participation"].get("select", "")))
    for section in OPTIONAL:
        given = table.get(section, {})
        names.append(str(given.get(SELECTORS.get(section), "")))
    return [name for name in names if ":" in name]


def read_again(folder: Path, table: Mapping[str, Any], own: Collection[str]) -> Config:
    """Return the experiment of the run in a folder, to be prepared on this machine.

    Args:
        folder: The run's folder.
        table: Its resolved configuration.
        own: The user's own plugins that may be imported; code that only the folder
            names is never run.

    Raises:
        UserError: A plugin may not be imported, or the partition belongs to another
            run.
    """
    unnamed = [name for name in own_code(table) if name not in own]
    if unnamed:
        options = " ".join(f"--own {name}" for name in unnamed)
        raise UserError(
            f"{folder}: was run with your own {', '.join(unnamed)}, which is imported "
            f"only where you name it: {options}, from Python "
            f"hpcfl.load(…, own={unnamed})"
        )
    partition = folder / PARTITION
    try:
        check_run(Split.load(partition).run, experiment_file.fingerprint(table))
    except Damaged as error:
        raise UserError(f"{partition}: {error}") from None
    wanted: dict[str, Any] = deepcopy(dict(table))
    # The defaults of a protocol are in the resolved configuration already.
    wanted["protocol"] = None
    # The file holds the clients' samples, so the scheme that drew them is not needed.
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
    return config.parse(wanted, str(folder / RUN))
