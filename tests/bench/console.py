"""Measures the console in a pseudo-terminal, with Python's standard library only.

usage: console.py IDLE_SECONDS VIDTUI ARGS...

Prints one JSON object: seconds from the program's start to its first frame, to the first frame that shows the run's
last step, its CPU use while idle as a share of one core, and the CPU of one frame of moving pictures.
"""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

idle_s, argv = float(sys.argv[1]), sys.argv[2:]
FPS = 30
# The last step of the long run, as the console prints it.
LAST = [b"100,000", b"100000", b"100 000"]


def cpu_s(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


start = time.perf_counter()
pid, terminal = pty.fork()
if pid == 0:
    os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", LC_ALL="C.UTF-8")
    # The default settings, and no screen of an earlier round.
    os.environ.update(XDG_CONFIG_HOME="/dev/null", XDG_STATE_HOME="/dev/null")
    os.execv(argv[0], argv)
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 150, 0, 0))
seen, first, shown = b"", None, None


def pump(wait_s):
    """Reads the output, and answers the query for the cursor position."""
    global seen
    if not select.select([terminal], [], [], wait_s)[0]:
        return False
    piece = os.read(terminal, 65536)
    if b"\x1b[6n" in piece:
        os.write(terminal, b"\x1b[1;1R")
    seen += piece
    return True


try:
    while shown is None and time.perf_counter() - start < 20:
        pump(0.05)
        now = time.perf_counter() - start
        if first is None and b"help" in seen:
            first = now
        if any(last in seen for last in LAST):
            shown = now
    if first is None or shown is None:
        sys.exit(f"the console did not show the run; it printed {seen[-2000:]!r}")
    settle = time.perf_counter() + 2
    while time.perf_counter() < settle:
        pump(0.1)
    before = cpu_s(pid)
    until = time.perf_counter() + idle_s
    while time.perf_counter() < until:
        pump(0.1)
    used = (cpu_s(pid) - before) / idle_s
    # The samples of the run: videos of 30 frames a second.
    os.write(terminal, b"\r")
    settle = time.perf_counter() + 1
    while time.perf_counter() < settle:
        pump(0.1)
    os.write(terminal, b"v")
    settle = time.perf_counter() + 4
    while time.perf_counter() < settle:
        pump(0.1)
    before, began, seen = cpu_s(pid), time.perf_counter(), b""
    while time.perf_counter() - began < idle_s:
        pump(0.1)
    moving_s, moving_cpu_s = time.perf_counter() - began, cpu_s(pid) - before
    if len(seen) < 1 << 20:
        sys.exit("the pictures of the sample did not move")
finally:
    os.kill(pid, signal.SIGTERM)
    # Pictures fill the terminal's buffer. The console ends only after its last frame is read.
    os.close(terminal)
    os.waitpid(pid, 0)
print(json.dumps({"first_frame_s": first, "run_shown_s": shown, "idle_cpu": used, "frame_cpu_s": moving_cpu_s / (FPS * moving_s)}))
