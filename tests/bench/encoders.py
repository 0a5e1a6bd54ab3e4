"""diffusers' and transformers' side of the encoders' benchmark.

usage: encoders.py make FOLDER
       encoders.py encode|decode|t5 FOLDER THREADS PASSES

`make` writes a VAE of a quarter of the real channel widths, a T5 v1.1 encoder of the size of T5-base, both with random weights, and
their inputs: 17 frames of 128 x 192, their latent, and 226 tokens. The other commands run one model in eager mode and print one JSON
object: seconds of each pass and of the CPU in it, the peak resident memory and its growth from before the model is loaded, in GiB, and the norms of
the results.
"""

import json
import resource
import sys
import time
from pathlib import Path

import torch

what, folder = sys.argv[1], Path(sys.argv[2])


def make():
    from diffusers import AutoencoderKLCogVideoX
    from safetensors.torch import save_file
    from transformers import T5Config, T5EncoderModel

    torch.manual_seed(1)
    vae = AutoencoderKLCogVideoX(block_out_channels=(32, 64, 64, 128), norm_num_groups=32, latent_channels=16)
    vae.save_pretrained(folder / "vae")
    config = T5Config(
        d_model=768, d_kv=64, d_ff=2048, num_layers=12, num_heads=12, vocab_size=32128, feed_forward_proj="gated-gelu"
    )
    T5EncoderModel(config).save_pretrained(folder / "text_encoder")
    inputs = {
        "encode": torch.rand(1, 3, 17, 128, 192) * 2 - 1,
        "decode": torch.randn(1, 16, 5, 16, 24),
        "t5": torch.randint(3, 32000, (1, 226)),
    }
    save_file(inputs, folder / "inputs.safetensors")


def peak_kib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def run(threads, passes):
    from safetensors.torch import load_file

    torch.set_num_threads(threads)
    given = load_file(folder / "inputs.safetensors")[what]
    if what == "t5":
        from transformers import T5EncoderModel

        before_kib = peak_kib()
        t5 = T5EncoderModel.from_pretrained(folder / "text_encoder").eval()
        compute = lambda: [t5(given).last_hidden_state]
    else:
        from diffusers import AutoencoderKLCogVideoX

        before_kib = peak_kib()
        vae = AutoencoderKLCogVideoX.from_pretrained(folder / "vae").eval()
        if what == "encode":

            def compute():
                distribution = vae.encode(given).latent_dist
                return [distribution.mean, distribution.logvar]
        else:
            compute = lambda: [vae.decode(given).sample]
    seconds, cpu = [], []
    with torch.no_grad():
        for _ in range(passes):
            start, cpu_start = time.perf_counter(), time.process_time()
            results = compute()
            seconds.append(time.perf_counter() - start)
            cpu.append(time.process_time() - cpu_start)
            norms = [each.norm().item() for each in results]
            del results
    peak_gib, growth_gib = peak_kib() / 2**20, (peak_kib() - before_kib) / 2**20
    figures = {"step_s": seconds, "cpu_s": cpu, "peak_gib": peak_gib, "growth_gib": growth_gib, "norms": norms}
    print(json.dumps(figures))


if what == "make":
    make()
else:
    run(int(sys.argv[3]), int(sys.argv[4]))
