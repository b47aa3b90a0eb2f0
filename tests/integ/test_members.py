#!/usr/bin/env python3
"""Who is in the cluster: hosts that are missing at the start, workers and shadows that go and come back, and what main says of each."""
import contextlib
import os
import re
import signal
import socket
import struct
import subprocess
import threading
import time

import zmtp
from cluster_util import (HANG_S, PROMPT, TMP, Daemon, Lines, expect_calm, free_port, generate, hosts_file, main_args, pack,
                          reference, run_tests, test, tool, wait_for)
from serve_util import Server, stop_servers

TOKENS = 4


class Absent:
    """A host on whose port nobody listens. No other program gets the port; come() starts the daemon there."""

    def __init__(self, role, *args):
        self.role, self.args = role, args
        self.hold = socket.socket()
        self.hold.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.hold.bind(("127.0.0.1", free_port()))
        self.port = self.hold.getsockname()[1]

    def come(self):
        self.hold.close()
        return Daemon(self.role, *self.args, port=self.port)


def name_of(d):
    return f"{d.role} 127.0.0.1:{d.port}"


def news(said, d=None):
    """What the log says of missing, lost and returned members, in its order: [(kind, name)]."""
    found = re.findall(r"((?:worker|shadow) \S+:\d+) (?:is (missing|lost|back)|has (joined))", said)
    return [(what or joined, name) for name, what, joined in found if d is None or name == name_of(d)]


def is_told_in_order(said, d, first):
    """What is said of d begins with `first`, and then its losses and returns take turns, up to a return. (A daemon without CPU for 1.5 s
    is lost and back, too.)"""
    kinds = [kind for kind, _ in news(said, d)]
    rest = kinds[len(first):]
    assert kinds[:len(first)] == first and rest == ["lost", "back"] * (len(rest) // 2), said


def await_calmly(s, condition):
    """Until what the test wants is true, and Disturbed if a loss to silence came between."""
    def calm_and_true():
        expect_calm(s.log)
        return condition()
    wait_for(calm_and_true, lambda: s.log)


@test
def the_start_does_without_hosts_that_are_missing():
    """One of two workers and the shadow; then they come and are used."""
    here, worker, shadow = Daemon("worker"), Absent("worker"), Absent("shadow")
    m = Lines("--workers", hosts_file([shadow, here, worker]), "--max-tokens", TOKENS)
    m.ask()
    r = m.answer()
    assert r["workers"] == 1 and r["token_ids"] == reference()["token_ids"][:TOKENS], r
    came = [worker.come(), shadow.come()]
    end = time.monotonic() + HANG_S
    while r["workers"] != 2 or r["predicted_uses"] == 0:
        assert time.monotonic() < end, r
        m.ask()
        r = m.answer()
        assert r["token_ids"] == reference()["token_ids"][:TOKENS], r
    status, err = m.close()
    for d in [here, *came]:
        d.kill()
    assert status == 0, err
    for d in worker, shadow:
        is_told_in_order(err, d, ["missing", "joined"])
        assert f"{name_of(d)} is missing: cannot connect; check that it runs there, and its address and port; starting without it" in err, err
    assert f"{name_of(worker)} has joined: 2 of 2 workers" in err, err
    is_told_in_order(err, here, [])


@test
def a_server_starts_without_a_missing_worker_and_is_healthy():
    here, absent = Daemon("worker"), Absent("worker")
    s = Server(mode=("--workers", hosts_file([absent, here])))
    assert f"{name_of(absent)} is missing" in s.log, s.log
    wait_for(lambda: s.ask("/health")[0] == 200)
    assert s.log.index("is missing") < s.log.index('msg="ready"'), s.log
    s.complete(PROMPT, TOKENS)
    came = absent.come()
    await_calmly(s, lambda: f"{name_of(came)} has joined: 2 of 2 workers" in s.log)
    assert s.stop() == 0
    for d in here, came:
        d.kill()


@test
def what_only_a_missing_worker_has_ends_the_start():
    """Workers with shares of the pack: some of the experts are nowhere."""
    folders = [os.path.join(TMP, f"share{i}") for i in (1, 2)]
    for i, folder in enumerate(folders, 1):
        tool("od-pack", "--share", f"{i}/2", "--group-size", 1, pack(), folder)
    first, absent = Daemon("worker", pack_dir=folders[0]), Absent("worker")
    argv = main_args("--workers", hosts_file([first, absent]), "--group-size", 1, tokens=TOKENS)
    p = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S)
    here, all_experts = map(int, re.search(r"share +(\d+) of (\d+) experts", tool("od-pack", "info", folders[0]).stdout).groups())
    assert p.returncode == 1 and here < all_experts, p.stderr
    assert f"{all_experts - here} of {all_experts} experts are in the share of no worker that is connected" in p.stderr, p.stderr
    assert f"missing: {name_of(absent)}: cannot connect" in p.stderr, p.stderr
    absent.hold.close()
    second = Daemon("worker", pack_dir=folders[1], port=absent.port)
    r = generate("--workers", hosts_file([first, second]), "--group-size", 1, prompt=PROMPT, tokens=TOKENS)
    assert r["token_ids"] == reference()["token_ids"][:TOKENS], r
    s = Server(mode=("--workers", hosts_file([first, second]), "--group-size", 1))
    s.complete(PROMPT, TOKENS)
    assert s.ask("/health")[0] == 200
    second.kill()
    wait_for(lambda: s.ask("/health")[0] == 503)
    assert "experts are in the share of no worker" in s.ask("/health")[2]["error"]["message"]
    second.start()
    wait_for(lambda: s.ask("/health")[0] == 200)
    assert s.stop() == 0
    for d in first, second:
        d.kill()


