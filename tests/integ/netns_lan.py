"""Hosts of tests and benchmarks: network namespaces on a bridge. Needs root and iproute2."""
import atexit
import json
import os
import re
import subprocess

import cluster_util
from cluster_util import BIN, TMP, Daemon, pack


class Unavailable(Exception):
    """Whether there can be namespaces, and programs in them, depends on the place: not in every container or chroot."""


def ip(*args, check=True):
    return subprocess.run(["ip", *args], check=check, capture_output=True, text=True)


def tc(*args):
    return subprocess.run(["tc", *args], check=False, capture_output=True, text=True).returncode == 0


def bits(rate):
    """A second, of a rate as tc has it: "1gbit", "256kbit"."""
    number, unit = re.fullmatch(r"([\d.]+)([kmg]?)bit", rate).groups()
    return float(number) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[unit]


def set_rate(where, dev, rate, latency):
    """False: tc cannot. The burst is a quarter of a millisecond, so that late timers do not make a fast link slower (two packets at 1 Gbit/s
    pass two thirds of it), and at least two packets, so that a slow link is never faster for longer."""
    return tc("-n", where, "qdisc", "replace", "dev", dev, "root", "tbf", "rate", rate, "burst", f"{max(3100, bits(rate) / 8 / 4000):.0f}", "latency", latency)


class Lan:
    """A namespace for each host, and one for the switch with a port for each host. No packet leaves it.

    prefix: of the namespaces, each program's own. net: "10.213.78". nodes: a host's name to the last byte of its address."""

    def __init__(self, prefix, net, nodes):
        self.id, self.net, self.nodes = f"{prefix}{os.getpid()}", net, nodes
        self.up = []
        if os.geteuid() != 0:
            raise Unavailable("network namespaces need root")
        atexit.register(self.close)
        try:
            self.remove_leftovers(prefix)
            self.switch = self.add("sw")
            ip("-n", self.switch, "link", "add", "name", "switch0", "type", "bridge")
            ip("-n", self.switch, "link", "set", "switch0", "up")
            for node, number in nodes.items():
                self.wire(node, number)
        except (FileNotFoundError, subprocess.CalledProcessError) as e:  # no iproute2; a kernel without bridges or veth pairs
            self.close()
            raise Unavailable(f"cannot make network namespaces here: {(getattr(e, 'stderr', None) or str(e)).strip()}") from None

    @staticmethod
    def remove_leftovers(prefix):
        """Of runs that were killed by a signal that cannot be caught."""
        for line in ip("netns", "list", check=False).stdout.splitlines():
            found = re.match(prefix + r"(\d+)\D", line)
            if found and not os.path.exists(f"/proc/{found[1]}"):
                ip("netns", "del", line.split()[0], check=False)

    def name(self, node):
        return f"{self.id}{node}"

    def address(self, node):
        return f"{self.net}.{self.nodes[node]}"

    def add(self, node):
        ip("netns", "add", self.name(node))
        self.up.append(self.name(node))
        ip("netns", "exec", self.name(node), "true")
        return self.name(node)

    def wire(self, node, number):
        ns = self.add(node)
        ip("-n", ns, "link", "add", "eth0", "type", "veth", "peer", "name", node, "netns", self.switch)
        ip("-n", ns, "addr", "add", f"{self.net}.{number}/24", "brd", "+", "dev", "eth0")
        ip("-n", ns, "link", "set", "lo", "up")
        ip("-n", ns, "link", "set", "eth0", "up")
        ip("-n", self.switch, "link", "set", node, "master", "switch0")
        ip("-n", self.switch, "link", "set", node, "up")

    def shape(self, rate):
        """True: every link has this rate now, each way, as tc has it ("1gbit")."""
        return all(set_rate(where, dev, rate, "50ms")
                   for node in self.nodes for where, dev in ((self.name(node), "eth0"), (self.switch, node)))

    def limit(self, node, rate, up=True, down=True):
        """This host's link alone; rate None: as at first. up: what it sends, down: what it receives."""
        for where, dev, wanted in ((self.name(node), "eth0", up), (self.switch, node, down)):
            if wanted and rate is None:
                tc("-n", where, "qdisc", "del", "dev", dev, "root")
            elif wanted and not set_rate(where, dev, rate, "400ms"):
                raise Unavailable("cannot shape a link with tc here")

    def bytes_of(self, node):
        """Received and sent on its link until now, with all headers."""
        link, = json.loads(ip("-n", self.name(node), "-s", "-j", "link", "show", "dev", "eth0").stdout)
        return link["stats64"]["rx"]["bytes"], link["stats64"]["tx"]["bytes"]

    def start(self, node, program, *args, **kw):
        """ip becomes the program, so signals reach it."""
        return subprocess.Popen(["ip", "netns", "exec", self.name(node), os.path.join(BIN, program), *map(str, args)], **kw)

    def close(self):
        while self.up:
            ip("netns", "del", self.up.pop(), check=False)


