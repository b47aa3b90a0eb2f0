#!/usr/bin/env python3
"""Workers that die, hang, come back or never were there: main never hangs, and the tokens stay the same."""
import contextlib
import fcntl
import json
import os
import re
import resource
import shutil
import signal
import socket
import struct
import subprocess
import termios
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import wrong_shadow
import zmtp
from cluster_util import (BIN, HANG_S, PROMPT, TMP, TOKENS, Daemon, Disturbed, Lines, expect_calm, generate, hosts_file, main_args,
                          pack, reference, run_tests, shadow_args, test, tool, undisturbed, wait_for, worker_args)


def disturbed(action, *victims):
    """What main says in a generation during which action(worker) happens to some of three, and in more, until they alone are lost: one
    without CPU for 1.5 s is lost, too, and soon back."""
    workers = [Daemon("worker", "--slots", 2) for _ in range(3)]
    m = Lines("--workers", hosts_file(workers))
    m.ask()
    m.answer()  # everybody is connected: who is missing at the start is another matter
    m.ask()
    time.sleep(0.3)
    for v in victims:
        action(workers[v])
    assert m.answer()["token_ids"] == reference()["token_ids"], m.said()
    alive = [True] + [i not in victims for i in range(3)]

    def settled():
        m.ask()
        r = m.answer()
        assert r["token_ids"] == reference()["token_ids"], m.said()
        return r["workers"] == 3 - len(victims) and [n["alive"] for n in r["nodes"]] == alive

    wait_for(settled, m.said)
    status, err = m.close()
    for w in workers:
        w.kill()
    assert status == 0, err
    return err


@test
def a_worker_is_killed():
    assert "is lost" in disturbed(Daemon.kill, 1)


@test
def a_worker_is_stopped():
    assert "no answer for 1.5 s" in disturbed(lambda w: w.signal(signal.SIGSTOP), 0)


@test
def all_workers_but_one_are_killed():
    disturbed(Daemon.kill, 0, 2)


def wait_for_workers(m, n):
    """Prompts until that many workers serve: membership changes between steps, but how soon is not said."""
    end = time.monotonic() + HANG_S
    while time.monotonic() < end:
        m.ask()
        r = m.answer()
        assert r["token_ids"] == reference()["token_ids"]
        if r["workers"] == n:
            return r
    raise AssertionError(f"never {n} workers")


@test
def a_killed_worker_comes_back_and_is_used():
    workers = [Daemon("worker") for _ in range(2)]
    m = Lines("--workers", hosts_file(workers))
    wait_for_workers(m, 2)
    workers[0].kill()
    wait_for_workers(m, 1)
    workers[0].start()  # on the same port
    r = wait_for_workers(m, 2)
    expect_calm(m.said(), workers[0].port)
    assert all(n["alive"] for n in r["nodes"])
    status, err = m.close()
    assert status == 0, err
    for w in workers:
        w.kill()


@test
def a_stopped_worker_goes_on_and_is_used():
    workers = [Daemon("worker") for _ in range(2)]
    m = Lines("--workers", hosts_file(workers))
    wait_for_workers(m, 2)
    workers[0].signal(signal.SIGSTOP)
    wait_for_workers(m, 1)
    workers[0].signal(signal.SIGCONT)
    wait_for_workers(m, 2)
    assert m.close()[0] == 0
    for w in workers:
        w.kill()


@test
def a_worker_is_added_with_sighup():
    workers = [Daemon("worker") for _ in range(2)]
    path = hosts_file(workers[:1])
    m = Lines("--workers", path)
    wait_for_workers(m, 1)
    hosts_file(workers)
    m.p.send_signal(signal.SIGHUP)
    wait_for_workers(m, 2)
    with open(path, "w") as f:
        f.write("worker 127.0.0.1:notaport\n")
    m.p.send_signal(signal.SIGHUP)  # a bad file changes nothing
    wait_for_workers(m, 2)
    status, err = m.close()
    assert status == 0 and "line 1" in err, err
    for w in workers:
        w.kill()


@test
def without_workers_main_ends_with_a_clear_error():
    workers = [Daemon("worker") for _ in range(2)]
    m = Lines("--workers", hosts_file(workers))
    wait_for_workers(m, 2)
    m.ask()
    time.sleep(0.2)
    for w in workers:
        w.kill()
    with contextlib.suppress(BrokenPipeError):  # main may have ended already
        m.ask()
    status, err = m.close()
    assert status == 1, status
    assert "no worker is left" in err and f"127.0.0.1:{workers[0].port}" in err, err


@test
def main_itself_is_stopped_for_a_while():
    workers = [Daemon("worker") for _ in range(2)]
    m = Lines("--workers", hosts_file(workers))
    wait_for_workers(m, 2)
    m.ask()
    time.sleep(0.3)
    m.p.send_signal(signal.SIGSTOP)
    time.sleep(2.5)  # longer than the workers wait for it
    m.p.send_signal(signal.SIGCONT)
    assert m.answer()["token_ids"] == reference()["token_ids"]
    wait_for_workers(m, 2)
    status, err = m.close()
    assert status == 0, err
    for w in workers:
        w.kill()


@test
def a_host_that_leaves_the_file_is_let_go():
    workers = [Daemon("worker") for _ in range(2)]
    hosts_file(workers)
    m = Lines("--workers", hosts_file(workers))
    wait_for_workers(m, 2)
    path = hosts_file(workers[:1])
    m.p.send_signal(signal.SIGHUP)
    wait_for_workers(m, 1)
    assert generate("--workers", hosts_file(workers[1:], "other.txt"), tokens=4)["workers"] == 1  # free for others
    assert path and m.close()[0] == 0
    for w in workers:
        w.kill()