@test
def one_that_refuses_ends_the_start_although_others_could_serve():
    """A mistake in the cluster is not taken for a host that is down."""
    other = os.path.join(TMP, "other")
    tool("od-bench", "synth", other, "--preset", "tiny")
    tool("od-pack", other, other + ".pack")
    here, wrong = Daemon("worker"), Daemon("worker", pack_dir=other + ".pack")
    p = subprocess.run(main_args("--workers", hosts_file([here, wrong]), tokens=TOKENS), capture_output=True, text=True, timeout=HANG_S)
    for d in here, wrong:
        d.kill()
    assert p.returncode == 1 and f"cannot use {name_of(wrong)}: refused: fingerprint" in p.stderr, p.stderr
    assert name_of(here) not in p.stderr.splitlines()[-1], p.stderr


@test
def one_that_comes_back_with_another_model_is_told():
    """After more than the two seconds in which main expects an answer to a new connection."""
    other = os.path.join(TMP, "changed")
    tool("od-bench", "synth", other, "--preset", "tiny")
    tool("od-pack", other, other + ".pack")
    here, first = Daemon("worker"), Daemon("worker")
    s = Server(mode=("--workers", hosts_file([here, first])))
    text = s.complete(PROMPT, TOKENS)["choices"][0]["text"]
    first.kill()
    await_calmly(s, lambda: f"{name_of(first)} is lost" in s.log)
    time.sleep(3)
    changed = Daemon("worker", pack_dir=other + ".pack", port=first.port)
    s.wait_for(f"{name_of(changed)} refused: fingerprint")
    assert s.complete(PROMPT, TOKENS)["choices"][0]["text"] == text
    assert s.stop() == 0
    for d in here, changed:
        d.kill()


def up(s, d):
    return s.metric(f'od_{d.role}_up{{{d.role}="127.0.0.1:{d.port}"}}')


