#!/usr/bin/env python3
"""What od-main serves to a browser: the page's files, and the state of the cluster as JSON and as events, while machines come and go."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading

from cluster_util import HANG_S, TMP, Daemon, free_port, hosts_file, run_tests, test, wait_for
from serve_util import Server, stop_servers

PAGE = "main-node/serve/page"
EMBED = os.path.join(PAGE, "embed.sh")
TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".svg": "image/svg+xml"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
                               "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache"}
PROMPT = "Once upon a time there was a king"
LONG = {"prompt": PROMPT, "max_tokens": 900, "ignore_eos": True}
LAYERS, TOP_K = 12, 2  # talebook's
EXPERTS = LAYERS * 8


class Watcher:
    """A client of /cluster/events; next() is the next event of a kind, its data parsed."""

    def __init__(self, s, headers=None):
        self.c = s.connect()
        self.c.request("GET", "/cluster/events", headers=headers or {})
        self.r = self.c.getresponse()
        self.text = ""

    def event(self):
        """(kind, data); None: the stream has ended."""
        lines = []
        while line := self.r.readline().decode():
            self.text += line
            if line == "\n":
                (kind,), (data,) = re.findall(r"^event: (\w+)$", lines[0]), re.findall(r"^data: (.*)$", lines[1])
                assert len(lines) == 2, lines
                return kind, json.loads(data)
            lines.append(line[:-1])
        assert lines == [], lines
        return None

    def next(self, kind):
        while (e := self.event())[0] != kind:
            pass
        return e[1]

    def close(self):
        """The response has the socket, too."""
        self.r.close()
        self.c.close()


class Writer(threading.Thread):
    """Texts, one after the other, until it is told to stop; each has the same tokens."""

    def __init__(self, s):
        super().__init__()
        self.s, self.on, self.texts = s, True, []
        self.start()

    def run(self):
        while self.on:
            self.texts.append(self.s.complete(PROMPT, 300, ignore_eos=True)["choices"][0]["text"])

    def stop(self):
        self.on = False
        self.join()
        assert len(set(self.texts)) == 1, self.texts
        return self.texts[0]


def state(s, headers=None):
    status, h, o = s.ask("/cluster", headers=headers)
    assert status == 200 and h["Cache-Control"] == "no-store", (status, o)
    return o


def machine(s, port):
    found = [m for m in state(s)["machines"] if m["name"] == f"127.0.0.1:{port}"]
    return found[0] if found else None


def files():
    return sorted(f for f in os.listdir(PAGE) if os.path.splitext(f)[1] in TYPES)


@test
def the_page_is_what_is_in_its_folder():
    s = Server(ready=False)
    for path, name in [("/", "index.html")] + [(f"/page/{f}", f) for f in files()]:
        with open(os.path.join(PAGE, name), "rb") as f:
            want = f.read()
        status, h, text = s.ask(path)
        assert (status, text) == (200, want) and int(h["Content-Length"]) == len(want), (path, status)
        assert h["Content-Type"] == TYPES[os.path.splitext(name)[1]], (path, h["Content-Type"])
        assert {k: h[k] for k in HEADERS} == HEADERS, (path, h.items())
        head = s.ask(path, method="HEAD")
        assert head[0] == 200 and head[2] == b"" and head[1]["Content-Length"] == h["Content-Length"], (path, head)
        for known in h["ETag"], f'"a", W/{h["ETag"]}':
            status, again, text = s.ask(path, headers={"If-None-Match": known})
            assert (status, text) == (304, b"") and again["ETag"] == h["ETag"], (path, status)
            assert {k: again[k] for k in HEADERS} == HEADERS, (path, again.items())
        assert s.ask(path, headers={"If-None-Match": '"another"'})[0] == 200, path
        assert s.ask(path, headers={"Host": "evil.example"})[0] == 403, path
        assert s.ask(path, {})[0] == 405, path
    tags = [s.ask(f"/page/{f}")[1]["ETag"] for f in files()]
    assert len(set(tags)) == len(files()) > 1, tags
    for path in "/page/", "/page/embed.sh", "/page/page.c", "/page/../page/index.html", "/page/index.html/", "/page/%2e%2e/page.c":
        status, h, o = s.ask(path)
        assert status == 404 and "no" in o["error"]["message"], (path, status)
    s.wait_ready()
    assert s.stop() == 0, s.log
    assert not re.search(r"path=/(page/[^ ]*)? status=(200|304)", s.log), s.log


@test
def a_page_that_is_too_large_is_not_built():
    with tempfile.TemporaryDirectory(dir=TMP) as folder:
        paths = [os.path.join(folder, n) for n in ("a.html", "b.js")]
        for last, rc in (b"", 0), (b"x", 1):
            for i, path in enumerate(paths):
                with open(path, "wb") as f:
                    f.write(b"x" * 102400 + (last if i == 1 else b""))
            p = subprocess.run(["sh", EMBED, *paths], capture_output=True, text=True)
            assert p.returncode == rc, p
        assert "204801 bytes: expected at most 204800" in p.stderr, p.stderr


@test
def of_a_part_of_the_experts_main_says_how_many():
    s = Server("--memory", "75MB", mode=())
    w = Watcher(s)
    s.complete(PROMPT, 20, ignore_eos=True)
    assert any(x["shadow"] for x in w.next("steps")["steps"])  # main's own predictor
    m, = w.next("state")["machines"]
    assert 0 < m["holds"]["cached"] < EXPERTS, m
    assert m["counters"]["loads"] > 0 and m["counters"]["loaded_bytes"] > 0, m
    w.close()
    assert s.stop() == 0, s.log


@test
def without_a_cluster_there_is_main_alone():
    for mode, name in (("--resident",), "resident"), ((), "memory"):
        s = Server("--queue", 7, "--parallel", 3, mode=mode)
        w = Watcher(s)
        s.complete(PROMPT, 20, ignore_eos=True)
        o = state(s)
        assert o["mode"] == name and o["ready"] is True and o["problem"] == o["remedy"] == "", o
        assert o["model"] == {"name": "talebook", "family": "mixtral", "layers": 12, "moe_layers": LAYERS, "experts": 8, "top_k": TOP_K,
                              "profile": "f32"}, o
        assert o["queue"] == {"running": 0, "waiting": 0, "limit": 7, "parallel": 3}, o
        m, = o["machines"]
        assert (m["id"], m["role"], m["name"], m["state"]) == (-1, "main", "", "serving"), m
        assert abs(m["memory_bytes"] - s.rss_kib() * 1024) < 8 << 20 and m["memory_bytes"] <= m["memory_peak_bytes"], m
        assert m["host"] == socket.gethostname()[:63] and m["holds"] == {"experts": EXPERTS, "cached": EXPERTS, "slots": None}, m
        steps = w.next("steps")["steps"]
        assert [x["kind"] for x in steps[:2]] == ["prompt", "decode"], steps
        for x in steps:
            assert [r[:2] for r in x["main"]] == [[k, i] for i in range(LAYERS) for k in ("attention", "experts")] + [["head", -1]], x
            assert x["workers"] == [] and (x["drafted"], x["accepted"]) == (0, 0), x
        w.close()
        assert s.stop() == 0, s.log


def check_step(x, ids):
    """What must hold of any step of a cluster, from the model's shape."""
    assert 0 < x["texts"] <= x["rows"] and x["us"] > 0, x
    assert x["drafted"] == (x["rows"] - x["texts"] if x["kind"] == "decode" else 0) and 0 <= x["accepted"] <= x["drafted"], x
    spans = [r[:2] for r in x["main"] if r[0] != "head"]
    assert spans == [[k, i] for i in range(LAYERS) for k in ("attention", "send", "wait")], spans
    assert x["main"][-1][:2] == ["head", -1], x["main"][-1]
    end = 0
    for _, _, at, us in x["main"]:
        assert 0 <= end <= at + 1 and us >= 0 and at + us <= x["us"] + 1, (x["main"], x["us"])  # each is cut to whole microseconds
        end = at + us
    for m, at, right, wrong in x["shadow"]:
        assert 0 <= m < LAYERS and at <= x["us"] and 0 < right + wrong <= x["rows"] * TOP_K and (right + wrong) % TOP_K == 0, x["shadow"]
    for i in range(LAYERS):
        rows = [r for r in x["workers"] if r[1] == i]
        assert len({r[0] for r in rows}) == len(rows) and {r[0] for r in rows} <= ids, rows
        n = sum(r[7] for r in rows)
        assert TOP_K <= n <= min(8, x["rows"] * TOP_K) and (x["rows"] > 1 or n == TOP_K), (x["rows"], rows)
        for _, _, sent, answered, load, wait, compute, experts, ready in rows:
            assert 0 <= sent <= answered <= x["us"] and load >= 0 and wait >= 0 and compute >= 0 and 0 <= ready <= experts, rows


