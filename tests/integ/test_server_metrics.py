#!/usr/bin/env python3
"""/metrics and logs of a running server: live values, lost workers, one id from HTTP to worker, no forged lines; promtool and a
Prometheus server where there are any."""
import http.client
import json
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request

from cluster_util import HANG_S, TMP, Daemon, Skip, expect_calm, free_port, hosts_file, run_tests, test, wait_for
from metric_rows import rows
from serve_util import JSON, Server, stop_servers

PROMPT = "Once upon a time"
PROMETHEUS = os.path.join(os.environ.get("B", "build"), "prometheus", "usr", "bin")  # of tests/get-prometheus.sh
LONG = {"prompt": PROMPT, "max_tokens": 900, "ignore_eos": True}


def program(name):
    path = shutil.which(name) or shutil.which(name, path=PROMETHEUS)
    if path is None:
        raise Skip(f"there is no {name} here (Debian package prometheus; tests/get-prometheus.sh)")
    return path


def metrics(s):
    return s.ask("/metrics")[2].decode()


def values(text):
    """{name with labels: value}"""
    return {k: float(v) for k, v in re.findall(r"^([a-z_]+(?:\{[^}]*\})?) (\S+)$", text, re.M)}


class Asked(threading.Thread):
    """A request in a thread of its own."""

    def __init__(self, s, body, request_id=None):
        super().__init__()
        self.s, self.body, self.headers = s, body, {"X-Request-Id": request_id} if request_id else {}
        self.start()

    def run(self):
        self.status, self.answer_headers, self.answer = self.s.ask("/v1/completions", self.body, headers=self.headers)


def kv_lines(text):
    """Each line of the key=value form, parsed by its rules; any other line fails."""
    out = []
    for line in text.splitlines():
        assert re.fullmatch(r'ts=\S+ level=\w+ component=[\w-]+ msg="(?:[^"\\]|\\.)*"(?: \w+=(?:[^\s"\\]+|"(?:[^"\\]|\\.)*"))*', line), line
        out.append({k: re.sub(r"\\(.)", r"\1", q) if not p else p
                    for k, p, q in re.findall(r'(\w+)=(?:([^\s"\\]+)|"((?:[^"\\]|\\.)*)")', line)})
    return out


@test
def the_table_in_docs_is_what_a_server_shows():
    s = Server(mode=("--local", 2))
    with open("docs/METRICS.md") as f:
        documented = [line for line in f.read().splitlines() if re.match(r"\| `(od|process)_[a-z_]+` \|", line)]
    shown = rows(metrics(s))
    assert documented == shown, [x for x in documented + shown if (x in documented) != (x in shown)]
    assert s.stop() == 0, s.log


@test
def promtool_finds_nothing():
    tool = program("promtool")
    s = Server(mode=("--local", 2, "--worker-arg", "--cache-mib=8"))
    s.complete(PROMPT, 20)
    p = subprocess.run([tool, "check", "metrics"], input=metrics(s), capture_output=True, text=True, timeout=HANG_S)
    assert p.returncode == 0 and p.stdout + p.stderr == "", (p.returncode, p.stdout, p.stderr)
    bad = subprocess.run([tool, "check", "metrics"], input="# TYPE a_ms counter\na_ms 1\n", capture_output=True, text=True,
                         timeout=HANG_S)
    assert bad.returncode != 0  # it does look
    assert s.stop() == 0, s.log


@test
def values_rise_during_a_text():
    begin = time.time()
    s = Server(mode=("--local", 2, "--worker-arg", "--run-time=1"))
    s.complete(PROMPT, 4)
    a = Asked(s, LONG)
    wait_for(lambda: values(metrics(s))["od_texts_running"] == 1, "no text")
    seen = []
    while a.is_alive():
        seen.append(values(metrics(s)))
        time.sleep(0.4)
    expect_calm(s.log)
    assert a.status == 200 and len(seen) > 4, (a.answer, len(seen))
    seen = [v for v in seen if v["od_texts_running"] == 1]
    first, last = seen[1], seen[-2]  # the last one may be of the text's end
    rising = ["od_main_tokens_total", "od_main_expert_uses_total", "od_main_predicted_uses_total", "od_main_recalled_uses_total",
              "od_main_runs_total", "od_main_run_bytes_total", "od_main_result_bytes_total", "od_main_align_bytes_total",
              "od_main_align_seconds_total", "od_main_experts_seconds_total", "od_batch_texts_count", "process_cpu_seconds_total"]
    rising += [k for k in first if re.match(r"od_(worker_(loads|load_seconds|inflate_seconds|loaded_bytes|compute_seconds)|shadow_steps)_total", k)]
    assert len(rising) == 12 + 2 * 5 + 1
    assert [k for k in rising if last[k] <= first[k]] == []
    counters = [k for k in last if re.search(r"_total(\{|$)|_(bucket|sum|count)(\{|$)", k)]
    for before, after in zip(seen, seen[1:]):
        fell = [(k, before[k], after[k]) for k in counters if after[k] < before[k]]
        assert fell == [], fell
    assert last["od_kv_cache_used_bytes"] > 0 and last["od_texts_total{finish=\"length\"}"] == 1
    end = values(metrics(s))
    assert end["od_main_tokens_total"] == 904 and end["od_kv_cache_used_bytes"] == 0
    assert end["od_kv_cache_free_bytes"] == last["od_kv_cache_used_bytes"] + last["od_kv_cache_free_bytes"]
    assert end["od_time_to_first_token_seconds_count"] == end["od_queue_time_seconds_count"] == 2
    assert end["process_open_fds"] == s.descriptors() or abs(end["process_open_fds"] - s.descriptors()) <= 2
    assert abs(end["process_resident_memory_bytes"] - s.rss_kib() * 1024) < 8 << 20
    assert begin - 2 < end["process_start_time_seconds"] < begin + 60
    assert s.stop() == 0, s.log


