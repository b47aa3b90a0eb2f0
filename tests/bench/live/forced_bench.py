#!/usr/bin/env python3
"""What drafts from a schema give: JSON with long keys, of a checkpoint that writes it in the tokenizer's own tokens.

    forced_bench.py --bin build/bin [--rounds 200]

Two servers, with --draft off and without, answer in turns; decode speeds are the servers' own timings. Prints medians and their ratio.
The checkpoint is tiny, so a step costs little beside what is done for each token: larger models gain more."""
import argparse
import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.path[:0] = [os.path.dirname(os.path.abspath(__file__)), os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../integ")]
from long_keys import SCHEMA, TEXT, write_long_keys  # noqa: E402


class JsonServer:
    def __init__(self, program, pack, *more):
        log = tempfile.TemporaryFile("w+")
        self.p = subprocess.Popen([program, "serve", "--resident", "--pack", pack, "--listen", "127.0.0.1:0", "--log-format", "kv", *more], stderr=log)
        said = ""
        while 'msg="ready"' not in said:
            if self.p.poll() is not None:
                sys.exit(f"od-main serve did not start:\n{said}")
            time.sleep(0.05)
            said = os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")
        self.port = int(re.search(r"page and API at http://127.0.0.1:(\d+)", said).group(1))

    def stop(self):
        self.p.send_signal(signal.SIGTERM)
        self.p.wait()


def speed(server):
    c = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    c.request("POST", "/v1/chat/completions", json.dumps({
        "messages": [{"role": "user", "content": "x"}], "max_tokens": 200,
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}), {"Content-Type": "application/json"})
    o = json.load(c.getresponse())
    assert o["choices"][0]["message"]["content"] == TEXT, o
    return o["timings"]["predicted_per_second"]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--bin", required=True)
    p.add_argument("--rounds", type=int, default=200)
    args = p.parse_args()
    program = os.path.join(args.bin, "od-main")
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = os.path.join(folder, "long_keys")
        pack = checkpoint + ".pack"
        write_long_keys(checkpoint)
        subprocess.run([os.path.join(args.bin, "od-pack"), checkpoint, pack, "--shadow", "none"], check=True, stderr=subprocess.DEVNULL)
        plain, forced = JsonServer(program, pack, "--draft", "off"), JsonServer(program, pack)
        pairs = [(speed(plain), speed(forced)) for _ in range(args.rounds)]
        for s in plain, forced:
            s.stop()
    print(f"tokens a second, medians of {args.rounds}: without drafts {statistics.median(a for a, _ in pairs):.0f}, "
          f"with {statistics.median(b for _, b in pairs):.0f}; ratio {statistics.median(b / a for a, b in pairs):.2f}")


if __name__ == "__main__":
    main()
