#!/usr/bin/env python3
"""Keys between nodes: od-main keygen, a cluster and a store that use keys, on loopback and between network namespaces, what a
listener on the wire sees of both kinds of cluster, and what the programs say when keys are missing or wrong."""
import glob
import json
import os
import pickle
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time

import netns_lan
import zmtp
from cluster_util import (BIN, HANG_S, PROMPT, TMP, Daemon, Disturbed, Lines, Skip, _children, expect_calm, free_port, generate,
                          hosts_file, in_calm, main_args, pack, run_tests, test, tool, undisturbed, wait_for)

Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
TOKENS = 60
_keys = 0
NODES = {"main": 1, "shadow": 2, "w0": 11, "w1": 12}
_lan = []
os.environ["OD_KEYS"] = os.path.join(TMP, "no-keys")  # nothing of this machine's


def lan():
    if not _lan:
        try:
            _lan.append(netns_lan.Lan("odk", "10.213.76", NODES))
        except netns_lan.Unavailable as e:
            raise Skip(e) from None
    return _lan[0]


class Key:
    """A pair that od-main keygen makes."""

    def __init__(self):
        global _keys
        _keys += 1
        base = os.path.join(TMP, f"node{_keys}")
        self.said = tool("od-main", "keygen", "--out", base).stdout
        self.secret, self.public_file = base + ".key", base + ".pub"
        self.public = public_of(self.public_file)


def public_of(path):
    with open(path) as f:
        return [line.split()[0] for line in f if not line.startswith("# ")][0]


def peers_file(*keys, name=None):
    path = os.path.join(TMP, name or f"peers{time.monotonic_ns()}")
    with open(path, "w") as f:
        f.write("# who may come\n" + "".join(f"{k}\n" for k in keys))
    return path


def keyed_hosts(nodes, name="keyed-hosts.txt"):
    """[(daemon, its public key)]"""
    path = os.path.join(TMP, name)
    with open(path, "w") as f:
        f.write("".join(f"{d.role} 127.0.0.1:{d.port} key={k}\n" for d, k in nodes))
    return path


def keyed(role, key, peers, *args, **kw):
    return Daemon(role, "--listen", "127.0.0.1", "--key", key.secret, *(["--peers", peers] if peers else []), *args, **kw)


_expected = []


def expected():
    if not _expected:
        _expected.append(generate("--resident", prompt=PROMPT, tokens=TOKENS)["token_ids"])
    return _expected[0]


def refused(program, *args, says, status=None):
    p = subprocess.run([os.path.join(BIN, program), *map(str, args)], capture_output=True, text=True, timeout=HANG_S,
                       stdin=subprocess.DEVNULL)
    assert p.returncode != 0 and (status is None or p.returncode == status), (args, p.returncode, p.stderr)
    for part in [says] if isinstance(says, str) else says:
        assert part in p.stderr, (args, part, p.stderr)
    return p.stderr


def worker_refuses(*args, says):
    return refused("od-worker", "--pack", pack(), "--port", 0, *args, says=says)


@test
def keygen_writes_a_pair():
    folder = os.path.join(TMP, "made", "here")
    p = tool("od-main", "keygen", "--out", folder + "/")
    secret, public = os.path.join(folder, "node.key"), os.path.join(folder, "node.pub")
    assert stat.S_IMODE(os.stat(secret).st_mode) == 0o600
    key = public_of(public)
    assert len(key) == 40 and all(c in Z85 for c in key)
    assert secret in p.stdout and public in p.stdout and "never copy" in p.stdout, p.stdout
    assert f"key={key}\n" in p.stdout and f"  {key} {socket.gethostname()}\n" in p.stdout, p.stdout
    with open(secret) as f:
        assert [line for line in f if not line.startswith("#")][0].strip() not in p.stdout
    before = open(secret).read() + open(public).read()
    refused("od-main", "keygen", "--out", folder, says=["node.pub exists already", "never overwritten"], status=1)
    os.unlink(public)
    refused("od-main", "keygen", "--out", folder, says="node.key exists already")
    assert not os.path.exists(public) and open(secret).read() in before
    shutil.copy(secret, secret + ".old")
    os.rename(secret, secret + ".older")
    with open(public, "w") as f:
        f.write("mine\n")
    refused("od-main", "keygen", "--out", folder, says="node.pub exists already")
    assert not os.path.exists(secret) and open(public).read() == "mine\n"
    old = os.umask(0)  # the mode is not the umask's
    try:
        tool("od-main", "keygen", "--out", os.path.join(TMP, "wide"))
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(os.path.join(TMP, "wide.key")).st_mode) == 0o600
    p = subprocess.run([os.path.join(BIN, "od-main"), "keygen"], capture_output=True, text=True,
                       env={**os.environ, "OD_KEYS": os.path.join(TMP, "default")})
    assert p.returncode == 0 and os.path.exists(os.path.join(TMP, "default", "node.key")), p.stderr
    assert Key().public != Key().public
    refused("od-main", "keygen", "--in", "x", says="--in", status=2)
    refused("od-main", "keygen", "--out", os.path.join(TMP, "no", "such", "folder"), says="cannot create")
    assert "keygen" in tool("od-main", "--help").stdout and "--out" in tool("od-main", "keygen", "--help").stdout


