"""Cost of many clients per round for the server, measured with FedAvg on tiny data with
real models.

``python tests/benchmarks/scale.py`` writes ``results/benchmarks/scale.json`` and the
table in ``scale.md``.

``--only MODEL CLIENTS RANKS`` measures one cell. Each cell is ``round_times.py`` on one
round after a warm-up round. Every client trains on two random images, 3×32×32, so that
the models dominate the cost.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pages

CELLS = [
    *(
        ("cnn", clients, ranks)
        for clients in (100, 1000, 10_000)
        for ranks in (1, 2, 4, 8)
    ),
    *(
        ("resnet18", clients, ranks)
        for clients in (100, 1000)
        for ranks in (1, 2, 4, 8)
    ),
]
MEMORY = 1000  # MB of models that a rank may hold in memory; the rest is in files
PHASES = ("send", "train", "gather", "aggregate")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs=3, metavar=("MODEL", "CLIENTS", "RANKS"))
    only = parser.parse_args().only
    path = pages.RESULTS / "scale.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for model, clients, ranks in (
        [(only[0], int(only[1]), int(only[2]))] if only else CELLS
    ):
        found[f"{model} {clients} {ranks}"] = measure(model, clients, ranks)
        path.write_text(json.dumps(found, indent=1) + "\n")
        print(
            model,
            clients,
            ranks,
            json.dumps(found[f"{model} {clients} {ranks}"]),
            flush=True,
        )
        write(found)


def measure(model: str, clients: int, ranks: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        random = np.random.default_rng(0)
        images = random.integers(0, 256, (3 * clients, 3, 32, 32), np.uint8)
        np.savez(f"{folder}/images.npz", x=images, y=np.arange(len(images)) % 10)
        Path(folder, "scale.toml").write_text(f"""
rounds = 1000
[data]
dataset = "npz"
file = "{folder}/images.npz"
[partition]
scheme = "iid"
clients = {clients}
[model]
name = "{model}"
[method]
name = "fedavg"
[evaluation]
every = 2000
[runtime]
memory = {MEMORY}
""")
        launcher = ["mpiexec", "-n", str(ranks)] if ranks > 1 else []
        command = [
            *launcher,
            sys.executable,
            str(Path(__file__).with_name("round_times.py")),
            f"{folder}/scale.toml",
            "--rounds",
            "1",
            "--json",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr + done.stdout)
    report = json.loads(done.stdout[done.stdout.index("{") :])
    return {
        "seconds": {"round": report["seconds_per_round"], **report["phases"]},
        "MB": report["memory_mb"],
        "MB out": report["mb_down"],
        "MB in": report["mb_up"],
    }


def write(found: dict):
    """Replace the table in ``scale.md``."""
    heads = ["model", "clients", "ranks", "rank 0, MB", "a worker, MB"]
    heads += ["out, MB", "in, MB"]
    heads += [f"{phase}, s" for phase in (*PHASES, "round")]
    rows = []
    for cell, values in found.items():
        model, clients, ranks = cell.split()
        numbers = [
            values["MB"][0],
            max(values["MB"][1:], default=0),
            values["MB out"],
            values["MB in"],
        ]
        seconds = [values["seconds"][name] for name in (*PHASES, "round")]
        cells = [model, f"{int(clients):,}", ranks]
        cells += [f"{number:,.0f}" for number in numbers]
        cells += [f"{number:.3g}" for number in seconds]
        rows.append(cells)
    page = pages.RESULTS / "scale.md"
    pages.replace(page, "scale.py", pages.table(heads, rows))


if __name__ == "__main__":
    main()