@test
def one_id_from_http_to_worker_and_a_lost_worker_is_down():
    workers = [Daemon("worker", "--verbose", "--trace", os.path.join(TMP, f"trace{i}"), "--run-time=1") for i in range(2)]
    shadow = Daemon("shadow", "--verbose")
    s = Server(mode=("--workers", hosts_file([*workers, shadow], "ids.txt")))
    asked = [Asked(s, LONG, "first/1"), Asked(s, LONG, "second:2")]
    wait_for(lambda: all(f"request={i}" in shadow.text() for i in ("first/1", "second:2")), "not at the shadow")
    wait_for(lambda: re.search(r"texts from step \d+ on\" request=(first/1,second:2|second:2,first/1)\n", workers[0].text()),
             "not at the worker")
    name = f'worker="127.0.0.1:{workers[1].port}"'
    wait_for(lambda: values(metrics(s))[f"od_worker_loads_total{{{name}}}"] > 0, "no loads")  # known from its next PONG
    before = values(metrics(s))
    expect_calm(s.log)
    assert before[f"od_worker_up{{{name}}}"] == 1 and f"od_worker_slots{{{name}}}" in before
    workers[1].kill()
    wait_for(lambda: values(metrics(s))[f"od_worker_up{{{name}}}"] == 0, "up")
    lost = values(metrics(s))
    expect_calm(s.log, workers[1].port)
    assert lost[f'od_worker_up{{worker="127.0.0.1:{workers[0].port}"}}'] == 1 and lost[f'od_shadow_up{{shadow="127.0.0.1:{shadow.port}"}}'] == 1
    assert lost[f"od_worker_loads_total{{{name}}}"] >= before[f"od_worker_loads_total{{{name}}}"]
    assert f"od_worker_slots{{{name}}}" not in lost
    for a in asked:
        a.join()
        assert a.status == 200 and a.answer_headers["X-Request-Id"] == a.headers["X-Request-Id"], a.answer
    workers[1].start()
    wait_for(lambda: values(metrics(s))[f"od_worker_up{{{name}}}"] == 1, "down")
    wait_for(lambda: values(metrics(s))[f"od_worker_loads_total{{{name}}}"] == 0, "counters of the new process")
    assert s.stop() == 0, s.log
    expect_calm(s.log, workers[1].port)
    lines = kv_lines(s.log)
    for i in "first/1", "second:2":
        begun = [x for x in lines if x["msg"] == "begun" and x["request"] == i]
        answered = [x for x in lines if x["msg"] == "answered" and x["request"] == i]
        assert len(begun) == len(answered) == 1 and answered[0]["tokens"] == "900" and answered[0]["status"] == "200", lines
        assert float(answered[0]["queue_seconds"]) <= float(answered[0]["ttft_seconds"]) < float(answered[0]["total_seconds"])
        assert re.fullmatch(r"127\.0\.0\.1:\d+", answered[0]["client"]) and answered[0]["path"] == "/v1/completions"
    moved = [x for x in lines if re.search("[:;] other workers ", x["msg"])]
    assert moved and all(set(x["request"].split(",")) <= {"first/1", "second:2"} for x in moved), lines
    assert len([x for x in lines if "dropped WANT" in x["msg"]]) <= 1, lines
    for d in workers[0], shadow:
        d.signal(15)
        d.process.wait(timeout=HANG_S)
        kv_lines(d.text())
    with open(os.path.join(TMP, "trace0")) as f:
        spans = [e["args"].get("request") for e in json.load(f) if e["name"] == "compute"]
    assert {"first/1,second:2", "second:2,first/1"} & set(spans) and None not in spans, set(spans)
    workers[1].kill()


