"""PyTorch's side of the TTT benchmark: a TTT-MLP layer in eager mode with autograd.

usage: ttt.py THREADS ROUNDS

One Python loop over mini-batches, in checkpointed groups of 16 as the reference trains. Prints one JSON object: seconds
of each forward plus backward pass, the growth of the peak resident memory in GiB, and the norms of the output and of the
gradients of the input and of every parameter.
"""

import json
import resource
import sys
import time

import torch
from ttt_layer import FRAMES, PATCHES, SEGMENTS, WIDTH, Ttt

threads, rounds = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(threads)
# With this many text tokens there are 64 mini-batches.
TEXT = 576


def fill(tensor, number, width, centre=0.0):
    """Sets the same numbers as `layer_speed.rs`: hashes of their indices, spread evenly around a centre."""
    first = number * 10_000_019
    # In parts, so that the peak memory before the first pass equals the memory that stays in use.
    for part in tensor.view(-1).split(1 << 16):
        i = torch.arange(first, first + len(part))
        part.copy_(((i * i * 2654435761) % 2**32).double() / 2**32 * width + (centre - width / 2))
        first += len(part)


layer = Ttt(TEXT, group=16)
# In the order of the trainer's table.
parameters = [p for each in (layer.wq, layer.wk, layer.wv, layer.wo) for p in (each.weight, each.bias)]
parameters += [layer.lr_weight, layer.lr_bias, layer.gain, layer.bias, layer.post_norm.weight, layer.post_norm.bias]
parameters += [layer.w1, layer.b1, layer.w2, layer.b2]
x, pull = (torch.empty(1, SEGMENTS * TEXT + FRAMES * PATCHES, WIDTH) for _ in range(2))
with torch.no_grad():
    fill(x, 0, 2.0)
    fill(pull, 1, 2.0)
    for number, parameter in enumerate(parameters, 2):
        fill(parameter, number, 0.07, 1.0 if parameter is layer.gain or parameter is layer.post_norm.weight else 0.0)
leaves = [x.requires_grad_(), *parameters]
before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
seconds = []
for _ in range(rounds):
    start = time.perf_counter()
    out = layer(x)
    grads = torch.autograd.grad(out, leaves, pull)
    seconds.append(time.perf_counter() - start)
    norms = [each.norm().item() for each in (out, *grads)]
    del out, grads
peak_gib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 2**20
print(json.dumps({"step_s": seconds, "peak_gib": peak_gib, "norms": norms}))