@test
def an_interrupt_ends_main_at_once():
    for number in signal.SIGINT, signal.SIGTERM:
        m = Lines("--local", 2)
        m.ask()
        m.answer()
        m.ask()
        while struct.unpack("i", fcntl.ioctl(m.p.stdin, termios.FIONREAD, bytes(4)))[0] > 0:  # it has not read the line
            time.sleep(0.01)
        time.sleep(0.2)
        m.p.send_signal(number)
        out, err = m.p.communicate(timeout=HANG_S)
        assert m.p.returncode == 128 + number, (m.p.returncode, err)
        assert json.loads(out)["finish"] in ("cancelled", "length"), out
    w = FakeHosts()
    p = subprocess.Popen(main_args("--workers", w.path), stderr=subprocess.PIPE)
    main = w.s.accept()[0]  # its signal handlers are there by now
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=HANG_S)
    assert p.returncode == 128 + signal.SIGTERM
    main.close()
    w.close()


class FakeHosts:
    """A host that takes connections and says nothing."""

    def __init__(self):
        self.s = socket.create_server(("127.0.0.1", 0))
        self.s.settimeout(HANG_S)
        self.path = hosts(f"127.0.0.1:{self.s.getsockname()[1]}\n")

    def close(self):
        self.s.close()


@test
def every_prompt_gets_an_object_and_failures_a_status():
    p = subprocess.run([a for a in main_args("--resident", tokens=3) if a not in ("--prompt", PROMPT)],
                       input=b"good\r\n\xff\xfe bad\n" + b"king " * 3000 + b"\nmore\n", capture_output=True)
    out = [json.loads(line) for line in p.stdout.splitlines()]
    assert p.returncode == 1 and len(out) == 4, (p.returncode, p.stdout[:500])
    assert ["error" in o for o in out] == [False, True, True, False]
    assert out[0]["prompt"] == "good"
    assert "UTF-8" in out[1]["error"] and "context" in out[2]["error"] and out[2]["finish"] == "error"
    for args in ["--json"], []:
        with open("/dev/full", "w") as full:
            argv = [a for a in main_args("--resident", tokens=3) if a != "--json"] + args
            p = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True)
        assert p.returncode == 1 and "output" in p.stderr, p


@test
def standard_descriptors_may_be_closed():
    """No file of ours gets their numbers: what is printed would land in it."""
    argv = [a for a in main_args("--local", 1, "--trace", os.path.join(TMP, "closed.json"), tokens=3) if a != "--json"]
    for last in 1, 3:
        p = subprocess.run(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                           preexec_fn=lambda: (os.close(0), os.close(1)) if last == 3 else os.close(1))
        assert p.returncode == 1 and "output could not be written" in p.stderr, p
        with open(os.path.join(TMP, "closed.json")) as f:
            assert json.load(f)
    r, w = os.pipe()
    for argv in (["od-worker", "--pack", pack()], ["od-shadow", "--pack", pack(), "--precision", "bf16"]):
        p = subprocess.Popen([os.path.join(BIN, argv[0]), *argv[1:], "--port", "0", "--ready-fd", str(w), "--threads", "1"],
                             pass_fds=[w], preexec_fn=lambda: os.closerange(0, 3))
        try:
            assert os.read(r, 16), "it has not started"
            found = [os.readlink(f"/proc/{p.pid}/fd/{n}") for n in range(3)]
            assert found == ["/dev/null"] * 3, found
        finally:
            p.kill()
            p.wait()
    os.close(r)
    os.close(w)


@test
def main_is_killed_and_the_next_one_is_served():
    workers = [Daemon("worker") for _ in range(2)]
    path = hosts_file(workers)
    m = Lines("--workers", path)
    m.ask()
    time.sleep(0.3)
    m.p.kill()
    m.p.communicate(timeout=HANG_S)
    r = generate("--workers", path, prompt=PROMPT, tokens=TOKENS)
    assert r["token_ids"] == reference()["token_ids"]
    for w in workers:
        assert w.alive()
        w.kill()


@test
def children_of_local_die_with_main():
    def lives(child):
        try:
            with open(f"/proc/{child}/stat") as f:
                return f.read().rsplit(")", 1)[1].split()[0] != "Z"
        except (FileNotFoundError, ProcessLookupError):
            return False

    argv = main_args("--local", 3, "--predictor", "none", tokens=900)
    m = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    end = time.monotonic() + HANG_S
    children = []
    while len(children) < 3 and time.monotonic() < end:
        with open(f"/proc/{m.pid}/task/{m.pid}/children") as f:
            children = f.read().split()
    assert len(children) == 3, children
    m.kill()
    while any(lives(c) for c in children):
        assert time.monotonic() < end, "children live on"
        time.sleep(0.02)
    m.communicate(timeout=HANG_S)


def refused(*args, says, tokens=4, status=1):
    p = subprocess.run(main_args(*args, tokens=tokens), capture_output=True, text=True, timeout=HANG_S)
    assert p.returncode == status, (p.returncode, p.stderr)
    for s in says:
        assert s in p.stderr, (s, p.stderr)


