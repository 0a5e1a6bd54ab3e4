"""PyTorch's side of the training benchmark: diffusers' CogVideoX transformer with gradient checkpointing and AdamW.

usage: train.py THREADS STEPS                                one process
       torchrun --standalone --nproc-per-node N train.py THREADS STEPS fsdp|tp    FSDP2 or parallelize_module over gloo

Prints one JSON object: seconds of every step (forward, backward, clip, optimizer) and the peak resident memory in GiB.
"""

import json
import os
import resource
import sys
import time

import torch
from cogvideox import LATENT, TEXT, network, rotary
from torch.distributed.tensor import DTensor

threads, steps = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(threads)
torch.manual_seed(0)
model = network()
parameters = sum(p.numel() for p in model.parameters())
model.enable_gradient_checkpointing()
rank = int(os.environ.get("RANK", "0"))
if int(os.environ.get("WORLD_SIZE", "1")) > 1:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if sys.argv[3] == "fsdp":
        for block in model.transformer_blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        columns = ["attn1.to_q", "attn1.to_k", "attn1.to_v", "ff.net.0.proj"]
        plan = {name: ColwiseParallel() for name in columns}
        plan |= {name: RowwiseParallel() for name in ["attn1.to_out.0", "ff.net.2"]}
        for block in model.transformer_blocks:
            parallelize_module(block, mesh, plan)
            block.attn1.heads //= dist.get_world_size()
# Split and whole tensors are separate groups, because one operation cannot process both.
split = [p for p in model.parameters() if isinstance(p, DTensor)]
whole = [p for p in model.parameters() if not isinstance(p, DTensor)]
groups = [group for group in (split, whole) if group]
optimizer = torch.optim.AdamW(
    [{"params": group} for group in groups], lr=1e-4, betas=(0.9, 0.95), weight_decay=1e-4, foreach=True
)


def clip(limit):
    """Clips the norm of the whole gradient."""
    norms = [torch.nn.utils.get_total_norm([p.grad for p in group], foreach=True) for group in groups]
    norms = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    total = torch.linalg.vector_norm(torch.stack(norms))
    for group in groups:
        torch.nn.utils.clip_grads_with_norm_(group, limit, total, foreach=True)


positions, latent, text = rotary(), torch.randn(LATENT), torch.randn(TEXT)
seconds = []
for _ in range(steps):
    start = time.perf_counter()
    noise = torch.randn_like(latent)
    timestep = torch.randint(0, 1000, (1,))
    output = model(latent + noise, text, timestep, image_rotary_emb=positions, return_dict=False)[0]
    (output - noise).square().mean().backward()
    clip(1.0)
    optimizer.step()
    optimizer.zero_grad()
    seconds.append(time.perf_counter() - start)
peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
if rank == 0:
    print(json.dumps({"step_s": seconds, "peak_gib": peak_gib, "parameters": parameters}))