@test
def an_idle_server_knows_who_is_gone_and_who_is_back():
    """By the connection that ends with the process: no request comes, and nothing has to be silent for a while."""
    workers, shadow = [Daemon("worker") for _ in range(2)], Daemon("shadow")
    s = Server(mode=("--workers", hosts_file([shadow, *workers])))
    s.complete(PROMPT, TOKENS)
    for d in [shadow, *workers]:
        d.kill()
        await_calmly(s, lambda d=d: f"{name_of(d)} is lost: its connection has ended" in s.log)
        assert up(s, d) == 0
        if d is not workers[1]:
            wait_for(lambda: s.ask("/health")[0] == 200)
    status, _, o = s.ask("/health")
    assert status == 503 and o["status"] == "failed" and name_of(workers[0]) in o["error"]["message"], o
    for n, d in enumerate(workers, 1):
        d.start()
        await_calmly(s, lambda n=n, d=d: f"{name_of(d)} is back: {n} of 2 workers" in s.log)
        wait_for(lambda d=d: up(s, d) == 1 and s.ask("/health")[0] == 200)
    shadow.start()
    s.wait_for(f"{name_of(shadow)} is back")
    s.complete(PROMPT, TOKENS)
    assert s.stop() == 0
    for d in [shadow, *workers]:
        is_told_in_order(s.log, d, [])
        assert s.log.count(f"{name_of(d)} is lost: its connection has ended") == 1, s.log
        d.kill()


@test
def a_worker_that_is_stopped_in_order_is_gone_and_back():
    w = Daemon("worker")
    s = Server(mode=("--workers", hosts_file([w])))
    s.complete(PROMPT, TOKENS)
    w.signal(signal.SIGTERM)
    await_calmly(s, lambda: f"{name_of(w)} is lost: it sent BYE; now 0 of 1 worker" in s.log)
    assert s.ask("/health")[0] == 503
    w.process.wait()
    w.start()
    s.wait_for(f"{name_of(w)} is back: 1 of 1 worker")
    wait_for(lambda: s.ask("/health")[0] == 200)
    assert s.stop() == 0
    is_told_in_order(s.log, w, [])
    w.kill()


@test
def a_text_goes_on_when_a_worker_that_it_needs_is_killed():
    """The log ends with its return; what its loss meant for the text is no second loss."""
    workers = [Daemon("worker", "--slots", 2) for _ in range(2)]
    m = Lines("--workers", hosts_file(workers), "--predictor", "none")
    m.ask()
    r = m.answer()
    expect_calm(m.said())
    assert r["workers"] == 2
    m.ask()
    time.sleep(0.1)
    workers[1].restart()
    end = time.monotonic() + HANG_S
    workers_seen = 0
    while workers_seen != 2:
        assert time.monotonic() < end
        r = m.answer()
        assert r["token_ids"] == reference()["token_ids"], r
        workers_seen = r["workers"]
        m.ask()
    m.answer()
    status, err = m.close()
    for d in workers:
        d.kill()
    assert status == 0, err
    is_told_in_order(err, workers[1], [])
    expect_calm(err)
    assert err.count(f"{name_of(workers[1])} is lost: its connection has ended") == 1, err


class Cut(zmtp.FakeDaemon):
    """Gives connections on to a daemon's control port until they are cut, which resets them; the daemon lives."""

    def __init__(self, to):
        self.to, self.pairs = to, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.role = self.listener.getsockname()[1], to.role
        self.start = lambda f, *args: threading.Thread(target=f, args=args, daemon=True).start()
        self.start(self._accept)

    def _accept(self):
        while True:
            try:
                a, _ = self.listener.accept()
            except OSError:
                return
            b = socket.create_connection(("127.0.0.1", self.to.port))
            self.pairs.append((a, b))
            self.start(self._pump, a, b)
            self.start(self._pump, b, a)

    @staticmethod
    def _pump(a, b):
        try:
            while data := a.recv(65536):
                b.sendall(data)
        except OSError:
            pass

    def cut(self):
        for pair in self.pairs:
            for s in pair:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                with contextlib.suppress(OSError):  # one that has ended already: main was lost and came back
                    s.shutdown(socket.SHUT_RDWR)
                s.close()
        self.pairs.clear()