CGROUPS = "/sys/fs/cgroup/memory"  # the memory controller of cgroup version 1


class LimitedLan(Lan):
    """limit: a host's name to the bytes of memory and swap that its programs take together, with their page cache; ram: how many of them
    are not in swap (default: all)."""

    def __init__(self, prefix, net, nodes, limit, ram=None):
        super().__init__(prefix, net, nodes)
        self.limit = limit
        for node, n in limit.items():
            os.mkdir(self.cgroup(node))
            for name, value in (("memory.limit_in_bytes", (ram or limit)[node]), ("memory.memsw.limit_in_bytes", n),
                                ("memory.swappiness", 10)):  # rather page cache of other hosts than a shadow's weights
                with open(os.path.join(self.cgroup(node), name), "w") as f:
                    f.write(str(value))

    def cgroup(self, node):
        return os.path.join(CGROUPS, self.name(node))

    def start(self, node, program, *args, **kw):
        argv = ["ip", "netns", "exec", self.name(node), os.path.join(BIN, program), *map(str, args)]
        if node in self.limit:
            argv = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', os.path.join(self.cgroup(node), "cgroup.procs"), *argv]
        return subprocess.Popen(argv, **kw)

    def was_killed(self, node):
        with open(os.path.join(self.cgroup(node), "memory.oom_control")) as f:
            return int(re.search(r"oom_kill (\d+)", f.read())[1]) > 0

    def remove_cgroups(self):
        """When no program of a limited host is left."""
        for node in self.limit:
            os.rmdir(self.cgroup(node))


class Node(Daemon):
    """On a host of its own, with its default port; what a Daemon on loopback can do. options: may change between starts. folder:
    of the programs."""

    def __init__(self, lan, name, *always, options=(), pack_dir=None, folder=BIN):
        self.lan, self.name, self.always, self.options, self.folder = lan, name, always, options, os.path.abspath(folder)
        self.role = "shadow" if name.startswith("shadow") else "worker"
        self.pack_dir = pack_dir or pack()
        self.process = None
        self.log = open(os.path.join(TMP, f"{name}.log"), "w+")
        cluster_util._children.append(self)
        self.start()

    def start(self):
        r, w = os.pipe()
        self.process = self.lan.start(
            self.name, os.path.join(self.folder, f"od-{self.role}"), "--insecure", "--pack", self.pack_dir, "--threads", 1,
            "--ready-fd", w, "--die-with-parent", os.getpid(), *self.always, *self.options, pass_fds=[w], stdin=subprocess.DEVNULL,
            stdout=self.log, stderr=subprocess.STDOUT)
        os.close(w)
        with os.fdopen(r) as f:
            if not f.readline():
                raise AssertionError(f"{self.name} did not start: {open(self.log.name).read()[-2000:]}")

    def kill(self):
        if self.process is not None:
            super().kill()

    def forget(self):
        """After kill: it will not be started again."""
        cluster_util._children.remove(self)
        self.log.close()
