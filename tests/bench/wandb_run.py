"""Writes a run with wandb, offline: ten metrics per step.

usage: wandb_run.py FOLDER STEPS
"""

import math
import sys

import wandb

folder, steps = sys.argv[1], int(sys.argv[2])
settings = wandb.Settings(console="off", x_disable_stats=True)
with wandb.init(project="bench", mode="offline", dir=folder, settings=settings) as run:
    for step in range(1, steps + 1):
        loss = 1 / (1 + step / 9000) + 0.05 * math.sin(step * 0.7)
        run.log({"loss": loss, **{f"metric_{i}": loss * i for i in range(9)}}, step=step)