@test
def children_of_local_get_their_arguments():
    for args in ["--worker-arg", "--slots=2"], ["--worker-arg", "--slots", "--worker-arg", 2], ["--worker-arg=--slots=2"]:
        assert generate("--local", 1, "--predictor", "none", *args, tokens=2)["slots"] == 2, args
    # Those of the shadow go to the shadow; the last of two counts.
    # Main waits for paced loads, so that the shadow gets its turn on a machine of any speed.
    # A starved shadow says nothing in time.
    for _ in range(20):
        r = undisturbed("--local", 1, *shadow_args("--precision=bf16"), *worker_args("--slots=3", "--slots=1", "--load-time=10"), tokens=8)
        assert r["slots"] == 1, r
        if r["late_predictions"] == 0 and r["predicted_uses"] > 0:
            break
    assert r["recall"] == 1, r


@test
def a_child_of_local_that_refuses_an_argument_ends_main():
    begin = time.monotonic()
    for args, says in ((["--worker-arg=--slots=0"], ["od-worker: error: --slots: expected 1 to 1024, found 0", "did not start: it ended "
                                                     "with status 2, and its own message above says why; it was started with --slots=0"]),
                       (["--worker-arg=--slots"], ["od-worker: error: --slots needs a value: N"]),
                       (["--worker-arg=--memory-limit=1KB"], ["memory limit", "with status 1"]),
                       (["--worker-arg=--memory-limit=0"], ["memory limit", "with status 1"]),
                       (["--shadow-arg=--memory-limit=0"], ["--memory-limit is 0 bytes (0 B)", "with status 1"]),
                       (["--worker-arg=what"], ['od-worker: error: unexpected argument "what"']),
                       (["--worker-arg=--precision=nf4"], ["od-worker: error: unknown option --precision=nf4"]),
                       (["--shadow-arg=--precision=int9"], ["od-shadow: error: --precision: expected one of", "the shadow did not start: "
                                                            "it ended with status 2", "; it was started with --precision=int9"]),
                       (["--worker-arg=--version"], ["did not start: it ended with status 0"])):
        refused("--local", 2, *args, says=says)
    assert time.monotonic() - begin < HANG_S / 2
    for args in ["--worker-arg", "--port=1"], ["--shadow-arg", "--pack", "--shadow-arg", "x"]:
        refused("--local", 2, *args, says=[f"{args[0]} {args[1]}: od-main sets this itself"], status=2)
    refused("--resident", "--worker-arg", "x", says=["--worker-arg needs --local"], status=2)


@test
def a_child_of_local_that_dies_is_not_waited_for():
    """Its siblings take their time to start; it is told how the child ended, and none is left behind."""
    folder = os.path.join(TMP, "bin")
    os.mkdir(folder)
    shutil.copy(os.path.join(BIN, "od-main"), folder)
    for name, text in ("od-shadow", f"echo $$ >{folder}/pid; exec sleep 1000"), \
                      ("od-worker", f"while [ ! -s {folder}/pid ]; do sleep 0.05; done; kill -9 $$"):
        with open(os.path.join(folder, name), "w") as f:
            f.write(f"#!/bin/sh\n{text}\n")
        os.chmod(f.name, 0o755)
    argv = main_args("--local", 3)
    p = subprocess.run([os.path.join(folder, "od-main"), *argv[1:]], capture_output=True, text=True, timeout=HANG_S / 2)
    assert p.returncode == 1 and "of 3 did not start: it was ended by signal 9 (Killed, as when memory runs out)" in p.stderr, p.stderr
    with open(os.path.join(folder, "pid")) as f:
        assert not os.path.exists(f"/proc/{int(f.read())}"), "the shadow lives on"


def children(p):
    """Process numbers of the children, in the order of their start."""
    with open(f"/proc/{p.pid}/task/{p.pid}/children") as f:
        return [int(c) for c in f.read().split()]


@test
def a_child_of_local_that_ends_is_told_and_not_waited_for():
    m = Lines("--local", 2)
    m.ask()
    assert m.answer()["token_ids"] == reference()["token_ids"]
    shadow, first, second = children(m.p)
    said = ""
    for pid, number, how in ((first, signal.SIGKILL, "was ended by signal 9 (Killed"), (shadow, signal.SIGTERM, "ended with status 0")):
        os.kill(pid, number)
        while f"its process {pid} {how}" not in said:
            line = m.message()
            said += line
            expect_calm(said)  # and not by its silence, each time
            assert line, said
        m.ask()
        assert m.answer()["token_ids"] == reference()["token_ids"], how
    os.kill(second, signal.SIGKILL)
    m.ask()
    status, err = m.close()
    said += err
    expect_calm(said)
    assert status == 1 and said.count("and is not started again") >= 3 and "no answer" not in said, said
    none_left = said[said.index("no worker is left"):]
    assert all(f"its process {pid} " in none_left for pid in (first, second)), said


def hosts(text):
    path = os.path.join(TMP, "bad-hosts.txt")
    with open(path, "w") as f:
        f.write(text)
    return path


@test
def bad_hosts_files_name_the_line():
    refused("--workers", hosts("127.0.0.1:5701\n\n127.0.0.1:0\n"), says=["bad-hosts.txt", "line 3"])
    refused("--workers", hosts("# two\n127.0.0.1:5701\nworker 127.0.0.1:5701\n"), says=["line 3", "line 2"])
    refused("--workers", hosts("wroker 127.0.0.1\n"), says=["line 1", "wroker"])
    refused("--workers", hosts("# nobody\n"), says=["at least one worker"])
    refused("--workers", "/nonexistent/hosts.txt", says=["/nonexistent/hosts.txt"])


