#!/usr/bin/env python3
"""Texts that people write, as editors of other systems save them: with a byte order mark, with CR LF; and UTF-16, which is refused by
name. Every file of text that a program takes."""
import atexit
import json
import os
import subprocess

from cluster_util import BIN, CHECKPOINT, HANG_S, TMP, Daemon, generate, pack, run_tests, test, tool
from serve_util import Server, stop_servers

atexit.register(stop_servers)
os.environ["OD_KEYS"] = os.path.join(TMP, "no-keys")  # nothing of this machine's
MARK = "\ufeff"


def written(name, text, encoding="utf-8"):
    path = os.path.join(TMP, name)
    with open(path, "w", encoding=encoding, newline="") as f:
        f.write(MARK + text.replace("\n", "\r\n"))
    os.chmod(path, 0o600)
    return path


def refuses_utf16(name, text, *argv):
    path = written(name, text, "utf-16-le")
    p = subprocess.run([os.path.join(BIN, a) if i == 0 else path if a is None else a for i, a in enumerate(argv)], capture_output=True,
                       text=True, timeout=HANG_S, stdin=subprocess.DEVNULL)
    assert p.returncode != 0 and f"{path}: expected a text in UTF-8, found UTF-16" in p.stderr, (argv, p.returncode, p.stderr)


@test
def api_keys():
    s = Server("--api-key-file", written("api-keys", "first\nsecond\n"))
    for key, status in ("first", 200), ("second", 200), (MARK + "first", 401):
        auth = f"Bearer {key}".encode().decode("latin-1")
        assert s.ask("/v1/models", headers={"Authorization": auth})[0] == status, key
    p = subprocess.run([os.path.join(BIN, "od-chat"), "--url", f"http://127.0.0.1:{s.port}", "--max-tokens", "2",
                        "--api-key-file", written("my-key", "first\n")], input="Hello\n", capture_output=True, text=True, timeout=HANG_S)
    assert p.returncode == 0, p.stderr
    s.stop()
    refuses_utf16("api-keys16", "first\n", "od-main", "serve", "--pack", pack(), "--resident", "--api-key-file", None)
    refuses_utf16("my-key16", "first\n", "od-chat", "--api-key-file", None)


@test
def keys_peers_and_hosts():
    for who in "m", "w":
        tool("od-main", "keygen", "--out", os.path.join(TMP, who))
    text = {f: open(os.path.join(TMP, f)).read() for f in ("m.key", "m.pub", "w.key", "w.pub")}
    # Without the comment in front, so that the mark stands before the key.
    bare = {f: "".join(line for line in t.splitlines(True) if not line.startswith("# ")) for f, t in text.items()}
    w = Daemon("worker", "--listen", "127.0.0.1", "--key", written("w2.key", bare["w.key"]), "--peers", written("peers", bare["m.pub"]))
    hosts = f"127.0.0.1:{w.port} key={bare['w.pub'].split()[0]}\n"
    r = generate("--workers", written("hosts.txt", hosts), "--key", written("m2.key", bare["m.key"]), "--predictor", "none", tokens=2)
    assert len(r["token_ids"]) == 2
    w.kill()
    worker = ["od-worker", "--pack", pack(), "--listen", "127.0.0.1"]
    refuses_utf16("key16", bare["w.key"], *worker, "--key", None)
    refuses_utf16("peers16", bare["m.pub"], *worker, "--key", os.path.join(TMP, "w.key"), "--peers", None)
    refuses_utf16("hosts16", hosts, "od-main", "--pack", pack(), "--prompt", "x", "--workers", None)


@test
def prompts_and_messages():
    prompts = '{"prompt": "Once", "max_tokens": 2}\n{"prompt": "Twice", "max_tokens": 2}\n'
    out = tool("od-main", "--pack", pack(), "--resident", "--json", "--prompts", written("prompts", prompts)).stdout
    assert [len(json.loads(line)["token_ids"]) for line in out.splitlines()] == [2, 2]
    refuses_utf16("prompts16", prompts, "od-main", "--pack", pack(), "--resident", "--prompts", None)
    messages = '[{"role": "user",\n "content": "Hello"}]\n'
    template = ["od-main", "template", "--checkpoint", CHECKPOINT, "--messages"]
    assert "Hello" in tool(*template, written("messages", messages)).stdout
    refuses_utf16("messages16", messages, *template, None)


if __name__ == "__main__":
    run_tests()
