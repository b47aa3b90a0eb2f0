"""A systemd that boots in namespaces of its own (processes, mounts, network, cgroups). Needs root. Nothing outside is changed, except
for a cgroup that is removed at the end. Systemd is what they have in common, Booted has the programs of this machine, and
tests/stranger/machine.py has a root file system of its own."""
import atexit
import glob
import os
import re
import shutil
import subprocess
import time

# /etc, /var/lib, /run and /tmp of its own, and what `make install` put into a folder as its /usr/local.
BOOT = r"""
set -e
mount --make-rprivate /
root=$1 pack=$2
mount -t tmpfs none /run
touch /run/log && chmod 666 /run/log
mkdir -p /run/lock /run/systemd/system/od-.service.d /run/etc /run/lib/od-moe/pack /run/lib/systemd
printf '[Service]\nStandardOutput=append:/run/log\nStandardError=append:/run/log\n' >/run/systemd/system/od-.service.d/log.conf
cp -a /etc/. /run/etc
rm -rf /run/etc/systemd/system/*
cp -a "$root"/etc/od-moe /run/etc
cp "$pack"/* /run/lib/od-moe/pack
mount --bind "$root"/usr/local /usr/local
mount --bind /run/etc /etc
mount --bind /run/lib /var/lib
for d in /tmp /var/tmp /var/cache; do mount -t tmpfs none $d; done
umount -R /sys/fs/cgroup
mkdir -p /sys/fs/cgroup
mount -t cgroup2 none /sys/fs/cgroup
ip link set lo up
systemd-sysusers
printf '[Unit]\nDescription=Nothing\n' >/run/systemd/system/nothing.target
chown -R od-moe /etc/od-moe/*.key 2>/dev/null || :
export container=od-test
exec /lib/systemd/systemd --unit=nothing.target --log-target=kmsg --show-status=no
"""


class Unavailable(Exception):
    pass


def own_cgroup(name):
    with open("/proc/mounts") as f:
        mounts = [line.split()[1] for line in f if line.split()[2] == "cgroup2"]
    with open("/proc/self/cgroup") as f:
        own = [line.strip()[3:] for line in f if line.startswith("0::")]
    if not mounts or not own:
        raise Unavailable("no cgroup2 file system is mounted")
    folder = os.path.join(mounts[0], own[0].lstrip("/"))
    for left in glob.glob(os.path.join(folder, "od-test-*")):  # of tests that were killed by a signal that cannot be caught
        if not os.path.exists("/proc/" + re.match(r"od-test-(\d+)", os.path.basename(left))[1]):
            remove_cgroup(left)
    return os.path.join(folder, f"od-test-{os.getpid()}{name}")


def remove_cgroup(path):
    """Whether it is gone: it cannot go while it has processes."""
    for d in sorted(glob.glob(path + "/**/", recursive=True), reverse=True):
        try:
            os.rmdir(d)
        except OSError:
            pass
    return not os.path.exists(path)


class Systemd:
    """name: tells the cgroups of a test's machines apart."""

    def __init__(self, name=""):
        self.p = None
        if os.geteuid() != 0 or not os.path.exists("/lib/systemd/systemd") or shutil.which("nsenter") is None:
            raise Unavailable("this needs root, systemd and nsenter")
        self.cgroup = own_cgroup(name)
        atexit.register(self.stop)

    def start(self, script, *args, netns=None):
        """The script becomes systemd. netns: the path of a network namespace that there is; None: it has a new one."""
        try:
            os.mkdir(self.cgroup)
        except OSError as e:
            raise Unavailable(f"no cgroup of our own: {e}") from None
        self.p = subprocess.Popen(
            ["sh", "-c", 'echo $$ >"$0"/cgroup.procs && exec setpriv --pdeathsig KILL "$@"', self.cgroup,
             *(["nsenter", f"--net={netns}"] if netns else []),
             "unshare", "--pid", "--mount", "--cgroup", "--uts", "--ipc", *([] if netns else ["--net"]), "--fork", "--kill-child",
             "--mount-proc", "sh", "-c", script, "boot", *args], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def wait_until_booted(self, patience_s=30):
        end = time.monotonic() + patience_s
        while self.systemctl("is-system-running").stdout.strip() not in ("running", "degraded"):
            if self.p.poll() is not None:
                raise Unavailable("it does not boot here: " + self.p.stdout.read().strip().replace("\n", "; ")[-200:])
            if time.monotonic() > end:
                self.stop()
                raise Unavailable(f"it has not booted after {patience_s} s")
            time.sleep(0.1)

    def init(self):
        """Its systemd's process number; None: there is none yet. Until BOOT has come that far, /run may still be this machine's."""
        try:
            with open(f"/proc/{self.p.pid}/task/{self.p.pid}/children") as f:
                pid = f.read().split()[0]
            with open(f"/proc/{pid}/comm") as f:
                return pid if f.read() == "systemd\n" else None
        except (OSError, IndexError):
            return None

    def run(self, *args, **kw):
        """A command in there."""
        init = self.init()
        if init is None:
            return subprocess.CompletedProcess(args, 1, "", "it does not run")
        return subprocess.run(["nsenter", "-t", init, "-m", "-p", "-n", "-u", "-C", *args], capture_output=True, text=True,
                              timeout=120, **kw)

    def systemctl(self, *args):
        return self.run("systemctl", "--no-pager", *args)

    def show(self, unit, *names):
        out = self.systemctl("show", unit, *(f"-p{n}" for n in names)).stdout
        return dict(line.split("=", 1) for line in out.splitlines())

    def stop(self):
        """As a power cut: all its processes are killed at once."""
        if self.p is not None and self.p.poll() is None:
            self.p.kill()
            self.p.wait()
        for _ in range(50):  # until the kernel has ended its processes
            if remove_cgroup(self.cgroup):
                return
            time.sleep(0.1)


class Booted(Systemd):
    """root: of `make install`. It starts no unit by itself."""

    def __init__(self, root, pack):
        super().__init__()
        self.start(BOOT, root, pack)
        self.wait_until_booted()

    def log(self):
        return self.run("cat", "/run/log").stdout
