"""Reference for small dense models: FedAvg of 784-64-10 or 64-32-10 as an expert would
write it for exactly this experiment, in one process with one thread.

All clients train together with batched products. Gradients are written by hand and
added to the weights inside the product (``baddbmm_``), so that no gradient of a weight
is stored. One ``argsort`` draws the orders of all clients. All clients have the same
number of samples, a multiple of the batch size.
"""

import argparse
import json
import time

import torch
from workloads import ROOT_OPTIONS, Workload, load

torch.set_num_threads(1)


def main():
    options = argparse.ArgumentParser(parents=[ROOT_OPTIONS]).parse_args()
    workload = load(options.folder)
    parameters = [tensor.detach() for tensor in workload.model().parameters()]
    pools = torch.stack(workload.train)
    wall, processor = [], []
    for _ in range(options.rounds + 1):
        begun = time.perf_counter(), time.process_time()
        parameters = play_round(parameters, workload, pools)
        wall.append(time.perf_counter() - begun[0])
        processor.append(time.process_time() - begun[1])
    print(json.dumps({"rounds": wall[1:], "cpu": processor[1:]}))


def play_round(
    start: list[torch.Tensor], workload: Workload, pools: torch.Tensor
) -> list[torch.Tensor]:
    """Train all clients, with samples ``pools`` [L, n], and return the mean model."""
    lanes, samples = pools.shape
    size, rate = workload.batch_size, workload.lr / workload.batch_size
    lower, lower_bias, upper, upper_bias = (
        tensor.expand(lanes, *tensor.shape).clone() for tensor in start
    )
    for _ in range(workload.epochs):
        order = pools.gather(1, torch.rand(lanes, samples).argsort(dim=1))
        x, y = workload.x[order].flatten(2), workload.y[order]
        for first in range(0, samples, size):
            inputs, labels = x[:, first : first + size], y[:, first : first + size]
            hidden = torch.baddbmm(lower_bias[:, None], inputs, lower.mT).relu_()
            slope = torch.baddbmm(upper_bias[:, None], hidden, upper.mT).softmax(2)
            slope.scatter_add_(2, labels[..., None], torch.full((lanes, size, 1), -1.0))
            below = (slope @ upper).masked_fill_(hidden == 0, 0)
            upper.baddbmm_(slope.mT, hidden, alpha=-rate)
            upper_bias.sub_(slope.sum(1), alpha=rate)
            lower.baddbmm_(below.mT, inputs, alpha=-rate)
            lower_bias.sub_(below.sum(1), alpha=rate)
    return [tensor.mean(0) for tensor in (lower, lower_bias, upper, upper_bias)]


if __name__ == "__main__":
    main()
