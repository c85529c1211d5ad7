"""Count the floats that a client receives and sends in a round.

The counts are measured in a small experiment. ``python launch/papers/traffic.py`` writes
the table of all methods into ``hpcfl/methods/README.md``. ``counts.py`` uses the counts
for FedALA's Table 3.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpcfl.communication.communicator import OneProcess
from hpcfl.experiment import config, plugins
from hpcfl.simulation.prepare import Prepared, prepare
from hpcfl.simulation.round import Round
from hpcfl.simulation.round_schedule import make_untimed
from hpcfl.simulation.stages import TRAINING, conclude, play

PAGE = Path(__file__).parents[2] / "hpcfl" / "methods" / "README.md"
BEGIN = "<!-- traffic: written by python launch/papers/traffic.py -->\n"
END = "<!-- end of traffic -->"
CLIENTS = 20
EXPERIMENT = {
    "data": {"dataset": "digits"},
    "partition": {"scheme": "iid", "clients": CLIENTS},
    "rounds": 3,
    "evaluation": {"every": 3},
    "model": {"name": "mlp", "hidden": [64]},
    "training": {"batch_size": 1000, "on_divergence": "exclude"},
}

# Zhang et al., "FedALA", AAAI 2023, Table 3: parameters down and up per client and
# iteration, in units of the model size Σ. α is the share of the feature extractor. M is the
# number of models that a client receives: according to the text all 20, including its own.
FEDALA_TABLE_3: dict[str, tuple[str, Callable[[float, int], float]]] = {
    **dict.fromkeys(
        (
            "fedavg",
            "fedprox",
            "fedavg-c",
            "fedprox-c",
            "per-fedavg",
            "pfedme",
            "ditto",
            "fedamp",
            "fedphp",
            "partialfed",
            "fedala",
        ),
        ("2 Σ", lambda alpha, m: 2.0),
    ),
    "fedrep": ("2 α Σ", lambda alpha, m: 2 * alpha),
    **dict.fromkeys(("fedfomo", "apple"), ("(1 + M) Σ", lambda alpha, m: 1.0 + m)),
}


@dataclass(frozen=True)
class Traffic:
    """Floats per client and round, in units of the model size Σ.

    Attributes:
        down: Floats that a client receives.
        up: Floats that a client sends.
        paper: Formula and value of down + up in FedALA's Table 3, or None if the table
            lacks the method.
    """

    down: float
    up: float
    paper: tuple[str, float] | None


def count(method: str) -> Traffic:
    """Count the floats of a method in the second round of a small experiment.

    The second round is the first in which the server uses messages of clients.
    """
    alone = OneProcess()
    experiment = config.parse({**EXPERIMENT, "method": {"name": method}})
    prepared = prepare(experiment, alone)
    schedule = make_untimed(prepared, alone)
    for number in (1, 2):
        round = Round(
            schedule.plan(number), alone, prepared, prepared.initial_server_state
        )
        play(round, TRAINING)
        result = conclude(round, schedule.get_times(number))
    model = prepared.setup.layout.width
    uploads = result.numbers.clients.columns["clients/floats_up"]
    down = result.measured["floats_down"]
    up = float(uploads.mean())
    return Traffic(down / model, up / model, _evaluate_formula(method, prepared))


def _evaluate_formula(method: str, prepared: Prepared) -> tuple[str, float] | None:
    """Return the formula of FedALA's Table 3 and its value in this experiment."""
    if method not in FEDALA_TABLE_3:
        return None
    formula, value = FEDALA_TABLE_3[method]
    layout = prepared.setup.layout
    body = layout.columns("body")
    body_share = (body.stop - body.start) / layout.width
    return formula, value(body_share, CLIENTS)


def insert_table(page: str) -> str:
    """Return the page with the counts of all methods between its two comments."""
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    lines = ["| method | down | up |", "|---|---:|---:|"]
    for method in plugins.list_names("hpcfl.methods"):
        counted = count(method)
        lines.append(f"| `{method}` | {counted.down:.2f} | {counted.up:.2f} |")
    table = "\n".join(lines)
    return f"{before}{BEGIN}\n{table}\n\n{END}{after}"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(insert_table(text), encoding="utf-8")
