#!/usr/bin/env python3
"""make soak-serve: od-main serve under many clients, good and bad. Takes some minutes.

    serve_soak.py [--seconds 60] [--mode "--local 2"]

1. 16 clients at once for --seconds: every answer equals the one that its request gets alone; memory and descriptors stay.
2. 200 clients with long prompts that are killed after 50 ms: nothing is left running.
3. 200 clients that say nothing, send garbage, bodies of 100 MB, slow bodies, bad UTF-8, deep JSON, unknown fields and wrong types,
   while four good ones ask on: every answer has the right status, and theirs are right.
Printed: a line for each, and the slowest of all answers of /health, which is asked all the time."""
import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "integ"))
from cluster_util import HANG_S  # noqa: E402
from serve_util import Server, stop_servers  # noqa: E402

PROMPTS = ["Once upon a time there was a king", "The bird", "She went", "\"Who are you?\" said the", "In the forest", "A" * 300]
LONG = "king " * 900
KILLED, BAD = 200, 200
failures = 0


def report(ok, text):
    global failures
    failures += not ok
    print(("ok - " if ok else "NOT OK - ") + text, flush=True)


def wait_until(condition):
    end = time.monotonic() + HANG_S
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def idle(s):
    return wait_until(lambda: s.metric("od_requests_open") == 0 and s.metric("od_texts_running") == 0)


class Health(threading.Thread):
    """Asks /health until it is stopped."""

    def __init__(self, server):
        super().__init__()
        self.server, self.seconds, self.bad, self.stop = server, [], [], threading.Event()
        self.start()

    def run(self):
        while not self.stop.wait(0.05):
            begin = time.monotonic()
            status, _, body = self.server.ask("/health")
            self.seconds.append(time.monotonic() - begin)
            if status != 200:
                self.bad.append(body)


class Client(threading.Thread):
    """Asks requests of the table, plain and streamed, until it is stopped."""

    def __init__(self, server, table, seed, stop):
        super().__init__()
        self.server, self.table, self.random, self.stop = server, table, random.Random(seed), stop
        self.answers, self.bad = 0, []
        self.start()

    def run(self):
        while not self.stop.is_set():
            request, expected = self.random.choice(self.table)
            try:
                if self.random.random() < 0.5:
                    events, _ = self.server.stream(**request)
                    found = "".join(e["choices"][0]["text"] for e in events)
                else:
                    status, _, o = self.server.ask("/v1/completions", request)
                    assert status == 200, (status, o)
                    found = o["choices"][0]["text"]
            except Exception as e:
                found = repr(e)
            self.answers += 1
            if found != expected:
                self.bad.append((request, found, expected))


def requests_alone(s):
    table = []
    for i in range(24):
        request = {"prompt": PROMPTS[i % len(PROMPTS)], "max_tokens": 8 + 3 * i, "temperature": i % 3 * 0.5, "seed": i,
                   **({"stop": [" the"]} if i % 5 == 0 else {}), **({"frequency_penalty": 0.5} if i % 7 == 0 else {})}
        table.append((request, s.ask("/v1/completions", request)[2]["choices"][0]["text"]))
    return table


def many_clients(s, table, seconds):
    def run(seconds):
        stop = threading.Event()
        clients = [Client(s, table, i, stop) for i in range(16)]
        time.sleep(seconds)
        stop.set()
        for c in clients:
            c.join()
        idle(s)
        return clients

    run(seconds / 4)  # memory that is kept for further use
    before = s.descriptors(), s.rss_kib()
    clients = run(seconds)
    closed = wait_until(lambda: s.descriptors() <= before[0])  # /health has one open now and then
    after = s.descriptors(), s.rss_kib()
    bad = [b for c in clients for b in c.bad]
    report(not bad, f"16 clients, {seconds} s: {sum(c.answers for c in clients)} answers, {len(bad)} wrong {bad[:1] or ''}")
    report(closed, f"descriptors: {before[0]} before, {after[0]} after")
    report(after[1] < before[1] * 1.05 + 4096, f"memory: {before[1]} KiB before, {after[1]} KiB after")


