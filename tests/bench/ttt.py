"""PyTorch's side of the TTT benchmark: the inner loop of a TTT-MLP layer in eager mode with autograd.

usage: ttt.py THREADS ROUNDS

One Python loop over mini-batches, in checkpointed groups of 16 as the reference trains. Prints one JSON object: seconds
of each forward plus backward pass, and the peak resident memory in GiB.
"""

import json
import resource
import sys
import time

import torch
from inner_loop import mini_batch
from torch.utils.checkpoint import checkpoint

threads, rounds = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(threads)
torch.manual_seed(0)
HEADS, WIDTH, BATCH, BATCHES, GROUP = 8, 64, 64, 64, 16


def group(q, k, target, eta, gamma, beta, w1, b1, w2, b2):
    outs = []
    # Taken apart at once: the gradient of a slice would be as large as the whole, for each mini-batch.
    for qi, ki, target_i, eta_i in zip(*(each.unbind(1) for each in (q, k, target, eta)), strict=True):
        out, w1, b1, w2, b2 = mini_batch(qi, ki, target_i, eta_i, gamma, beta, w1, b1, w2, b2)
        outs.append(out)
    return torch.stack(outs, 1), w1, b1, w2, b2


def leaf(*shape, scale=1.0):
    return (torch.randn(*shape) * scale).requires_grad_()


q, k, target = (leaf(HEADS, BATCHES, BATCH, WIDTH, scale=0.125) for _ in range(3))
eta = (torch.rand(HEADS, BATCHES, BATCH, 1) * 2e-5).requires_grad_()
gamma, beta = leaf(HEADS, 1, WIDTH), leaf(HEADS, 1, WIDTH)
state = [leaf(HEADS, WIDTH, 4 * WIDTH, scale=0.02), leaf(HEADS, 1, 4 * WIDTH, scale=0.02)]
state += [leaf(HEADS, 4 * WIDTH, WIDTH, scale=0.02), leaf(HEADS, 1, WIDTH, scale=0.02)]
leaves = [q, k, target, eta, gamma, beta, *state]
grad = torch.randn(HEADS, BATCHES, BATCH, WIDTH)
before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
seconds = []
for _ in range(rounds):
    start = time.perf_counter()
    outs, now = [], state
    for i in range(0, BATCHES, GROUP):
        part = slice(i, i + GROUP)
        out, *now = checkpoint(
            group, q[:, part], k[:, part], target[:, part], eta[:, part], gamma, beta, *now, use_reentrant=False
        )
        outs.append(out)
    torch.autograd.grad(torch.cat(outs, 1), leaves, grad)
    seconds.append(time.perf_counter() - start)
peak_gib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 2**20
print(json.dumps({"step_s": seconds, "peak_gib": peak_gib}))
