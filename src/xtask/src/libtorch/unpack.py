"""Unpacks from PyTorch's wheels what a program for the CPU needs: unpack.py FOLDER WHEEL...

The wheels are builds for CUDA. Their libtorch_cpu.so needs two small libraries of CUDA to load, and no GPU.
"""

import pathlib
import shutil
import sys
import zipfile

# Parts of libraries' names: these need CUDA or Python, or (libtorch.so) need those that do.
LEFT_OUT = ("cuda", "nvrtc", "nvshmem", "python", "libshm", "libtorch.so", "global_deps")
FROM_CUDA = ("libcudart.so.13", "libcupti.so.13")


def place(name):
    """Returns where a wheel's file goes, or None."""
    path = pathlib.PurePosixPath(name)
    if name.startswith("torch/include/"):
        return path.relative_to("torch")
    if path.parent == pathlib.PurePosixPath("torch/lib") and ".so" in path.name:
        return None if any(part in path.name for part in LEFT_OUT) else path.relative_to("torch")
    if name.startswith("nvidia/") and path.name in FROM_CUDA:
        return pathlib.PurePosixPath("lib", path.name)
    return None


def main(folder, *wheels):
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                to = None if entry.is_dir() else place(entry.filename)
                if to:
                    to = pathlib.Path(folder, to)
                    to.parent.mkdir(parents=True, exist_ok=True)
                    with archive.open(entry) as source, open(to, "wb") as target:
                        shutil.copyfileobj(source, target, 1 << 20)


main(*sys.argv[1:])
