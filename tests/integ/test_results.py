#!/usr/bin/env python3
"""RESULTs of every kind: several experts in one, good and failed ones, and lies. Main gives the same tokens, and says what it
does not believe. Between main and a real worker stands a relay that changes RESULTs."""
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import threading
import time

import zmtp
from cluster_util import (HANG_S, PASSED_OVER, PROMPT, TMP, Daemon, Disturbed, Lines, expect_calm, generate, hosts_file,
                          in_calm, main_args, reference, run_tests, test, tool)
from pack_reader import WIDTH

WELCOME, PING, RUN, RESULT = 11, 13, 32, 33
TOKENS = 12
ROW_BYTES = 256 * 4
CORRUPT = -5  # any code but 0
BUSY = -10
EXPERTS = 8


def message(pairs):
    return b"".join(zmtp.field(n, v) for n, v in pairs)


def changed(data, number, change):
    return message((n, change(v) if n == number else v) for n, v in zmtp.fields(data))


class Expert:
    """An entry of a RESULT and its rows."""

    def __init__(self, entry, rows=b""):
        self.entry = dict(zmtp.fields(entry)) if isinstance(entry, bytes) else entry
        self.rows = rows

    def number(self):
        return self.entry.get(1, 0)

    def n_rows(self):
        return self.entry.get(4, 0)

    def failed(self, code=CORRUPT):
        return Expert({1: self.number(), 2: -2 * code - 1, 3: b"so it says"})

    def with_rows(self, n, rows=None):
        return Expert({**self.entry, 4: n}, self.rows if rows is None else rows)


class Relay:
    """A worker to main, main to a worker. on_result(self, head, experts) says what main gets instead of a RESULT: messages."""
    role = "worker"

    def __init__(self, on_result, *args):
        self.on_result = on_result
        self.worker = Daemon("worker", *args)
        self.runs = {}  # request -> experts of the RUN
        self.n_results = 0
        self.data = zmtp.FakeDaemon(lambda c: self._relay(c, self.data_port, self._run, self._result))
        self.control = zmtp.FakeDaemon(lambda c: self._relay(c, self.worker.port, self._ping, self._welcome))
        self.port = self.control.port

    def _pump(self, a, b, change):
        try:
            while True:
                for m in change(a.recv()):
                    b.send(*m)
        except (EOFError, OSError):
            a.s.close()
            b.s.close()

    def _relay(self, main, port, to_worker, to_main):
        worker = zmtp.connect(port)
        threading.Thread(target=self._pump, args=(worker, main, to_main), daemon=True).start()
        self._pump(main, worker, to_worker)

    def _ping(self, m):
        """Without what measures the link: that is a slow one through this program, and is not meant here."""
        return [[changed(m[0], PING, lambda body: message(f for f in zmtp.fields(body) if f[0] == 1))]]

    def _welcome(self, m):
        def port(body):
            self.data_port = dict(zmtp.fields(body))[7]
            return changed(body, 7, lambda _: self.data.port)
        return [[changed(m[0], WELCOME, port)]] if WELCOME in zmtp.parse(m[0]) else [m]

    def _run(self, m):
        run = zmtp.fields(dict(zmtp.fields(m[0])).get(RUN, b""))
        self.runs[dict(run).get(3)] = [dict(zmtp.fields(v)).get(1, 0) for n, v in run if n == 5]
        return [m]

    def _result(self, m):
        head = zmtp.fields(m[0])
        if RESULT not in dict(head):
            return [m]
        self.n_results += 1
        experts, at = [], 0
        for n, v in zmtp.fields(dict(head)[RESULT]):
            if n == 13:
                x = Expert(v)
                end = at + x.n_rows() * ROW_BYTES
                x.rows = m[1][at:end] if end > at else b""
                experts.append(x)
                at = end
        return self.on_result(self, head, experts)

    def close(self):
        self.control.close()
        self.data.close()
        self.worker.kill()