@test
def a_cluster_with_keys_writes_the_same_tokens():
    main, keys = Key(), [Key() for _ in range(3)]
    peers = peers_file(main.public + " main")
    nodes = [keyed(role, k, peers) for role, k in zip(("shadow", "worker", "worker"), keys)]
    for _ in range(20):  # a starved shadow says little in time
        r = undisturbed("--workers", keyed_hosts([(d, k.public) for d, k in zip(nodes, keys)]), "--key", main.secret, prompt=PROMPT,
                        tokens=TOKENS)
        assert r["token_ids"] == expected() and r["workers"] == 2, r
        if (r["recall"] or 0) > 0.99:
            break
    assert r["recall"] > 0.99, r
    # The keys of the hosts may come from the peers file: the name is the host's, with or without its port.
    mains = peers_file(*(f"{k.public} 127.0.0.1:{d.port}" for d, k in zip(nodes, keys)))
    r = undisturbed("--workers", hosts_file(nodes), "--key", main.secret, "--peers", mains, prompt=PROMPT, tokens=TOKENS)
    assert r["token_ids"] == expected() and r["workers"] == 2
    for d, k in zip(nodes, keys):
        assert k.public in d.text() and "refused" not in d.text(), d.text()
        d.kill()


@test
def the_parts_of_a_shadow_know_each_other():
    main, keys = Key(), [Key() for _ in range(3)]
    worker = keyed("worker", keys[0], peers_file(main.public), "--load-time", 2)
    first = keyed("shadow", keys[1], peers_file(main.public), "--layers", "0-5", "--precision", "bf16")
    for known in False, True:
        peers = peers_file(main.public, *([keys[1].public] if known else []))
        second = keyed("shadow", keys[2], peers, "--layers", "6-11", "--precision", "bf16")
        hosts = keyed_hosts(zip((worker, first, second), (k.public for k in keys)))
        for _ in range(60 if known else 3):
            r = generate("--workers", hosts, "--key", main.secret, "--peers", peers_file(), tokens=TOKENS)
            assert r["token_ids"] == expected()
            if r["predicted_uses"] > 0:
                break
        assert (r["predicted_uses"] > 0) == known, r
        second.kill()
    assert "layers 6-11: it cannot be reached; check that this shadow's key is in the peers file there" in first.text(), first.text()
    worker.kill()
    first.kill()


