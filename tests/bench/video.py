"""Probes and decodes clips as Python trainers do, for `cargo xtask bench video`.

usage: video.py probe|list FOLDER WORKERS
       video.py decode CLIP FRAMES FPS WIDTH HEIGHT PASSES

Prints one JSON object. `probe` and `list` run ffprobe for each file, as many at a time as there are workers; `list` reads the times of
all frames too. `decode` takes the frames nearest to every 1 / FPS seconds with PyAV and makes a tensor [F, H, W, 3] of them.
"""

import bisect
import json
import os
import subprocess
import sys
import time


def probe(folder, workers, packets):
    from concurrent.futures import ThreadPoolExecutor

    files = sorted(os.path.join(folder, name) for name in os.listdir(folder))
    more = ["-show_entries", "packet=pts,flags"] if packets else []

    def one(path):
        command = ["ffprobe", "-v", "error", "-select_streams", "v", "-show_streams", "-show_format", *more, "-of", "json"]
        told = json.loads(subprocess.run([*command, path], capture_output=True, check=True).stdout)
        times = sorted(packet["pts"] for packet in told.get("packets", []))
        return float(told["streams"][0]["duration"]), len(times)

    began = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(one, files))
    took = time.perf_counter() - began
    return {
        "s": took,
        "clips": len(found),
        "hours": sum(s for s, _ in found) / 3600,
        "frames": sum(frames for _, frames in found),
    }


def nearest(times, wanted):
    after = bisect.bisect_left(times, wanted)
    around = [i for i in (after - 1, after) if 0 <= i < len(times)]
    return min(around, key=lambda i: abs(times[i] - wanted))


def frames_of(path, count, fps, width, height):
    """Two passes: the times of all packets, then the chosen frames."""
    import av
    import numpy
    import torch

    with av.open(path) as container:
        stream = container.streams.video[0]
        times = sorted(packet.pts for packet in container.demux(stream) if packet.pts is not None)
        base = stream.time_base
    seconds = [float(pts * base) for pts in times]
    chosen = {times[nearest(seconds, seconds[0] + i / fps)] for i in range(count)}
    out = numpy.empty((count, height, width, 3), numpy.uint8)
    with av.open(path) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        found = 0
        for frame in container.decode(stream):
            if frame.pts in chosen:
                # The scale that covers the picture, then its middle, as the other side does.
                scale = max(width / frame.width, height / frame.height)
                w, h = max(width, round(frame.width * scale)), max(height, round(frame.height * scale))
                image = frame.reformat(width=w, height=h, format="rgb24", interpolation="BICUBIC").to_ndarray()
                x, y = (w - width) // 2, (h - height) // 2
                out[found] = image[y : y + height, x : x + width]
                found += 1
                if found == count:
                    break
    assert found == count, f"{found} of {count} frames"
    return torch.from_numpy(out)


def decode(path, count, fps, width, height, passes):
    seconds = []
    for _ in range(passes):
        began = time.perf_counter()
        tensor = frames_of(path, count, fps, width, height)
        seconds.append(time.perf_counter() - began)
    return {"s": seconds[1:], "mean": tensor.double().mean().item()}


verb, rest = sys.argv[1], sys.argv[2:]
if verb == "decode":
    clip, count, fps, width, height, passes = rest
    result = decode(clip, int(count), float(fps), int(width), int(height), int(passes))
else:
    result = probe(rest[0], int(rest[1]), verb == "list")
print(json.dumps(result))
