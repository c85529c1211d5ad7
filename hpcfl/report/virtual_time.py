"""What ``hpcfl check`` says of the clients' own time."""

import numpy as np

from hpcfl.clock.seconds import in_seconds
from hpcfl.report import needs
from hpcfl.simulation.prepare import Prepared

QUANTILES = (0, 0.1, 0.5, 0.9, 1)


def lines(prepared: Prepared) -> list[str]:
    """A line on how long clients are at work, one on the whole run, and one on what is
    in flight; none without ``[time]``.
    """
    calendar = prepared.calendar
    if calendar is None or not calendar.timed:
        return []
    duration = calendar.duration
    work = duration.work
    seconds = [
        in_seconds(duration.ticks(client, work.epochs))
        for client in range(duration.devices.clients)
    ]
    shown = ", ".join(f"{np.quantile(seconds, at):.3g}" for at in QUANTILES)
    lines = [
        f"time: a client is at work for {shown} s in a round (fastest, 10 %, median, 90 %, "
        f"slowest), {float(work.passes):.3g} passes over its samples, "
        f"{float(work.floats_down):,.0f} floats down, {float(work.floats_up):,.0f} up",
    ]
    if calendar.told is not None:
        return lines  # who takes part is known only after training
    rounds = prepared.config.rounds
    last = calendar.numbers(rounds)
    taken_part = int((last["clients/updates"] > 0).sum())
    lines.append(
        f"time: round {rounds} ends after {last['time/seconds']:,.1f} s of the clients' "
        f"own; {taken_part} of {len(seconds)} clients take part by then"
    )
    if prepared.config.time.mode == "asynchronous":
        versions = needs.kept_versions(prepared)
        size = needs.size_text(needs.kept_bytes(prepared))
        lines.append(
            f"time: {needs.cohort_size(prepared.config)} clients are at work at once; "
            f"checkpoints keep at most {versions} older models of the server that they "
            f"started from, {size}"
        )
    return lines
