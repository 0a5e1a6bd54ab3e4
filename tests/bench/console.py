"""Measures consoles in a pseudo-terminal, with Python's standard library only.

usage: console.py SCENARIO SECONDS PROGRAM ARGS... [--keys KEYS | --tour KEYS]

The keys are pressed once the first frame is shown. Those of a tour are pressed again and again, one every two seconds.

Prints one JSON object per scenario:

first   opens the console on a folder with a finished run: seconds to the first frame and to the frame with the run's last
        step, CPU and written bytes while idle, and CPU of one frame of a moving picture
loaded  any program that loads a file: seconds until it is loaded, its memory, and its CPU time
keys    a run that is loading: time from a key to its frame; then, on the loaded run, also the CPU of a frame and the number of
        its charts
idle    any program, after it has settled: CPU, memory, and the bytes that it writes to the terminal
growth  memory of a program after a tenth and a quarter of the time and at the end, as means over 20 seconds; and its open files

CPU is in seconds or as a share of one core. Memory is resident memory in MiB.
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

ROWS, COLUMNS = 60, 200
# The last step of the run of the bench, as the console prints it.
LAST = [b"100,000", b"100000", b"100 000"]
FPS = 30
# Titles of charts. One is a part of another, so they are counted with the blank after them.
CHARTS = [
    b"Loss ", b"Learning rate ", b"Gradient norm ", b"Step time ", b"Memory ", b"Weight norm ", b"MFU ", b"Validation loss ",
    b"GPU power ", b"GPU utilization ", b"GPU memory ", b"CPU ",
]
# Keys that add the last metric of the list of panels, CPU, to the charts of a run, and show all of them in a grid.
ALL_CHARTS = [b"m", b"G", b" ", b"c", b"c", b"\x1b"]


class Terminal:
    """A program in a pseudo-terminal."""

    def __init__(self, argv, rows=ROWS, columns=COLUMNS):
        self.started, self.seen, self.written = time.perf_counter(), b"", 0
        self.tour, self.toured = b"", 0.0
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", LC_ALL="C.UTF-8")
            if argv[0].endswith("vidtui"):
                # The default settings, and no screen of an earlier round.
                os.environ.update(XDG_CONFIG_HOME="/nonexistent", XDG_STATE_HOME="/dev/null")
            os.execvp(argv[0], argv)
        self.resize(rows, columns)

    def resize(self, rows, columns):
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def charts(self):
        """Returns the number of charts on the screen, by their titles. A new size makes the console write every cell."""
        self.resize(ROWS - 1, COLUMNS)
        self.pump_for(0.5)
        self.seen = b""
        self.resize(ROWS, COLUMNS)
        self.pump_for(0.5)
        return sum(title in self.seen for title in CHARTS)

    def elapsed(self):
        return time.perf_counter() - self.started

    def pump(self, wait_s):
        """Reads the output, and answers the query for the cursor position."""
        if not select.select([self.terminal], [], [], wait_s)[0]:
            return False
        piece = os.read(self.terminal, 1 << 16)
        if b"\x1b[6n" in piece:
            os.write(self.terminal, b"\x1b[1;1R")
        self.seen = (self.seen + piece)[-(1 << 20) :]
        self.written += len(piece)
        return True

    def pump_for(self, seconds):
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self.pump(max(0.0, min(0.1, until - time.perf_counter())))
            if self.tour and time.perf_counter() - self.toured > 2:
                os.write(self.terminal, self.tour[:1])
                self.tour, self.toured = self.tour[1:] + self.tour[:1], time.perf_counter()

    def wait_for(self, texts, limit_s):
        """Returns the seconds since the start when one of the texts is on the screen."""
        while self.elapsed() < limit_s:
            self.pump(0.05)
            if any(text in self.seen for text in texts):
                return self.elapsed()
        sys.exit(f"{texts} did not appear within {limit_s} s; the program printed {self.seen[-2000:]!r}")

    def processes(self):
        """Returns the program and its descendants. leet, for example, reads files in another process."""
        parents = {}
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                parents[int(name)] = int(open(f"/proc/{name}/stat").read().rsplit(")", 1)[1].split()[1])
            except OSError:
                pass
        found = [self.pid]
        for pid in found:
            found += [child for child, parent in parents.items() if parent == pid]
        return found

    def cpu_s(self):
        """Returns the CPU time of all threads, with the resolution of nanoseconds."""
        total = 0
        for pid in self.processes():
            try:
                for task in os.listdir(f"/proc/{pid}/task"):
                    total += int(open(f"/proc/{pid}/task/{task}/schedstat").read().split()[0])
            except OSError:
                pass
        return total / 1e9

    def main_cpu_s(self):
        """Returns the CPU time of the main thread, which draws the screen of the console."""
        return int(open(f"/proc/{self.pid}/task/{self.pid}/schedstat").read().split()[0]) / 1e9

    def memory_mib(self):
        pages = sum(int(open(f"/proc/{pid}/statm").read().split()[1]) for pid in self.processes())
        return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def key_to_frame_s(self, key, limit_s=1.0):
        """Presses a key. Returns the time to the first output, which is its frame."""
        while self.pump(0):
            pass
        began = time.perf_counter()
        os.write(self.terminal, key)
        while time.perf_counter() - began < limit_s:
            if self.pump(limit_s):
                return time.perf_counter() - began
        return limit_s

    def end(self):
        os.kill(self.pid, signal.SIGTERM)
        # Pictures fill the terminal's buffer. The program ends only after its last frame is read.
        os.close(self.terminal)
        os.waitpid(self.pid, 0)


def p99(values):
    return sorted(values)[int(0.99 * (len(values) - 1))] if values else float("nan")


def first(terminal, seconds):
    frame, shown = None, None
    while shown is None and terminal.elapsed() < 20:
        terminal.pump(0.05)
        if frame is None and b"help" in terminal.seen:
            frame = terminal.elapsed()
        if any(last in terminal.seen for last in LAST):
            shown = terminal.elapsed()
    if frame is None or shown is None:
        sys.exit(f"the console did not show the run; it printed {terminal.seen[-2000:]!r}")
    terminal.pump_for(2)
    before, written = terminal.cpu_s(), terminal.written
    terminal.pump_for(seconds)
    idle, idle_bytes = (terminal.cpu_s() - before) / seconds, terminal.written - written
    # The samples of the run: videos of 30 frames a second.
    os.write(terminal.terminal, b"\r")
    terminal.pump_for(1)
    os.write(terminal.terminal, b"v")
    terminal.pump_for(4)
    before, began, written = terminal.cpu_s(), time.perf_counter(), terminal.written
    terminal.pump_for(seconds)
    moving_s, moving_cpu_s = time.perf_counter() - began, terminal.cpu_s() - before
    if terminal.written - written < 1 << 20:
        sys.exit("the pictures of the sample did not move")
    return {
        "first_frame_s": frame, "run_shown_s": shown, "idle_cpu": idle, "idle_bytes_per_s": idle_bytes / seconds,
        "frame_cpu_s": moving_cpu_s / (FPS * moving_s),
    }


class Load:
    """Finds the time at which a program has loaded its files: from then on, it uses less than 30 % of a core for a second, in
    slices of 50 ms. A frame now and then is less than that."""

    def __init__(self, terminal):
        self.terminal, self.last, self.looked, self.cpu = terminal, terminal.elapsed(), terminal.elapsed(), terminal.cpu_s()

    def is_over(self):
        now = self.terminal.elapsed()
        if now - self.looked >= 0.05:
            cpu = self.terminal.cpu_s()
            if cpu - self.cpu > 0.3 * (now - self.looked):
                self.last = now
            self.looked, self.cpu = now, cpu
        return now - self.last > 1


def loaded(terminal, seconds):
    load = Load(terminal)
    while not load.is_over() and terminal.elapsed() < seconds:
        terminal.pump(0.02)
    return {"loaded_s": load.last, "memory_mib": terminal.memory_mib(), "cpu_s": terminal.cpu_s()}


def keys(terminal, seconds):
    """Opens and closes the help while the run loads, because that frame does not depend on the data. Then shows all charts, and moves
    their cursor, which changes all of them."""
    terminal.wait_for([b"help"], 20)
    load, loading, pressed = Load(terminal), [], 0
    while not load.is_over() and terminal.elapsed() < 120:
        # Twenty keys in a second take little CPU. Their times do not coincide with those of frames.
        terminal.pump_for(0.03 + 0.04 * (pressed * 0.618 % 1))
        answer = terminal.key_to_frame_s(b"?")
        loading += [answer] if terminal.elapsed() - load.last < 0.3 else []
        pressed += 1
    if pressed % 2:
        os.write(terminal.terminal, b"?")
    terminal.pump_for(1)
    for key in ALL_CHARTS:
        os.write(terminal.terminal, key)
        terminal.pump_for(0.3)
    answers, frames = [], []
    os.write(terminal.terminal, b"\x1b[D")
    terminal.pump_for(0.3)
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        before = terminal.main_cpu_s()
        answers.append(terminal.key_to_frame_s([b"\x1b[D", b"\x1b[C"][len(answers) // 20 % 2]))
        terminal.pump_for(0.05)
        frames.append(terminal.main_cpu_s() - before)
    return {
        "key_while_loading_s": p99(loading), "keys_while_loading": len(loading), "key_s": p99(answers),
        "frame_cpu_s": p99(frames), "frames": len(frames), "charts": terminal.charts(),
    }


def idle(terminal, seconds):
    terminal.pump_for(5)
    before, written = terminal.cpu_s(), terminal.written
    terminal.pump_for(seconds)
    cpu = (terminal.cpu_s() - before) / seconds
    return {"cpu": cpu, "memory_mib": terminal.memory_mib(), "bytes_per_s": (terminal.written - written) / seconds}


def growth(terminal, seconds):
    def measured(until):
        terminal.pump_for(until - 20 - terminal.elapsed())
        memory = []
        while terminal.elapsed() < until:
            terminal.pump_for(1)
            memory.append(terminal.memory_mib())
        return sum(memory) / len(memory), terminal.descriptors()

    early, quarter, late = measured(seconds / 10), measured(seconds / 4), measured(seconds)
    return {
        "early_mib": early[0], "quarter_mib": quarter[0], "late_mib": late[0], "early_files": early[1], "late_files": late[1],
    }


SCENARIOS = {"first": first, "loaded": loaded, "keys": keys, "idle": idle, "growth": growth}
scenario, limit, command = SCENARIOS[sys.argv[1]], float(sys.argv[2]), sys.argv[3:]
option = command[-2] if command[-2:-1] in (["--keys"], ["--tour"]) else ""
typed = command[-1] if option else ""
command = command[:-2] if option else command
screen = Terminal(command) if scenario is not first else Terminal(command, 44, 150)
try:
    if typed:
        screen.wait_for([b"help"], 20)
        if option == "--tour":
            screen.tour = typed.encode()
        else:
            os.write(screen.terminal, typed.encode())
    result = scenario(screen, limit)
finally:
    screen.end()
print(json.dumps(result))
