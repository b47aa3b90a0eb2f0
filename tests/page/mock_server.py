"""A server for the page that does what a test says: the page's files with the headers that od-main sends, models, answers from scripts, and the
state of a cluster. Standard library.

An answer is a list of steps: ("text", T), ("thought", T), ("call", NAME, [PIECES OF ARGUMENTS]), ("wait", EVENT), ("error", MESSAGE), ("break",),
("raw", BYTES), ("finish", REASON), ("usage", {...}). An answer may also be ("status", CODE, MESSAGE, {HEADERS}). Which one is given is decided by
the last message's text."""
import http.server
import json
import mimetypes
import os
import queue
import socket
import threading

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../main-node/serve/page")
POLICY = ("default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
          "frame-ancestors 'none'")
TYPES = {".js": "text/javascript; charset=utf-8", ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
MODEL = {"id": "qwen3-30b-a3b", "object": "model", "max_model_len": 32768, "meta": {"n_params": 30532122624, "size": 31100000000}}


class MockServer:
    """url, key (None: none is asked for), answers: {text: answer}; asked: bodies of requests for answers."""

    def __init__(self, answers=None, key=None, port=0, model=MODEL["id"]):
        self.answers = answers or {}
        self.key = key
        self.model = {**MODEL, "id": model}
        self.loading = False  # the model is not there yet
        self.asked = []
        self.watchers = []
        self.connections = set()
        self.state = None
        self.lock = threading.Lock()
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (Handler,), {"mock": self}))
        self.http.daemon_threads = True
        self.port = self.http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def push(self, kind, data):
        """An event for all that watch the cluster; a state is also what later watchers get first."""
        if kind == "state":
            self.state = data
        with self.lock:
            for q in self.watchers:
                q.put((kind, data))

    def drop_watchers(self):
        with self.lock:
            for q in self.watchers:
                q.put(None)

    def stop(self):
        self.drop_watchers()
        self.http.shutdown()
        self.http.server_close()
        for c in list(self.connections):
            try:
                c.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    mock = None

    def log_message(self, *_):
        pass

    def setup(self):
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.mock.connections.add(self.connection)

    def finish(self):
        self.mock.connections.discard(self.connection)
        super().finish()

    def reply(self, status, body, kind="application/json", headers=None):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": len(data), **(headers or {})}.items():
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(data)

    def fail(self, status, message, headers=None):
        self.reply(status, {"error": {"message": message, "type": "error", "param": None, "code": None}}, headers=headers)

    def has_key(self):
        if self.mock.key is None or self.headers.get("Authorization") == f"Bearer {self.mock.key}":
            return True
        self.fail(401, "no valid API key", {"WWW-Authenticate": "Bearer"})
        return False

    def file(self, name):
        path = os.path.join(PAGE, name)
        if "/" in name or not os.path.isfile(path):
            self.fail(404, f"there is no {name}")
            return
        kind = TYPES.get(os.path.splitext(name)[1]) or mimetypes.guess_type(name)[0]
        with open(path, "rb") as f:
            self.reply(200, f.read(), kind, {
                "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
                "Cross-Origin-Opener-Policy": "same-origin", "Cache-Control": "no-cache"})

    def do_GET(self):
        if self.path == "/":
            self.file("index.html")
        elif self.path.startswith("/page/"):
            self.file(self.path.removeprefix("/page/"))
        elif not self.has_key():
            pass
        elif self.mock.loading:
            self.fail(503, "the model is being loaded", {"Retry-After": "2"})
        elif self.path == "/v1/models":
            self.reply(200, {"object": "list", "data": [self.mock.model]})
        elif self.path == "/cluster" and self.mock.state is not None:
            self.reply(200, self.mock.state)
        elif self.path == "/cluster/events" and self.mock.state is not None:
            self.watch()
        else:
            self.fail(404, f"there is no {self.path}")

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if not self.has_key():
            return
        if self.path != "/v1/chat/completions":
            self.fail(404, f"there is no {self.path}")
            return
        request = json.loads(body)
        self.mock.asked.append(request)
        last = request["messages"][-1]["content"]
        answer = self.mock.answers.get(last, [("text", f"You said: {last}")])
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, tuple):
            self.fail(answer[1], answer[2], answer[3])
        else:
            self.stream(answer)

    # Streams

    def begin_stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def piece(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def event(self, data):
        self.piece(b"data: " + (data if isinstance(data, bytes) else json.dumps(data).encode()) + b"\n\n")

    def delta(self, delta, finish=None, **more):
        self.event({"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": MODEL["id"],
                    "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": None, **more})

    def stream(self, steps):
        self.begin_stream()
        try:
            self.steps(steps)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def steps(self, steps):
        calls, finish, usage = 0, "stop", {"completion_tokens": 42, "prompt_tokens": 7}
        self.delta({"role": "assistant", "content": ""})
        for step in steps:
            match step:
                case ("text", text):
                    self.delta({"content": text})
                case ("thought", text):
                    self.delta({"reasoning_content": text})
                case ("call", name, pieces):
                    self.delta({"tool_calls": [{"index": calls, "id": f"call_{calls}", "type": "function", "function": {"name": name, "arguments": ""}}]})
                    for p in pieces:
                        self.delta({"tool_calls": [{"index": calls, "function": {"arguments": p}}]})
                    calls, finish = calls + 1, "tool_calls"
                case ("wait", event):
                    self.wait(event)
                case ("error", message):
                    self.event({"error": {"message": message, "type": "server_error"}})
                    self.piece(b"")
                    return
                case ("raw", data):
                    self.piece(data)
                case ("finish", reason):
                    finish = reason
                case ("usage", given):
                    usage = given
                case ("break",):
                    self.cut()
                    return
        self.delta({}, finish)
        self.event({"choices": [], "usage": usage, "timings": {"predicted_per_second": 12.5, "predicted_n": 42, "draft_n": 20, "draft_n_accepted": 15}})
        self.event(b"[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def wait(self, event):
        """Until the test says so, or the client has gone: comments keep the connection busy, as od-main's do."""
        while not event.wait(0.1):
            self.piece(b": wait\n\n")

    def cut(self):
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)
        self.close_connection = True

    def watch(self):
        q = queue.Queue()
        with self.mock.lock:
            self.mock.watchers.append(q)
        q.put(("state", self.mock.state))
        self.begin_stream()
        try:
            while (item := q.get()) is not None:
                self.piece(f"event: {item[0]}\ndata: {json.dumps(item[1])}\n\n".encode())
            self.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            self.close_connection = True
            with self.mock.lock:
                self.mock.watchers.remove(q)
