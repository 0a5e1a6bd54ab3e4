"""Writes and loads a run with TensorBoard's own code: ten scalars per step.

usage: tensorboard_run.py write FOLDER STEPS
       tensorboard_run.py load FOLDER

`load` prints one JSON object: the seconds of TensorBoard's loader until it has every point, and the memory of its process in MiB.
"""

import json
import math
import os
import sys
import time

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.summary.writer.event_file_writer import EventFileWriter


def write(folder, steps):
    writer = EventFileWriter(folder)
    for step in range(1, steps + 1):
        loss = 1 / (1 + step / 9000) + 0.05 * math.sin(step * 0.7)
        numbers = {"loss": loss, **{f"metric_{i}": loss * i for i in range(9)}}
        values = [summary_pb2.Summary.Value(tag=tag, simple_value=number) for tag, number in numbers.items()]
        summary = summary_pb2.Summary(value=values)
        writer.add_event(event_pb2.Event(wall_time=1.7636e9 + step, step=step, summary=summary))
    writer.close()


def load(folder):
    began = time.perf_counter()
    # Zero keeps every point, as the console does. By default, TensorBoard keeps a sample of 10,000.
    loader = EventAccumulator(folder, size_guidance={"scalars": 0})
    loader.Reload()
    points = sum(len(loader.Scalars(tag)) for tag in loader.Tags()["scalars"])
    took = time.perf_counter() - began
    pages = int(open("/proc/self/statm").read().split()[1])
    print(json.dumps({"loaded_s": took, "points": points, "memory_mib": pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)}))


if sys.argv[1] == "write":
    write(sys.argv[2], int(sys.argv[3]))
else:
    load(sys.argv[2])
