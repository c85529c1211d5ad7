"""What ``hpcfl check`` says of the clients' own time."""

import numpy as np

from hpcfl.clock.seconds import Duration, in_seconds
from hpcfl.report import needs
from hpcfl.simulation.prepare import Prepared

# of clients, by what they are called
QUANTILES = {"fastest": 0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "slowest": 1}


def lines(prepared: Prepared) -> list[str]:
    """Lines on the clients' devices, on how long they are at work, one on the whole
    run, and one on what is in flight; none without ``[time]``.
    """
    calendar = prepared.calendar
    if calendar is None or not calendar.timed:
        return []
    duration = calendar.duration
    work = duration.work
    found = [
        f"time: in a round a client does {float(work.passes):.3g} passes over its samples, gets "
        f"{float(work.floats_down):,.0f} floats and sends {float(work.floats_up):,.0f}",
        *_distributions(duration),
    ]
    if calendar.told is not None:
        return found  # who takes part is known only after training
    rounds = prepared.config.rounds
    last = calendar.numbers(rounds)
    taken_part = int((last["clients/updates"] > 0).sum())
    found.append(
        f"time: round {rounds} ends after {last['time/seconds']:,.1f} s of the clients' "
        f"own; {taken_part} of {duration.devices.clients} clients take part by then"
    )
    if prepared.config.time.mode == "asynchronous":
        versions = needs.kept_versions(prepared)
        size = needs.size_text(needs.kept_bytes(prepared))
        found.append(
            f"time: {needs.cohort_size(prepared.config)} clients are at work at once; "
            f"checkpoints keep at most {versions} older models of the server that they "
            f"started from, {size}"
        )
    return found


def _distributions(duration: Duration) -> list[str]:
    """A line for each quantity that clients differ in, with quantiles over clients."""
    devices = duration.devices
    clients = range(devices.clients)
    travel = [in_seconds(duration.travel(client)) for client in clients]
    whole = [
        in_seconds(duration.ticks(client, duration.work.epochs)) for client in clients
    ]
    # by its name the numbers from the fastest client to the slowest
    quantities = {
        "ms a sample": [pace / 1e9 for pace in devices.pace],
        "Mbit/s down": [-down / 1e6 for down in devices.down],
        "Mbit/s up": [-up / 1e6 for up in devices.up],
        "s on the way": travel,
        "s at work": whole,
    }
    headings = "".join(f"{name:>9}" for name in QUANTILES)
    texts = [f"time: {'of the clients':<14}{headings}"]
    for name, numbers in quantities.items():
        quantiles = np.abs(np.quantile(numbers, list(QUANTILES.values())))
        cells = "".join(f"{number:9.3g}" for number in quantiles)
        texts.append(f"time: {name:<14}{cells}")
    return texts
