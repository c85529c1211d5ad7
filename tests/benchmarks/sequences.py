"""How many clients a step has, and samples a second, of models with dropout, with
attention and with recurrent cells: ``python tests/benchmarks/sequences.py`` writes the
table in ``results/benchmarks/sequences.md``.

Each row is ``round_times.py`` on 20 clients in one process with one thread, one client
after the other (``runtime.lanes = 1``), by the rule (``"auto"``), or with 20 lanes.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pages

DIGITS = {"dataset": "digits"}
MODELS = {
    "dropout": (DIGITS, {"name": "dropout_mlp:Net"}),
    "vit": (
        DIGITS,
        {
            "name": "vit",
            "patch": 2,
            "width": 32,
            "depth": 2,
            "heads": 4,
            "head_width": 8,
            "hidden": 64,
        },
    ),
    "char-lstm": (
        {"dataset": "npz", "file": "tokens.npz"},
        {"name": "char-lstm", "hidden": 32},
    ),
}
LANES = ("1", "auto", "20")
ROUNDS = 5
# 64-64-10, of which half of the hidden numbers are dropped in training
DROPOUT_MLP = """
from torch import nn


class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.body = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.5)
        )
        self.head = nn.Linear(64, classes)

    def features(self, x):
        return self.body(x)

    def forward(self, x):
        return self.head(self.features(x))
"""


def main() -> None:
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "dropout_mlp.py").write_text(DROPOUT_MLP)
        random = np.random.default_rng(0)
        tokens = random.integers(0, 80, (2_000, 20))
        np.savez(folder / "tokens.npz", x=tokens, y=random.integers(0, 10, 2_000))
        for model, (data, keys) in MODELS.items():
            table = {
                "rounds": 100,
                "data": data,
                "partition": {"scheme": "iid", "clients": 20},
                "model": keys,
                "method": {"name": "fedavg"},
                "training": {"batch_size": 10},
                "evaluation": {"every": 100},
            }
            file = folder / f"{model}.toml"
            file.write_text(toml(table))
            for lanes in LANES:
                rows.append([model, lanes, *measured(file, lanes)])
    heads = ["model", "lanes", "lanes a step", "seconds of training a round"]
    heads.append("samples a second")
    text = pages.table(heads, rows)
    print(text)
    pages.replace(pages.RESULTS / "sequences.md", "sequences.py", text)


def toml(table: dict) -> str:
    lines = []
    for section, value in table.items():
        if isinstance(value, dict):
            lines.append(f"[{section}]")
            lines += [f"{key} = {json.dumps(one)}" for key, one in value.items()]
        else:
            lines.append(f"{section} = {json.dumps(value)}")
    return "\n".join(lines)


def measured(file: Path, lanes: str) -> list[str]:
    """The cells of one run's row behind the model and the lanes."""
    script = str(Path(__file__).with_name("round_times.py"))
    command = [sys.executable, script, file.name, "--json"]
    command += ["--rounds", str(ROUNDS), "--set", f"runtime.lanes={lanes}"]
    done = subprocess.run(
        command,
        check=True,
        stdout=subprocess.PIPE,
        cwd=file.parent,
    )
    report = json.loads(done.stdout)
    return [
        f"{report['lanes_per_step']:.3g}",
        f"{report['phases']['train']:.3g}",
        f"{report['samples_per_second']:,.0f}",
    ]


if __name__ == "__main__":
    main()