@test
def an_unreachable_host_is_named():
    w = Daemon("worker")
    s = socket.socket()
    s.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
    port = s.getsockname()[1]
    refused("--workers", hosts(f"127.0.0.1:{port}\n"), says=["1 of 1", f"127.0.0.1:{port}"])
    _, err = generate("--workers", hosts(f"127.0.0.1:{w.port}\n127.0.0.1:{port}\n"), tokens=4, stderr=True)
    assert f"worker 127.0.0.1:{port} is missing: cannot connect; check that it runs there" in err, err
    refused("--workers", hosts("no-such-host.invalid\n"), says=["no-such-host.invalid"])
    w.kill()


@test
def a_stopped_daemon_is_told_from_one_that_hangs_up():
    w = Daemon("worker")
    w.signal(signal.SIGSTOP)
    silent = f"worker 127.0.0.1:{w.port}: it takes the connection and says nothing"
    refused("--workers", hosts_file([w]), says=[silent])
    m = subprocess.Popen(main_args("--workers", hosts_file([w])), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while m.poll() is None:  # main may be stopped and go on, as with Ctrl-Z: its waits are interrupted, and nobody has hung up
        m.send_signal(signal.SIGSTOP)
        time.sleep(0.05)
        m.send_signal(signal.SIGCONT)
        time.sleep(0.2)
    assert silent in m.communicate(timeout=HANG_S)[1]
    w.kill()
    listener = socket.create_server(("127.0.0.1", 0))

    def hang_up():
        while True:
            listener.accept()[0].close()

    threading.Thread(target=hang_up, daemon=True).start()
    refused("--workers", hosts(f"127.0.0.1:{listener.getsockname()[1]}\n"), says=["it ends the handshake"])


@test
def hosts_that_do_not_fit_into_a_message_are_counted():
    sockets = [socket.socket() for _ in range(20)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    p = subprocess.run(main_args("--workers", hosts("".join(f"127.0.0.1:{s.getsockname()[1]}\n" for s in sockets))),
                       capture_output=True, text=True, timeout=HANG_S)
    named = re.findall(r"worker 127\.0\.0\.1:\d+: cannot connect; check that it runs there, and its address and port; ", p.stderr)
    assert p.returncode == 1 and named and p.stderr.endswith(f"port; and {20 - len(named)} more\n"), p.stderr


@test
def the_reason_of_a_refusal_is_not_cut():
    """The longest ones end with what to do about it."""
    reason = b"kernel_class: " + b"expected and found, " * 14 + b"or allow it with --mixed"
    f = fake([zmtp.field(1, zmtp.VERSION) + zmtp.field(12, zmtp.field(1, 17) + zmtp.field(2, b"kernel_class") + zmtp.field(3, reason))])
    refused("--workers", hosts_file([f]), says=["refused: " + reason.decode()])
    f.close()


@test
def a_worker_of_another_model_is_refused():
    other = os.path.join(TMP, "other")
    tool("od-bench", "synth", other, "--preset", "tiny")
    tool("od-pack", other, other + ".pack")
    w = Daemon("worker", pack_dir=other + ".pack")
    refused("--workers", hosts_file([w]), says=["refused: fingerprint", f"127.0.0.1:{w.port}",
                                                 "packs of one checkpoint"])
    assert w.alive()
    w.kill()


@test
def a_port_in_use_says_so():
    w = Daemon("worker")
    p = tool("od-worker", "--pack", pack(), "--port", w.port, ok=False)
    assert str(w.port) in p.stderr and "--port" in p.stderr, p.stderr
    w.kill()


@test
def addresses_beyond_loopback_need_insecure():
    p = tool("od-worker", "--pack", pack(), "--listen", "0.0.0.0", ok=False)
    assert "--insecure" in p.stderr, p.stderr


@test
def a_worker_that_cannot_hold_an_expert_says_how_much_it_needs():
    p = tool("od-worker", "--pack", pack(), "--memory-limit", "100KiB", ok=False)
    assert "KiB" in p.stderr or "bytes" in p.stderr, p.stderr


@test
def a_prompt_longer_than_the_context():
    long = "king " * 2000
    refused("--resident", "--prompt", long, says=["context of 1024"])
    refused("--resident", "--ctx-size", 4, says=["context of 4"])
    refused("--resident", "--ctx-size", 4096, says=["1024"])


@test
def strangers_do_no_harm():
    w = Daemon("worker")
    for junk in (b"", b"\0" * 4096, b"GET / HTTP/1.1\r\n\r\n", os.urandom(8192),
                 b"\xff" + b"\0" * 8 + b"\x7f" + os.urandom(64),
                 struct.pack(">Q", 2**63) * 16):
        s = socket.create_connection(("127.0.0.1", w.port))
        s.sendall(junk)
        s.close()
    r = generate("--workers", hosts_file([w]), prompt=PROMPT)
    assert r["token_ids"] == reference()["token_ids"][:len(r["token_ids"])]
    assert w.alive()
    w.kill()


def open_files(process):
    """Its limits, soft and hard, and how many it has open."""
    with open(f"/proc/{process.pid}/limits") as f:
        soft, hard = next(line for line in f if line.startswith("Max open files")).split()[3:5]
    return soft, hard, len(os.listdir(f"/proc/{process.pid}/fd"))


@test
def all_files_that_the_system_allows_may_be_open():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 100, hard))  # the soft one; programs inherit it
    try:
        nodes = [Daemon("worker"), Daemon("shadow")]
        m = Lines("--workers", hosts_file(nodes))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    m.ask()
    m.answer()
    for p in [m.p] + [n.process for n in nodes]:
        soft, hard, _ = open_files(p)
        assert soft == hard, (soft, hard)
    assert m.close()[0] == 0
    for n in nodes:
        n.kill()


