"""Description of the clients' devices, for ``hpcfl check``."""

import numpy as np

from hpcfl.clock.seconds import Duration, in_seconds
from hpcfl.simulation.prepare import Prepared

# of clients, by what they are called
QUANTILES = {"fastest": 0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "slowest": 1}


def lines(prepared: Prepared) -> list[str]:
    """Return lines on a client's work in a round and on the clients' devices; none
    without ``[time]``.
    """
    calendar = prepared.calendar
    if calendar is None or not calendar.timed:
        return []
    work = calendar.duration.work
    return [
        f"time: in a round a client does {float(work.passes):.3g} passes over its samples, gets "
        f"{float(work.floats_down):,.0f} floats and sends {float(work.floats_up):,.0f}",
        *_distributions(calendar.duration),
    ]


def _distributions(duration: Duration) -> list[str]:
    """Return a line for each quantity that clients differ in, with quantiles over
    clients.
    """
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
