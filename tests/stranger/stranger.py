#!/usr/bin/env python3
"""make stranger: what a person does with three bare Debian machines and the name of a model, typed line by line on their consoles.
Packages are installed, machines paired, a model is fetched from a local hub and served, and the page answers in Chromium. Then the
power fails, and packages are upgraded while texts run. Says in TAP how it went; the lines and what was answered are in
build/stranger/transcript.txt. Needs root, and the first time Debian's mirror.

    stranger.py FOLDER FOLDER [TEST...]    of the packages, and of those of a release with another protocol (next_release.sh)"""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "integ"))
import booted_systemd  # noqa: E402
import machine  # noqa: E402
import netns_lan  # noqa: E402
import tap_tests  # noqa: E402
from tap_tests import Skip  # noqa: E402

MODEL = "od-moe/talebook"
CHECKPOINT = os.path.join(HERE, "..", "..", "deploy", "models", "talebook")
HUB_PORT = 8000
PAGE = "http://127.0.0.1:8080/"
QUESTION = "Once upon a time there was a king who had three daughters, and the"
ALLOWED_S = 300
WORKERS = ("w1", "w2")
ROLES = {"main": "od-main", "w1": "od-worker", "w2": "od-worker"}
CHAT = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 120}
ASK = """import sys, urllib.request
r = urllib.request.Request(sys.argv[1], sys.argv[2].encode() or None, {"Content-Type": "application/json"})
print(urllib.request.urlopen(r).read().decode(), end="")"""


class Story:
    """The machines, what was typed, and what the tests tell each other."""
    lan = hub = page_answer = answer = begun = None
    machines = {}
    typed = []  # name, line, what it printed
    ready = False

    def __init__(self, packages):
        self.packages = packages
        self.deb = os.path.basename(packages[0])

    def set_up(self):
        """The ground: machines with an address and a user, what apt finds, a hub, packages in the user's folder."""
        if os.geteuid() != 0:
            raise Skip("machines of our own need root")
        try:
            machine.supply(self.packages[0])
            self.lan = netns_lan.Lan("odst", "10.213.79", {"main": 1, "w1": 2, "w2": 3, "hub": 9})
            self.start_hub()
            for name in ROLES:
                m = self.machines[name] = machine.Machine(
                    self.lan, name, hosts=f"{self.lan.address('hub')} hub cdn\n", environment=f"HF_ENDPOINT=http://hub:{HUB_PORT}\n")
                m.switch_on()
            for m in self.machines.values():
                m.wait_for_login()
        except (machine.Missing, netns_lan.Unavailable, booted_systemd.Unavailable) as e:
            raise Skip(e) from None
        for m in self.machines.values():
            p = m.run("apt-get", "update", "-q")
            assert p.returncode == 0, p
            m.put(self.packages[0], f"/home/{machine.USER}/{self.deb}")
        self.ready = True

    def start_hub(self):
        """A hub of models on the LAN that has the model."""
        argv = [sys.executable, os.path.join(HERE, "lan_hub.py"), str(HUB_PORT), MODEL, CHECKPOINT]
        self.hub = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", self.lan.name("hub"), *argv],
                                    stdout=subprocess.PIPE, text=True)
        assert self.hub.stdout.readline() == "ready\n"

    def tear_down(self):
        for m in self.machines.values():
            m.remove()
        if self.hub is not None:
            self.hub.kill()
            self.hub.wait()
        if self.lan is not None:
            self.lan.close()

    def type(self, name, line):
        if self.begun is None:
            self.begun = time.monotonic()
        self.typed.append([name, line, ""])
        return self.machines[name].type(line)

    def ended(self, name, line, place):
        out, status = self.machines[name].ended(place)
        next(t for t in self.typed if t[:2] == [name, line])[2] = out
        assert status == 0, f"{name}: {line}: status {status}\n{out}"
        return out

    def on_main(self, *argv, **kw):
        """A program of this machine on main's network."""
        return subprocess.run(["ip", "netns", "exec", self.lan.name("main"), *argv], capture_output=True, text=True, **kw)

    def ask(self, path="v1/chat/completions", body=CHAT):
        """The API's answer; None: there was none."""
        p = self.on_main(sys.executable, "-c", ASK, PAGE + path, json.dumps(body) if body else "")
        return json.loads(p.stdout) if p.returncode == 0 else None

    def text(self):
        a = self.ask()
        return a and a["choices"][0]["message"]["content"]

    def by_page(self):
        """The answer that Chromium shows."""
        p = self.on_main(sys.executable, os.path.join(HERE, "ask_page.py"), PAGE, QUESTION, timeout=300)
        assert p.returncode == 0, p.stderr[-3000:]
        return p.stdout

    def states(self):
        """Of the workers, as main tells the page: sorted; None: it does not answer."""
        a = self.ask("cluster", None)
        return a and sorted(m["state"] for m in a["machines"] if m["role"] == "worker")

    def wait_for(self, what, patience_s=180):
        end = time.monotonic() + patience_s
        while not (got := what()):
            assert time.monotonic() < end, self.log()
            time.sleep(0.2)
        return got

    def wait_for_cluster(self):
        self.wait_for(lambda: self.states() == ["serving"] * len(WORKERS))

    def log(self):
        return "\n".join(f"--- {n}\n" + m.run("journalctl", "-b", "-o", "cat", "--no-pager", "-n", "40", "-u", "od-*").stdout
                         for n, m in self.machines.items())

    def assert_healthy(self):
        """No unit has failed, and no message of ours is an error."""
        for name, m in self.machines.items():
            p = m.systemctl("--failed", "--no-legend")
            assert p.returncode == 0 and p.stdout.strip() == "", (name, p.stdout)
            errors = m.run("journalctl", "-b", "-q", "-o", "cat", "--no-pager", "-p", "err", "-u", "od-*").stdout
            assert errors == "", (name, errors)


