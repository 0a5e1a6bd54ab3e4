"""PyTorch's side of the LoRA benchmark: diffusers' CogVideoX transformer with PEFT's adapters of rank 64 on attention, gradient
checkpointing and AdamW, eager.

usage: lora.py THREADS STEPS

Prints one JSON object: seconds of every step (forward, backward, clip, optimizer) and the peak resident memory in GiB.
"""

import json
import resource
import sys
import time

import torch
from cogvideox import LATENT, TEXT, network, rotary
from peft import LoraConfig

threads, steps = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(threads)
torch.manual_seed(0)
model = network().requires_grad_(False)
model.add_adapter(LoraConfig(r=64, lora_alpha=64, target_modules=["to_q", "to_k", "to_v", "to_out.0"]))
model.enable_gradient_checkpointing()
adapters = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(adapters, lr=1e-4, betas=(0.9, 0.95), weight_decay=1e-4, foreach=True)
positions, latent, text = rotary(), torch.randn(LATENT), torch.randn(TEXT)
seconds = []
for _ in range(steps):
    start = time.perf_counter()
    noise = torch.randn_like(latent)
    timestep = torch.randint(0, 1000, (1,))
    output = model(latent + noise, text, timestep, image_rotary_emb=positions, return_dict=False)[0]
    (output - noise).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(adapters, 1.0, foreach=True)
    optimizer.step()
    optimizer.zero_grad()
    seconds.append(time.perf_counter() - start)
peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(json.dumps({"step_s": seconds, "peak_gib": peak_gib, "parameters": sum(p.numel() for p in adapters)}))
