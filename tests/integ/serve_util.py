"""What the tests of od-main serve share: a server on a free port, and requests to it. Standard library."""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time

from cluster_util import BIN, HANG_S, TMP, pack

JSON = {"Content-Type": "application/json"}
_servers = []


class Server:
    """od-main serve; ready when it returns, unless ready is False."""

    def __init__(self, *args, ready=True, mode=("--resident",), pack_dir=None, program="od-main", preexec=None,
                 listen="127.0.0.1:0"):
        self.log_path = tempfile.mkstemp(dir=TMP)[1]
        self.p = subprocess.Popen([os.path.join(BIN, program), "serve", "--pack", pack_dir or pack(), "--listen", listen,
                                   *map(str, mode), *map(str, args)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=open(self.log_path, "w"), text=True,  # a file: a full pipe would hold up the server
                                  preexec_fn=preexec)
        _servers.append(self)
        self.port = int(self.wait_for(r'page and API at https?://\[?[^ ]*:(\d+)/["\n]').group(1))
        if ready:
            self.wait_ready()

    def wait_ready(self):
        self.wait_for(r'msg"?[=:]"ready"|od-main: ready ')  # in any --log-format

    def wait_for(self, pattern):
        end = time.monotonic() + HANG_S
        while not (m := re.search(pattern, self.log)):
            assert self.p.poll() is None, f"ended with {self.p.wait()}: {self.log}"
            assert time.monotonic() < end, f"no {pattern!r} in: {self.log}"
            time.sleep(0.02)
        return m

    @property
    def log(self):
        with open(self.log_path) as f:
            return f.read()

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=HANG_S)

    def socket(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=HANG_S)

    def ask(self, path, body=None, method=None, headers=None, connection=None):
        """(status, headers, JSON or text). body: an object, or bytes that are sent as they are."""
        c = connection or self.connect()
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        h = dict(JSON if body is not None else {})
        h.update(headers or {})
        c.request(method or ("GET" if body is None else "POST"), path, data, {k: v for k, v in h.items() if v is not None})
        r = c.getresponse()
        text = r.read()
        if connection is None:
            c.close()
        if r.headers.get("Content-Type", "").startswith("application/json") and text:
            text = json.loads(text)
        return r.status, r.headers, text

    def complete(self, prompt, tokens=16, **fields):
        status, _, o = self.ask("/v1/completions", {"prompt": prompt, "max_tokens": tokens, **fields})
        assert status == 200, (status, o)
        return o

    def open_stream(self, **fields):
        c = self.connect()
        c.request("POST", "/v1/completions", json.dumps({"stream": True, **fields}), JSON)
        return c, c.getresponse()

    def stream(self, **fields):
        """(events, comments) of a stream that ended with [DONE]."""
        c, r = self.open_stream(**fields)
        assert r.status == 200 and r.headers["Content-Type"].startswith("text/event-stream"), (r.status, r.read())
        events, comments = parse_events(r.read().decode())
        c.close()
        assert events[-1] == "[DONE]", events
        return events[:-1], comments

    def metric(self, name):
        text = self.ask("/metrics")[2].decode()
        return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.M).group(1))

    def pid_file(self, what):
        with open(f"/proc/{self.p.pid}/{what}") as f:
            return f.read()

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.p.pid}/fd"))

    def rss_kib(self):
        return int(re.search(r"VmRSS:\s+(\d+)", self.pid_file("status")).group(1))

    def stop(self, number=signal.SIGTERM):
        """Exit status."""
        if self.p.poll() is None:
            self.p.send_signal(number)
        self.p.communicate(timeout=HANG_S)
        return self.p.returncode


def stop_servers():
    for s in _servers:
        if s.p.poll() is None:
            s.p.kill()
            s.p.wait()


def parse_events(text):
    """Server-sent events: a list of JSON objects or strings, and the comments."""
    events, comments = [], []
    assert text.endswith("\n\n"), text[-80:]
    for block in text[:-2].split("\n\n"):
        if block.startswith(":"):
            comments.append(block[1:].strip())
        else:
            assert block.startswith("data: ") and "\n" not in block, block
            data = block[len("data: "):]
            events.append(json.loads(data) if data.startswith("{") else data)
    return events, comments
