"""Measures the console on made-up nodes, in a pseudo-terminal, with Python's standard library only.

usage: nodes.py SECONDS VIDTUI ARGS...

Prints one JSON object: the CPU that the console uses while its Nodes screen is shown, as a share of one core, and its
peak memory.
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

measure_s, argv = float(sys.argv[1]), sys.argv[2:]


def cpu_s(pid):
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib(pid):
    lines = open(f"/proc/{pid}/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


pid, terminal = pty.fork()
if pid == 0:
    os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", LC_ALL="C.UTF-8")
    # The default settings, and no screen of an earlier round.
    os.environ.update(XDG_CONFIG_HOME="/nonexistent", XDG_STATE_HOME="/dev/null")
    os.execv(argv[0], argv)
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 48, 160, 0, 0))
seen = b""


def pump(until, wanted=None):
    """Reads the output, and answers the query for the cursor position."""
    global seen
    while time.perf_counter() < until and not (wanted and wanted in seen):
        if select.select([terminal], [], [], 0.1)[0]:
            piece = os.read(terminal, 65536)
            if b"\x1b[6n" in piece:
                os.write(terminal, b"\x1b[1;1R")
            seen = (seen + piece)[-200000:]


try:
    pump(time.perf_counter() + 20, b"help")
    os.write(terminal, b"3")
    pump(time.perf_counter() + 20, b"sim0001")
    if b"sim0001" not in seen:
        sys.exit(f"the console did not show the nodes; it printed {seen[-2000:]!r}")
    pump(time.perf_counter() + 4)
    before, began = cpu_s(pid), time.perf_counter()
    pump(began + measure_s)
    used = (cpu_s(pid) - before) / (time.perf_counter() - began)
    peak = peak_mib(pid)
finally:
    os.kill(pid, signal.SIGTERM)
    os.waitpid(pid, 0)
print(json.dumps({"cpu": used, "peak_mib": peak}))