@test
def events_show_what_steps_did():
    s = Server("--draft", 3, mode=("--local", 3))
    w, quick = Watcher(s), Watcher(s)
    assert w.r.headers["Content-Type"] == "text/event-stream; charset=utf-8" and w.r.headers["Cache-Control"] == "no-store"
    kind, first = w.event()
    assert kind == "state" and first.keys() == state(s).keys()
    ids = {m["id"] for m in first["machines"] if m["role"] == "worker"}
    assert len(ids) == 3 and [m["role"] for m in first["machines"]].count("shadow") == 1, first
    assert first["machines"][0]["role"] == "main" and first["machines"][0]["counters"] == {}  # the workers load, not main
    writer = Writer(s)
    seen = []
    while not (sum(x["drafted"] for x in seen) and sum(len(x["shadow"]) for x in seen) and sum(r[8] for x in seen for r in x["workers"])
               and len(seen) > 20):
        steps = w.next("steps")["steps"]
        assert 0 < len(steps) <= 8, len(steps)
        for x in steps:
            check_step(x, ids)
        seen += steps
    assert [x["step"] for x in seen if x["kind"] == "decode"] == sorted({x["step"] for x in seen if x["kind"] == "decode"}), seen
    begins = [x["at_us"] for x in seen if x["kind"] == "decode"]
    assert begins == sorted(begins), begins
    text = writer.stop()
    # Both watchers got the same bytes, as far as both were sent them.
    steps = [x for x in re.findall(r"^data: (.*steps.*)$", w.text, re.M)]
    while steps[-1] not in quick.text:
        quick.event()
    assert [x for x in steps if x in quick.text] == steps
    w.next("state")
    last = w.next("state")
    assert last["counters"]["tokens"] == 300 * len(writer.texts) == s.metric("od_main_tokens_total"), last
    c = last["counters"]
    assert 0 < c["recalled_uses"] <= c["predicted_uses"] <= c["expert_uses"] and 0 < c["ready_uses"] <= c["expert_uses"], c
    assert c["drafted_tokens"] == s.metric("od_main_drafted_tokens_total") and c["decode_steps"] > 0, c
    for words in text.split(". ")[1:4]:
        assert words not in w.text, words
    assert "/tmp" not in w.text and PROMPT not in w.text
    for x in w, quick:
        x.close()
    assert s.stop() == 0, s.log
    assert "/cluster" not in s.log, s.log


