"""A server that plays /v1/models and a streamed /v1/chat/completions, for the tests of od-chat. Standard library."""
import http.server
import json
import select
import ssl
import threading
import time


def piece(text=None, thought=None, finish=None):
    delta = {}
    if text is not None:
        delta["content"] = text
    if thought is not None:
        delta["reasoning_content"] = thought
    return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def usage(prompt, generated, cached=0):
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated,
                                     "prompt_tokens_details": {"cached_tokens": cached}}}


def answer(*texts, finish="stop"):
    """A whole stream: what a script of the server returns."""
    return [piece(t) for t in texts] + [piece(finish=finish), usage(9, len(texts), 4), "[DONE]"]


class Refuse:
    def __init__(self, status, body, **headers):
        self.status, self.body, self.headers = status, body, headers


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, status, o, headers=()):
        body = json.dumps(o).encode() if not isinstance(o, bytes) else o
        self.send_response(status)
        for k, v in dict(headers).items():
            self.send_header(k.replace("_", "-"), v)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.server.mock.keys.append(self.headers.get("Authorization"))
        if self.server.mock.models_refusal:
            r = self.server.mock.models_refusal
            self.reply(r.status, r.body, r.headers)
        else:
            self.reply(200, {"object": "list", "data": [{"id": self.server.mock.model, "object": "model"}]})

    def do_POST(self):
        mock = self.server.mock
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        mock.keys.append(self.headers.get("Authorization"))
        mock.requests.append((self.path, request))
        script = mock.script(request)
        if isinstance(script, Refuse):
            self.reply(script.status, script.body, script.headers)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for item in script:
                self.play(item)
            self.wfile.write(b"0\r\n\r\n")
        except (BrokenPipeError, ConnectionResetError):
            mock.closed.set()

    def play(self, item):
        """An event, bytes as they are, a pause in seconds or until a threading.Event, or None: break off."""
        if isinstance(item, threading.Event):
            assert item.wait(600), "it was never set"
            return
        if isinstance(item, float):
            deadline = time.monotonic() + item
            while (left := deadline - time.monotonic()) > 0:
                if select.select([self.connection], [], [], left)[0]:  # a client says nothing more: it closed
                    raise ConnectionResetError
            return
        if item is None:
            self.connection.shutdown(2)
            raise BrokenPipeError
        if isinstance(item, dict):
            item = json.dumps(item)
        if isinstance(item, str):
            item = f"data: {item}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(item), item))
        self.wfile.flush()


class MockServer:
    """script(request): a list of items for play, or Refuse."""

    def __init__(self, script=None, port=0, cert=None):
        self.script = script or (lambda request: answer("Hello", " there."))
        self.requests, self.keys, self.closed = [], [], threading.Event()
        self.model, self.models_refusal = "mock-model", None
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.http.daemon_threads = True
        self.http.mock = self
        if cert:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*cert)
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.port = self.http.server_address[1]
        self.url = f"http{'s' if cert else ''}://127.0.0.1:{self.port}"
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def messages(self, i=-1):
        """Of a request, as (role, content)."""
        return [(m["role"], m["content"]) for m in self.requests[i][1]["messages"]]

    def stop(self):
        self.http.shutdown()
        self.http.server_close()
