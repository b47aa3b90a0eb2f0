#!/usr/bin/env python3
"""Pairing by six words, between hosts that are network namespaces: od-main pair, od-worker join and od-shadow join; then the cluster
of the files that they have written. What a listener sees, wrong words, several mains, members that join again, full disks. Needs root."""
import contextlib
import ctypes
import fcntl
import json
import os
import pickle
import pty
import re
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import termios
import time

import netns_lan
from cluster_util import BIN, HANG_S, PROMPT, TMP, TOKENS, Disturbed, Skip, _children, in_calm, pack, reference, run_tests, test, wait_for

NODES = {"main": 1, "other": 2, "shadow": 9, "w0": 11, "w1": 12}
NET = "10.213.75"
WORD = "zebra"
_lan = []
_folders = 0


def lan():
    if not _lan:
        try:
            _lan.append(netns_lan.Lan("odp", NET, NODES))
        except netns_lan.Unavailable as e:
            raise Skip(e) from None
    return _lan[0]


def folder():
    """Keys of a host; it does not exist yet."""
    global _folders
    _folders += 1
    return os.path.join(TMP, f"keys{_folders}")


def read(*path):
    with open(os.path.join(*path)) as f:
        return f.read()


def files(path):
    """Name to content and time of all files of a folder; empty if there is none."""
    if not os.path.isdir(path):
        return {}
    return {n: (read(path, n), os.stat(os.path.join(path, n)).st_mtime_ns) for n in os.listdir(path)}


def key_of(path):
    return [line for line in read(path, "node.pub").splitlines() if not line.startswith("# ")][0].split()[0]


def environment(keys, path=None):
    env = {k: v for k, v in os.environ.items() if k not in ("OD_PACK", "OD_KEYS")}
    return {**env, "OD_MODELS": os.path.join(TMP, "no-models"), **({"OD_KEYS": keys} if keys else {}), **({"PATH": f"{path}:{env['PATH']}"} if path else {})}


class Main:
    """od-main pair on a host."""

    def __init__(self, *args, keys=None, node="main", program="od-main", path=None, **kw):
        self.keys, self.node = keys or folder(), node
        for other in _children:  # of a test that failed
            if isinstance(other, Main) and other.node == node:
                other.kill()
        self.p = lan().start(node, program, "pair", *args, env=environment(self.keys, path), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, **kw)
        _children.append(self)
        self.said, self.words = "", []
        while "\nEnter ends" not in self.said and "or at Enter" not in self.said:
            line = self.p.stdout.readline()
            assert line, self.said
            self.said += line
            if found := re.search(r"od-worker join --enable (.*)", line):
                self.words = found[1].split()
        assert len(self.words) == 6, self.said

    def hosts(self):
        return [line for line in read(self.keys, "hosts.txt").splitlines() if line.strip() and not line.startswith("#")]

    def wrong(self):
        return self.words[:5] + [WORD if self.words[5] != WORD else "abacus"]

    def await_line(self, pattern):
        while not re.search(pattern, self.said):
            line = self.p.stdout.readline()
            assert line, self.said
            self.said += line

    def end(self, status=0, enter="\n"):
        with contextlib.suppress(BrokenPipeError):  # it has ended
            self.p.stdin.write(enter)
            self.p.stdin.close()
        self.said += self.p.stdout.read()
        self.p.wait(timeout=HANG_S)
        assert self.p.returncode == status, (self.p.returncode, self.said)
        return self.said

    def kill(self):
        if self.p.poll() is None:
            self.p.kill()
        self.p.wait()


# This machine's packs are not those of a host.
OWN_VAR = ["/bin/sh", "-c", 'mount -t tmpfs none /var/lib; exec "$0" "$@"']


def join(node, *args, keys, role="worker", status=0, says=(), path=None, **kw):
    p = lan().start(node, f"od-{role}", "join", *args, env=environment(keys, path), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, text=True, **kw)
    out, _ = p.communicate(timeout=HANG_S)
    if "is too slow to answer" in out:
        raise Disturbed(out)  # a handshake has two seconds
    assert p.returncode == status, (p.returncode, out)
    for part in [says] if isinstance(says, str) else says:
        assert part in out, (part, out)
    return out


