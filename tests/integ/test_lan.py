#!/usr/bin/env python3
"""Several hosts: network namespaces on a bridge. Daemons and main without keys (test_keys.py has them), main with the
hosts file; then a cable is pulled, a host gets another address, and the name server is silent. Needs root."""
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time

from cluster_util import (HANG_S, PROMPT, TMP, TOKENS, Disturbed, Skip, _children, expect_calm, in_calm, pack, reference, run_tests, test,
                          tool)
from netns_lan import Lan, Node, Unavailable, ip

NET = "10.213.77"
NODES = {"main": 1, "shadow": 2, "w0": 11, "w1": 12, "w2": 13}
_lan = []


def lan():
    if not _lan:
        try:
            _lan.append(Lan("odl", NET, NODES))
        except Unavailable as e:
            raise Skip(e) from None
    return _lan[0]


@contextlib.contextmanager
def etc_of(node):
    """A folder whose files lie over those of /etc for programs in this namespace."""
    parent, folder = "/etc/netns", f"/etc/netns/{lan().name(node)}"
    new = not os.path.exists(parent)
    os.makedirs(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
        if new:
            with contextlib.suppress(OSError):  # somebody else has a folder there by now
                os.rmdir(parent)


def on(node, *args, **kw):
    return lan().start(node, *args, env={**os.environ, "OD_PACK": pack()}, text=True, **kw)


def start():
    nodes = [Node(lan(), name) for name in ("shadow", "w0", "w1", "w2")]
    path = os.path.join(TMP, "lan-hosts.txt")
    with open(path, "w") as f:
        f.write(f"shadow {NET}.2\n# workers\n{NET}.11\nworker {NET}.12:5701\n{NET}.13\n")
    main = on("main", "od-main", "--workers", path, "--insecure", "--json", "--max-tokens", TOKENS, stdin=subprocess.PIPE,
              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return nodes, main


def ask(main):
    main.stdin.write(PROMPT + "\n")
    main.stdin.flush()


def answer(main):
    line = main.stdout.readline()
    assert line, main.stderr.read()
    r = json.loads(line)
    assert r["token_ids"] == reference()["token_ids"]
    return r


def await_workers(main, n):
    """Texts until so many workers serve: one without CPU for 1.5 s is lost, and back soon."""
    end = time.monotonic() + HANG_S
    ask(main)
    while answer(main)["workers"] != n:
        assert time.monotonic() < end, f"never {n} workers"
        ask(main)


@test
def hosts_of_a_lan_need_nothing_but_the_hosts_file():
    nodes, main = start()
    ask(main)
    r = answer(main)
    out, err = main.communicate(timeout=HANG_S)
    for n in nodes:
        n.kill()
        n.forget()
    assert main.returncode == 0, err
    expect_calm(err)
    if r["predicted_uses"] == 0:
        raise Disturbed("the shadow had no CPU while the text was written")
    assert r["workers"] == 3 and r["recall"] > 0.99, r


@test
def a_cable_is_pulled_and_put_back():
    nodes, main = start()
    ask(main)
    answer(main)
    ask(main)
    time.sleep(0.2)
    ip("-n", lan().switch, "link", "set", "w1", "down")  # nobody says goodbye: packets just vanish
    answer(main)
    await_workers(main, 2)
    ip("-n", lan().switch, "link", "set", "w1", "up")
    await_workers(main, 3)
    out, err = main.communicate(timeout=HANG_S)
    assert main.returncode == 0, err
    for n in nodes:
        n.kill()


@test
def a_name_with_another_address_is_found():
    with etc_of("main") as folder:
        def name(last):
            with open(f"{folder}/hosts", "w") as f:
                f.write(f"{NET}.{last} worker.test\n")

        name(11)
        workers = [Node(lan(), "w0"), Node(lan(), "w1")]
        path = os.path.join(TMP, "lan-names.txt")
        with open(path, "w") as f:
            f.write(f"worker.test\n{NET}.12\n")
        main = on("main", "od-main", "--workers", path, "--insecure", "--json", "--max-tokens", TOKENS, stdin=subprocess.PIPE,
                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        await_workers(main, 2)
        workers.pop(0).kill()
        await_workers(main, 1)  # before there is another: a text may take longer than finding it
        name(13)
        workers.append(Node(lan(), "w2"))
        await_workers(main, 2)
        out, err = main.communicate(timeout=HANG_S)
        assert main.returncode == 0, err
        for n in workers:
            n.kill()


def with_ipv6():
    """fd00::N on every host, beside its IPv4 address."""
    for node, number in NODES.items():
        ip("-n", lan().name(node), "addr", "replace", f"fd00::{number}/64", "dev", "eth0", "nodad")


@in_calm
def said_of_start(path, *args):
    p = on("main", "od-main", "--workers", path, "--insecure", "--json", "--max-tokens", 8, "--prompt", PROMPT, *args, stdout=subprocess.PIPE,
           stderr=subprocess.PIPE)
    out, err = p.communicate(timeout=HANG_S)
    assert p.returncode == 0, err
    if "missing" in err:
        raise Disturbed("main had no CPU in the seconds in which it finds its workers")
    return json.loads(out), err


@test
def each_address_of_a_name_is_tried():
    """The worker listens at one of them; at others nobody answers, or somebody else does. It stays there, and later moves."""
    with_ipv6()
    with etc_of("main") as folder:
        def name(*addresses):
            with open(f"{folder}/hosts", "w") as f:
                f.write("".join(f"{a} worker.test\n" for a in addresses))

        path = os.path.join(TMP, "lan-addresses.txt")
        with open(path, "w") as f:
            f.write("worker.test\n")
        w = Node(lan(), "w0", "--listen", "::")
        nobody, refuses = f"{NET}.99", f"{NET}.12"
        for addresses in ((refuses, f"{NET}.11"), (nobody, f"{NET}.11"), (nobody, refuses, "fd00::11"), ("fd00::99", "fd00::12", "fd00::11"),
                          (f"{NET}.11", nobody)):
            name(*addresses)
            r, err = said_of_start(path)
            assert r["workers"] == 1 and r["token_ids"] == reference()["token_ids"][:8] and "missing" not in err, (addresses, err)
        w.kill()

        other = Node(lan(), "w1", "--listen", "0.0.0.0")
        name(nobody, f"{NET}.12", "fd00::11")
        main = on("main", "od-main", "--workers", path, "--insecure", "--json", "--max-tokens", TOKENS, stdin=subprocess.PIPE,
                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        ask(main)
        assert answer(main)["workers"] == 1
        other.kill()
        w = Node(lan(), "w0", "--listen", "fd00::11")
        end = time.monotonic() + HANG_S
        while True:
            ask(main)
            line = json.loads(main.stdout.readline())
            if line["finish"] != "error":
                break
            assert time.monotonic() < end, line
            time.sleep(0.2)
        assert line["token_ids"] == reference()["token_ids"] and line["workers"] == 1, line
        out, err = main.communicate(timeout=HANG_S)
        assert "is back: 1 of 1 worker" in err, err
        w.kill()


@test
def what_is_wrong_at_each_address_is_weighed():
    """A stranger of another model at one address and nobody at the other: the refusal is named, wherever it stands in the list."""
    with_ipv6()
    other = os.path.join(TMP, "lan-other")
    tool("od-bench", "synth", other, "--preset", "tiny")
    tool("od-pack", other, other + ".pack")
    w = Node(lan(), "w1", pack_dir=other + ".pack")
    with etc_of("main") as folder:
        path = os.path.join(TMP, "lan-weighed.txt")
        with open(path, "w") as f:
            f.write("worker.test\n")
        for addresses in (f"{NET}.12", "fd00::99"), (f"{NET}.99", f"{NET}.12"):
            with open(f"{folder}/hosts", "w") as f:
                f.write("".join(f"{a} worker.test\n" for a in addresses))
            p = on("main", "od-main", "--workers", path, "--insecure", "--prompt", PROMPT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            err = p.communicate(timeout=HANG_S)[1]
            assert p.returncode == 1 and f"cannot use worker worker.test:5701: at {NET}.12: refused: fingerprint" in err, err
        good = Node(lan(), "w0")
        with open(f"{folder}/hosts", "w") as f:
            f.write(f"{NET}.12 worker.test\n{NET}.11 worker.test\n")
        r, err = said_of_start(path)
        assert r["workers"] == 1 and r["token_ids"] == reference()["token_ids"][:8], err
        good.kill()
    w.kill()


@test
def each_address_of_the_store_is_tried():
    with_ipv6()
    with etc_of("w0") as folder:
        path = os.path.join(TMP, "lan-store.txt")
        with open(path, "w") as f:
            f.write(f"{NET}.11\n")
        for n, addresses in enumerate(((f"{NET}.99", f"{NET}.1"), (f"{NET}.12", "fd00::1"))):
            with open(f"{folder}/hosts", "w") as f:
                f.write("".join(f"{a} store.test\n" for a in addresses))
            main = on("main", "od-main", "--workers", path, "--insecure", "--json", "--max-tokens", TOKENS, "--serve-store",
                      "0.0.0.0" if n == 0 else "[::]", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            w = lan().start("w0", "od-worker", "--insecure", "--store", "store.test", "--spool", os.path.join(TMP, f"spool{n}"),
                            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            _children.append(w)
            ask(main)
            assert answer(main)["workers"] == 1
            main.communicate(timeout=HANG_S)
            assert main.returncode == 0
            w.kill()
            w.communicate()


SILENT_SERVER = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], 53))
print("bound", flush=True)
s.recv(512)
print("asked", flush=True)
time.sleep(float(sys.argv[2]))
"""


@test
def a_silent_name_server_does_not_hold_up_the_end():
    """The resolver waits for it for 150 s."""
    with etc_of("main") as folder:
        server = lan().start("shadow", sys.executable, "-c", SILENT_SERVER, f"{NET}.2", HANG_S, text=True, stdout=subprocess.PIPE)
        _children.append(server)
        assert server.stdout.readline() == "bound\n"
        with open(f"{folder}/resolv.conf", "w") as f:
            f.write(f"nameserver {NET}.2\noptions timeout:30 attempts:5\n")
        with open(f"{folder}/hosts", "w") as f:
            f.write(f"{NET}.12 worker.test\n")
        workers = [Node(lan(), "w0"), Node(lan(), "w1")]
        path = os.path.join(TMP, "lan-silent.txt")
        with open(path, "w") as f:
            f.write(f"{NET}.11\nworker.test\n")
        main = on("main", "od-main", "--workers", path, "--insecure", "--json", "--max-tokens", TOKENS, stdin=subprocess.PIPE,
                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        await_workers(main, 2)
        open(f"{folder}/hosts", "w").close()
        workers.pop().kill()
        assert server.stdout.readline() == "asked\n"
        out, err = main.communicate(timeout=120)
        assert main.returncode == 0, err
        workers.pop().kill()
        server.kill()
        server.wait()


if __name__ == "__main__":
    try:
        run_tests()
    finally:
        for c in _children:
            c.kill()
        for network in _lan:
            network.close()