@test
def strangers_that_take_all_descriptors_are_spoken_of():
    """They greet, as ZeroMQ does, and say nothing more. Who has a session does not notice; others come in when they leave."""
    w = Daemon("worker", "--slots", 2)
    m = Lines("--workers", hosts_file([w]), "--max-tokens", 24)
    m.ask()
    expected = reference()["token_ids"][:24]
    assert m.answer()["token_ids"] == expected
    limit = open_files(w.process)[2] + 20
    resource.prlimit(w.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
    strangers = []
    while open_files(w.process)[2] < limit:
        strangers.append(zmtp.connect(w.port).s)
    strangers.append(socket.create_connection(("127.0.0.1", w.port)))  # waits to be accepted
    wait_for(lambda: "file descriptors are in use" in w.text(), w.text)
    assert f"all {limit} file" in w.text(), w.text()
    m.ask()
    r = m.answer()
    expect_calm(m.said())  # one that was lost could not connect again
    assert r["token_ids"] == expected
    time.sleep(1)
    assert w.text().count("file descriptors are in use") == 1, w.text()  # once, however often accept() fails
    for s in strangers:
        s.close()
    wait_for(lambda: "descriptors are free again" in w.text(), w.text)
    assert m.close()[0] == 0
    r = generate("--workers", hosts_file([w]), prompt=PROMPT)
    assert r["token_ids"] == expected[:len(r["token_ids"])]
    w.kill()


def welcome(version=zmtp.VERSION, session=5, data_port=1, pid=1, spool=0, role=b"worker", more=b""):
    return zmtp.field(1, version) + zmtp.field(2, session) + zmtp.field(
        11, zmtp.field(1, session) + zmtp.field(2, role) + zmtp.field(6, pid) + zmtp.field(7, data_port) + zmtp.field(12, spool) + more)


def pong(session=5, sequence=1):
    """Main uses a daemon when it has answered a PING."""
    return zmtp.field(1, zmtp.VERSION) + zmtp.field(2, session) + zmtp.field(14, zmtp.field(1, sequence))


def fake(*answers):
    """A daemon that answers HELLO with these messages and then says nothing."""
    def serve(c):
        c.recv()
        for a in answers:
            c.send(*a)
        while True:
            c.recv()
    return zmtp.FakeDaemon(serve)


@test
def a_worker_of_another_protocol_version_is_refused():
    f = fake([welcome(version=9)])
    refused("--workers", hosts_file([f]), says=["version", f"expected {zmtp.VERSION}, found 9", f"127.0.0.1:{f.port}"])
    f.close()


@test
def a_worker_that_should_have_refused_is_refused():
    """It welcomes main though it computes otherwise, or is no worker."""
    for answer, says in (welcome(more=zmtp.field(3, b"other")), "kernel_class: expected .*, found other: .*--mixed"), \
                        (welcome(role=b"shadow"), 'role: expected worker, found "shadow"'):
        f = fake([answer])
        p = subprocess.run(main_args("--workers", hosts_file([f])), capture_output=True, text=True, timeout=HANG_S)
        f.close()
        assert p.returncode == 1 and re.search(f"cannot use worker 127.0.0.1:{f.port}: {says}", p.stderr), p.stderr


@test
def a_worker_that_talks_nonsense_is_refused():
    nonsense = ([[b""]], [[b"\xff" * 100]], [[welcome(session=0)]], [[welcome(data_port=0)]], [[welcome(data_port=1 << 20)]],
                [[os.urandom(200)] * 3], [[b"x"] * 40], [[welcome()[:-3]]])

    def one(i):
        f = fake(*nonsense[i])
        refused("--workers", hosts_file([f], f"nonsense{i}.txt"), says=[f"127.0.0.1:{f.port}"])
        f.close()

    with ThreadPoolExecutor(len(nonsense)) as all_at_once:  # each of them makes main wait for ten seconds
        list(all_at_once.map(one, range(len(nonsense))))


@test
def a_worker_without_a_data_port_is_not_used():
    w, f = Daemon("worker"), Mute(data_port=1)
    p = subprocess.run(main_args("--workers", hosts_file([f])), capture_output=True, text=True, timeout=HANG_S)
    if "none has answered on its data port" in p.stderr or "no answer for" in p.stderr:
        raise Disturbed("main had no CPU for so long that the worker was on its second trial, or lost for its silence")
    assert p.returncode == 1 and f"cannot use worker 127.0.0.1:{f.port}: no answer on its data port" in p.stderr, p.stderr
    r, err = generate("--workers", hosts_file([w, f]), prompt=PROMPT, tokens=4, stderr=True)
    assert r["token_ids"] == reference()["token_ids"][:4], r
    if "no answer for" in err:
        raise Disturbed(err)
    assert r["workers"] == 1, r
    assert f"worker 127.0.0.1:{f.port} is lost: no answer on its data port; check that the port is open" in err, err
    f.close()
    w.kill()


ATTACH, ATTACHED, PLACE = 30, 31, 19


def attached(f, c, m):
    if ATTACH in zmtp.parse(m[0]):
        c.send(zmtp.field(1, zmtp.VERSION) + zmtp.field(2, f.sessions) + zmtp.field(ATTACHED, b""))


class Mute(zmtp.FakeDaemon):
    """A worker that welcomes main and answers its heartbeats; what its data port gets, on_data decides."""

    def __init__(self, on_data=None, pid=lambda session: 1, data_port=None):
        self.pid = pid
        self.data = zmtp.FakeDaemon(self._data)
        self.data_port = data_port or self.data.port
        self.on_data = on_data
        self.place = None  # its number, of how many
        self.here, self.attach, self.gone = threading.Event(), threading.Event(), threading.Event()
        self.sessions = 0
        super().__init__(self._control)

    def _control(self, c):
        c.recv()
        self.sessions += 1
        session = self.sessions
        c.send(welcome(session=session, data_port=self.data_port, pid=self.pid(session), spool=1))
        try:
            while True:
                m = zmtp.parse(c.recv()[0])
                if 13 in m:  # PING
                    c.send(zmtp.field(1, zmtp.VERSION) + zmtp.field(2, session) + zmtp.field(14, zmtp.field(1, zmtp.parse(m[13]).get(1, 0))))
                    self.here.set()
                if PLACE in m:
                    place = zmtp.parse(m[PLACE])
                    self.place = place.get(2, 0), place.get(1, 0)
        finally:
            self.gone.set()

    def _data(self, c):
        while True:
            m = c.recv()
            self.attach.set()
            if self.on_data is not None:
                self.on_data(self, c, m)

    def close(self):
        super().close()
        self.data.close()


def relay(listener, port):
    """Gives connections to the listener on to this port."""
    def give(a, b):
        try:
            while data := a.recv(65536):
                b.sendall(data)
        except OSError:
            pass
        for s in a, b:
            s.close()

    while True:
        a, _ = listener.accept()
        b = socket.create_connection(("127.0.0.1", port))
        for x, y in (a, b), (b, a):
            threading.Thread(target=give, args=(x, y), daemon=True).start()


class Restarting:
    """A worker's control port as it is just being restarted: the first connection is welcomed, and told BYE when ATTACH comes;
    the others are the worker's."""
    role = "worker"

    def __init__(self, worker):
        self.worker = worker
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        first, _ = self.listener.accept()
        self.listener.close()
        c = zmtp.Connection(first, b"ROUTER")
        attach = threading.Event()
        data = zmtp.FakeDaemon(lambda d: (d.recv(), attach.set(), d.recv()))
        c.recv()
        c.send(welcome(session=5, data_port=data.port))
        c.send(pong())
        attach.wait()
        c.send(zmtp.field(1, zmtp.VERSION) + zmtp.field(2, 5) + zmtp.field(15, b""))
        time.sleep(3)  # longer than main waits for ATTACHED, much shorter than for everybody
        self.listener = socket.create_server(("127.0.0.1", self.port))
        relay(self.listener, self.worker.port)


@test
def a_worker_that_is_just_being_restarted_is_waited_for():
    workers = [Daemon("worker") for _ in range(2)]
    for _ in range(10):  # this program may be away for longer than main waits; a main that does not wait has not once both
        r = generate("--workers", hosts_file([workers[0], Restarting(workers[1])]), prompt=PROMPT, tokens=8)
        assert r["token_ids"] == reference()["token_ids"][:8], r
        if r["workers"] == 2:
            break
    assert r["workers"] == 2, r
    for w in workers:
        w.kill()


@test
def one_that_is_being_attached_holds_up_nothing():
    """A text of a token ends while ATTACH of two new members has no answer: both are still members then. They are for two seconds,
    so a main that is starved may be later; one that waits for them is, each time."""
    w, mute = Daemon("worker"), [Mute(), Mute()]
    path = hosts_file([w])
    m = Lines("--workers", path, "--max-tokens", 1)
    m.ask()
    m.answer()
    hosts_file([w, *mute])
    m.p.send_signal(signal.SIGHUP)
    for f in mute:
        assert f.here.wait(HANG_S)
    m.ask()
    r = m.answer()
    assert r["token_ids"] == reference()["token_ids"][:1]
    if any(f.gone.is_set() for f in mute):
        raise Disturbed(m.said())
    expect_calm(m.said())
    assert r["workers"] == 1, r
    while not all(f.gone.is_set() for f in mute):
        m.ask()
        m.answer()
    assert all(f.attach.is_set() for f in mute)
    status, err = m.close()
    if "no answer for" in err:  # this program, too, answers heartbeats
        raise Disturbed(err)
    assert status == 0 and err.count("is lost: no answer on its data port") == 2, err
    for f in mute:
        f.close()
    w.kill()


def exiles(name, enough, pid):
    """The seconds that main says it does without a worker whose data port never answers, until they are enough."""
    w, mute = Daemon("worker"), Mute(pid=pid)
    path = hosts_file([w], name)
    m = Lines("--workers", path, "--max-tokens", 1)
    m.ask()
    m.answer()
    hosts_file([w, mute], name)
    m.p.send_signal(signal.SIGHUP)

    def told():
        return re.findall(r"data port; check that the port is open; it is used again in (\d+) s", m.said())

    def asked_enough():
        m.ask()
        m.answer()
        return enough(told())

    wait_for(asked_enough, m.said)
    status, err = m.close()
    mute.close()
    w.kill()
    assert status == 0, err
    return told()


@test
def a_restarted_worker_begins_anew_and_at_once():
    """Of one that stays the same process, each exile is twice as long, and it stays connected all the time."""
    with ThreadPoolExecutor(2) as both:
        same = both.submit(exiles, "same.txt", lambda told: "10" in told, lambda session: 1)
        other = both.submit(exiles, "other.txt", lambda told: len(told) >= 3, lambda session: session)
        assert same.result()[:1] == ["5"] and same.result()[-1:] == ["10"], same.result()
        assert set(other.result()) == {"5"}, other.result()


def hang_up(m, *hosts_args):
    """The hosts file anew, and what main says until it has read it."""
    hosts_file(*hosts_args)
    m.p.send_signal(signal.SIGHUP)
    said = ""
    while "read again" not in said:
        line = m.message()
        assert line, said
        said += line
    return said


@test
def a_host_changes_its_role_with_sighup():
    first, second, shadow = Daemon("worker"), Daemon("worker"), Daemon("shadow")
    m = Lines("--workers", hosts_file([shadow, first, second]))
    m.ask()
    while m.answer()["predicted_uses"] == 0:
        m.ask()
    shadow.kill()
    third = Daemon("worker", port=shadow.port)
    hang_up(m, [first, third, second])
    wait_for_workers(m, 3)
    second.kill()
    other = Daemon("shadow", port=second.port)
    hang_up(m, [first, other, third])
    r = wait_for_workers(m, 2)
    while r["predicted_uses"] == 0:
        m.ask()
        r = m.answer()
    status, err = m.close()
    assert status == 0 and "refused" not in err, err
    for d in first, third, other:
        d.kill()


@test
def workers_have_the_numbers_of_their_lines():
    """PLACE, from which a worker's share of the experts follows, whatever the order in which they joined."""
    a, b, c = (Mute(attached) for _ in range(3))
    m = Lines("--workers", hosts_file([a, b]))

    def expect(*workers):
        end = time.monotonic() + HANG_S
        want = [(i, len(workers)) for i in range(len(workers))]
        while [w.place for w in workers] != want:
            assert time.monotonic() < end, ([w.place for w in workers], want)
            time.sleep(0.01)

    expect(a, b)
    for order in (c, a, b), (b, c, a), (a, c), (c, a, b), (b, a):
        hang_up(m, list(order))
        expect(*order)
    assert m.close()[0] == 0
    for f in a, b, c:
        f.close()


@test
def a_shadow_that_is_added_later_is_not_used_and_main_says_so():
    w, shadow = Daemon("worker"), Daemon("shadow")
    m = Lines("--workers", hosts_file([w]))
    wait_for_workers(m, 1)
    assert "hosts.txt line 2: this shadow is not used" in hang_up(m, [w, shadow])
    assert "shadow" not in hang_up(m, [w])
    wait_for_workers(m, 1)
    assert m.close()[0] == 0
    for d in w, shadow:
        d.kill()


@test
def hosts_come_and_go_without_end():
    """2000 of them; those that left are neither counted nor shown."""
    class Absent:
        """Nobody listens on its port, and as it is bound, no other program's daemon can."""
        role = "worker"

        def __init__(self):
            self.s = socket.socket()
            self.s.bind(("127.0.0.1", 0))
            self.port = self.s.getsockname()[1]

    first, second = Daemon("worker"), Daemon("worker")
    m = Lines("--workers", hosts_file([first]))
    wait_for_workers(m, 1)
    absent = []
    for _ in range(5):
        left, absent = absent, [Absent() for _ in range(400)]
        hang_up(m, [first] + absent)
        for a in left:
            a.s.close()
    hang_up(m, [second, first])
    r = wait_for_workers(m, 2)
    assert sorted(n["name"] for n in r["nodes"]) == sorted(["main"] + [f"worker 127.0.0.1:{w.port}" for w in (first, second)]), r
    status, err = m.close()
    assert status == 0 and "cannot add" not in err, err
    for a in absent:
        a.s.close()
    for w in first, second:
        w.kill()


@test
def two_names_of_one_daemon_are_told():
    w = Daemon("worker")
    path = hosts(f"localhost:{w.port}\n127.0.0.1:{w.port}\n")
    refused("--workers", path, says=["is the same daemon as worker", f"localhost:{w.port}", f"127.0.0.1:{w.port}"])
    # By addresses that tell nothing of each other, as IPv4 and IPv6 do.
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=relay, args=(listener, w.port), daemon=True).start()
    path = hosts(f"127.0.0.1:{listener.getsockname()[1]}\n127.0.0.1:{w.port}\n")
    refused("--workers", path, says=["uses this worker already, by another address: two lines of its hosts file are the same daemon"])
    m = Lines("--workers", hosts_file([w]))  # who it is, not where: another main is told otherwise
    wait_for_workers(m, 1)
    try:
        refused("--workers", path, says=["this worker is in use by main"])
    except AssertionError:
        m.ask()
        m.answer()
        expect_calm(m.said())  # a main that had no CPU has lost its worker to the other one
        raise
    assert m.close()[0] == 0
    w.kill()


