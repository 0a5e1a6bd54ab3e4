"""PyTorch's side of the comparison of TTT-MLP's scan on a GPU: the formulas in eager mode, and compiled with torch.compile.

usage: gpu_scan.py [DEVICE [HEADS [MINI_BATCHES]]]

All tensors are bf16, the state too. The backward pass recomputes groups of 16 mini-batches, as the reference does. Prints one JSON
object: microseconds per mini-batch over all heads for the forward pass alone and for forward and backward.
"""

import json
import sys
import time

import torch
import ttt_layer
from torch.utils.checkpoint import checkpoint

device, heads, batches = (sys.argv[1:] + ["cuda", "48", "282"][len(sys.argv) - 1 :])[:3]
heads, batches = int(heads), int(batches)
HEAD, BATCH, GROUP, ROUNDS = ttt_layer.HEAD, ttt_layer.BATCH, 16, 3
torch.manual_seed(0)


def leaf(*size):
    return (torch.randn(size, device=device) * 0.1).to(torch.bfloat16).requires_grad_()


q, k, target = (leaf(1, heads, batches, BATCH, HEAD) for _ in range(3))
eta = leaf(1, heads, batches, BATCH, 1)
gain, bias = leaf(heads, 1, HEAD), leaf(heads, 1, HEAD)
state = [leaf(heads, HEAD, 4 * HEAD), leaf(heads, 1, 4 * HEAD), leaf(heads, 4 * HEAD, HEAD), leaf(heads, 1, HEAD)]
leaves = [q, k, target, eta]


def forward():
    parts, outs = state, []
    for group in zip(*(each.split(GROUP, 2) for each in leaves), strict=True):
        out, *parts = checkpoint(ttt_layer.scan, *group, gain, bias, *parts, use_reentrant=False)
        outs.append(out)
    return torch.cat(outs, 2)


def without_graph():
    with torch.no_grad():
        forward()


def with_backward():
    torch.autograd.grad(forward().sum(), leaves)


def best_us(run):
    run()
    seconds = []
    for _ in range(ROUNDS):
        wait()
        start = time.perf_counter()
        run()
        wait()
        seconds.append(time.perf_counter() - start)
    return min(seconds) * 1e6 / batches


def wait():
    if device != "cpu":
        torch.cuda.synchronize()


times = {"eager_forward_us": best_us(without_graph), "eager_both_us": best_us(with_backward)}
ttt_layer.mini_batch = torch.compile(ttt_layer.mini_batch, dynamic=False)
times |= {"compiled_forward_us": best_us(without_graph), "compiled_both_us": best_us(with_backward)}
print(json.dumps(times))