def result(head, experts, rows=None):
    """A message of these experts; rows: other frames than they have."""
    of_run = [(n, v) for n, v in zmtp.fields(dict(head)[RESULT]) if n != 13]
    body = message(of_run) + b"".join(zmtp.field(13, message(x.entry.items())) for x in experts)
    if rows is None:
        rows = [b"".join(x.rows for x in experts)] if any(x.rows for x in experts) else []
    return [message((n, v) for n, v in head if n != RESULT) + zmtp.field(RESULT, body), *rows]


def request_of(head):
    return dict(zmtp.fields(dict(head)[RESULT])).get(3)


def through(on_result, lost=False):
    """The figures of a text with a relay and a worker, what main said, and the relay. lost: main may lose the relay."""
    relay, other = Relay(on_result), Daemon("worker")
    r, err = generate("--workers", hosts_file([relay, other]), "--group-size", 1, "--predictor", "none", prompt=PROMPT,
                      tokens=TOKENS, stderr=True)
    relay.close()
    other.kill()
    assert r["token_ids"] == reference()["token_ids"][:TOKENS], err
    expect_calm(err, *([relay.port] if lost else []))
    if PASSED_OVER in err and (not lost or relay.n_results == 0):
        raise Disturbed(err)
    assert relay.n_results > 0, err
    return r, err, relay


def failing(first, expect):
    """One worker fails at everything and the other answers; first(other): at its first RUN. expect(p): what main gives and says."""
    done = []

    def on_result(relay, head, experts):
        if not done:
            done.append(1)
            first(other)
        return [result(head, [x.failed() for x in experts])]

    relay, other = Relay(on_result), Daemon("worker")
    p = subprocess.run(main_args("--workers", hosts_file([relay, other]), "--group-size", 1, "--predictor", "none", tokens=TOKENS,
                                 prompt=PROMPT), capture_output=True, text=True, timeout=HANG_S)
    relay.close()
    other.kill()
    try:
        assert done
        expect(p)
    except AssertionError:
        expect_calm(p.stderr, other.port)
        raise


@test
def what_only_a_lost_worker_can_run_waits_until_it_is_back():
    def goes_on(p):
        assert p.returncode == 0, p.stderr
        r = json.loads(p.stdout)
        assert r["token_ids"] == reference()["token_ids"][:TOKENS] and r["recovered_runs"] > 0, (r, p.stderr)

    failing(lambda other: other.restart(), goes_on)


@test
def what_only_a_lost_worker_can_run_fails_when_it_stays_away():
    def says_so(p):
        assert p.returncode != 0 and "no worker can run expert" in p.stderr and "so it says" in p.stderr, p.stderr

    failing(lambda other: other.kill(), says_so)


@test
def data_ports_that_freeze_together_are_given_up_together():
    """Two of three workers receive RUNs and nothing comes back, while their heartbeats go on."""
    release, n = threading.Event(), [0]

    def on_result(relay, head, experts):
        n[0] += 1
        if n[0] > 40:
            release.wait()
        return [result(head, experts)]

    relays, other = [Relay(on_result) for _ in range(2)], Daemon("worker")
    r, err = generate("--workers", hosts_file([*relays, other]), "--group-size", 1, "--predictor", "none", prompt=PROMPT,
                      tokens=TOKENS, stderr=True)
    release.set()
    for relay in relays:
        relay.close()
    other.kill()
    assert r["token_ids"] == reference()["token_ids"][:TOKENS], err
    expect_calm(err, *(relay.port for relay in relays))
    if "no answer for" in err:  # this program answers the relays' heartbeats
        raise Disturbed(err)
    for relay in relays:  # late after a second, and dead after three if others are waited for as long
        assert re.search(rf":{relay.port} is (late;|lost: it answers heartbeats, but not on its data port)", err), err
    assert r["recovered_runs"] > 0, (r, err)


class Cut(Relay):
    """Its data connection to main can be reset, with what is on its way."""
    main = None

    def _relay(self, main, port, to_worker, to_main):
        if to_worker == self._run:
            self.main = main.s
        super()._relay(main, port, to_worker, to_main)

    def cut(self):
        self.main.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.main.close()