story = None


def test_packages_install_and_start_nothing():
    story.set_up()
    line = f"sudo apt install -y ./{story.deb}"
    places = {name: story.type(name, line) for name in ROLES}
    for name, place in places.items():
        story.ended(name, line, place)
    for name, m in story.machines.items():
        for unit in set(ROLES.values()) | {"od-shadow"}:
            assert m.show(unit, "UnitFileState", "ActiveState") == {"UnitFileState": "disabled", "ActiveState": "inactive"}, (name, unit)
        p = m.run("systemd-analyze", "verify", "od-main.service", "od-worker.service", "od-shadow.service")
        assert p.returncode == 0 and p.stdout + p.stderr == "", p
    story.assert_healthy()


def test_six_lines_and_the_page_answers():
    if not story.ready:
        raise Skip("there are no machines")
    pair = f"sudo od-main pair --hosts {len(WORKERS)} --enable hf://{MODEL}"
    place = story.type("main", pair)
    join = story.machines["main"].screen.wait(r"(sudo od-worker join --enable( [a-z0-9-]+){6})$", place, patience_s=60)[1]
    places = {name: story.type(name, join) for name in WORKERS}
    for name in WORKERS:
        story.ended(name, join, places[name])
    story.ended("main", pair, place)
    story.page_answer = story.by_page()
    took = time.monotonic() - story.begun
    print(f"# {len(story.typed)} lines and {took:.0f} s from the first line to the page's answer", flush=True)
    with open(os.path.join(machine.FOLDER, "transcript.txt"), "w", encoding="utf-8") as f:
        f.writelines(f"{name}$ {line}\n{out}\n" for name, line, out in story.typed)
        f.write(f"The page, {took:.0f} s after the first line:\n{QUESTION}\n{story.page_answer[:300]}\n")
    assert len(story.typed) <= 6 and took <= ALLOWED_S, (story.typed, took)
    story.wait_for_cluster()
    story.answer = story.text()
    words = story.answer.split()[:-1]  # it ends somewhere in the page's answer
    assert len(words) > 50 and story.page_answer.split()[:len(words)] == words, (story.page_answer, story.answer)
    story.assert_healthy()


def test_all_are_back_after_a_power_cut():
    if story.answer is None:
        raise Skip("nothing was served before")
    for m in story.machines.values():
        m.stop()
    for m in story.machines.values():
        m.switch_on()
    for m in story.machines.values():
        m.wait_for_login()
    story.wait_for_cluster()
    assert story.by_page() == story.page_answer
    story.assert_healthy()