def killed_clients(s):
    body = json.dumps({"prompt": LONG, "max_tokens": 500, "ignore_eos": True, "stream": True})
    before = s.descriptors()
    for first in range(0, KILLED, 20):
        code = ("import http.client, sys, time\nc = http.client.HTTPConnection('127.0.0.1', %d)\n"
                "c.request('POST', '/v1/completions', sys.argv[1], {'Content-Type': 'application/json'})\n"
                "print('sent', flush=True)\nc.getresponse().read()" % s.port)
        clients = [subprocess.Popen([sys.executable, "-c", code, body], stdout=subprocess.PIPE) for _ in range(20)]
        for p in clients:
            p.stdout.readline()
        time.sleep(0.05)
        for p in clients:
            p.kill()
        for p in clients:
            p.wait()
    quiet = idle(s)
    closed = wait_until(lambda: s.descriptors() <= before)
    report(quiet and closed, f"{KILLED} clients killed: {s.metric('od_requests_open'):.0f} requests open, {s.descriptors()} descriptors, "
           f"{before} before")


def post(data, length=None):
    return (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n" % (len(data) if length is None else length)) + data


# name, bytes, seconds between pieces of one byte, expected status (None: hung up or 4xx)
BAD_CLIENTS = [
    ("silent", b"", 0, (408, None)),
    ("garbage", b"\x16\x03\x01" + bytes(range(256)) * 4 + b"\r\n\r\n", 0, (400, 408, 505, None)),
    ("100 MB", post(b"{" + b" " * 100_000_000, None), 0, (413, None)),
    ("slow", post(b'{"prompt": "x"' + b" " * 200, 4000), 0.05, (408, None)),
    ("bad UTF-8", post(b'{"prompt": "\xff\xfe", "max_tokens": 1}'), 0, (400,)),
    ("deep JSON", post(b'{"prompt": ' + b"[" * 100_000), 0, (400,)),
    ("unknown field", post(b'{"prompt": "x", "max_tokens": 1, "zzz": {"a": [1]}}'), 0, (200,)),
    ("wrong type", post(b'{"prompt": "x", "max_tokens": "many"}'), 0, (400,)),
    ("no object", post(b'"x"'), 0, (400,)),
    ("no such path", b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 0, (404,)),
]


def bad_client(s, kind, wrong):
    name, data, pause, expected = kind
    status = None
    try:
        with s.socket() as k:
            k.settimeout(HANG_S)
            try:
                if pause:
                    for byte in data:
                        k.sendall(bytes([byte]))
                        time.sleep(pause)
                else:
                    k.sendall(data)
            except OSError:
                pass  # it may have answered before all was sent
            answer = k.recv(100)
            if answer:
                status = int(answer.split()[1])
    except ConnectionError:
        pass
    if status not in expected:
        wrong.append((name, status))


def bad_clients(s, table):
    stop, wrong = threading.Event(), []
    good = [Client(s, table, 100 + i, stop) for i in range(4)]
    threads = [threading.Thread(target=bad_client, args=(s, BAD_CLIENTS[i % len(BAD_CLIENTS)], wrong)) for i in range(BAD)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    stop.set()
    for c in good:
        c.join()
    bad = [b for c in good for b in c.bad]
    report(not wrong, f"{BAD} bad clients: {len(wrong)} unexpected answers {wrong[:3] or ''}")
    report(not bad, f"beside them {sum(c.answers for c in good)} good answers, {len(bad)} wrong {bad[:1] or ''}")
    report(idle(s), "nothing is left running")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--seconds", type=int, default=60)
    p.add_argument("--mode", default=["--resident"], type=str.split)
    o = p.parse_args()
    s = Server("--parallel", 16, "--header-seconds", 5, "--queue", 1000, mode=o.mode)
    table = requests_alone(s)
    health = Health(s)
    many_clients(s, table, o.seconds)
    killed_clients(s)
    bad_clients(s, table)
    health.stop.set()
    health.join()
    report(not health.bad, f"/health: {len(health.seconds)} answers, slowest {1e3 * max(health.seconds):.0f} ms, {len(health.bad)} "
           f"not ready {health.bad[:1] or ''}")
    s.p.terminate()
    report(s.p.wait(HANG_S) == 0, "it ends in order")
    stop_servers()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
