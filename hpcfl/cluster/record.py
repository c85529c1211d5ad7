"""The file ``CELL.requeues``, which a cell's jobs share."""

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12


@with_config(ConfigDict(extra="allow"))
class Record(TypedDict, total=False):
    """The notes of a cell's supervisors for later jobs and for ``hpcfl status``."""

    followers: dict[str, str]  # job → its submitted follower
    failure: str | None  # why the last job failed
    rounds: int  # in the newest checkpoint when the last job began
    fruitless: int  # starts one after the other that found no new checkpoint
