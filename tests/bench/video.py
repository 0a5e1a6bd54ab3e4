"""Checks and decodes clips as Python trainers do, for `cargo xtask bench video`.

usage: video.py check FOLDER
       video.py decode CLIP FRAMES FPS WIDTH HEIGHT PASSES

Prints one JSON object. `check` takes each video of a folder with its caption, as many at a time as there are cores: it reads the
caption, hashes the video, and runs one ffprobe, which lists the times of all frames. `decode` takes the frames nearest to every
1 / FPS seconds with PyAV and makes a tensor [F, H, W, 3] of them.
"""

import bisect
import json
import os
import subprocess
import sys
import time


def check(folder):
    import hashlib
    from concurrent.futures import ThreadPoolExecutor

    files = sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".mp4"))
    command = ["ffprobe", "-v", "error", "-select_streams", "v", "-show_streams", "-show_format"]
    command += ["-show_entries", "packet=pts,flags", "-of", "json"]

    def one(path):
        with open(os.path.splitext(path)[0] + ".txt") as caption, open(path, "rb") as video:
            text, content = caption.read().strip(), hashlib.file_digest(video, "blake2b").hexdigest()
        probe = json.loads(subprocess.run([*command, path], capture_output=True, check=True).stdout)
        times = sorted(packet["pts"] for packet in probe["packets"])
        return text, content, float(probe["streams"][0]["duration"]), len(times)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(one, files))
    usable = {(text, content) for text, content, _, frames in found if text and frames > 1}
    return {"clips": len(usable), "hours": sum(clip[2] for clip in found) / 3600}


def nearest(times, wanted):
    after = bisect.bisect_left(times, wanted)
    around = [i for i in (after - 1, after) if 0 <= i < len(times)]
    return min(around, key=lambda i: abs(times[i] - wanted))


def frames_of(path, count, fps, width, height):
    """Reads the file twice: first the times of all packets, then the chosen frames."""
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
                # Scale to cover the picture, then crop its middle, as vidtui does.
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
    result = check(rest[0])
print(json.dumps(result))