class Readers:
    """Ask for the same text again and again; an answer that is another, or none, is kept as wrong."""

    def __init__(self):
        self.right, self.wrong, self.over = 0, [], threading.Event()
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        while not self.over.is_set():
            if (text := story.text()) == story.answer:
                self.right += 1
            else:
                self.wrong.append(text)

    def wait(self, n=2):
        """Until so many more have been answered."""
        now = self.right
        story.wait_for(lambda: self.wrong or self.right >= now + n)

    def end(self):
        self.over.set()
        self.thread.join()
        assert not self.wrong and self.right, (self.right, self.wrong, story.log())


def reading(during):
    """Calls it while texts run, which must all be right."""
    readers = Readers()
    try:
        readers.wait()
        during()
        readers.wait()
    finally:
        readers.end()


def same_with_version(package, version):
    """The package as if it were of another version."""
    folder = os.path.join(machine.FOLDER, "repacked")
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["dpkg-deb", "-R", package, folder], check=True)
    control = os.path.join(folder, "DEBIAN", "control")
    with open(control) as f:
        text = re.sub(r"^Version: .*$", f"Version: {version}", f.read(), flags=re.M)
    with open(control, "w") as f:
        f.write(text)
    out = os.path.join(machine.FOLDER, "repacked.deb")
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", folder, out], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(folder)
    return out


def newest(folder):
    """The path of od-moe's package for this machine in a folder."""
    arch = subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True).stdout.strip()
    found = glob.glob(os.path.join(os.path.abspath(folder), f"od-moe_*_{arch}.deb"))
    if not found:
        sys.exit(f"stranger: {folder} has no package od-moe of {arch}: make stranger makes it")
    return max(found, key=os.path.getmtime)


def field(package, name):
    return subprocess.run(["dpkg-deb", "-f", package, name], check=True, capture_output=True, text=True).stdout.strip()


def install(name, package):
    """An upgrade by apt: what runs is started again, and what was edited is kept."""
    m = story.machines[name]
    conf = f"/etc/od-moe/{ROLES[name]}.conf"
    m.run("sh", "-c", f"grep -q edited {conf} || echo '# edited' >>{conf}")
    before = m.show(ROLES[name], "MainPID")["MainPID"]
    m.put(package, "/tmp/new.deb")
    p = m.run("apt-get", "install", "-q", "-y", "/tmp/new.deb")
    assert p.returncode == 0, p
    assert m.run("dpkg-query", "-W", "-f", "${Version}", "od-moe").stdout == field(package, "Version")
    assert "# edited" in m.run("cat", conf).stdout
    now = m.show(ROLES[name], "MainPID", "ActiveState")
    assert now["ActiveState"] == "active" and now["MainPID"] != before, now


def test_an_upgrade_machine_by_machine():
    if story.answer is None:
        raise Skip("nothing was served before")
    new = same_with_version(story.packages[0], field(story.packages[0], "Version") + "+1")

    def upgrade():
        for name in WORKERS:
            install(name, new)
            story.wait_for_cluster()
    reading(upgrade)
    install("main", new)
    story.wait_for_cluster()
    assert story.text() == story.answer
    story.assert_healthy()


def test_a_release_with_another_protocol_is_refused_by_name():
    if story.answer is None:
        raise Skip("nothing was served before")
    new = story.packages[1]
    worker = story.lan.address("w1")

    def upgrade():
        install("w1", new)
        story.wait_for(lambda: "refused" in (story.states() or ()))
    reading(upgrade)
    log = story.machines["main"].run("journalctl", "-b", "-o", "cat", "--no-pager", "-u", "od-main").stdout
    assert re.search(rf"{re.escape(worker)}.*protocol version: expected \d+, found \d+", log), log[-3000:]
    for name in ("w2", "main"):
        install(name, new)
    story.wait_for_cluster()
    assert story.text() == story.answer


def main():
    global story
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all is cleaned up
    folders, sys.argv[1:] = sys.argv[1:3], sys.argv[3:]
    story = Story([newest(f) for f in folders])
    try:
        bad = tap_tests.run([f for name, f in globals().items() if name.startswith("test_")])
    finally:
        story.tear_down()
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