@test
def no_request_forges_a_line_or_shows_its_text():
    for form in "kv", "json":
        s = Server("--log-format", form)
        c = s.socket()
        c.sendall(b"GET /%0Ats%3D1%20level=error%20msg=%22x%22%0d%1b[2J\xff\xc2\x9b?secret-query HTTP/1.1\r\nHost: localhost\r\n"
                  b"X-Request-Id: a\x1b\" level=error\r\nConnection: close\r\n\r\n")
        while c.recv(4096):
            pass
        for bad in "x" * 65, "a b", 'a"b', "a\\b", "a,b", "\x7f", "\xe9":
            h = s.ask("/v1/models", headers={"X-Request-Id": bad})[1]
            assert h["X-Request-Id"] != bad and re.fullmatch(r"[0-9a-f]{8}-\d+", h["X-Request-Id"]), h["X-Request-Id"]
        assert s.ask("/v1/models", headers={"X-Request-Id": "x" * 64})[1]["X-Request-Id"] == "x" * 64
        s.ask("/v1/completions", {"prompt": "secret-prompt", "max_tokens": 3}, headers={"Authorization": "Bearer secret-key"})
        s.ask("/v1/completions", {"prompt": 7, "x": "secret-field"})
        assert s.ask("/health")[0] == 200
        o = s.complete(PROMPT, 3)
        assert s.stop() == 0, s.log
        log = s.log
        lines = kv_lines(log) if form == "kv" else [json.loads(line) for line in log.splitlines()]
        assert "secret" not in log and "\x1b" not in log and o["choices"][0]["text"].strip() not in log
        assert [x for x in lines if x["level"] == "error"] == []
        assert {x["component"] for x in lines} == {"od-main"}
        odd = [x for x in lines if str(x.get("status")) == "404"]
        assert len(odd) == 1 and odd[0]["path"].startswith('/?ts=1 level=error msg="x"??[2J?'), odd
        assert re.fullmatch(r"[0-9a-f]{8}-\d+", odd[0]["request"])
        assert len([x for x in lines if str(x.get("status")) == "400"]) == 1
        assert not any(x.get("path") in ("/health", "/metrics") for x in lines if str(x.get("status")) == "200")


@test
def cancelled_requests_say_so():
    s = Server()
    c = s.connect()
    c.request("POST", "/v1/completions", json.dumps({**LONG, "prompt": [PROMPT] * 50, "stream": True}), {**JSON, "X-Request-Id": "gone-1"})
    c.getresponse().read(200)
    c.close()
    wait_for(lambda: 'msg="cancelled" request=gone-1' in s.log, "not cancelled")
    wait_for(lambda: "answered" in s.log, "no line")
    line = [x for x in kv_lines(s.log) if x["msg"] == "answered"][0]
    assert line["request"] == "gone-1" and line["complete"] == "false" and line["status"] == "200", line
    assert s.stop() == 0, s.log


@test
def refusals_of_strangers_are_limited():
    s = Server()
    for _ in range(40):
        s.ask("/nothing")
    s.complete(PROMPT, 2)  # is logged, whatever strangers do
    wait_for(lambda: "path=/v1/completions" in s.log, "no line")
    assert len([x for x in kv_lines(s.log) if x.get("path") == "/nothing"]) <= 20
    assert s.stop() == 0, s.log


@test
def text_is_for_people():
    s = Server("--log-format", "text", mode=("--local", 1))
    s.complete(PROMPT, 2)
    assert s.stop() == 0
    assert re.search(r"^od-main: ready model=\S+ ctx_tokens=\d+ parallel=4$", s.log, re.M), s.log
    assert re.search(r"^od-main: answered request=\S+ method=POST path=/v1/completions status=200 client=", s.log, re.M), s.log


@test
def a_prometheus_server_scrapes_it():
    server = program("prometheus")
    s = Server(mode=("--local", 2))
    s.complete(PROMPT, 20)
    port = free_port()
    config = os.path.join(TMP, "prometheus.yml")
    with open("docs/METRICS.md") as f:  # the example of the docs
        text = re.search(r"```yaml\n(.*?)```", f.read(), re.S).group(1)
    with open(config, "w") as f:
        f.write(text.replace("15s", "1s").replace("127.0.0.1:8080", f"127.0.0.1:{s.port}"))
    with open(os.path.join(TMP, "prometheus.log"), "w") as log:
        p = subprocess.Popen([server, "--config.file", config, "--storage.tsdb.path", os.path.join(TMP, "tsdb"),
                              "--web.listen-address", f"127.0.0.1:{port}"], stdout=log, stderr=log)

    def query(q):
        try:
            url = f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": q})
            with urllib.request.urlopen(url, timeout=HANG_S) as r:
                o = json.load(r)
        except (OSError, http.client.HTTPException):
            return []
        assert o["status"] == "success", o
        return o["data"]["result"]

    try:
        wait_for(lambda: query("od_main_tokens_total"), "nothing was scraped")
        assert query("od_main_tokens_total")[0]["value"][1] == "20"
        assert query("sum(od_worker_up)")[0]["value"][1] == "2" and query("up")[0]["value"][1] == "1"
        assert float(query("histogram_quantile(0.5, od_time_to_first_token_seconds_bucket)")[0]["value"][1]) > 0
        with open("docs/METRICS.md") as f:
            examples = re.findall(r"^\| [^|]+ \| `([^`]+)` \|$", f.read(), re.M)
        assert len(examples) == 10
        for q in examples:
            query(q)  # an error of the query is no answer of status success
    finally:
        p.terminate()
        p.wait(timeout=HANG_S)
    assert s.stop() == 0, s.log


if __name__ == "__main__":
    try:
        run_tests()
    finally:
        stop_servers()
