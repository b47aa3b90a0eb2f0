"""Completions asked as streams, with the time of each token, by a client that lives in a host's network namespace.

As a program it reads requests, [number, port, body] a line, sends each to 127.0.0.1 at once, and writes what came of it, a line each."""
import http.client
import json
import os
import subprocess
import sys
import threading
import time


def stream(port, body):
    """times: seconds from the request to each token. error: None if all went well."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=900)
    begin = time.monotonic()
    times, texts, error = [], [], None
    try:
        c.request("POST", "/v1/completions", json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
        answer = c.getresponse()
        if answer.status != 200:
            return {"times": [], "text": "", "error": f"{answer.status}: {answer.read()[:500]}"}
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            error = event.get("error", error)
            for choice in event.get("choices", []):
                if choice.get("finish_reason") is None or choice.get("text"):  # od-main's last event may have the last tokens
                    times.append(time.monotonic() - begin)
                    texts.append(choice.get("text", ""))
    except (OSError, http.client.HTTPException) as e:
        error = f"{type(e).__name__}: {e}"
    return {"times": times, "text": "".join(texts), "error": error or (None if times else "no token came")}


class StreamClient:
    def __init__(self, lan, node):
        self.process = lan.start(node, sys.executable, os.path.abspath(__file__), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def begin(self, port, *bodies):
        for number, body in enumerate(bodies):
            self.process.stdin.write(json.dumps([number, port, body]) + "\n")
        self.process.stdin.flush()
        self.pending = len(bodies)

    def answers(self):
        """Of all requests that were begun, in their order."""
        found = [json.loads(self.process.stdout.readline()) for _ in range(self.pending)]
        return [a for _, a in sorted(found, key=lambda x: x[0])]

    def ask(self, port, *bodies):
        self.begin(port, *bodies)
        return self.answers()

    def wait_for(self, port, process, seconds=600):
        """False: the server has ended, or does not answer."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and process.poll() is None:
            if not self.ask(port, {"prompt": [300, 301], "max_tokens": 1, "temperature": 0})[0]["error"]:
                return True
            time.sleep(0.3)
        return False

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def main():
    lock = threading.Lock()

    def one(number, port, body):
        answer = stream(port, body)
        with lock:
            print(json.dumps([number, answer]), flush=True)

    for line in sys.stdin:
        threading.Thread(target=one, args=json.loads(line)).start()


if __name__ == "__main__":
    main()