@test
def main_says_which_key_does_not_fit():
    main, stranger, key = Key(), Key(), Key()
    w = keyed("worker", key, peers_file(main.public))
    hosts = keyed_hosts([(w, key.public)])
    p = subprocess.run(main_args("--workers", hosts, "--key", stranger.secret), capture_output=True, text=True, timeout=HANG_S)
    assert p.returncode == 1 and f"it refuses this node's key {stranger.public}" in p.stderr and "peers file" in p.stderr, p.stderr
    wait_for(lambda: f"refused a connection from 127.0.0.1: its key {stranger.public} is not in" in w.text(), w.text)
    p = subprocess.run(main_args("--workers", hosts_file([w])), capture_output=True, text=True, timeout=HANG_S)
    assert p.returncode == 1 and "keys" in p.stderr, p.stderr
    p = subprocess.run(main_args("--workers", keyed_hosts([(w, stranger.public)]), "--key", main.secret), capture_output=True,
                       text=True, timeout=HANG_S)
    assert p.returncode == 1 and f"check that its key is {stranger.public}" in p.stderr, p.stderr
    plain = Daemon("worker")
    p = subprocess.run(main_args("--workers", keyed_hosts([(plain, key.public)]), "--key", main.secret), capture_output=True,
                       text=True, timeout=HANG_S)
    assert p.returncode == 1 and "127.0.0.1" in p.stderr, p.stderr
    assert "refused a session" not in w.text(), w.text()  # no HELLO ever came so far
    assert generate("--workers", keyed_hosts([(w, key.public)]), "--key", main.secret, prompt=PROMPT, tokens=4)["workers"] == 1
    plain.kill()
    w.kill()


@test
def strangers_get_not_a_byte_of_our_protocol():
    main, key = Key(), Key()
    w = keyed("worker", key, peers_file(main.public))
    for mechanism in (b"NULL", b"PLAIN", b"CURVE"):
        s = socket.create_connection(("127.0.0.1", w.port), timeout=HANG_S)
        s.sendall(zmtp.GREETING[:12] + mechanism.ljust(20, b"\0") + b"\0" * 32)
        hello = zmtp.field(1, zmtp.VERSION) + zmtp.field(10, zmtp.field(1, b"worker"))
        ready = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
        got = b""
        try:
            s.sendall(b"\x04" + bytes([len(ready)]) + ready)
            time.sleep(0.3)  # a daemon that lets this one in reads no message before it has said READY
            s.sendall(b"\0" + bytes([len(hello)]) + hello)
            while more := s.recv(4096):
                got += more
        except ConnectionError:
            pass
        s.close()
        assert len(got) <= 64 and got[:1] in (b"", b"\xff") and b"worker" not in got, (mechanism, got)
    wait_for(lambda: "refused a connection" in w.text(), w.text)
    assert w.alive() and "refused a session" not in w.text(), w.text()
    r = generate("--workers", keyed_hosts([(w, key.public)]), "--key", main.secret, prompt=PROMPT, tokens=8)
    assert r["token_ids"] == expected()[:8]
    w.kill()