@test
def machines_come_and_go():
    workers = [Daemon("worker", "--run-time=1") for _ in range(2)]
    shadow = Daemon("shadow")
    hosts = hosts_file([*workers, shadow], "page.txt")
    s = Server(mode=("--workers", hosts))
    w = Watcher(s)
    writer = Writer(s)
    a, b, c = (machine(s, d.port) for d in (*workers, shadow))
    assert [m["id"] for m in state(s)["machines"]] == [-1, a["id"], b["id"], c["id"]]
    for m in a, b, c:
        assert m["state"] == "serving" and m["problem"] == m["remedy"] == "" and m["host"] == socket.gethostname()[:63], m
        assert m["memory_bytes"] > 1 << 20 and m["memory_peak_bytes"] >= m["memory_bytes"] * 0.5, m
    assert a["holds"]["experts"] == EXPERTS and a["layers"] is None and c["holds"]["experts"] is None, (a, c)
    assert c["layers"] == [0, 12] and c["precision"] == "int8" and c["role"] == "shadow" and b["role"] == "worker", c
    wait_for(lambda: machine(s, workers[1].port)["counters"]["loads"] > 0, "no loads")
    loads = machine(s, workers[1].port)["counters"]["loads"]
    workers[1].kill()
    wait_for(lambda: machine(s, workers[1].port)["state"] == "lost", "it is not lost")
    while (b := next(m for m in w.next("state")["machines"] if m["name"].endswith(f":{workers[1].port}")))["state"] != "lost":
        pass
    assert b["problem"] and "main connects again by itself" in b["remedy"] and b["counters"]["loads"] >= loads, b
    assert b["memory_bytes"] is None and b["holds"]["experts"] is None and state(s)["ready"] is True, b
    workers[0].kill()
    wait_for(lambda: not state(s)["ready"], "it is ready")
    o = state(s)
    assert "no machine that is connected" in o["problem"] and o["remedy"] and o["machines"][0]["state"] == "connecting", o
    for d in workers:
        d.start()
        wait_for(lambda d=d: machine(s, d.port)["state"] == "serving", "it is not back")
    assert machine(s, workers[1].port)["id"] == b["id"] and machine(s, workers[1].port)["problem"] == ""
    assert state(s)["ready"] is True
    # One that is nowhere, one that is something else, and one that is taken out.
    absent, other = free_port(), Daemon("shadow")
    with open(hosts, "a") as f:
        f.write(f"worker 127.0.0.1:{absent}\nworker 127.0.0.1:{other.port}\n")
    s.p.send_signal(signal.SIGHUP)
    wait_for(lambda: machine(s, other.port) and machine(s, other.port)["state"] == "refused", "it is not refused")
    m = machine(s, other.port)
    assert "another role" in m["problem"] and "hosts file" in m["remedy"], m
    wait_for(lambda: machine(s, absent)["problem"], "it has no problem")
    m = machine(s, absent)
    assert m["state"] == "connecting" and m["problem"] == "no connection" and "runs there" in m["remedy"] and m["host"] == "", m
    hosts_file([*workers, shadow], "page.txt")
    s.p.send_signal(signal.SIGHUP)
    wait_for(lambda: len(state(s)["machines"]) == 4, "they are still listed")
    assert machine(s, workers[1].port)["id"] == b["id"]
    writer.stop()
    w.close()
    assert s.stop() == 0, s.log
    for d in (*workers, shadow, other):
        d.kill()


