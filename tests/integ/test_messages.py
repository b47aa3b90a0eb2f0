#!/usr/bin/env python3
"""How many messages a step costs when several texts are written at once: a worker gets a WANT only when its list has changed,
and the shadow sends one PREDICT for each layer of a run, whatever number of rows that has. On the control sockets between main
and real daemons stand relays that read along."""
import json
import os
import subprocess
import threading

import zmtp
from cluster_util import BIN, HANG_S, TMP, Daemon, hosts_file, pack, run_tests, test

WANT, PREDICT = 16, 18
N_WORKERS, N_TEXTS = 4, 8
BEGINS = "Once upon a time", "The king", "A dog and a cat", "In the forest", "There was", "She had three", "It rained", "So far"


def numbers(packed):
    """Of a repeated uint32."""
    out, n, shift = [], 0, 0
    for b in packed:
        n |= (b & 127) << shift
        shift += 7
        if b < 128:
            out.append(n)
            n = shift = 0
    return tuple(out)


class Tap:
    """Main's control connection to a daemon, and what of one kind went through it: (epoch, fields of the body)."""

    def __init__(self, kind, role, *args):
        self.kind, self.role, self.seen = kind, role, []
        self.daemon = Daemon(role, *args)
        self.relay = zmtp.FakeDaemon(self._relay)
        self.port = self.relay.port

    def _pump(self, a, b):
        try:
            while True:
                m = a.recv()
                head = zmtp.parse(m[0])
                if self.kind in head:
                    self.seen.append((head.get(3, 0), zmtp.fields(head[self.kind])))
                b.send(*m)
        except (EOFError, OSError):
            a.s.close()
            b.s.close()

    def _relay(self, main):
        daemon = zmtp.connect(self.daemon.port)
        threading.Thread(target=self._pump, args=(daemon, main), daemon=True).start()
        self._pump(main, daemon)

    def close(self):
        self.relay.close()
        self.daemon.kill()


def texts(*args):
    """Index -> tokens."""
    path = os.path.join(TMP, "prompts.jsonl")
    with open(path, "w") as f:
        for begin in BEGINS[:N_TEXTS]:
            f.write(json.dumps({"prompt": begin, "max_tokens": 24}) + "\n")
    p = subprocess.run([os.path.join(BIN, "od-main"), "--pack", pack(), "--json", "--prompts", path, "--ignore-eos",
                        "--parallel", str(N_TEXTS), *map(str, args)], capture_output=True, text=True, timeout=HANG_S)
    assert p.returncode == 0, p.stderr
    return {o["index"]: o["token_ids"] for o in map(json.loads, p.stdout.splitlines())}


def check_wants(seen):
    """None says again what the one before it said. After a change of who is there main may repeat itself."""
    before = {}
    for epoch, body in seen:
        want = dict(body)
        of, experts = (want.get(1, 0), want.get(2, 0)), numbers(want.get(4, b""))
        old_epoch, old_version, old = before.get(of, (epoch, 0, ()))
        assert want[3] > old_version, (of, want)
        assert experts != old or epoch != old_epoch, f"step {of[0]}, layer {of[1]}: {experts} once more"
        before[of] = epoch, want[3], experts


def check_predicts(seen):
    """Layer by layer; rows may leave a run, none joins it. Returns how many rows the largest had."""
    last_m, last_rows, most = -1, set(), 0
    for _, body in seen:
        m = dict(body).get(6, 0)
        rows = [tuple(dict(zmtp.fields(v)).get(i, 0) for i in (1, 2, 3)) for n, v in body if n == 11]
        assert rows and len(set(rows)) == len(rows), rows
        assert m > last_m or m == 0, f"layer {m} behind layer {last_m}"
        assert m == 0 or set(rows) <= last_rows, f"layer {m}: {rows} of {last_rows}"
        last_m, last_rows = m, set(rows)
        most = max(most, len(rows))
    return most


@test
def wants_and_predicts_of_many_texts():
    expected = texts("--resident")
    largest = 0
    for log2_ms in range(8):  # main does not wait for the shadow: until that has had its turn, loads take longer and longer
        workers = [Tap(WANT, "worker", "--slots", 2, "--load-time", 2 ** log2_ms) for _ in range(N_WORKERS)]
        shadow = Tap(PREDICT, "shadow")
        assert texts("--workers", hosts_file([*workers, shadow])) == expected
        for tap in *workers, shadow:
            tap.close()
        for w in workers:
            assert len(w.seen) > 0
            check_wants(w.seen)
        largest = check_predicts(shadow.seen)
        if largest > N_TEXTS // 2:
            break
    assert largest > N_TEXTS // 2, largest


run_tests()
