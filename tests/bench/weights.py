"""The converter benchmark: makes weights, converts them in the straightforward way, and measures any command.

  weights.py make FOLDER              a CogVideoX-2B of 35 layers in bfloat16, as diffusers saves it
  weights.py convert FOLDER TARGET    load, rename, save
  weights.py measure cold|warm FOLDER -- COMMAND...    seconds and peak memory of a command, as JSON
"""

import json
import os
import re
import resource
import subprocess
import sys
import time


def make(folder):
    import torch
    from diffusers import CogVideoXTransformer3DModel

    torch.manual_seed(1)
    with torch.device("meta"):
        model = CogVideoXTransformer3DModel(num_layers=35).to(torch.bfloat16)
    model = model.to_empty(device="cpu")
    with torch.no_grad():
        noise = torch.randn(1 << 22).to(torch.bfloat16)
        for p in model.parameters():
            p.copy_(noise.repeat(-(-p.numel() // noise.numel()))[: p.numel()].view_as(p))
    model.save_pretrained(folder, max_shard_size="2GB")


RENAMES = [
    (r"^patch_embed\.proj\.", "patch_embed.video."),
    (r"^patch_embed\.text_proj\.", "patch_embed.text."),
    (r"^time_embedding\.linear_", "time_embed.linear"),
    (r"^norm_final\.", "final.norm."),
    (r"^norm_out\.", "final.adaln."),
    (r"^proj_out\.", "final.proj."),
    (r"^transformer_blocks\.", "blocks."),
    (r"\.attn1\.to_out\.0\.", ".attn.o."),
    (r"\.attn1\.to_([qkv])\.", r".attn.\1."),
    (r"\.attn1\.norm_([qk])\.", r".attn.\1_norm."),
    (r"\.ff\.net\.0\.proj\.", ".mlp.up."),
    (r"\.ff\.net\.2\.", ".mlp.down."),
]


def convert(folder, target):
    from pathlib import Path

    from safetensors.torch import load_file, save_file

    tensors = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        tensors.update(load_file(file))
    renamed = {}
    for name, tensor in tensors.items():
        for pattern, new in RENAMES:
            name = re.sub(pattern, new, name)
        renamed[name] = tensor
    Path(target).mkdir()
    save_file(renamed, Path(target) / "model.safetensors")


def forget(folder):
    """Drops the files of a folder from the page cache."""
    for name in os.listdir(folder):
        fd = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def remember(folder):
    """Reads the files of a folder into the page cache."""
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file:
            while file.read(1 << 24):
                pass


def measure(cache, folder, command):
    os.sync()
    (forget if cache == "cold" else remember)(folder)
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(json.dumps({"s": seconds, "peak_mib": peak / 1024}))


match sys.argv[1:]:
    case ["make", folder]:
        make(folder)
    case ["convert", folder, target]:
        convert(folder, target)
    case ["measure", ("cold" | "warm") as cache, folder, "--", *command]:
        measure(cache, folder, command)
    case _:
        sys.exit(__doc__)
