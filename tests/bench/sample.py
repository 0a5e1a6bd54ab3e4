"""diffusers' side of the benchmark of sampling: CogVideoX's transformer and DDIM scheduler, with classifier-free guidance.

usage: sample.py make FOLDER
       sample.py run FOLDER THREADS SAMPLES

`make` writes a transformer of 51.8 million random parameters, a latent of pure noise of 13 frames of 16 x 24, and two texts of 64 tokens.
`run` samples it in 1 step, which is a warm-up, and then in 10, as the pipelines do. It prints one JSON object: seconds and CPU seconds of
each sample, the peak resident memory and its growth from before the model is loaded, in GiB, and the norm of the last latent.
"""

import json
import resource
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

what, folder = sys.argv[1], Path(sys.argv[2])
STEPS, GUIDANCE = 10, 6.0


def make():
    from cogvideox import network

    torch.manual_seed(1)
    model = network()
    model.save_pretrained(folder / "transformer")
    save_file({"latent": torch.randn(1, 13, 16, 16, 24), "texts": torch.randn(2, 64, 512)}, folder / "inputs.safetensors")


def peak_gib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def run(threads, samples):
    from diffusers import CogVideoXDDIMScheduler, CogVideoXTransformer3DModel
    from cogvideox import rotary

    torch.set_num_threads(threads)
    inputs = load_file(folder / "inputs.safetensors")
    before_gib = peak_gib()
    model = CogVideoXTransformer3DModel.from_pretrained(folder / "transformer", low_cpu_mem_usage=False).eval()
    scheduler = CogVideoXDDIMScheduler(
        prediction_type="v_prediction", rescale_betas_zero_snr=True, snr_shift_scale=1.0, timestep_spacing="trailing"
    )
    positions = rotary()
    seconds, cpu = [], []
    with torch.no_grad():
        for steps in [1] + [STEPS] * samples:
            start, busy = time.perf_counter(), time.process_time()
            latent = inputs["latent"]
            scheduler.set_timesteps(steps)
            for timestep in scheduler.timesteps:
                both = torch.cat([latent] * 2)
                velocity = model(both, inputs["texts"], timestep.expand(2), image_rotary_emb=positions, return_dict=False)[0]
                without, text = velocity.float().chunk(2)
                velocity = without + GUIDANCE * (text - without)
                latent = scheduler.step(velocity, timestep, latent, return_dict=False)[0]
            seconds.append(time.perf_counter() - start)
            cpu.append(time.process_time() - busy)
    peak = peak_gib()
    norms = [latent.norm().item()]
    print(json.dumps({"step_s": seconds, "cpu_s": cpu, "peak_gib": peak, "growth_gib": peak - before_gib, "norms": norms}))


if what == "make":
    make()
else:
    run(int(sys.argv[3]), int(sys.argv[4]))
