"""PyTorch's side of the comparison of training steps on a GPU: diffusers' CogVideoX transformer with torch.compile.

usage: gpu_step.py MODEL LAYERS STEPS [DEVICE]      MODEL is `52m` or `5b`

Weights and AdamW are in fp32, and autocast computes in bf16, which is the mixed precision of `train.dtype = "bfloat16"`. Nothing is
recomputed. Prints one JSON object: seconds of every step (forward, backward, clip, optimizer), the peak of tensors in GiB, and the
number of parameters. The first step compiles.
"""

import json
import sys
import time

import torch
from cogvideox import latent_shape, network, rotary, text_shape

size, layers, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
device = sys.argv[4] if len(sys.argv) > 4 else "cuda"
torch.manual_seed(0)
model = network(size, layers).to(device)
positions = [each.to(device) for each in rotary(size)]
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=1e-4, fused=device != "cpu")
latent, text = (torch.randn(shape(size), device=device) for shape in (latent_shape, text_shape))
compiled = torch.compile(model, dynamic=False)
seconds = []
for _ in range(steps):
    start = time.perf_counter()
    noise = torch.randn_like(latent)
    timestep = torch.randint(0, 1000, (1,), device=device)
    with torch.autocast(device, torch.bfloat16):
        output = compiled(latent + noise, text, timestep, image_rotary_emb=positions, return_dict=False)[0]
    (output.float() - noise).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad()
    if device != "cpu":
        torch.cuda.synchronize()
    seconds.append(time.perf_counter() - start)
peak_gib = torch.cuda.max_memory_allocated() / 2**30 if device != "cpu" else 0
parameters = sum(p.numel() for p in model.parameters())
print(json.dumps({"step_s": seconds, "peak_gib": peak_gib, "parameters": parameters}))
