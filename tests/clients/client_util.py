"""What the tests of client programs share: a network of their own, a server with a scripted model, programs that are run beside it,
and transcripts in build/client-programs/transcripts."""
import os
import shlex
import subprocess
import sys

from client_models import FAMILIES, PROGRAMS
from cluster_util import TMP, _tests
from serve_util import Server

TRANSCRIPTS = os.path.join(PROGRAMS, "transcripts")
TIMEOUT_S = 600  # only trips on hangs


def own_network():
    """Starts this program again where there is nothing but loopback, so that no client can reach anything else."""
    if os.environ.get("OD_CLIENTS_NETWORK") != "own":
        os.environ["OD_CLIENTS_NETWORK"] = "own"
        os.execvp("unshare", ["unshare", "--net", "--map-root-user", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", sys.executable,
                              *sys.argv])


def for_families(f):
    """A test for each family of models."""
    for family in FAMILIES:
        def one(family=family):
            f(family)
        one.__name__ = f"{f.__name__}_{family.name}"
        one.__module__ = f.__module__
        _tests.append(one)
    return f


class Conversation:
    """A server with a family's model, and a folder each for a program's settings and its work. answers: of that folder, the arguments of
    family.answer() for what the model writes. held: family.pack()."""

    def __init__(self, name, family, answers, *args, held=False):
        self.name = f"{name}-{family.name}"
        self.home = os.path.join(TMP, self.name, "home")
        self.work = os.path.join(TMP, self.name, "work")
        os.makedirs(self.home)
        os.makedirs(self.work)
        os.makedirs(TRANSCRIPTS, exist_ok=True)
        self.transcript = open(os.path.join(TRANSCRIPTS, self.name + ".txt"), "w", encoding="utf-8")
        texts = [family.answer(**a) for a in answers(self.work)]
        self.server = Server(*args, pack_dir=family.pack(os.path.join(TMP, self.name, "model"), texts, held))
        self.url = f"http://127.0.0.1:{self.server.port}"

    def say(self, text):
        self.transcript.write(text + "\n")
        self.transcript.flush()

    def run(self, *command, stdin="", **environment):
        """What the program prints. It has no variables of ours but those."""
        env = {"HOME": self.home, "PATH": os.environ["PATH"], "TERM": "dumb", "LANG": "C.UTF-8", **environment}
        self.say("$ " + " ".join(f"{k}={shlex.quote(v)}" for k, v in environment.items()) + " " + shlex.join(command))
        p = subprocess.run(command, cwd=self.work, env=env, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S)
        self.say(p.stdout + (f"[stderr]\n{p.stderr}" if p.stderr else "") + f"[status {p.returncode}]")
        assert "think>" not in p.stdout, p.stdout
        assert p.returncode == 0, (p.stdout[-2000:], p.stderr[-2000:], self.server.log[-2000:])
        return p.stdout

    def file(self, name):
        with open(os.path.join(self.work, name), encoding="utf-8") as f:
            return f.read()

    def end(self, refused=()):
        """refused: paths that the server may answer with an error."""
        assert self.server.stop() == 0, self.server.log
        self.say("\n[server]\n" + self.server.log)
        bad = [line for line in self.server.log.splitlines() if "status=4" in line or "status=5" in line]
        assert not [line for line in bad if not any(path in line for path in refused)], bad
        self.transcript.close()