@test
def what_a_reset_connection_swallowed_is_asked_for_once_more():
    def on_result(relay, head, experts):
        if relay.n_results not in (20, 40, 60):
            return [result(head, experts)]
        relay.cut()
        return []

    relay = Cut(on_result)
    r, err = generate("--workers", hosts_file([relay]), "--predictor", "none", prompt=PROMPT, tokens=TOKENS, stderr=True)
    relay.close()
    expect_calm(err)
    assert relay.n_results > 60 and r["token_ids"] == reference()["token_ids"][:TOKENS], (relay.n_results, r)
    assert err.count("sending them again") == 3 and "is lost" not in err, err


@test
def one_that_loses_an_answer_now_and_then_is_given_up():
    _, err, relay = through(lambda relay, head, experts: [result(head, experts)] if relay.n_results % 10 else [], lost=True)
    if "no answer for" in err or "is late;" in err:  # others then run what it does not lose
        raise Disturbed(err)
    # Main may see first that layers end sooner without it.
    assert re.search("is lost: it loses RUNs again and again, and answers others; it is used again in 5 s|is connected but not used", err), err


@test
def one_that_serves_again_is_forgiven():
    """The data port freezes, twice, with good service between: 200 answers, and some on their way when it froze."""
    frozen, answers = threading.Event(), [0]

    class Counting(Relay):
        def _welcome(self, m):
            if WELCOME in zmtp.parse(m[0]):
                answers[0] = 0  # only those of one session count
            return super()._welcome(m)

    def on_result(relay, head, experts):
        while frozen.is_set():
            time.sleep(0.01)
        answers[0] += 1
        return [result(head, experts)]

    def slowly(relay, head, experts):
        time.sleep(0.01)
        return [result(head, experts)]

    def ask():
        m.ask()
        r = m.answer()
        texts.append(r["workers"])
        if r["finish"] == "error" or len(texts) > 100:  # the other worker was away; or main takes the relay for the slower one
            raise Disturbed(m.said())
        assert r["token_ids"] == reference()["token_ids"][:TOKENS], (r, m.said())

    def exiles():
        return re.findall(rf":{relay.port} is lost: [^\n]*not on its data port; it is used again in (\d+) s", m.said())

    relay, other, texts = Counting(on_result), Relay(slowly), []  # main does without the slower of two
    m = Lines("--workers", hosts_file([relay, other]), "--group-size", 1, "--predictor", "none", "--max-tokens", TOKENS)
    try:
        for _ in range(2):
            while texts[-1:] != [2] or answers[0] <= 250:
                ask()
            n = len(exiles())
            frozen.set()
            while len(exiles()) == n:  # after another loss it comes back, still frozen
                ask()
            frozen.clear()
            assert exiles()[n] == "5", m.said()  # unforgiven it is away for 10 s
        ask()
        status, err = m.close()
        assert status == 0, err
    finally:
        frozen.clear()
        relay.close()
        other.close()


def spoiled(x, value):
    """The last number of its last row is none."""
    return x.with_rows(x.n_rows(), x.rows[:-4] + value)


NO_NUMBERS = [struct.pack("<f", float(v)) for v in ("nan", "inf", "-inf")]


@test
def outputs_that_are_no_numbers_are_run_elsewhere():
    seen = []

    def on_result(relay, head, experts):
        seen.append(1)
        return [result(head, [spoiled(x, NO_NUMBERS[len(seen) % 3]) for x in experts])]

    r, err, _ = through(on_result)
    assert r["recovered_runs"] > 10 and r["workers"] == 2, r
    assert "not all finite numbers" in err and "expert" in err and "is lost" not in err, err


