#!/usr/bin/env python3
"""The daemons as services: what they tell the service manager on a socket that the test opens, that the watchdog is fed only while
their threads get on (the test stops single threads), SIGTERM and SIGHUP, the units as `make install` puts them, and a booted
systemd where the machine permits one."""
import atexit
import ctypes
import json
import os
import queue
import re
import shutil
import signal
import socket
import stat
import subprocess
import threading
import time
from unittest import mock

import booted_systemd
from cluster_util import (BIN, HANG_S, PROMPT, TMP, Daemon, Lines, Skip, free_port, generate, hosts_file, main_args, pack, run_tests, test,
                          tool)
from serve_util import Server, parse_events, stop_servers

atexit.register(stop_servers)
WATCHDOG_S = 1.0
QUIET_S = 3 * WATCHDOG_S  # in which a fed watchdog is heard of several times
UNITS = ("od-main", "od-worker", "od-shadow")


class Manager:
    """The socket of a service manager. Daemons that are started within `with` talk to it."""

    def __init__(self, name, watchdog_s=WATCHDOG_S):
        self.path = os.path.join(TMP, name + ".notify")
        self.s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.s.bind(self.path)
        self.env = {"NOTIFY_SOCKET": self.path, "WATCHDOG_USEC": str(int(watchdog_s * 1e6))}
        self.heard, self.unread, self.inbox = [], [], queue.SimpleQueue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        """All the time: a daemon waits in sd_notify while ten messages are unread."""
        while True:
            self.inbox.put(self.s.recv(65536))

    def __enter__(self):
        os.environ.update(self.env)
        return self

    def __exit__(self, *_):
        for name in self.env:
            del os.environ[name]

    def hear(self, seconds=0.0):
        """The messages until then that `wait` has not passed, each a dictionary."""
        got, self.unread, end = self.unread, [], time.monotonic() + seconds
        while True:
            try:
                lines = self.inbox.get(timeout=max(0.0, end - time.monotonic())).decode().splitlines()
            except queue.Empty:
                return got
            got.append(dict(line.split("=", 1) for line in lines))
            self.heard.append(got[-1])

    def wait(self, **want):
        """Until one message says all of this; None: whatever the value."""
        end = time.monotonic() + HANG_S
        while time.monotonic() < end:
            got = self.hear(0.05)
            for i, m in enumerate(got):
                if all(k in m and v in (None, m[k]) for k, v in want.items()):
                    self.unread = got[i + 1:]
                    return m
        raise AssertionError(f"no {want} in {self.heard}")

    def wait_for_feeds(self):
        """Until the watchdog is fed twice more."""
        self.hear()
        for _ in range(2):
            self.wait(WATCHDOG="1")

    def wait_for_silence(self):
        """Until there is no WATCHDOG for four times as long as from one to the next."""
        end, last = time.monotonic() + HANG_S, time.monotonic()
        while time.monotonic() < last + 2 * WATCHDOG_S:
            if any("WATCHDOG" in x for x in self.hear(0.05)):
                last = time.monotonic()
            assert time.monotonic() < end, self.heard


class StoppedThread:
    """One thread of a process, stopped as a debugger stops it; the others go on."""
    SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000

    def __init__(self, pid, name):
        self.tid = [int(t) for t in os.listdir(f"/proc/{pid}/task") if self.comm(pid, t) == name][0]
        self.libc = ctypes.CDLL(None, use_errno=True)

    @staticmethod
    def comm(pid, tid):
        with open(f"/proc/{pid}/task/{tid}/comm") as f:
            return f.read().strip()

    def ptrace(self, request):
        return self.libc.ptrace(ctypes.c_long(request), ctypes.c_long(self.tid), None, None)

    def __enter__(self):
        if self.ptrace(self.SEIZE) != 0:
            raise Skip(f"ptrace: {os.strerror(ctypes.get_errno())}")
        assert self.ptrace(self.INTERRUPT) == 0
        assert os.WIFSTOPPED(os.waitpid(self.tid, self.WALL)[1])

    def __exit__(self, *_):
        assert self.ptrace(self.DETACH) == 0


def stopped_thread_stops_the_watchdog(m, pid, name):
    m.wait_for_feeds()
    with StoppedThread(pid, name):
        m.wait_for_silence()
    m.wait_for_feeds()


