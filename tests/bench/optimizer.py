"""torchao's side of the optimizer benchmark: AdamW with 8-bit moments, compiled as torchao does by default.

usage: optimizer.py THREADS STEPS

Updates 12 matrices of 2048 x 2048. Prints one JSON object: seconds of each step, bytes of state per parameter, and the norms of the
matrices after the steps. The first step compiles.
"""

import json
import sys
import time

import torch
from torchao.optim import AdamW8bit

MATRICES, SIDE = 12, 2048
threads, steps = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(threads)


def waves(frequency, matrix):
    """Returns the same numbers as `adamw8_speed.rs`."""
    angles = torch.arange(SIDE * SIDE, dtype=torch.float64) * frequency + matrix
    return angles.sin().float().view(SIDE, SIDE)


params = []
for matrix in range(MATRICES):
    param = torch.nn.Parameter(waves(0.37, matrix) * 0.05)
    param.grad = waves(0.61, matrix) * 1e-3
    params.append(param)
optimizer = AdamW8bit(params, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
seconds = []
for step in range(1, steps + 1):
    for param in params:
        # The sign and size of gradients differ from step to step.
        param.grad.mul_(-1.25 if step % 3 == 0 else 0.9)
    start = time.perf_counter()
    optimizer.step()
    seconds.append(time.perf_counter() - start)


def size(state):
    parts = [state.codes, state.scale] if hasattr(state, "codes") else [state]
    return sum(part.numel() * part.element_size() for part in parts)


moments = ["exp_avg", "exp_avg_sq"]
state = sum(size(optimizer.state[param][moment]) for param in params for moment in moments)
norms = [param.norm().item() for param in params]
print(json.dumps({"step_s": seconds, "bytes_per_parameter": state / (MATRICES * SIDE * SIDE), "norms": norms}))
