"""Writes a run with wandb, offline: ten metrics per step.

usage: wandb_run.py FOLDER STEPS [STEPS_PER_SECOND]
"""

import math
import sys
import time

import wandb

folder, steps = sys.argv[1], int(sys.argv[2])
pause = 1 / float(sys.argv[3]) if len(sys.argv) > 3 else 0
settings = wandb.Settings(console="off", x_disable_stats=True)
with wandb.init(project="bench", mode="offline", dir=folder, settings=settings) as run:
    for step in range(1, steps + 1):
        loss = 1 / (1 + step / 9000) + 0.05 * math.sin(step * 0.7)
        run.log({"loss": loss, **{f"metric_{i}": loss * i for i in range(9)}}, step=step)
        time.sleep(pause)