@test
def silent_strangers_hold_few_descriptors():
    """2000 connections that say nothing, while main writes: the worker keeps 256 of those on a port, and a moment's more."""
    main, key = Key(), Key()
    w = keyed("worker", key, peers_file(main.public))
    m = Lines("--workers", keyed_hosts([(w, key.public)]), "--key", main.secret, "--max-tokens", TOKENS)
    m.ask()
    assert m.answer()["token_ids"] == expected()
    fds = f"/proc/{w.process.pid}/fd"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if 0 <= hard < 3000:
        raise Skip(f"only {hard} files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    before = most = len(os.listdir(fds))
    m.ask()
    silent = []
    for i in range(2000):
        silent.append(socket.create_connection(("127.0.0.1", w.port)))
        if i % 20 == 0:
            most = max(most, len(os.listdir(fds)))
        if i % 100 == 99:  # closing lags behind accepting
            wait_for(lambda: len(os.listdir(fds)) < before + 256 + 20, lambda: os.listdir(fds))
    r = m.answer()
    expect_calm(m.said())
    assert r["token_ids"] == expected() and r["recovered_runs"] == 0, r
    m.ask()
    assert m.answer()["token_ids"] == expected()
    expect_calm(m.said())
    assert most < before + 256 + 200, (before, most)
    for s in silent:
        s.close()
    wait_for(lambda: len(os.listdir(fds)) <= before + 2, lambda: os.listdir(fds))
    assert "it has not shown a key" in w.text() and "ended: " not in w.text(), w.text()
    assert m.close()[0] == 0
    w.kill()


@test
def a_store_with_keys_serves_its_workers_only():
    main, key, stranger = Key(), Key(), Key()
    peers = peers_file(main.public)
    port, worker_port = free_port(), free_port()
    hosts = os.path.join(TMP, "store-hosts.txt")
    with open(hosts, "w") as f:
        f.write(f"127.0.0.1:{worker_port} key={key.public}\n")
    main_log = open(os.path.join(TMP, "store-main.log"), "w+")
    m = subprocess.Popen(main_args("--workers", hosts, "--serve-store", f"127.0.0.1:{port}", "--key", main.secret, tokens=TOKENS,
                                   prompt=PROMPT), stdout=subprocess.PIPE, stderr=main_log, text=True)
    w = keyed("worker", key, peers, store=f"127.0.0.1:{port}", spool=os.path.join(TMP, "keyed-spool"), port=worker_port)
    out, _ = m.communicate(timeout=HANG_S)
    if m.returncode == 1 and "cannot connect" in open(main_log.name).read():
        raise Disturbed("the worker was not there in the ten seconds that main waits")
    assert m.returncode == 0, open(main_log.name).read()
    assert json.loads(out)["token_ids"] == expected()
    w.kill()
    # Another node, and one without keys, get nothing.
    main_log = open(os.path.join(TMP, "store-alone.log"), "w+")
    m = subprocess.Popen([os.path.join(BIN, "od-main"), "--pack", pack(), "--resident", "--serve-store", f"127.0.0.1:{port}", "--key",
                          main.secret, "--peers", peers_file(key.public)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                         stderr=main_log)
    wait_for(lambda: "the store listens" in open(main_log.name).read() or m.poll() is not None, lambda: "no store")
    logs = []
    for name, args in (("stranger", ["--key", stranger.secret, "--peers", peers]), ("plain", [])):
        log = open(os.path.join(TMP, f"{name}.log"), "w+")
        logs.append((name, log, subprocess.Popen(
            [os.path.join(BIN, "od-worker"), "--store", f"127.0.0.1:{port}", "--spool", os.path.join(TMP, f"spool-{name}"), "--listen",
             "127.0.0.1", "--port", "0", *args], stdout=log, stderr=log)))
    for name, log, p in logs:
        wait_for(lambda: "does not answer" in open(log.name).read(), lambda: open(log.name).read())
        assert p.poll() is None
        assert not any(os.path.getsize(f) for f in glob.glob(os.path.join(TMP, f"spool-{name}", "*"))), name
        p.kill()
        p.wait()
    said = open(main_log.name).read()
    assert f"its key {stranger.public} is not in the hosts file or the peers file" in said, said
    assert "it does not use keys" in said or "it may not use keys" in said, said  # by who was faster to hang up
    m.kill()
    m.wait()


@test
def keys_can_be_changed_while_all_runs():
    """A second main is admitted by SIGHUP; a worker gets a new key, and main follows by SIGHUP."""
    main, other, key, fresh = Key(), Key(), Key(), Key()
    peers = peers_file(main.public)
    w = keyed("worker", key, peers)
    hosts = keyed_hosts([(w, key.public)], "rotation.txt")
    p = subprocess.run(main_args("--workers", hosts, "--key", other.secret), capture_output=True, text=True, timeout=HANG_S)
    assert p.returncode == 1, p.stderr
    with open(peers, "a") as f:
        f.write(f"{other.public} other\n")
    w.signal(signal.SIGHUP)
    wait_for(lambda: "read again: 2 keys" in w.text(), w.text)
    assert generate("--workers", hosts, "--key", other.secret, tokens=4)["workers"] == 1
    with open(peers, "w") as f:
        f.write("not a key\n")
    w.signal(signal.SIGHUP)
    wait_for(lambda: "the keys are unchanged" in w.text(), w.text)
    assert generate("--workers", hosts, "--key", other.secret, tokens=4)["workers"] == 1
    with open(peers, "w") as f:
        f.write(f"{main.public}\n")
    w.signal(signal.SIGHUP)
    wait_for(lambda: "read again: 1 keys" in w.text(), w.text)
    p = subprocess.run(main_args("--workers", hosts, "--key", other.secret), capture_output=True, text=True, timeout=HANG_S)
    assert p.returncode == 1 and "it refuses this node's key" in p.stderr, p.stderr

    spare_key = Key()
    spare = keyed("worker", spare_key, peers)
    hosts = keyed_hosts([(w, key.public), (spare, spare_key.public)], "rotation2.txt")
    m = Lines("--workers", hosts, "--key", main.secret, "--max-tokens", 8)

    def workers():
        m.ask()
        r = m.answer()
        expect_calm(m.said(), w.port)
        assert r["token_ids"] == expected()[:8], r.get("error")
        return r["workers"]

    assert workers() == 2
    w.kill()
    w.args = tuple(fresh.secret if a == key.secret else a for a in w.args)
    w.start()
    wait_for(lambda: workers() == 1)  # until its silence is noticed; then its key is another one
    time.sleep(3)
    assert workers() == 1
    keyed_hosts([(w, fresh.public), (spare, spare_key.public)], "rotation2.txt")
    m.p.send_signal(signal.SIGHUP)
    wait_for(lambda: workers() == 2)
    with open(hosts, "w") as f:  # a host without a key is refused, and nothing changes
        f.write("10.9.8.7\n")
    m.p.send_signal(signal.SIGHUP)
    wait_for(lambda: "the cluster is unchanged" in m.said(), m.said)
    wait_for(lambda: workers() == 2)
    status, err = m.close()
    assert status == 0 and "host 10.9.8.7 has no key" in err and "the cluster is unchanged" in err, err
    w.kill()
    spare.kill()


@test
def missing_and_bad_keys_say_what_to_do():
    main, key = Key(), Key()
    good = ["--key", key.secret, "--peers", peers_file(main.public)]
    worker_refuses("--listen", "0.0.0.0", says=["--listen 0.0.0.0", "od-main keygen", "--key", "--insecure", "no-keys/node.key"])
    worker_refuses("--key", key.secret, says=[f"there is no file {TMP}/peers", "node.pub", "--peers"])
    os.symlink(peers_file(main.public), os.path.join(TMP, "peers"))  # the default is beside the key
    keyed("worker", key, None).kill()
    os.unlink(os.path.join(TMP, "peers"))
    for listen, says in (("[::1]:5701", "set the port with --port"), ("127.0.0.1:5701", "set the port with --port"),
                         ("5701", "such as 127.0.0.1"), ("http://10.0.0.1", "a URL")):
        worker_refuses("--listen", listen, *good, says=says)
    worker_refuses("--key", key.secret, "--peers", "/nonexistent/peers", says="/nonexistent/peers")
    worker_refuses("--key", "/nonexistent/key", *good[2:], says="/nonexistent/key")
    worker_refuses(*good, "--insecure", says="--insecure and --key exclude each other")
    worker_refuses("--key", key.public_file, *good[2:], says="0644" if stat.S_IMODE(os.stat(key.public_file).st_mode) == 0o644 else "mode")
    public = os.path.join(TMP, "public-as-secret")
    shutil.copy(key.public_file, public)
    os.chmod(public, 0o600)
    worker_refuses("--key", public, *good[2:], says="is this a file of public keys?")
    for mode in (0o640, 0o604, 0o660, 0o666):
        path = os.path.join(TMP, "wide.key")
        shutil.copy(key.secret, path)
        os.chmod(path, mode)
        worker_refuses("--key", path, *good[2:], says=[f"chmod 600 {path}", f"{mode:04o}"])
    for text, says in (("", "found none"), ("x\n", "found 1"), ("#" * 40 + "\n", "found none"), ("~" * 40 + "\n", "Z85"),
                       (key.public + "\n" + key.public + "\n", "a second"), ("\0" * 40, "a byte that is 0"), ("a" * 5000, "5000 bytes")):
        path = os.path.join(TMP, "bad.key")
        with open(path, "w") as f:
            f.write(text)
        os.chmod(path, 0o600)
        worker_refuses("--key", path, *good[2:], says=says)
    for text, says in (("box1\n", "line 1: expected a key of 40 characters, found 4"), (f"{main.public} a b\n", "third word"),
                       ("\xff" * 40, "Z85"), ("# nothing\n", "lists no key")):
        path = os.path.join(TMP, "bad.peers")
        with open(path, "w", encoding="latin-1") as f:
            f.write(text)
        worker_refuses("--key", key.secret, "--peers", path, says=[says])
    two = peers_file(main.public, key.public)
    refused("od-worker", "--store", "10.1.2.3", "--spool", os.path.join(TMP, "x"), "--key", key.secret, "--peers", two,
            says=["2 keys", "10.1.2.3"])
    hosts = os.path.join(TMP, "bad-hosts.txt")
    for text, args, says in (("10.9.8.7\n", [], ["line 1: host 10.9.8.7 is not a loopback", "od-main keygen", "--insecure"]),
                             ("10.9.8.7\n", ["--key", main.secret], ["host 10.9.8.7 has no key", "key=PUBLICKEY"]),
                             (f"127.0.0.1 key={key.public}\n", [], ["line 1: host 127.0.0.1 has a key, so traffic is encrypted",
                                                                     "od-main keygen"]),
                             ("http://10.9.8.7:5701\n", [], ["line 1: expected host or host:port, found a URL"]),
                             (f"127.0.0.1 key={key.public}\n", ["--insecure"], ["127.0.0.1 has a key", "--insecure"]),
                             ("127.0.0.1 key=abc\n", [], ["line 1", "found 3"]),
                             ("127.0.0.1\n", ["--insecure", "--key", main.secret], ["exclude each other"])):
        with open(hosts, "w") as f:
            f.write(text)
        p = subprocess.run(main_args("--workers", hosts, *args), capture_output=True, text=True, timeout=HANG_S)
        assert p.returncode == 1 and all(s in p.stderr for s in says), (text, args, p.stderr)
    for args in (["--key", main.secret], ["--peers", "x"], ["--insecure"]):
        refused(*["od-main"], "--pack", pack(), "--resident", "--prompt", "x", *args, says=[args[0], "--serve-store"], status=2)


# ---- What the wire shows ----

class Wire:
    """Packets to and from main's network namespace."""

    def __init__(self, name):
        self.file = os.path.join(TMP, name)
        self.p = subprocess.Popen(["ip", "netns", "exec", lan().switch, sys.executable, "tests/integ/packet_log.py", "main",
                                   self.file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        _children.append(self)
        assert self.p.stdout.readline() == "listening\n"

    def kill(self):
        if self.p.poll() is None:
            self.p.kill()
        self.p.wait()

    def streams(self):
        time.sleep(0.2)
        out, _ = self.p.communicate("\n", timeout=HANG_S)
        assert self.p.returncode == 0, out
        if out != "0\n":
            raise Disturbed(f"the listener was too slow for {out.strip()} packets")
        with open(self.file, "rb") as f:
            return pickle.load(f)


CONTROL_PORT, STORE_PORT = 5701, 5702


@in_calm
def lan_cluster(name, keys):
    """Shadow, a worker with a pack and one that pulls, main: each on a host of its own. Returns main's answer and the streams."""
    nodes = {"main": "main", "shadow": "shadow", "w0": "worker", "w1": "worker"}
    address = {n: lan().address(n) for n in nodes}
    shutil.rmtree(os.path.join(TMP, name), ignore_errors=True)
    folder = {n: os.path.join(TMP, name, n) for n in nodes}
    for n in nodes:  # as on each of the machines
        os.makedirs(folder[n])
        if keys:
            tool("od-main", "keygen", "--out", folder[n])
    if keys:
        for n in nodes:
            if n != "main":
                shutil.copy(os.path.join(folder["main"], "node.pub"), os.path.join(folder[n], "peers"))
    hosts = os.path.join(TMP, name, "hosts.txt")
    with open(hosts, "w") as f:
        for n, role in nodes.items():
            if role != "main":
                key = " key=" + public_of(os.path.join(folder[n], "node.pub")) if keys else ""
                f.write(f"{role} {address[n]}{key}\n")
    log = open(os.path.join(TMP, name, "log"), "w+")

    def run(node, *args, **kw):
        env = {**os.environ, "OD_PACK": pack(), "OD_KEYS": folder[node]}
        p = lan().start(node, *args, env=env, stderr=log, text=True, **kw)
        _children.append(p)
        return p

    wire = Wire(name + ".packets")
    open_to_all = ["--listen", "0.0.0.0"] if keys else ["--insecure"]
    m = run("main", "od-main", "--workers", hosts, "--serve-store", address["main"], *([] if keys else ["--insecure"]), "--json",
            "--max-tokens", TOKENS, "--repetition-penalty", "1.05", "--prompt", PROMPT, stdout=subprocess.PIPE)
    daemons = [run("shadow", "od-shadow", *open_to_all, "--threads", 1), run("w0", "od-worker", *open_to_all, "--threads", 1),
               run("w1", "od-worker", "--store", address["main"], "--spool", os.path.join(folder["w1"], "spool"), "--threads", 1,
                   *([] if keys else ["--insecure"]))]
    out, _ = m.communicate(timeout=HANG_S)
    for d in daemons:
        d.kill()
        d.wait()
    said = open(log.name).read()
    if m.returncode == 1 and "cannot connect" in said:
        raise Disturbed("a daemon was not there in the ten seconds that main waits")
    assert m.returncode == 0, said
    expect_calm(said)
    return json.loads(out), wire.streams()


def varints(ids):
    return b"".join(zmtp.varint(i) for i in ids)


def whole(streams):
    return b"\0\0\0\0".join(streams.values())


def tensor_pieces(streams):
    """16 bytes from the middle of each large frame: rows, states, chunks. From outside the frame they look random."""
    found = []
    for s in streams.values():
        at = 64
        while at + 9 < len(s):
            flags = s[at]
            size, head = (int.from_bytes(s[at + 1:at + 9], "big"), 9) if flags & 2 else (s[at + 1], 2)
            body = s[at + head:at + head + size]
            if size >= 256 and not flags & 4 and len(set(body[size // 2:size // 2 + 16])) > 8:
                found.append(body[size // 2:size // 2 + 16])
            at += head + size
    return found


@test
def a_listener_sees_nothing_of_a_cluster_with_keys():
    plain, open_streams = lan_cluster("open-cluster", False)
    again, same_streams = lan_cluster("open-again", False)
    secret, closed_streams = lan_cluster("secret-cluster", True)
    assert plain["token_ids"] == again["token_ids"] == secret["token_ids"]
    assert plain["workers"] == secret["workers"] == 2
    with open(os.path.join(pack(), "model.json"), "rb") as f:
        model = f.read()
    known = {
        "the prompt's tokens": varints(plain["prompt_ids"]),
        "the fingerprint": bytes.fromhex(json.loads(model)["fingerprint"]),
        "HELLO": b"\x0a\x06shadow\x12\x20" + bytes.fromhex(json.loads(model)["fingerprint"]) + b"\x18\x01\x22\x07fma16-2",
        "the model's description": model[:200],
        "ZeroMQ without keys": b"NULL\0\0\0\0",
    }
    shown, hidden = whole(open_streams), whole(closed_streams)
    for what, text in known.items():
        assert text in shown, f"{what}: not even in the open cluster"
        assert text not in hidden, what
    pieces = tensor_pieces(open_streams)
    assert len(pieces) > 500, len(pieces)
    pieces = pieces[::len(pieces) // 250]  # of all kinds and times; each is looked for in all that was captured
    same = whole(same_streams)
    assert sum(p in same for p in pieces) > len(pieces) / 2  # rows are the same in every run
    assert not any(p in hidden for p in pieces)
    # The closed cluster moved as much, over as many connections, all of them with keys.
    busy = [s for s in closed_streams.values() if len(s) > 64]
    assert len(busy) >= 2 * 7, [len(s) for s in busy]  # both ways: control and data of three daemons, the store
    assert all(s[12:17] == b"CURVE" for s in busy), [s[:20] for s in busy]
    # How much of the pack is pulled until main ends is a matter of time, and so is how often main asks whether all are there.
    moved = [sum(len(s) for stream, s in streams.items() if not {CONTROL_PORT, STORE_PORT} & set(stream))
             for streams in (open_streams, closed_streams)]
    assert moved[0] > 1 << 20 and moved[1] > 0.8 * moved[0], moved


if __name__ == "__main__":
    try:
        run_tests()
    finally:
        for c in _children:
            c.kill()