def name_of(pid):
    with open(f"/proc/{pid}/comm") as f:
        return f.read().strip()


@test
def a_worker_of_local_that_ends_is_said():
    s = Server(mode=("--local", 2))
    children = []
    for thread in os.listdir(f"/proc/{s.p.pid}/task"):
        with open(f"/proc/{s.p.pid}/task/{thread}/children") as f:
            children += f.read().split()
    victim = next(int(p) for p in children if name_of(p) == "od-worker")
    os.kill(victim, signal.SIGKILL)

    def lost():
        return [m for m in state(s)["machines"] if m["state"] == "lost"]
    wait_for(lost, "none is lost")
    m, = lost()
    assert m["role"] == "worker" and str(victim) in m["problem"] and "restart od-main" in m["remedy"], m
    assert s.complete(PROMPT, 5)["choices"][0]["text"] and state(s)["ready"] is True
    assert s.stop() == 0, s.log


@test
def a_key_is_needed_for_all_but_the_page():
    path = os.path.join(TMP, "page-keys")
    with open(path, "w") as f:
        f.write("the-key\n")
    s = Server("--api-key-file", path)
    good, bad = {"Authorization": "Bearer the-key"}, {"Authorization": "Bearer another"}
    for p in "/", "/page/index.html":
        assert s.ask(p)[0] == 200
    for headers in {}, bad:
        for p in "/cluster", "/cluster/events":
            status, _, o = s.ask(p, headers=headers)
            assert status == 401 and o["error"]["code"] == "invalid_api_key", (p, status, o)
    assert state(s, good)["ready"] is True
    w = Watcher(s, good)
    kind, o = w.event()
    assert kind == "state" and o["machines"][0]["role"] == "main" and "the-key" not in w.text
    w.close()
    assert s.stop() == 0, s.log


@test
def eight_watch_and_the_ninth_is_told():
    s = Server("--drain-seconds", 86400)  # they must not hold up the end
    watchers = [Watcher(s) for _ in range(8)]
    assert all(w.event()[0] == "state" for w in watchers)
    status, h, o = s.ask("/cluster/events")
    assert status == 429 and h["Retry-After"] == "2" and "8 others" in o["error"]["message"], (status, o)
    assert state(s)["ready"] is True
    watchers.pop(3).close()
    wait_for(lambda: (w := Watcher(s)).r.status == 200 and not watchers.append(w), "its place is not free")
    assert len(watchers) == 8 and watchers[-1].event()[0] == "state"
    assert s.ask("/cluster/events")[0] == 429
    s.p.send_signal(signal.SIGTERM)
    for w in watchers:
        while w.event() is not None:
            pass
        w.close()
    assert s.p.wait(HANG_S) == 0, s.log


@test
def a_slow_watcher_misses_events():
    # Hosts that are nowhere make states so long that the kernel's buffers are soon full.
    worker = Daemon("worker")
    hosts = hosts_file([worker], "many.txt")
    s = Server(mode=("--workers", hosts))
    with open(hosts, "a") as f:
        f.write("".join(f"worker 127.0.0.2:{7000 + i}\n" for i in range(500)))
    s.p.send_signal(signal.SIGHUP)
    wait_for(lambda: len(state(s)["machines"]) == 502, "they are not listed")
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect(("127.0.0.1", s.port))
    slow.sendall(b"GET /cluster/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    quick = Watcher(s)
    sent = 0
    while sent < 12 << 20:  # the kernel takes 4 MiB of a socket at most, beside the client's little
        before = len(quick.text)
        quick.next("state")
        sent += len(quick.text) - before
    n_quick = quick.text.count("event: state")
    rss = s.rss_kib()
    r = http.client.HTTPResponse(slow, method="GET")
    r.begin()
    times = []
    while len(times) < 2 or times[-1] < json.loads(quick.text[quick.text.rindex("data: ") + 6:])["uptime_seconds"]:
        line = r.readline().decode()
        assert line in ("event: state\n", "event: steps\n", "\n") or line.startswith("data: "), line[:80]
        if line.startswith('data: {"model"'):
            times.append(json.loads(line[6:])["uptime_seconds"])
    assert times == sorted(times) and len(times) < n_quick, (times, n_quick)
    assert rss < 200 << 10, rss
    r.close()
    slow.close()
    quick.close()
    assert s.stop() == 0, s.log
    worker.kill()


if __name__ == "__main__":
    try:
        run_tests()
    finally:
        stop_servers()
