"""What the jobs of a cell note for each other, in the file ``CELL.requeues``."""

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12


@with_config(ConfigDict(extra="allow"))
class Record(TypedDict, total=False):
    """What the supervisors of a cell's jobs note for later ones and for ``hpcfl
    status``.
    """

    followers: dict[str, str]  # job → the one that was submitted to follow it
    failure: str | None  # why the last job failed
    rounds: int  # in the newest checkpoint when the last job began
    fruitless: int  # starts one after the other that found no new checkpoint