# ---- What they tell ----


def daemon_tells(role, thread):
    with Manager(role) as m:
        d = Daemon(role)
    ready = m.wait(READY="1")
    assert re.search(r"listening on port \d+; no main has connected", ready["STATUS"]), ready
    stopped_thread_stops_the_watchdog(m, d.process.pid, thread)
    # Without keys there is nothing to read again: it says so, and lives.
    d.signal(signal.SIGHUP)
    reloading = m.wait(RELOADING="1")
    assert 0 < int(reloading["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
    m.wait(READY="1")
    assert d.alive() and "nothing to read again" in d.text()
    # While it serves.
    other = Daemon("worker")
    nodes = [d, other] if role == "shadow" else [d]
    r = generate("--workers", hosts_file(nodes), prompt=PROMPT, tokens=40)
    assert r["token_ids"] == generate("--resident", prompt=PROMPT, tokens=40)["token_ids"]
    said, end = [], time.monotonic() + HANG_S
    while len(said) < 2 and time.monotonic() < end:
        said += [x["STATUS"] for x in m.hear(0.05) if "STATUS" in x]
    assert len(said) == 2 and 'serves main "' in said[0] and "no main has connected" in said[1], said
    other.kill()
    d.signal(signal.SIGTERM)
    stopping = m.wait(STOPPING="1")
    assert 30e6 <= int(stopping["EXTEND_TIMEOUT_USEC"]) <= 60e6, stopping
    assert d.process.wait(timeout=HANG_S) == 0


@test
def a_worker_tells_the_service_manager_how_it_is():
    daemon_tells("worker", "od-engine")


@test
def a_shadow_does_too():
    daemon_tells("shadow", "od-emulator")


@test
def stuck_readers_stop_the_watchdog_of_a_worker_with_work():
    """The engine thread waits for work all the time; what is stuck is the load."""
    with Manager("reader") as m:
        w = Daemon("worker", "--read-threads", 1)
    m.wait(READY="1")
    with StoppedThread(w.process.pid, "od-read"):
        m.wait_for_feeds()  # there is nothing to read
        main = subprocess.Popen(main_args("--workers", hosts_file([w])), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        # Main gives up a stuck worker after 3 s and begins again, which frees it for a moment: a feed or two, then silence again.
        m.wait_for_silence()
        main.kill()
        main.communicate()
    m.wait_for_feeds()
    w.kill()


@test
def a_server_tells_when_it_is_ready_and_that_it_gets_on():
    w = Daemon("worker", "--run-time=1")
    hosts = hosts_file([w], "service-hosts.txt")
    with Manager("main") as m:
        s = Server("--workers", hosts, "--drain-seconds", HANG_S, mode=(), ready=False)
    assert "loading" in m.wait(STATUS=None)["STATUS"]
    ready = m.wait(READY="1")
    assert ready["STATUS"] == f"serves talebook on http://127.0.0.1:{s.port}", ready
    assert sum("READY" in x for x in m.heard) == 1 and "READY" not in m.heard[0]
    text = s.complete(PROMPT, 24, temperature=0)["choices"][0]["text"]
    assert text == generate("--resident", prompt=PROMPT, tokens=24)["text"]
    stopped_thread_stops_the_watchdog(m, s.p.pid, "od-engine")
    assert any(re.search(r"; texts: 0 running, 0 waiting", x.get("STATUS", "")) for x in m.heard), m.heard
    # While it writes: the same, and the text is not harmed.
    c, r = s.open_stream(prompt=PROMPT, max_tokens=2000, ignore_eos=True, temperature=0)
    r.readline()
    m.wait_for_feeds()
    with StoppedThread(s.p.pid, "od-engine"):
        m.wait_for_silence()
    assert s.metric("od_texts_running") == 1
    c.close()
    m.wait_for_feeds()
    # Hosts are read again.
    more = Daemon("worker")
    hosts_file([w, more], "service-hosts.txt")
    s.p.send_signal(signal.SIGHUP)
    m.wait(RELOADING="1")
    m.wait(READY="1")
    s.wait_for("read again: 2 hosts")
    with open(hosts, "w") as f:
        f.write("nonsense line with five words\n")
    s.p.send_signal(signal.SIGHUP)
    m.wait(READY="1")
    s.wait_for("the cluster is unchanged")
    assert s.complete(PROMPT, 24, temperature=0)["choices"][0]["text"] == text
    # A drain: the open request ends well, no other is taken, the watchdog is fed.
    c, r = s.open_stream(prompt=PROMPT, max_tokens=100, ignore_eos=True, temperature=0)
    first = r.readline()
    s.p.send_signal(signal.SIGTERM)
    stopping = m.wait(STOPPING="1")
    assert HANG_S < int(stopping["EXTEND_TIMEOUT_USEC"]) / 1e6 <= HANG_S + 60, stopping
    events, _ = parse_events((first + r.read()).decode())
    assert events[-1] == "[DONE]" and len(events) > 2, events[-3:]
    assert s.p.wait(timeout=HANG_S) == 0
    for d in w, more:
        d.kill()


@test
def children_of_local_leave_the_service_to_their_parent():
    with Manager("local") as m:
        s = Server(mode=("--local", 2))
    m.wait(READY="1")
    m.hear(QUIET_S)
    assert sum("READY" in x for x in m.heard) == 1, m.heard
    assert not any("listening on port" in x.get("STATUS", "") for x in m.heard), m.heard
    assert s.stop() == 0


@test
def without_a_service_manager_nothing_is_told_and_sighup_ends_a_daemon():
    assert "NOTIFY_SOCKET" not in os.environ
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it, and so would the daemon
    d = Daemon("worker")
    signal.signal(signal.SIGHUP, before)
    d.signal(signal.SIGHUP)
    assert d.process.wait(timeout=HANG_S) == -signal.SIGHUP


# ---- A lost GPU ----

PLUGIN = os.path.abspath(os.path.join(BIN, "..", "lib", "libod_gpu_host.so"))


def with_failing_gpu(m, launch, start, *args):
    """A service with an emulated GPU that is lost with this launch of a kernel; it is ready when this returns."""
    gpu = {"OD_CUDA_PLUGIN": PLUGIN, "OD_GPU_FAIL_AT": str(launch)}
    with mock.patch.dict(os.environ, gpu), m:
        started = start(*args, "--device", "cuda")
    m.wait(READY="1")
    return started


def ends_as_a_failure(m, process):
    m.wait(STOPPING="1")
    assert process.wait(HANG_S) == 1
    m.hear()
    said = [x["STATUS"] for x in m.heard if "STATUS" in x][-1]  # systemctl status shows the last one
    assert re.match("end(ing|ed): cuda:0 emulated GPU is lost after a fault", said), said


@test
def a_worker_and_a_shadow_whose_gpu_is_lost_end_as_failures():
    other = Daemon("worker", "--cpu", "scalar")
    for role in "worker", "shadow":
        m = Manager(role + "-gpu", HANG_S)  # it is not read in between: few messages fit
        lost = with_failing_gpu(m, 300, Daemon, role)
        text = generate("--workers", hosts_file([lost, other]), "--cpu", "scalar", tokens=200)["token_ids"]
        assert text == generate("--resident", "--cpu", "scalar", tokens=200)["token_ids"]
        ends_as_a_failure(m, lost.process)
    other.kill()


@test
def a_server_whose_gpu_is_lost_ends_as_a_failure():
    m = Manager("server-gpu", HANG_S)
    s = with_failing_gpu(m, 3000, Server)
    status, _, o = s.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 200, "ignore_eos": True})
    assert status == 500 and "the GPU is lost" in o["error"]["message"], o
    ends_as_a_failure(m, s.p)


# ---- SIGTERM, SIGHUP ----


def drain_in_the_middle(pause, expected):
    """Ends a worker `pause` after its session began. Whether it was computing then: it took its time, and its RESULT arrived."""
    # One row, two experts: 0.8 s, of one layer: then main passes over it. After a second others would be asked, too.
    slow, other = Daemon("worker", "--run-time", 400), Daemon("worker")
    main = subprocess.Popen(main_args("--workers", hosts_file([slow, other]), "--group-size", 1, tokens=2, prompt=""),
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while "session with main" not in slow.text():
        time.sleep(0.01)
    time.sleep(pause)
    begin = time.monotonic()
    slow.signal(signal.SIGTERM)
    assert slow.process.wait(timeout=HANG_S) == 0, slow.text()
    took = time.monotonic() - begin
    out, said = main.communicate(timeout=HANG_S)
    other.kill()
    assert main.returncode == 0, said
    r = json.loads(out)
    assert r["token_ids"] == expected
    assert "not finished" not in slow.text(), slow.text()
    return took > 0.1 and r["worker_compute_s"] >= 0.4


@test
def sigterm_lets_a_worker_finish_what_it_computes():
    expected = generate("--resident", tokens=2, prompt="")["token_ids"]
    assert any(drain_in_the_middle(pause, expected) for pause in (0.7, 0.3, 1, 0.5, 0.9, 0.4, 0.8, 0.6, 1.2, 0.2, 1.5, 2, 3, 4, 6))


def second_signal(pause):
    """Whether the worker computed something when the signals came."""
    slow = Daemon("worker", "--run-time", 60000)  # longer than it is waited for without a second signal
    main = subprocess.Popen(main_args("--workers", hosts_file([slow]), tokens=2, prompt="a"), stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)
    while "session with main" not in slow.text():
        time.sleep(0.01)
    time.sleep(pause)
    slow.signal(signal.SIGTERM)
    time.sleep(1)
    computing = slow.alive()
    if computing:
        slow.signal(signal.SIGTERM)
    assert slow.process.wait(timeout=HANG_S) == 0
    assert "work that is not finished" not in slow.text(), slow.text()  # as it says when it has waited
    main.kill()
    main.wait()
    return computing


@test
def a_second_signal_does_not_wait():
    assert any(second_signal(pause) for pause in (0.7, 0.3, 1, 1.5, 2))


@test
def sigterm_during_the_start_is_a_clean_end():
    with socket.socket() as s:  # bound, so that nobody listens there
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
        log = os.path.join(TMP, "waits.log")
        w = subprocess.Popen([os.path.join(BIN, "od-worker"), "--store", address, "--spool", os.path.join(TMP, "waits")],
                             stderr=open(log, "w"))
        while "does not answer" not in open(log).read():
            assert w.poll() is None, open(log).read()
            time.sleep(0.02)
        w.terminate()
        assert w.wait(timeout=HANG_S) == 0
        hosts = os.path.join(TMP, "nobody.txt")
        with open(hosts, "w") as f:
            f.write(f"{address}\n")
        main = Server(mode=("--workers", hosts), ready=False)
        assert main.stop() == 0 and "stopping before the model is loaded" in main.log, main.log


def public_key(path):
    with open(path) as f:
        return [line.split()[0] for line in f if not line.startswith("# ")][0]


def new_key(name):
    base = os.path.join(TMP, name)
    tool("od-main", "keygen", "--out", base)
    return base + ".key", public_key(base + ".pub")


@test
def sighup_does_not_end_a_main_that_only_has_a_store():
    key, public = new_key("store-main")
    store = f"127.0.0.1:{free_port()}"
    peers = os.path.join(TMP, "store.peers")
    with open(peers, "w") as f:
        f.write(public + "\n")
    s = Server("--serve-store", store, "--key", key, "--peers", peers)
    with open(peers, "a") as f:
        f.write(new_key("store-worker")[1] + "\n")
    s.p.send_signal(signal.SIGHUP)
    s.wait_for("store.peers read again: 2 keys")
    with open(peers, "w") as f:
        f.write("not a key\n")
    s.p.send_signal(signal.SIGHUP)
    s.wait_for("the keys are unchanged")
    assert s.stop() == 0, s.log
    s = Server("--serve-store", store)
    s.p.send_signal(signal.SIGHUP)
    s.wait_for("nothing to read again")
    assert s.ask("/v1/models")[0] == 200 and s.stop() == 0
    terminal = Lines("--resident", "--serve-store", store, "--max-tokens", 4)
    terminal.ask()
    terminal.answer()
    terminal.p.send_signal(signal.SIGHUP)
    terminal.ask()
    assert len(terminal.answer()["token_ids"]) == 4
    assert terminal.close()[0] == 0


# ---- The units ----


def installed(*args):
    """A folder with what `make install` puts there."""
    root = os.path.join(TMP, "root" + str(len(os.listdir(TMP))))
    p = subprocess.run(["make", "-s", "install", f"B={os.path.dirname(BIN)}", f"DESTDIR={root}", *args], capture_output=True,
                       text=True, timeout=HANG_S)
    assert p.returncode == 0, p.stdout + p.stderr
    return root, p.stdout


@test
def make_install_puts_units_and_keeps_what_was_edited():
    root, said = installed("PREFIX=/opt/od")
    assert "systemd-sysusers" in said and "daemon-reload" in said, said
    for u in UNITS:
        with open(f"{root}/opt/od/lib/systemd/system/{u}.service") as f:
            unit = f.read()
        assert f"ExecStart=/opt/od/bin/{u} " in unit.replace("serve $OD_ARGS", "$OD_ARGS") and "/usr/local" not in unit, unit
        assert stat.S_IMODE(os.stat(f"{root}/opt/od/bin/{u}").st_mode) == 0o755
        with open(f"{root}/etc/od-moe/{u}.conf") as f:
            assert re.search(r'^OD_ARGS="--\w', f.read(), re.M)
    assert os.access(f"{root}/opt/od/lib/od-moe/restart-delay", os.X_OK)
    assert stat.S_IMODE(os.stat(f"{root}/opt/od/lib/od-moe/gpu.conf").st_mode) == 0o644
    with open(f"{root}/opt/od/lib/sysusers.d/od-moe.conf") as f:
        assert re.search("^u od-moe ", f.read(), re.M)
    with open(f"{root}/etc/od-moe/od-worker.conf", "w") as f:
        f.write('OD_ARGS="--mine"\n')
    args = [f"B={os.path.dirname(BIN)}", f"DESTDIR={root}", "PREFIX=/opt/od"]
    subprocess.run(["make", "-s", "install", *args], check=True, stdout=subprocess.DEVNULL, timeout=HANG_S)
    subprocess.run(["make", "-s", "uninstall", *args], check=True, timeout=HANG_S)
    with open(f"{root}/etc/od-moe/od-worker.conf") as f:
        assert f.read() == 'OD_ARGS="--mine"\n'
    left = [os.path.join(d, f) for d, _, files in os.walk(root) for f in files]
    assert sorted(left) == sorted(f"{root}/etc/od-moe/{u}.conf" for u in UNITS), left


def analyze(*args, **kw):
    if shutil.which("systemd-analyze") is None:
        raise Skip("no systemd-analyze: package systemd")
    return subprocess.run(["systemd-analyze", *args], capture_output=True, text=True, timeout=HANG_S, **kw)


@test
def units_are_correct_and_sandboxed():
    root, _ = installed()
    units = [f"{root}/usr/local/lib/systemd/system/{u}.service" for u in UNITS]
    for u in units:  # programs are looked for where the unit says: here, in the folder
        with open(u) as f:
            text = f.read()
        with open(u, "w") as f:
            f.write(re.sub(r"(?m)^(Exec\w+=)(/usr/local/)", rf"\1{root}\2", text))
    p = analyze("verify", "--man=no", *units)
    assert p.returncode == 0 and p.stderr == "" and p.stdout == "", p.stderr
    for u in units:
        p = analyze("security", "--offline=true", "--threshold=30", u)
        level = re.search(r"Overall exposure level for \S+: ([0-9.]+)", p.stdout)
        assert p.returncode == 0 and level and float(level.group(1)) <= 3.0, p.stdout[-300:]


@test
def restarts_come_later_each_time():
    """systemd 252 cannot do that by itself: the script waits. A sleep of the test's own says for how long."""
    folder = os.path.join(TMP, "delays")
    os.makedirs(folder)
    with open(os.path.join(folder, "sleep"), "w") as f:
        f.write("#!/bin/sh\necho $1\n")
    os.chmod(f.name, 0o755)
    env = {"PATH": folder + ":" + os.environ["PATH"], "RUNTIME_DIRECTORY": folder}

    def delays(n):
        return [int(subprocess.run(["deploy/systemd/restart-delay"], env=env, check=True, capture_output=True, text=True).stdout)
                for _ in range(n)]

    assert delays(10) == [0, 1, 2, 4, 8, 16, 32, 64, 120, 120]
    with open(os.path.join(folder, "restarts"), "w") as f:
        f.write(f"9 {int(time.monotonic()) - 601}\n")
    assert delays(3) == [0, 1, 2]
    # Only a failure counts: systemctl restart does not wait.
    for result, expected in (("exit-code", [4]), ("success", [0, 1])):
        subprocess.run(["deploy/systemd/restart-delay", "ended"], env={**env, "SERVICE_RESULT": result}, check=True)
        assert delays(len(expected)) == expected
    # What a full /run leaves is no reason not to start.
    for text in ("", "x", "3", "3 y", "-1 -1", "\n"):
        with open(os.path.join(folder, "restarts"), "w") as f:
            f.write(text)
        assert delays(2) == [0, 1], text
    os.unlink(os.path.join(folder, "restarts"))
    os.mkdir(os.path.join(folder, "restarts"))
    assert delays(1) == [0]


GPU_THERE = "/usr/local/lib/od-moe/libod_gpu_host.so"
HTTP = """import json, sys, urllib.request
r = urllib.request.Request("http://127.0.0.1:8080/v1/completions", sys.argv[1].encode(), {"Content-Type": "application/json"})
print(json.load(urllib.request.urlopen(r))["choices"][0]["text"], end="")"""


@test
def a_booted_systemd_runs_all_three():
    root, _ = installed()
    shutil.copy(PLUGIN, root + GPU_THERE)
    etc = f"{root}/etc/od-moe"
    keys = {}
    for name in ("main", "worker"):  # the shadow has the worker's: both are on this machine, as it were
        tool("od-main", "keygen", "--out", f"{root}/{name}")
        keys[name] = public_key(f"{root}/{name}.pub")
    shutil.copy(f"{root}/worker.key", f"{etc}/node.key")
    shutil.copy(f"{root}/main.key", f"{etc}/main.key")
    with open(f"{etc}/peers", "w") as f:
        f.write(keys["main"] + "\n")
    with open(f"{etc}/hosts.txt", "w") as f:
        f.write(f"shadow 127.0.0.1 key={keys['worker']}\n127.0.0.1 key={keys['worker']}\n")
    with open(f"{etc}/od-main.conf", "a") as f:
        f.write('OD_ARGS="--workers /etc/od-moe/hosts.txt --key /etc/od-moe/main.key --parallel 2"\n')
    try:
        b = booted_systemd.Booted(root, pack())
    except booted_systemd.Unavailable as e:
        raise Skip(e) from None
    try:
        booted(b)
    except AssertionError as e:
        raise AssertionError(f"{e}\n{b.log()}") from e
    finally:
        b.stop()
    assert not os.path.exists(b.cgroup)


def wait_for_restart(b, unit):
    """The process's new number."""
    end = time.monotonic() + HANG_S
    while (now := b.show(unit, "MainPID", "NRestarts", "ActiveState"))["ActiveState"] != "active" or now["NRestarts"] == "0":
        assert time.monotonic() < end, now
        time.sleep(0.1)
    return now["MainPID"]


def stops(b, unit):
    assert b.systemctl("stop", unit).returncode == 0
    assert b.show(unit, "ActiveState", "Result", "ExecMainStatus") == {
        "ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0"}, unit


def booted(b):
    b.run("sh", "-c", "mkdir -p /run/systemd/system/od-worker.service.d && printf '[Service]\nWatchdogSec=2s\n' >"
          "/run/systemd/system/od-worker.service.d/watchdog.conf && systemctl daemon-reload")
    for u in ("od-worker", "od-shadow", "od-main"):
        p = b.systemctl("start", u)  # returns when it has said READY
        assert p.returncode == 0, (u, p.stderr, b.systemctl("status", u).stdout)
        assert b.show(u, "ActiveState", "SubState", "User", "Result") == {
            "ActiveState": "active", "SubState": "running", "User": "od-moe", "Result": "success"}, u
    assert b.show("od-main", "StatusText")["StatusText"] == "serves pack on http://127.0.0.1:8080"
    assert 'serves main "' in b.show("od-worker", "StatusText")["StatusText"]
    body = json.dumps({"prompt": PROMPT, "max_tokens": 24, "temperature": 0})
    text = generate("--resident", prompt=PROMPT, tokens=24)["text"]
    p = b.run("python3", "-c", HTTP, body)
    assert p.stdout == text, (p.stdout, p.stderr)
    for u, says in (("od-main", "hosts.txt read again: 2 hosts"), ("od-worker", "/etc/od-moe/peers read again: 1 keys")):
        assert b.systemctl("reload", u).returncode == 0
        end = time.monotonic() + HANG_S
        while says not in b.log():
            assert time.monotonic() < end, says
            time.sleep(0.05)
        assert b.show(u, "ActiveState")["ActiveState"] == "active"
    # A worker that hangs is killed and comes back; main uses it again.
    before = b.show("od-worker", "MainPID")["MainPID"]
    b.systemctl("kill", "--signal=STOP", "od-worker")
    assert wait_for_restart(b, "od-worker") != before
    p = b.run("python3", "-c", HTTP, body)
    assert p.stdout == text, (p.stdout, p.stderr)
    for u in ("od-main", "od-worker", "od-shadow"):
        stops(b, u)
    # Restarts wait longer and longer; somebody who restarts a service does not, not even in such a wait.
    b.run("sh", "-c", "mv /etc/od-moe/hosts.txt /etc/od-moe/away; rm -f /run/od-main/restarts")
    b.systemctl("start", "--no-block", "od-main")
    end = time.monotonic() + HANG_S
    while b.run("pgrep", "-x", "sleep", "-a").stdout.split()[1:] != ["sleep", "4"]:
        assert time.monotonic() < end, b.log()
        time.sleep(0.1)
    assert "there is no file /etc/od-moe/hosts.txt" in b.log()
    b.run("mv", "/etc/od-moe/away", "/etc/od-moe/hosts.txt")
    b.systemctl("start", "od-worker")
    assert b.systemctl("restart", "od-main").returncode == 0
    assert b.run("cut", "-d ", "-f1", "/run/od-main/restarts").stdout == "1\n"
    for u in ("od-main", "od-worker"):
        stops(b, u)
    # A server whose GPU is lost is started again, and serves. Its sandbox is that of README, "As services".
    assert b.run("install", "-D", "-m", "644", "/usr/local/lib/od-moe/gpu.conf",
                 "/etc/systemd/system/od-main.service.d/gpu.conf").returncode == 0
    b.run("sh", "-c", f"mkdir /run/systemd/system/od-main.service.d && printf '[Service]\nEnvironment=OD_CUDA_PLUGIN={GPU_THERE} "
          "OD_GPU_FAIL_AT=3000\n' >/run/systemd/system/od-main.service.d/emulated.conf && "
          """echo 'OD_ARGS="--resident --device cuda"' >/etc/od-moe/od-main.conf && systemctl daemon-reload""")
    assert b.systemctl("start", "od-main").returncode == 0
    opened = b.show("od-main", "PrivateDevices", "DeviceAllow", "MemoryDenyWriteExecute", "NoNewPrivileges")
    assert opened == {"PrivateDevices": "no", "DeviceAllow": "char-* rwm", "MemoryDenyWriteExecute": "no", "NoNewPrivileges": "yes"}, opened
    groups = b.run("grep", "^Groups:", f"/proc/{b.show('od-main', 'MainPID')['MainPID']}/status").stdout.split()
    for g in "video", "render":
        assert b.run("getent", "group", g).stdout.split(":")[2] in groups, (g, groups)
    p = b.run("python3", "-c", HTTP, json.dumps({"prompt": PROMPT, "max_tokens": 200, "ignore_eos": True}))
    assert "HTTP Error 500" in p.stderr, p
    wait_for_restart(b, "od-main")
    assert "is lost after a fault" in b.log()
    p = b.run("python3", "-c", HTTP, json.dumps({"prompt": PROMPT, "max_tokens": 4}))
    assert p.returncode == 0 and p.stdout, p
    stops(b, "od-main")
    assert "Operation not permitted" not in b.log(), b.log()


if __name__ == "__main__":
    run_tests()