@test
def a_connection_that_breaks_is_made_anew_and_nobody_is_exiled():
    w = Daemon("worker")
    relay = Cut(w)
    s = Server(mode=("--workers", hosts_file([relay])))
    for n in range(1, 4):
        s.complete(PROMPT, TOKENS)
        relay.cut()
        await_calmly(s, lambda n=n: s.log.count("is lost: its connection has ended") == n and
                     news(s.log)[-1:] == [("back", name_of(relay))])
    assert s.complete(PROMPT, TOKENS)["usage"]["completion_tokens"] == TOKENS
    assert s.stop() == 0
    is_told_in_order(s.log, relay, [])
    assert "used again" not in s.log, s.log
    assert s.log.count("is lost: its connection has ended") == 3, s.log
    relay.close()
    w.kill()


@test
def a_main_that_was_suspended_is_told_that_its_sessions_have_ended():
    """It need not wait for the silence of workers that do not know it any more. (While a worker has no CPU for 1.5 s, its silence comes
    first: then once more.)"""
    workers = [Daemon("worker") for _ in range(2)]
    s = Server(mode=("--workers", hosts_file(workers)))
    text = s.complete(PROMPT, TOKENS, temperature=0)["choices"][0]["text"]
    end = time.monotonic() + HANG_S

    def ends():
        return [w.text().count("ended: it is silent") for w in workers]

    while not all(f"{name_of(w)} is lost: it sent BYE (that session has ended)" in s.log for w in workers):
        assert time.monotonic() < end, s.log
        before = ends()
        s.p.send_signal(signal.SIGSTOP)
        wait_for(lambda: all(n > m for n, m in zip(ends(), before)))
        s.p.send_signal(signal.SIGCONT)
        assert s.complete(PROMPT, TOKENS, temperature=0)["choices"][0]["text"] == text, s.log
        for w in workers:
            wait_for(lambda w=w: news(s.log, w)[-1:] == [("back", name_of(w))])
    assert s.stop() == 0
    for w in workers:
        w.kill()


@test
def one_that_welcomes_main_and_hangs_up_is_spoken_of_once():
    """Again and again: it was never used, so it is not lost."""
    hellos = []

    def serve(c):
        hellos.append(c.recv())
        body = zmtp.field(1, 7) + zmtp.field(2, b"worker") + zmtp.field(6, 1) + zmtp.field(7, 9)
        c.send(zmtp.field(1, zmtp.VERSION) + zmtp.field(2, 7) + zmtp.field(11, body))
        c.recv()  # the first PING
        c.s.close()

    w, fake = Daemon("worker"), zmtp.FakeDaemon(serve)
    s = Server(mode=("--workers", hosts_file([w, fake])))
    n = len(hellos)
    wait_for(lambda: len(hellos) > n + 5)
    assert s.stop() == 0
    fake.close()
    w.kill()
    assert s.log.count(f"{name_of(fake)} cannot be used: its connection has ended") == 1, s.log
    assert news(s.log, fake) == [("missing", name_of(fake))], s.log


@test
def a_late_shadow_that_does_not_fit_is_told():
    """One of two parts was missing at the start, and comes with the wrong layers."""
    w, first, second = Daemon("worker"), Daemon("shadow", "--layers", "0-3"), Absent("shadow", "--layers", "5-11")
    s = Server(mode=("--workers", hosts_file([first, second, w])))
    text = s.complete(PROMPT, TOKENS)["choices"][0]["text"]
    came = second.come()
    s.wait_for("the shadows of the hosts file do not make up the model: none holds layers 4-4. Until they do, predictions come from main's own")
    assert s.complete(PROMPT, TOKENS)["choices"][0]["text"] == text and s.log.count("do not make up") == 1, s.log
    assert s.stop() == 0
    for d in w, first, came:
        d.kill()


if __name__ == "__main__":
    try:
        run_tests()
    finally:
        stop_servers()