@test
def strangers_messages_do_no_harm():
    w = Daemon("worker")
    hello = zmtp.field(1, zmtp.VERSION) + zmtp.field(10, zmtp.field(1, b"worker") + zmtp.field(2, b"x" * 32) + zmtp.field(3, 1))
    for message in ([b""], [b"", b""], [os.urandom(300)], [hello], [hello, b"frame"], [hello[:-4]], [b"\x00" * 70000],
                    [zmtp.field(1, zmtp.VERSION) + zmtp.field(2, 77) + zmtp.field(16, b"")],
                    [zmtp.field(1, zmtp.VERSION) + zmtp.field(2, 77) + zmtp.field(32, b""), b"rows"], [b"a"] * 30,
                    [zmtp.field(1, zmtp.VERSION) + zmtp.field(13, zmtp.field(1, 1))]):
        for _ in range(3):
            c = zmtp.connect(w.port)
            c.send(*message)
            c.send(*message)
            c.s.close()
    r = generate("--workers", hosts_file([w]), prompt=PROMPT)
    assert r["token_ids"] == reference()["token_ids"][:len(r["token_ids"])]
    assert w.alive()
    w.kill()


@test
def a_corrupt_expert_is_run_elsewhere():
    copy = os.path.join(TMP, "corrupt.pack")
    shutil.copytree(pack(), copy)
    bad, worse = (Daemon("worker", pack_dir=copy) for _ in range(2))  # opened while it was whole
    good, better = Daemon("worker"), Daemon("worker")
    with open(os.path.join(copy, "experts.bin"), "r+b") as f:
        size = f.seek(0, 2)
        for at in range(size // 64, size, size // 64):  # a byte in most experts
            f.seek(at)
            b = f.read(1)
            f.seek(at)
            f.write(bytes([b[0] ^ 16]))
    for nodes in [bad, good], [bad, good, worse, better], [good, better, bad, worse]:
        r = undisturbed("--workers", hosts_file(nodes), prompt=PROMPT, tokens=40)
        assert r["token_ids"] == reference()["token_ids"][:40]
        assert r["recovered_runs"] > 0
    # An expert that a worker could not load is another one's from the next step on: moved once, not for each use.
    r = undisturbed("--workers", hosts_file([bad, good]), "--predictor", "none", prompt=PROMPT, tokens=200)
    assert 0 < r["recovered_runs"] <= 12 * 8, r["recovered_runs"]
    refused("--workers", hosts_file([bad]), says=["checksum", "expert"], tokens=40)
    assert bad.alive()
    for w in bad, worse, good, better:
        w.kill()


def experts_used(tokens):
    """(m, expert) of all that one worker computes for the text."""
    trace = os.path.join(TMP, "worker.trace")
    w = Daemon("worker", "--trace", trace)
    text = generate("--workers", hosts_file([w]), prompt=PROMPT, tokens=tokens)["token_ids"]
    w.process.terminate()
    w.process.wait(timeout=HANG_S)
    w.kill()
    with open(trace, encoding="utf-8") as f:
        events = json.load(f)
    events = events["traceEvents"] if isinstance(events, dict) else events
    return text, {(e["args"]["m"], e["args"]["expert"]) for e in events if e["name"] == "compute"}


@test
def an_expert_that_only_drafts_need_may_be_lost():
    """All experts that the text does not use are damaged; a shadow of partly other weights drafts tokens that use them."""
    tokens = 8
    text, used = experts_used(tokens)
    damaged, wrong = os.path.join(TMP, "unused.pack"), os.path.join(TMP, "other-weights.pack")
    shutil.copytree(pack(), damaged)
    wrong_shadow.make(pack(), wrong, layers=2)  # some of its tokens are right, and the draft behind them is wrong
    with open(os.path.join(pack(), "model.json"), encoding="utf-8") as f:
        table = json.load(f)["experts"]["table"]
    workers = [Daemon("worker", "--load-time=10", pack_dir=damaged) for _ in range(2)]
    with open(os.path.join(damaged, "experts.bin"), "r+b") as f:
        unused = [e for e in table if (e["m"], e["expert"]) not in used]
        assert len(unused) > 5, len(unused)
        for e in unused:
            f.seek(e["offset"] + e["bytes"] // 2)
            f.write(b"\x5a" * 64)
    shadow = Daemon("shadow", pack_dir=wrong)
    hosts = hosts_file([shadow, *workers])
    for _ in range(20):  # a starved shadow drafts nothing in time
        r, err = generate("--workers", hosts, "--draft", 8, prompt=PROMPT, tokens=tokens, stderr=True)
        assert r["token_ids"] == text
        if r["drafted_tokens"] > 0 and "only a draft needs it" in err:
            break
    assert r["drafted_tokens"] > 0 and "only a draft needs it" in err, err
    refused("--workers", hosts, "--draft", 8, tokens=60, says=["checksum", "expert"])
    for d in [shadow, *workers]:
        d.kill()


@test
def a_main_that_has_ended_is_no_warning():
    """Main waits for no answer to its BYE, so a worker that was busy meanwhile finds it gone. BYE has 20 ms to leave, which a busy
    machine may not give it."""
    worker = Daemon("worker")
    for n in range(1, 30):
        m = Lines("--workers", hosts_file([worker]))
        m.ask()
        m.answer()
        worker.signal(signal.SIGSTOP)
        status, err = m.close()
        assert status == 0, err
        worker.signal(signal.SIGCONT)
        wait_for(lambda: worker.text().count(" ended: ") >= n, worker.text)
        said = worker.text().split("session with main")[-1]
        if "main sent BYE" in said:
            break
    assert "main sent BYE" in said and "warning" not in said, worker.text()
    worker.kill()


if __name__ == "__main__":
    run_tests()
