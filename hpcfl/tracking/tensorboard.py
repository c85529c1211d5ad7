"""TensorBoard: event files in the run's folder; ``tensorboard --logdir runs`` shows
them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcfl.tracking.base import Tracker


class TensorBoard(Tracker):
    package = "tensorboard"

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from torch.utils.tensorboard import FileWriter

        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        self._writer = FileWriter(str(folder))
        # makes a running TensorBoard discard the old file
        self._writer.add_event(
            Event(session_log=SessionLog(status=SessionLog.START)), 0
        )

    def write(self, round: int, numbers: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=name, simple_value=number)
            for name, number in numbers.items()
        ]
        # one event for all metrics
        self._writer.add_summary(Summary(value=values), round)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


plugin = TensorBoard
