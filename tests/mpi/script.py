"""A user's script that every rank runs: ``script.py HOW FOLDER``."""

import os
import sys

import hpcfl
from hpcfl import api

how, folder = sys.argv[1:]
if how in ("raises first", "raises with MPI", "leaves"):
    api.PREPARING = 1.0
rank = int(os.environ["PMI_RANK"])


def run(name="run", **sections):
    return hpcfl.run(
        {
            "name": name,
            "rounds": 1,
            "data": {"dataset": "tiny:blobs", "samples": 60},
            "partition": {"scheme": "iid", "clients": 4},
            "model": {"hidden": [4]},
            "method": {"name": "fedavg"},
            "runtime": {"device": "cpu", "hang_after": 2.0},
            **sections,
        },
        out=f"{folder}/{name}",
        progress=False,
    )


if how == "seed":
    run(seed=rank)
if how == "sweep":
    run(sweep={"training.lr": [0.1, 0.2][: rank + 1]})
if how == "variable":
    os.environ["MKL_CBWR"] = ["AUTO,STRICT", "AVX2"][rank]
if how == "file":
    own = f"{folder}-{rank}"
    os.makedirs(own)
    with open(f"{own}/of_rank.py", "w") as file:
        file.write(f"from hpcfl.methods.fedavg import FedAvg as Own\nRANK = {rank}\n")
    sys.path.insert(0, own)
    run(method={"name": "of_rank:Own"})
if how == "raises first" and rank == 1:
    raise ValueError("one rank has failed")
if how == "raises with MPI":
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 1:
        raise ValueError("one rank has failed")
if how == "leaves" and rank == 1:
    sys.exit()
if how == "raises later":
    run("first")
    if rank == 1:
        raise ValueError("one rank has failed")
print(f"done, {run().summary.state}")