def listen():
    """What passes main's link, with all headers."""
    path = os.path.join(TMP, "frames")
    p = subprocess.Popen(["ip", "netns", "exec", lan().switch, sys.executable, "tests/integ/packet_log.py", "main", path, "frames"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert p.stdout.readline() == "listening\n"

    def end():
        time.sleep(0.2)
        assert p.communicate("\n", timeout=HANG_S)[0] == "0\n"
        with open(path, "rb") as f:
            return b"".join(pickle.load(f))
    return end


def z85_decode(text):
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    out = b""
    for i in range(0, len(text), 5):
        n = 0
        for c in text[i:i + 5]:
            n = n * 85 + digits.index(c)
        out += n.to_bytes(4, "big")
    return out


@in_calm
def generate(main, workers):
    """Daemons of these keys, {host: (folder, arguments)}, and a main that writes a text with them."""
    daemons = []
    for node, (keys, args) in workers.items():
        r, w = os.pipe()
        env = {**environment(keys), "STATE_DIRECTORY": os.path.join(TMP, f"spool-{node}")}
        log = os.path.join(TMP, f"{node}.log")
        with open(log, "w") as f:
            program = os.path.abspath(os.path.join(BIN, "od-shadow" if node == "shadow" else "od-worker"))
            p = lan().start(node, *OWN_VAR, program, "--listen", "0.0.0.0", "--threads", 1, "--ready-fd", w,
                            "--die-with-parent", os.getpid(), *args, env=env, pass_fds=[w], stdin=subprocess.DEVNULL, stdout=f, stderr=f)
        os.close(w)
        daemons.append((p, r, log))
    main_p = lan().start("main", "od-main", "--pack", pack(), "--workers", os.path.join(main.keys, "hosts.txt"), "--serve-store", "0.0.0.0",
                         "--max-tokens", TOKENS, "--prompt", PROMPT, "--json", env=environment(main.keys), stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = main_p.communicate(timeout=HANG_S)
    for p, r, _ in daemons:
        os.close(r)
        p.kill()
        p.wait()
    assert main_p.returncode == 0, (err, [read(log) for _, _, log in daemons])
    return out, [read(log) for _, _, log in daemons]


@test
def six_words_make_a_cluster():
    os.makedirs(os.path.join(TMP, "spool-w1"))
    pack()
    end = listen()
    main = Main("--hosts", 3)
    keys = {n: folder() for n in ("w0", "w1", "shadow")}
    address = f"({NET}.1)"
    join("w0", *main.words, keys=keys["w0"], says=["now a worker of", address])
    join("w1", " ".join(main.words).upper(), f"{NET}.1", keys=keys["w1"], says=address)
    join("shadow", "-".join(main.words), keys=keys["shadow"], role="shadow", says=["now a shadow of", address])
    said = main.end(enter="")
    assert f"worker {NET}.11 ({socket.gethostname()}) has joined" in said and "3 hosts joined" in said, said
    frames = end()
    for word in main.words:
        assert word.encode() not in frames, word
    assert socket.gethostname().encode() in frames  # the answer: it was heard
    for path in (main.keys, *keys.values()):
        secret = [line for line in read(path, "node.key").splitlines() if not line.startswith("# ")][0]
        for text in (secret, key_of(path)):  # nobody learns public keys either
            assert text.encode() not in frames and z85_decode(text) not in frames
        assert stat.S_IMODE(os.stat(os.path.join(path, "node.key")).st_mode) == 0o600
    expected = [("worker", 11, keys["w0"]), ("worker", 12, keys["w1"]), ("shadow", 9, keys["shadow"])]
    assert [line.split(" # ")[0] for line in main.hosts()] == [f"{r} {NET}.{n} key={key_of(k)}" for r, n, k in expected]
    for path in keys.values():
        assert read(path, "peers") == f"{key_of(main.keys)} {NET}.1\n"
    # These files are all that a cluster needs; a worker without a pack pulls from the main that it has joined.
    out, logs = generate(main, {"w0": (keys["w0"], ["--pack", pack()]), "w1": (keys["w1"], []), "shadow": (keys["shadow"], ["--pack", pack()])})
    r = json.loads(out)
    assert r["token_ids"] == reference()["token_ids"] and r["workers"] == 2, r
    assert f"no pack here: pulls its share from main, {NET}.1, and keeps it in" in logs[1], logs[1]


def who(number):
    """A host as main names it; main does not know it if it is slower than the connection's end (docs/PROTOCOL.md, "Keys")."""
    return rf"({re.escape(NET)}\.{number}|an unknown address)"


@test
def wrong_words_and_strangers():
    main = Main()
    right, wrong = folder(), folder()
    join("w0", *main.wrong(), keys=wrong, status=1, says=["not the words that main shows", "2 more tries"])
    assert not os.path.exists(wrong)
    main.await_line(f"wrong words from {who(11)}: 2 more tries")
    # Who says nothing, or nonsense, is no attempt.
    probe = ("import socket,sys,time\n"
             "a = [socket.create_connection((sys.argv[1], 5703)) for _ in range(6)]\n"
             "for i, s in enumerate(a[2:]): s.sendall([b'GET / HTTP/1.1\\r\\n\\r\\n', bytes(200), b'\\xff' * 300, b'\\xff' + bytes(8) + b'\\x7f\\x03'][i])\n"
             "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
             "for size in (0, 1, 20, 100, 512, 1400): u.sendto(bytes(size), (sys.argv[1], 5703))\n"
             "u.sendto(b'\\x0dprdo\\x10\\x01\\x52\\x00', (sys.argv[1], 5703))\n"  # a question that is shorter than its answer
             "u.settimeout(0.3)\n"
             "try: print(len(u.recv(2000)))\n"
             "except TimeoutError: print('none')\n"
             "[s.close() for s in a]\n")
    p = subprocess.run(["ip", "netns", "exec", lan().name("w1"), sys.executable, "-c", probe, f"{NET}.1"], capture_output=True, text=True,
                       timeout=HANG_S)
    assert p.stdout == "none\n", (p.stdout, p.stderr)
    join("w0", *main.words, keys=right, says="now a worker")
    join("w1", *main.wrong(), f"{NET}.1", keys=wrong, status=1, says="1 more try")
    join("w1", *main.wrong(), keys=wrong, status=1, says="not the words that main shows")
    said = main.end(status=1, enter="")
    assert "::ffff:" not in said, said
    assert re.search(f"ended after 3 attempts with wrong words, from {who(11)}, {who(12)} and {who(12)}", said), said
    assert not os.path.exists(wrong) and len(main.hosts()) == 1
    join("w1", *main.words, f"{NET}.1", keys=wrong, status=1, says=[f"nothing answers at {NET}.1", "od-main pair", "firewall"])
    assert not os.path.exists(wrong)


@test
def words_are_checked_before_anything_is_sent():
    keys = folder()
    for words, says in ((["abacus", "jumbo", "yaht"], 'word 3, "yaht", is not one of the list; nearest: "yacht"'),
                        (["abacus", "jumbo"], "expected the 6 words that od-main pair shows, found 2"),
                        (["abacus", "jumbo", "10.0.0.1"], "expected 6 words in front of main's address, found 2")):
        join("w0", *words, keys=keys, status=2, says=says)
    join("w0", *[WORD] * 6, "no.such.host.invalid", keys=keys, status=1, says="main's address")
    assert not os.path.exists(keys)


@test
def two_mains_pair_at_once():
    one, two = Main(), Main(node="other")
    keys = folder()
    p = lan().start("w0", "od-worker", "join", *one.words, env=environment(keys), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, text=True)
    said, _ = p.communicate(timeout=HANG_S)
    if p.returncode == 0 or "not the words" in said:
        raise Disturbed("one main had no CPU for the second that others have to answer")
    assert p.returncode == 1 and "several mains pair in this network" in said, said
    assert f"{NET}.1 " in said and f"{NET}.2 " in said, said
    join("w0", *one.words, f"{NET}.2", keys=keys, status=1, says="2 more tries")
    assert not os.path.exists(keys)
    join("w0", *one.words, f"{NET}.1", keys=keys, says="now a worker")
    # A worker has one main. A shadow may list others' keys, too.
    before, refused = files(keys), two.keys
    join("w0", *two.words, f"{NET}.2", keys=keys, status=1, says=[f"peers line 1 names another main, {NET}.1", "remove that line"])
    assert files(keys) == before and not os.path.exists(os.path.join(refused, "hosts.txt"))
    join("w0", *two.words, f"{NET}.2", keys=keys, role="shadow", says="now a shadow")
    assert len(read(keys, "peers").splitlines()) == 2
    p = lan().start("main", "od-main", "pair", env=environment(folder()), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, text=True)
    assert "port 5703 is in use: does another od-main pair run" in p.communicate(timeout=HANG_S)[0] and p.returncode == 1
    one.end(), two.end()


@test
def members_join_again():
    main, keys = Main(), folder()
    join("w0", *main.words, keys=keys)
    first, hosts = files(keys), files(main.keys)
    join("w0", *main.words, keys=keys, says="already a worker of")
    assert files(keys) == first and files(main.keys) == hosts  # not even written again
    for name in ("node.key", "node.pub"):
        os.unlink(os.path.join(keys, name))
    join("w0", *main.words, keys=keys, says=["now a worker", "another key than before"])
    assert [line.split(" #")[0] for line in main.hosts()] == [f"worker {NET}.11 key={key_of(keys)}"]
    join("w1", *main.words, keys=keys, says="another address than before")
    assert [line.split(" #")[0] for line in main.hosts()] == [f"worker {NET}.12 key={key_of(keys)}"]
    join("w1", *main.words, "--port", 5801, keys=folder())
    assert main.hosts()[1].startswith(f"worker {NET}.12:5801 key=")
    # Clocks do not matter. This one is nine years ahead; no other is read.
    ahead = [shutil.which("unshare") or "/usr/bin/unshare", "--time", "--monotonic", "300000000", "--fork"]
    if subprocess.run([*ahead, "true"], capture_output=True).returncode == 0:
        p = lan().start("w0", *ahead, os.path.abspath(os.path.join(BIN, "od-worker")), "join", *main.words, env=environment(keys),
                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        out, _ = p.communicate(timeout=HANG_S)
        assert p.returncode == 0 and "another address than before" in out, (p.returncode, out)
    main.p.send_signal(signal.SIGINT)
    said = main.end(status=128 + signal.SIGINT)
    assert f"worker {NET}.11 ({socket.gethostname()}) has joined\n" in said, said
    assert f"worker {NET}.12:5801 ({socket.gethostname()}) has joined\n" in said, said
    assert len(main.hosts()) == 2


@test
def disks_that_are_full():
    def limit(size):
        return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    main, keys = Main(), folder()
    join("w0", *main.words, keys=keys, status=1, says=["node.key", "File too large"], preexec_fn=limit(50))
    assert files(keys) == {} and not os.path.exists(os.path.join(main.keys, "hosts.txt"))
    with open(os.path.join(keys, "peers"), "w") as f:
        f.write("# " + "x" * 200 + "\n")
    join("w0", *main.words, keys=keys, status=1, says=["peers", "File too large"], preexec_fn=limit(210))
    assert sorted(files(keys)) == ["node.key", "node.pub", "peers"] and read(keys, "peers") == "# " + "x" * 200 + "\n"
    join("w0", *main.words, keys=keys, says="now a worker")
    assert len(main.hosts()) == 1 and key_of(main.keys) in read(keys, "peers")
    # The same on main: the host is told, and main's file is as it was.
    resource.prlimit(main.p.pid, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    before, more = files(main.keys), folder()
    join("w1", *main.words, keys=more, status=1, says=["main refuses", "hosts.txt", "File too large"])
    main.await_line(f"{NET}.12 cannot join")
    assert files(main.keys) == before and not os.path.exists(os.path.join(more, "peers"))
    resource.prlimit(main.p.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    join("w1", *main.words, keys=more, says="now a worker")
    assert "2 hosts joined" in main.end() and len(main.hosts()) == 2


@test
def ipv6_alone():
    main, keys = Main(), folder()
    netns_lan.ip("-n", lan().name("w1"), "addr", "del", f"{NET}.12/24", "dev", "eth0")
    try:
        join("w1", *main.words, keys=keys, says=["now a worker of", "%eth0", "--listen ::"])
    finally:
        netns_lan.ip("-n", lan().name("w1"), "addr", "add", f"{NET}.12/24", "dev", "eth0")
    main.end()
    assert re.fullmatch(r"worker fe80::[0-9a-f:]+%eth0 key=.*", main.hosts()[0]), main.hosts()
    assert re.search(r" fe80::[0-9a-f:]+%eth0\n", read(keys, "peers"))


def fake(name, script):
    """A folder with a program of this name that notes its arguments, then does what script says."""
    path = os.path.join(TMP, f"fake{time.monotonic_ns()}")
    os.makedirs(path)
    with open(os.path.join(path, name), "w") as f:
        f.write(f'#!/bin/sh\necho "$*" >>{path}/calls\n{script}\n')
    os.chmod(os.path.join(path, name), 0o755)
    return path


def calls(path):
    """What it was called with until now."""
    file = os.path.join(path, "calls")
    return read(file).splitlines() if os.path.exists(file) else []


@test
def services_are_turned_on():
    down = 'case "$1" in is-active) exit 3;; esac'
    systemctl = fake("systemctl", down)
    programs = fake("od-pack", 'echo "fetching $1"; [ "$1" != hf://bad/model ]')
    shutil.copy(os.path.join(BIN, "od-main"), programs)
    program, keys = os.path.join(programs, "od-main"), folder()
    main = Main("--hosts", 1, "--enable", "hf://org/model", program=program, path=systemctl)
    worker = fake("systemctl", down)
    join("w0", "--enable", *main.words, keys=keys, path=worker, says="od-worker is enabled and starts")
    said = main.end(enter="")
    assert "fetching hf://org/model" in said and "http://127.0.0.1:8080/" in said, said
    assert calls(worker) == ["cat od-worker", "enable --quiet od-worker", "restart --no-block od-worker"], calls(worker)
    assert calls(systemctl) == ["cat od-main", "is-active --quiet od-main", "is-active --quiet od-main",
                                "enable --quiet od-main", "restart --no-block od-main"], calls(systemctl)
    # A member that joins again is not restarted; a main that runs reads its hosts again.
    running = fake("systemctl", "exit 0")
    main = Main("--hosts", 1, "--enable", keys=main.keys, path=running)
    worker = fake("systemctl", "exit 0")
    join("w0", "--enable", *main.words, keys=keys, path=worker, says="already a worker")
    main.end(enter="")
    assert calls(worker)[-1] == "start --no-block od-worker" and calls(running)[2:] == [
        "reload --no-block od-main", "is-active --quiet od-main", "enable --quiet od-main", "start --no-block od-main"], calls(running)
    # Without the model nothing is turned on.
    systemctl = fake("systemctl", down)
    main = Main("--hosts", 1, "--enable", "hf://bad/model", keys=main.keys, program=program, path=systemctl)
    join("w0", *main.words, keys=keys)
    assert "od-pack hf://bad/model failed: see above" in main.end(status=1, enter="") and calls(systemctl) == [
        "cat od-main", "is-active --quiet od-main"]
    # Nor without a unit, or a worker.
    missing, keys = fake("systemctl", "exit 1"), folder()
    for run, says in (("/run/systemd/system", "systemd has no unit od-worker"), ("/run/other", "systemd, which does not run here")):
        p = lan().start("w0", "/bin/sh", "-c", f'mount -t tmpfs none /run; mkdir -p {run}; exec "$0" "$@"',
                        os.path.abspath(os.path.join(BIN, "od-worker")), "join", "--enable", *[WORD] * 6, env=environment(keys, missing),
                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        out, _ = p.communicate(timeout=HANG_S)
        assert p.returncode == 1 and says in out, out
    assert not os.path.exists(keys)
    main = Main("--enable", path=fake("systemctl", down))
    assert "lists no worker" in main.end(status=1)


@test
def hosts_that_do_not_say_that_they_have_joined():
    """Whoever has the words and hides, or fails at the end, is named, and a main that runs reads its hosts again."""
    running = fake("systemctl", "exit 0")
    main, keys = Main("--enable", path=running), folder()
    os.makedirs(keys)
    with open(os.path.join(keys, "peers"), "w") as f:
        f.write("# " + "x" * 200 + "\n")
    join("w0", *main.words, keys=keys, status=1, says="File too large",
         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (210, resource.RLIM_INFINITY)))
    main.p.send_signal(signal.SIGINT)
    said = main.end(status=128 + signal.SIGINT, enter="")
    assert f"worker {NET}.11 ({socket.gethostname()}) stands in {main.keys}/hosts.txt now, but has not said that it has joined" in said, said
    assert calls(running) == ["cat od-main", "is-active --quiet od-main", "reload --no-block od-main"], calls(running)


def ticks(p):
    """Of CPU time until now."""
    return sum(map(int, read(f"/proc/{p.pid}/stat").rsplit(")", 1)[1].split()[11:13]))


@test
def an_input_that_has_ended_costs_nothing():
    main = Main()
    main.p.stdin.close()
    probe = ("import socket, sys\n"
             "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
             "u.sendto(b'anything', (sys.argv[1], 5703))\n")
    subprocess.run(["ip", "netns", "exec", lan().name("w1"), sys.executable, "-c", probe, f"{NET}.1"], check=True, timeout=HANG_S)
    time.sleep(0.2)
    before = ticks(main.p)
    time.sleep(1)
    assert ticks(main.p) - before < 5
    join("w0", *main.words, keys=folder(), says="now a worker")
    main.p.terminate()
    main.p.wait(timeout=HANG_S)


@test
def in_the_background_a_terminal_is_left_alone():
    """What is typed there is the shell's: a process of the background that reads it is stopped."""
    master, slave = pty.openpty()

    def background():
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it ends with the process that waits for it
            os.setpgid(0, 0)
            os.dup2(slave, 0)
            return
        os.closerange(3, 1024)  # Popen waits until one is closed
        status = os.waitpid(pid, os.WUNTRACED)[1]
        if os.WIFSTOPPED(status):
            os.kill(pid, signal.SIGKILL)
        os._exit(99 if os.WIFSTOPPED(status) else 0)

    main = Main("--hosts", 1, preexec_fn=background)
    os.write(master, b"ls\n")
    join("w0", *main.words, keys=folder(), says="now a worker")
    said = main.end(enter="")
    assert "1 host joined" in said, said
    os.close(master), os.close(slave)


@test
def mains_do_not_answer_each_other():
    """What another main sends comes from its port of questions; of another version, it would be answered for ever."""
    other = (b"\x0d" + 0x6f647072.to_bytes(4, "little") + b"\x10\x02\x5a\x5a\x0a\x10" + b"s" * 16 + b"\x10\xc7\x2c\x18\x03\x22\x41" + b"h" * 65)
    probe = ("import socket, sys\n"
             "for port in (0, 5703):\n"
             "    u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
             "    u.bind(('', port))\n"
             "    u.settimeout(20 if port == 0 else 0.5)\n"
             "    u.sendto(bytes.fromhex(sys.argv[2]), (sys.argv[1], 5703))\n"
             "    try: print(len(u.recv(2000)) > 0)\n"
             "    except TimeoutError: print('none')\n")
    main = Main()
    p = subprocess.run(["ip", "netns", "exec", lan().name("w1"), sys.executable, "-c", probe, f"{NET}.1", other.hex()], capture_output=True,
                       text=True, timeout=HANG_S)
    assert p.stdout == "True\nnone\n", (p.stdout, p.stderr)
    main.end()


@test
def addresses_that_can_be_reached_are_shown():
    where = lan().name("main")
    netns_lan.ip("-n", where, "link", "add", "name", "idle0", "type", "veth", "peer", "name", "idle1")
    try:
        netns_lan.ip("-n", where, "addr", "add", "172.31.9.1/16", "dev", "idle0")
        netns_lan.ip("-n", where, "link", "set", "idle0", "up")
        wait_for(lambda: "NO-CARRIER" in netns_lan.ip("-n", where, "link", "show", "idle0").stdout, "a link whose other end is down has a carrier")
        main = Main()
        assert f"behind the words: {NET}.1.\n" in main.said, main.said
        main.end()
    finally:
        netns_lan.ip("-n", where, "link", "del", "idle0")


@test
def leftovers_and_locks():
    """A key whose writing was cut short; and another user, who holds the folder's lock."""
    main, keys = Main(), folder()
    os.makedirs(keys)
    with open(os.path.join(keys, "node.key.new"), "w") as f:
        f.write("# Secr")
    join("w0", *main.words, keys=keys, says=["now a worker", f"To start it: OD_KEYS={keys} od-worker"])
    assert sorted(files(keys)) == ["node.key", "node.pub", "peers"]
    fd = os.open(main.keys, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    join("w1", *main.words, keys=folder(), status=1, says=["main refuses: another process has locked the folder", "lslocks"])
    os.close(fd)
    join("w1", *main.words, keys=folder(), says="now a worker")
    main.end()


@test
def folders_that_cannot_be_written():
    def nobody():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)

    if os.geteuid() != 0:
        raise Skip("needs root")
    bin_folder = os.path.join(TMP, "bin")  # that another user may read
    os.makedirs(bin_folder)
    os.chmod(TMP, 0o755)
    closed = os.path.join(TMP, "closed")
    os.makedirs(closed, 0o755)
    for name, args in (("od-main", ["pair"]), ("od-worker", ["join", *[WORD] * 6])):
        shutil.copy(os.path.join(BIN, name), bin_folder)
        p = subprocess.run([os.path.join(bin_folder, name), *args], env=environment(os.path.join(closed, "a", "b")), capture_output=True,
                           text=True, timeout=HANG_S, preexec_fn=nobody, stdin=subprocess.DEVNULL)
        assert p.returncode == 1 and p.stdout == "", (p.stdout, p.stderr)
        assert f"cannot write in {closed}/a/b" in p.stderr and "run it with sudo" in p.stderr and "OD_KEYS=DIR" in p.stderr, p.stderr
    bad = folder()
    os.makedirs(bad)
    with open(os.path.join(bad, "hosts.txt"), "w") as f:
        f.write("worker 10.0.0.1\nleader 10.0.0.2\n")
    p = subprocess.run([os.path.join(BIN, "od-main"), "pair"], env=environment(bad), capture_output=True, text=True, timeout=HANG_S)
    assert p.returncode == 1 and "hosts.txt line 2" in p.stderr and os.listdir(bad) == ["hosts.txt"], p.stderr


@test
def a_worker_without_a_pack_says_what_it_needs():
    main, keys = Main(), folder()
    join("w0", *main.words, keys=keys)
    main.end()
    for peers, says in ((key_of(main.keys), "its peers file has no address behind main's key"),
                        (f"{key_of(main.keys)} a\n{key_of(keys)} b", "its peers file has several keys"),
                        (None, "without keys it has no main to pull from")):
        if peers:
            with open(os.path.join(keys, "peers"), "w") as f:
                f.write(peers + "\n")
        p = lan().start("w0", *OWN_VAR, os.path.abspath(os.path.join(BIN, "od-worker")), *(["--listen", "0.0.0.0"] if peers else []),
                        env=environment(keys), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        out, _ = p.communicate(timeout=HANG_S)
        assert p.returncode == 1 and says in out and "od-worker join" in out and "no pack" in out, out


@test
def roots_keys_are_the_services():
    """In /etc/od-moe, here of a file system of its own."""
    said = os.path.join(TMP, "main-said")
    script = (f"mount -t tmpfs none /etc || exit 77; umask 077; echo od-moe:x:4321:4322::/:/bin/false >/etc/passwd; "
              f"{os.path.abspath(BIN)}/od-main pair --hosts 1 >{said} && stat -c '%n %u %g %a' /etc/od-moe /etc/od-moe/*")
    p = lan().start("main", "/bin/sh", "-c", script, env=environment(None), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT, text=True)
    _children.append(p)
    wait_for(lambda: p.poll() is not None or (os.path.exists(said) and "or at Enter" in read(said)), "main does not pair")
    if p.poll() == 77:
        raise Skip("cannot mount here")
    assert p.poll() is None, p.communicate()
    join("w0", *re.search(r"od-worker join --enable (.*)", read(said))[1].split(), keys=folder())
    out, _ = p.communicate(timeout=HANG_S)
    assert p.returncode == 0, out
    owners = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.startswith("/etc")}
    assert owners["/etc/od-moe/node.key"] == ["4321", "4322", "600"], owners
    assert owners["/etc/od-moe/hosts.txt"] == ["0", "0", "644"] and owners["/etc/od-moe"][2] == "755", owners


if __name__ == "__main__":
    try:
        run_tests()
    finally:
        for c in _children:
            c.kill()
        for network in _lan:
            network.close()
