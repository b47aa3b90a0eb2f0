"""What the cluster tests share: a pack of the demo checkpoint, daemons on loopback, od-main, TAP. Standard library."""
import atexit
import contextlib
import functools
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


def run_calmly(argv, **kw):
    """A program to its end; once more if it failed after it had lost a daemon to silence."""
    for _ in range(ATTEMPTS):
        p = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S, **kw)
        if p.returncode == 0 or not SILENCE.search(p.stderr):
            break
    return p


def tool(name, *args, ok=True, stdin=None):
    argv = [os.path.join(BIN, name), *map(str, args)]
    if ok is False:
        p = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S, input=stdin)
    else:
        p = run_calmly(argv, input=stdin)
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
    p = run_calmly(main_args(*args, **kw))
    assert p.returncode == 0, f"{' '.join(map(str, args))}: status {p.returncode}\n{p.stderr}"
    return (json.loads(p.stdout), p.stderr) if stderr else json.loads(p.stdout)


# What main says of a daemon that it does without because of what it did not hear, or heard late. It does so when a process has no CPU for
# 1.5 s: others run what it owed, and counts are other ones. A worker that does not hear of main for so long ends its session.
SILENCE = re.compile(r"(?:worker|shadow)[^\n]*:(\d+) (?:is lost: (?:no answer|it has work but made no progress|it sent BYE \(|"
                     r"it answers heartbeats, but not)|is late;)")
PASSED_OVER = "is connected but not used"  # so main says of a worker that had too little CPU to be worth its rows
ATTEMPTS = 20


class Disturbed(AssertionError):
    """Main did without a daemon that had no CPU, so the text says nothing of what the test is about."""


def expect_calm(said, *but):
    """Raises Disturbed if main lost a daemon to silence, but for those with these ports, whose loss the test wants."""
    lost = [line for line in said.splitlines() if (m := SILENCE.search(line)) and int(m[1]) not in but]
    if lost:
        raise Disturbed("\n".join(lost))


def in_calm(f):
    """f(), or a test, until it is not Disturbed. Main may lose a daemon that it should keep: then it is, each time, and fails in the end."""
    @functools.wraps(f)
    def again(*args, **kw):
        for attempt in range(1, ATTEMPTS + 1):
            n = len(_children)
            try:
                return f(*args, **kw)
            except Disturbed as e:
                for d in _children[n:]:
                    d.kill()
                    for descriptor in filter(None, (getattr(d, "log", None), getattr(d, "hold", None))):
                        descriptor.close()
                del _children[n:]
                if attempt == ATTEMPTS:
                    raise
                print(f"# again: {e}", flush=True)
        return None
    return again


def calm(*args, **kw):
    """A generate() that raises Disturbed, for what is in_calm as a whole."""
    r, said = generate(*args, stderr=True, **kw)
    expect_calm(said)
    if PASSED_OVER in said:
        raise Disturbed(said)
    return r


undisturbed = in_calm(calm)  # for tests that count what happens in one text


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
        self.log = tempfile.TemporaryFile(dir=TMP)  # no pipe: a full one would hold up main
        self.told, self.all = 0, None  # bytes that message() has given; all of it, once it has ended
        self.p = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)
        _children.append(self)

    def kill(self):
        if self.p.poll() is None:
            self.p.kill()
            self.p.communicate()

    def ask(self, prompt=PROMPT):
        self.p.stdin.write(prompt + "\n")
        self.p.stdin.flush()

    def answer(self):
        line = self.p.stdout.readline()
        assert line, self.said()
        r = json.loads(line)
        if r["finish"] == "error":
            expect_calm(self.said())  # who is lost for a while may have been the last worker
        return r

    def said(self):
        """All that it has said until now."""
        if self.all is None:
            fd = self.log.fileno()
            return os.pread(fd, os.fstat(fd).st_size, 0).decode()
        return self.all

    def message(self):
        """The next line that it says; empty: it has ended, and none comes."""
        end = time.monotonic() + HANG_S
        while True:
            ended = self.p.poll() is not None
            line = os.pread(self.log.fileno(), 1 << 20, self.told).partition(b"\n")
            if line[1] or ended:
                self.told += len(line[0]) + len(line[1])
                return (line[0] + line[1]).decode()
            assert time.monotonic() < end, f"it says no more: {self.said()}"
            time.sleep(0.01)

    def close(self):
        """Its exit status, and what it said beyond what message() has given."""
        self.p.communicate(timeout=HANG_S)
        self.all = self.said()
        self.log.close()
        return self.p.returncode, self.all.encode()[self.told:].decode()


_tests = []


def test(f):
    _tests.append(f)
    return f


def run_tests():
    sys.exit(tap_tests.run([in_calm(t) for t in _tests if t.__module__ == "__main__"]) > 0)
