"""What the cluster tests share: a pack of the demo checkpoint, daemons on loopback, od-main, TAP. Standard library."""
import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback

BIN = os.path.join(os.environ.get("B", "build"), "bin")
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


def pack():
    """The demo checkpoint's pack, made once per test program."""
    global _pack
    if _pack is None:
        _pack = os.path.join(TMP, "talebook.pack")
        tool("od-pack", CHECKPOINT, _pack)
    return _pack


class Daemon:
    """A worker or shadow on a free port, or on the port it had before. store, spool: instead of a pack."""

    def __init__(self, role, *args, port=0, pack_dir=None, store=None, spool=None):
        self.role, self.args = role, args
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
            stdout=self.log, stderr=subprocess.STDOUT)
        os.close(w)
        with os.fdopen(r) as f:
            line = f.readline()
        if not line:
            self.process.wait()
            raise AssertionError(f"od-{self.role} did not start: {self.text()}")
        self.port = int(line)

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def restart(self):
        self.kill()
        self.start()

    def alive(self):
        return self.process.poll() is None


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

    def close(self):
        out, err = self.p.communicate(timeout=HANG_S)
        return self.p.returncode, err


_tests = []


def test(f):
    _tests.append(f)
    return f


class Skip(Exception):
    pass


def run_tests():
    only = sys.argv[1:]
    tests = [t for t in _tests if t.__module__ == "__main__" and (not only or t.__name__ in only)]
    bad = 0
    print(f"1..{len(tests)}")
    for n, t in enumerate(tests, 1):
        name = t.__name__.replace("_", " ")
        try:
            t()
            print(f"ok {n} - {name}", flush=True)
        except Skip as s:
            print(f"ok {n} - {name} # SKIP {s}", flush=True)
        except Exception:  # every way to fail counts
            bad += 1
            print(f"not ok {n} - {name}", flush=True)
            for line in traceback.format_exc().splitlines():
                print(f"# {line}")
    sys.exit(1 if bad else 0)