@test
def outputs_too_large_to_go_on_with_are_run_elsewhere():
    """Finite ones, of which the layers behind would make what is no number. The honest worker is not blamed."""
    def on_result(relay, head, experts):
        return [result(head, [x.with_rows(x.n_rows(), struct.pack("<f", value) * (len(x.rows) // 4)) for x in experts])]

    for value in 3e38, -1e17:
        r, err, relay = through(on_result)
        assert r["recovered_runs"] > 10 and r["workers"] == 2, r
        blamed = set(re.findall(r"worker 127\.0\.0\.1:(\d+) cannot run", err))
        assert blamed == {str(relay.port)} and "is lost" not in err, err


@test
def rows_of_mains_own_that_are_no_numbers_blame_no_worker():
    """A norm's weights before the fourth MoE layer have one that makes its rows infinite."""
    checkpoint = os.path.join(TMP, "infinite")
    shutil.copytree("deploy/models/talebook", checkpoint)
    with open(os.path.join(checkpoint, "model.safetensors"), "r+b") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        norm = json.loads(f.read(n))["model.layers.3.post_attention_layernorm.weight"]
        f.seek(8 + n + norm["data_offsets"][0])
        f.write(struct.pack("<f", 3e38)[-WIDTH[norm["dtype"]]:] * 256)
    tool("od-pack", checkpoint, checkpoint + ".pack")
    workers = [Daemon("worker", pack_dir=checkpoint + ".pack") for _ in range(2)]
    p = tool("od-main", "--pack", checkpoint + ".pack", "--workers", hosts_file(workers), "--prompt", PROMPT, "--max-tokens", 4, ok=False)
    for w in workers:
        w.kill()
    expect_calm(p.stderr)
    assert re.search("the rows for MoE layer 3 are not all finite numbers, before any worker computed with them: .*these, whose outputs "
                     rf"the step has used so far: worker 127.0.0.1:{workers[0].port}, worker 127.0.0.1:{workers[1].port}$", p.stderr, re.M), p.stderr
    assert "cannot run" not in p.stderr, p.stderr


@test
def outputs_that_are_no_numbers_anywhere_end_the_prompt_alone():
    bad = [True]

    def on_result(relay, head, experts):
        return [result(head, [spoiled(x, NO_NUMBERS[0]) if bad[0] and x.number() == 3 else x for x in experts])]

    relays = [Relay(on_result) for _ in range(2)]
    m = Lines("--workers", hosts_file(relays), "--group-size", 1, "--predictor", "none", "--max-tokens", TOKENS)
    m.ask()
    r = m.answer()
    expect_calm(m.said())
    assert r["finish"] == "error", r
    assert re.search(r"no worker can run expert 3 of layer \d; the last was worker 127\.0\.0\.1:\d+: "
                     "its outputs are not all finite numbers", r["error"]), r["error"]
    bad[0] = False
    m.ask()
    r = m.answer()
    expect_calm(m.said())
    assert r["token_ids"] == reference()["token_ids"][:TOKENS] and r["workers"] == 2, r
    status, err = m.close()
    assert status == 1 and "is lost" not in err, err
    for relay in relays:
        relay.close()


@test
def one_that_stays_busy_is_named():
    """The only worker answers BUSY until main says so. It is asked again and again."""
    n = [0]

    def is_named():
        return re.search(r"worker 127\.0\.0\.1:\d+ is busy and does not run expert 3 of layer \d \(so it says\); retrying", m.said())

    def on_result(relay, head, experts):
        n[0] += any(x.number() == 3 for x in experts)
        return [result(head, [x.failed(BUSY) if x.number() == 3 and not is_named() else x for x in experts])]

    relay = Relay(on_result)
    m = Lines("--workers", hosts_file([relay]), "--predictor", "none", "--max-tokens", TOKENS)
    m.ask()
    r = m.answer()
    assert is_named() and n[0] > 10 and r["token_ids"] == reference()["token_ids"][:TOKENS], (n, r, m.said())
    m.close()
    relay.close()


class Together:
    """Keeps the experts of a RUN until all have come; send(relay, head, experts) says how they go on."""

    def __init__(self, send):
        self.send = send
        self.held = {}

    def __call__(self, relay, head, experts):
        held = self.held.setdefault(request_of(head), [])
        held += experts
        if len(held) < len(relay.runs[request_of(head)]):
            return []
        return self.send(relay, head, self.held.pop(request_of(head)))


@test
def a_result_answers_all_experts_of_a_run_in_any_order():
    seen = []

    def send(relay, head, experts):
        seen.append(len(experts))
        return [result(head, experts[::-1])]

    r, err, _ = through(Together(send))
    if max(seen) <= 2:  # it came after the prompt
        raise Disturbed(err)
    assert min(seen) >= 1, seen
    assert r["recovered_runs"] == 0 and "RESULT" not in err, (r, err)


@test
def failed_experts_beside_good_ones_are_run_elsewhere():
    failed = []

    def send(relay, head, experts):
        bad = [i % 2 == 0 for i in range(len(experts))]
        failed.append(sum(bad))
        return [result(head, [x.failed() if b else x for x, b in zip(experts, bad)])]

    r, err, _ = through(Together(send))
    assert r["recovered_runs"] == sum(failed) > 20, (r, failed)
    assert "so it says" in err and "malformed" not in err, err


@test
def experts_that_main_does_not_wait_for_are_skipped():
    """Answered already, or never asked for: of good ones there are rows between those that count."""
    def send(relay, head, experts):
        rest = [e for e in range(EXPERTS) if e not in relay.runs[request_of(head)]]
        none = [Expert({1: e, 4: 3}, b"\x7f" * 3 * ROW_BYTES) for e in rest[:2]] + [Expert({1: e}).failed() for e in rest[2:]]
        late = experts[0].with_rows(2, b"\x7f" * 2 * ROW_BYTES)
        return [result(head, experts[:1]), result(head, none[:1] + [late] + none[1:] + experts[1:]), result(head, experts)]

    r, err, _ = through(Together(send))
    assert r["recovered_runs"] == 0 and "malformed" not in err, (r, err)


LIES = {
    "an expert twice": lambda h, x: result(h, x + x[:1]),
    "an expert twice, the second time failed": lambda h, x: result(h, x + [x[0].failed()]),
    "an expert that there is not": lambda h, x: result(h, x + [Expert({1: EXPERTS}).failed()]),
    "no experts": lambda h, x: result(h, []),
    "too short a frame": lambda h, x: result(h, x, [b"".join(e.rows for e in x)[:-4]]),
    "too long a frame": lambda h, x: result(h, x, [b"".join(e.rows for e in x) + b"1234"]),
    "a row too many": lambda h, x: result(h, x, [b"".join(e.rows for e in x) + b"\0" * ROW_BYTES]),
    "no frame": lambda h, x: result(h, x, []),
    "two frames": lambda h, x: result(h, x, [b"".join(e.rows for e in x), b""]),
    "more rows than were sent": lambda h, x: result(
        h, [x[0].with_rows(x[0].n_rows() + 1, x[0].rows + b"\0" * ROW_BYTES)] + x[1:]),
    "fewer rows than were sent": lambda h, x: result(h, [x[0].with_rows(x[0].n_rows() - 1, x[0].rows[ROW_BYTES:])] + x[1:]),
    "rows that wrap": lambda h, x: result(h, [x[0].with_rows(2**32 - 1)] + x[1:]),
    "no rows, and no code": lambda h, x: result(h, [x[0].with_rows(0, b"")] + x[1:]),
    "rows of a failed expert": lambda h, x: result(h, [Expert({**x[0].failed().entry, 4: x[0].n_rows()}, x[0].rows)] + x[1:]),
}


@in_calm
def check_lie(name, lie):
    lied = []

    def send(relay, head, experts):
        if lied or experts[0].n_rows() < 2:  # a prompt's
            return [result(head, experts)]
        lied.append(1)
        return [lie(head, experts)]

    r, err, _ = through(Together(send))
    if not lied:  # it came after the prompt
        raise Disturbed(err)
    assert "a malformed RESULT: " in err and "it sent a malformed RESULT" in err, (name, err)
    assert r["recovered_runs"] > 0, (name, r)


@test
def a_worker_that_lies_is_not_believed():
    for name, lie in LIES.items():
        check_lie(name, lie)


if __name__ == "__main__":
    run_tests()
