"""What the cluster tests share: a pack of the demo checkpoint, daemons on loopback, od-main, TAP. Standard library."""
import atexit
import contextlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

import tap_tests
from tap_tests import Skip  # noqa: F401 (tests import it from here)

BIN = os.path.join(os.environ.get("B", "build"), "bin")
FAR = {"OD_DEVICE": "cuda", "OD_CUDA_PLUGIN": os.path.abspath(os.path.join(BIN, "..", "lib", "libod_far.so"))}  # tests/gpu/far_device.h
CHECKPOINT = "deploy/models/talebook"
TMP = tempfile.mkdtemp(prefix="od-test-")
SLOW = os.environ.get("B", "build") != "build"  # a build with sanitizers
HANG_S = 600  # only trips on hangs
_children = []


def _clean_up():
    for d in _children:
        d.kill()
    shutil.rmtree(TMP, ignore_errors=True)


atexit.register(_clean_up)


def tool(name, *args, ok=True, stdin=None):
    p = subprocess.run([os.path.join(BIN, name), *map(str, args)], capture_output=True, text=True, timeout=HANG_S,
                       input=stdin)
    if ok is not None and (p.returncode == 0) != ok:
        raise AssertionError(f"{name} {' '.join(map(str, args))}: status {p.returncode}\n{p.stderr}")
    return p


_pack = None
_pack_lock = threading.Lock()


def pack():
    """The demo checkpoint's pack, made once per test program, whichever of its threads asks first."""
    global _pack
    with _pack_lock:
        if _pack is None:
            path = os.path.join(TMP, "talebook.pack")
            tool("od-pack", CHECKPOINT, path)
            _pack = path
    return _pack


class Daemon:
    """A worker or shadow on a free port, or on the port it had before. store, spool: instead of a pack."""
    port, hold = 0, socket.socket()  # hold has the port while the process is gone

    def __init__(self, role, *args, port=0, pack_dir=None, store=None, spool=None, preexec=None):
        self.role, self.args, self.preexec = role, args, preexec
        self.where = ["--store", store, "--spool", spool] if store else ["--pack", pack_dir or pack()]
        self.port = port
        self.start()
        _children.append(self)

    def start(self):
        r, w = os.pipe()
        self.log = tempfile.TemporaryFile(dir=TMP, mode="w+")
        self.process = subprocess.Popen(
            [os.path.join(BIN, f"od-{self.role}"), *self.where, "--port", str(self.port), "--ready-fd", str(w),
             "--threads", "1", *map(str, self.args)], pass_fds=[w], stdin=subprocess.DEVNULL,
            stdout=self.log, stderr=subprocess.STDOUT, preexec_fn=self.preexec)
        os.close(w)
        with os.fdopen(r) as f:
            line = f.readline()
        if not line:
            self.process.wait()
            raise AssertionError(f"od-{self.role} did not start: {self.text()}")
        self.port = int(line)
        self.hold.close()

    def text(self):
        """By pread: daemon and test share the file's offset, and a seek would move where the daemon writes."""
        fd = self.log.fileno()
        return os.pread(fd, os.fstat(fd).st_size, 0).decode()

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        """So that no other program gets its port before a Daemon takes it again, it stays bound."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.port and self.hold.fileno() < 0:  # else it has been killed before, and has it
            self.hold = socket.socket()
            self.hold.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):  # another Daemon has it
                self.hold.bind(("127.0.0.1", self.port))

    def restart(self):
        self.kill()
        self.start()

    def alive(self):
        return self.process.poll() is None


def wait_for(condition, what="it never happened"):
    """Until condition() is true. what: what is wrong if it does not become so, or a function that says it."""
    end = time.monotonic() + HANG_S
    while not condition():
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(0.02)


def free_port():
    """Below those that the kernel gives out, so that no other program gets it before it is used."""
    for port in random.sample(range(15000, 32000), 1000):
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass
    raise AssertionError("no free port")


def hosts_file(daemons, name="hosts.txt"):
    path = os.path.join(TMP, name)
    with open(path, "w") as f:
        for d in daemons:
            f.write(f"{d.role} 127.0.0.1:{d.port}\n")
    return path


def worker_args(*args):
    """Of every worker that --local starts."""
    return [x for a in args for x in ("--worker-arg", a)]


def shadow_args(*args):
    return [x for a in args for x in ("--shadow-arg", a)]


def main_args(*args, prompt="Once upon a time there was a king", tokens=24):
    return [os.path.join(BIN, "od-main"), "--pack", pack(), "--json", "--max-tokens", str(tokens), "--prompt", prompt,
            *map(str, args)]


def generate(*args, stderr=False, **kw):
    """One JSON object of od-main; with stderr also what it said."""
    p = subprocess.run(main_args(*args, **kw), capture_output=True, text=True, timeout=HANG_S)
    assert p.returncode == 0, f"{' '.join(map(str, args))}: status {p.returncode}\n{p.stderr}"
    return (json.loads(p.stdout), p.stderr) if stderr else json.loads(p.stdout)


def undisturbed(*args, **kw):
    """A generate() in which main lost nobody to silence, for tests that count: while a daemon has no CPU for 1.5 s, others run what
    it owed. A worker that does not hear of main for so long ends its session."""
    for _ in range(5):
        r, said = generate(*args, stderr=True, **kw)
        if not re.search("is lost: (no answer for|it has work but made no progress|it sent BYE)", said):
            break
    return r


PROMPT = "Once upon a time there was a king"
TOKENS = 60 if SLOW else 300
_reference = []


def reference():
    if not _reference:
        _reference.append(generate("--resident", prompt=PROMPT, tokens=TOKENS))
    return _reference[0]


class Lines:
    """od-main with prompts by and by on its standard input, one JSON object each."""

    def __init__(self, *args):
        argv = main_args(*args, tokens=TOKENS)
        at = argv.index("--prompt")
        del argv[at:at + 2]
        self.p = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ask(self, prompt=PROMPT):
        self.p.stdin.write(prompt + "\n")
        self.p.stdin.flush()

    def answer(self):
        line = self.p.stdout.readline()
        assert line, self.p.stderr.read()
        return json.loads(line)

    def message(self):
        """The next line that it says; empty: none comes. Byte by byte: what a buffer had read ahead, close would not get."""
        line = b""
        while not line.endswith(b"\n") and (byte := os.read(self.p.stderr.fileno(), 1)):
            line += byte
        return line.decode()

    def close(self):
        out, err = self.p.communicate(timeout=HANG_S)
        return self.p.returncode, err


_tests = []


def test(f):
    _tests.append(f)
    return f


def run_tests():
    sys.exit(tap_tests.run([t for t in _tests if t.__module__ == "__main__"]) > 0)
