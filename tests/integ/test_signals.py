#!/usr/bin/env python3
"""Signals that come at a bad moment, or that another thread takes than the one that waits: as the kernel likes, above all after SIGSTOP
and SIGCONT. And what a process has inherited from who started it."""
import atexit
import contextlib
import ctypes
import os
import pty
import shutil
import signal
import socket
import subprocess
import termios

from cluster_util import (BIN, HANG_S, PROMPT, TMP, Daemon, Lines, hosts_file, main_args, pack, reference, run_tests, test, tool,
                          wait_for)
from serve_util import Server, stop_servers

atexit.register(stop_servers)


def threads(pid):
    """{number: name}, without the main thread."""
    found = {}
    for tid in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"/proc/{pid}/task/{tid}/comm") as f:
            found[int(tid)] = f.read().strip()
    del found[pid]
    return found


def thread_named(pid, name):
    """Its number, or None: a thread has the name of its process until it has named itself."""
    return next((tid for tid, its in threads(pid).items() if its == name), None)


def signal_thread(pid, tid, number):
    assert ctypes.CDLL(None).tgkill(pid, tid, number) == 0


def state(pid, tid):
    with open(f"/proc/{pid}/task/{tid}/stat") as f:
        return f.read().rsplit(")", 1)[1].split()[0]


def slow_bin(name):
    """A folder with od-main and workers that start only when its file "go" is there."""
    folder = os.path.join(TMP, name)
    os.mkdir(folder)
    shutil.copy(os.path.join(BIN, "od-main"), folder)
    worker = os.path.join(folder, "od-worker")
    with open(worker, "w") as f:
        f.write(f"#!/bin/sh\nwhile [ ! -e {folder}/go ]; do sleep 0.05; [ -d {folder} ] || exit; done\nexec {os.path.abspath(BIN)}/od-worker \"$@\"\n")
    os.chmod(worker, 0o755)
    return folder


def has_child(pid, tid):
    with open(f"/proc/{pid}/task/{tid}/children") as f:
        return f.read() != ""


@test
def a_signal_ends_main_that_waits_for_a_line():
    m = Lines("--resident", "--threads", 2)
    m.ask()
    assert m.answer()["token_ids"] == reference()["token_ids"]
    signal_thread(m.p.pid, list(threads(m.p.pid))[0], signal.SIGTERM)
    assert m.p.wait(HANG_S) == 128 + signal.SIGTERM
    assert m.close()[1] == ""


@test
def a_signal_ends_main_that_waits_for_its_prompt():
    argv = [a for a in main_args("--resident", "--threads", 2, prompt="-") if a != "--json"]
    p = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while "KV cache" not in p.stderr.readline():
        pass
    wait_for(lambda: state(p.pid, p.pid) == "S", "it does not wait")
    signal_thread(p.pid, list(threads(p.pid))[0], signal.SIGINT)
    assert p.wait(HANG_S) == 128 + signal.SIGINT
    assert p.communicate()[0] == ""


@test
def a_server_that_is_being_loaded_outlives_sighup():
    folder = slow_bin("loading")
    s = Server(ready=False, mode=("--local", 1, "--predictor", "none"), program=os.path.join(folder, "od-main"))
    wait_for(lambda: thread_named(s.p.pid, "od-engine"), "no engine thread")
    engine = thread_named(s.p.pid, "od-engine")
    wait_for(lambda: has_child(s.p.pid, engine) and state(s.p.pid, engine) == "S", "no child")
    signal_thread(s.p.pid, engine, signal.SIGHUP)
    with open(os.path.join(folder, "go"), "w"):
        pass
    s.wait_ready()
    assert s.stop() == 0, s.log


def hung_up():
    """For preexec_fn: SIGHUP waits for the program from its first instruction on, although nohup ignores it."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    os.kill(os.getpid(), signal.SIGHUP)


@test
def main_that_starts_outlives_sighup_and_reads_its_hosts_again():
    """It waits for the prompts, so it has not opened the cluster yet."""
    w = Daemon("worker")
    argv = main_args("--workers", hosts_file([w]), "--predictor", "none", tokens=4)
    at = argv.index("--prompt")
    argv[at:at + 2] = ["--prompts", "-"]
    for early in (False, True):
        p = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             preexec_fn=hung_up if early else None)
        if not early:
            wait_for(lambda p=p: state(p.pid, p.pid) == "S", "it does not wait")
            p.send_signal(signal.SIGHUP)
        out, said = p.communicate('{"prompt": "Once"}\n', timeout=HANG_S)
        assert p.returncode == 0 and out and "read again: 1 hosts" in said, (p.returncode, said)
    w.kill()


@test
def what_reads_files_at_sighup_reads_them_although_it_came_before_the_start():
    tool("od-main", "keygen", "--out", os.path.join(TMP, "early"))
    key, peers = os.path.join(TMP, "early.key"), os.path.join(TMP, "early.pub")
    for role in "worker", "shadow":
        d = Daemon(role, "--key", key, "--peers", peers, "--listen", "127.0.0.1", preexec=hung_up)
        wait_for(lambda d=d: "read again: 1 keys" in d.text(), d.text)
        assert d.alive()
        d.kill()
    w = Daemon("worker")
    s = Server("--workers", hosts_file([w]), mode=(), preexec=hung_up)
    s.wait_for("read again: 1 hosts")
    assert s.stop() == 0, s.log
    s = Server(preexec=hung_up)
    assert s.stop() == 0, s.log
    w.kill()


@test
def main_without_files_to_read_ends_by_sighup_as_its_terminal_closes():
    argv = main_args("--resident", tokens=4)
    p = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S, preexec_fn=hung_up)
    assert p.returncode == -signal.SIGHUP, (p.returncode, p.stderr)


@test
def a_server_without_an_address_does_not_wait_for_its_workers():
    folder = slow_bin("busy")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        p = subprocess.run([os.path.join(folder, "od-main"), "serve", "--pack", pack(), "--local", "1", "--predictor", "none",
                            "--listen", f"127.0.0.1:{taken.getsockname()[1]}"], capture_output=True, text=True, timeout=HANG_S)
    assert p.returncode == 1 and "in use" in p.stderr, (p.returncode, p.stderr)


@test
def ends_of_children_are_seen_although_who_starts_main_ignores_those_of_its_own():
    argv = main_args("--local", 1, "--predictor", "none")
    at = argv.index("--prompt")
    del argv[at:at + 2]
    p = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    p.stdin.write(PROMPT + "\n")
    p.stdin.flush()
    assert p.stdout.readline()
    with open(f"/proc/{p.pid}/task/{p.pid}/children") as f:
        worker = int(f.read())
    os.kill(worker, signal.SIGKILL)
    said = p.communicate(PROMPT + "\n", timeout=HANG_S)[1]
    assert p.returncode == 1 and f"its process {worker} was ended by signal 9" in said, said


@test
def children_of_local_write_to_a_terminal_that_stops_background_jobs():
    pid, terminal = pty.fork()
    if pid == 0:
        mode = termios.tcgetattr(0)
        mode[3] |= termios.TOSTOP
        termios.tcsetattr(0, termios.TCSANOW, mode)
        argv = main_args("--local", 1, "--predictor", "none", "--worker-arg=--verbose", tokens=4)
        os.execv(argv[0], argv)
    said = b""
    with contextlib.suppress(OSError):  # EIO: nobody has it open any more
        while piece := os.read(terminal, 4096):
            said += piece
    assert os.waitpid(pid, 0)[1] == 0 and b"od-worker: listening" in said, said
    os.close(terminal)


if __name__ == "__main__":
    run_tests()
