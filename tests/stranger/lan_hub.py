#!/usr/bin/env python3
"""A hub of models on a LAN, as a host's only program: lan_hub.py PORT ORG/NAME FOLDER. The LAN knows it as hub, and as cdn, the host that
has the large files. Says "ready" when it listens."""
import http.server
import os
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integ"))
from hub_server import Hub, Repo  # noqa: E402


class LanHub(Hub):
    """The large files' port is the next one."""

    def __init__(self, port, repos):
        self.ports = iter((port, port + 1))
        super().__init__(repos)
        self.url, self.cdn_url = f"http://hub:{port}", f"http://cdn:{port + 1}"

    def _serve(self, handler):
        server = http.server.ThreadingHTTPServer(("", next(self.ports)), type(handler.__name__, (handler,), {"world": self}))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server


def main():
    port, name, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    files = {}
    for f in os.listdir(folder):
        with open(os.path.join(folder, f), "rb") as opened:
            files[f] = opened.read()
    LanHub(port, {name: Repo(files)})
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
