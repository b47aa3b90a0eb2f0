"""A Debian machine of its own for tests of what people do: a root file system whose changes outlive a power cut, systemd, an address on
a netns_lan.Lan, apt with what od-moe's packages need and no network beyond the LAN, and a screen and a keyboard. Needs root."""
import errno
import hashlib
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "integ"))
from booted_systemd import Systemd  # noqa: E402

TREE = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
FOLDER = os.path.abspath(os.path.join(os.environ.get("B", "build"), "stranger"))
USER = "anna"
DEBS = "srv/debian"  # in the root file system: packages that apt finds there
INCLUDED = ("systemd", "systemd-sysv", "dbus", "iproute2", "sudo")

# Its console logs the user in, and sudo asks for no password: what a cloud image does, too.
PREPARE = f"""
set -e
useradd --create-home --shell /bin/bash --groups sudo {USER}
echo '{USER} ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/{USER}
echo 'Defaults env_keep += "HF_ENDPOINT"' >>/etc/sudoers.d/{USER}
mkdir -p /etc/systemd/system/console-getty.service.d /{DEBS}/partial
cat >/etc/systemd/system/console-getty.service.d/login.conf <<'END'
[Service]
ExecStart=
ExecStart=-/sbin/agetty --autologin {USER} --noclear --noissue --keep-baud 115200 - dumb
END
rm -f /etc/machine-id /var/lib/dbus/machine-id
apt-get clean
"""

# /proc/sys and /sys are read-only: most of what stands there is this machine's.
BOOT = r"""
set -e
mount --make-rprivate /
base=$1 own=$2 name=$3 console=$4
root=$own/root
mount -t overlay "$name" -o "lowerdir=$base,upperdir=$own/changes,workdir=$own/work" "$root"
mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$root/sys"
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o nosuid,mode=755 tmpfs "$root/run"
mount -t tmpfs -o nosuid,mode=755 tmpfs "$root/dev"
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,nosuid,noexec,gid=5,mode=620,ptmxmode=666 devpts "$root/dev/pts"
mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs "$root/dev/shm"
for d in null zero full random urandom tty; do
	touch "$root/dev/$d"
	mount --bind "/dev/$d" "$root/dev/$d"
done
touch "$root/dev/console"
mount --bind "$console" "$root/dev/console"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for i in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${i%:*}" "$root/dev/${i#*:}"; done
hostname "$name"
cd "$root"
pivot_root . .
umount -l .
exec env -i container=od-test /lib/systemd/systemd --show-status=no
"""


class Missing(Exception):
    """What this machine lacks."""


def _chroot(root, *args, **kw):
    return subprocess.run(["chroot", root, *args], check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}, **kw)


def base():
    """The root file system that all machines begin with, made once for what it is made of."""
    path = os.path.join(FOLDER, "base-" + hashlib.sha256(f"{INCLUDED}{PREPARE}".encode()).hexdigest()[:8])
    if os.path.exists(path):
        return path
    new = f"{path}.new"
    try:
        subprocess.run([os.path.join(TREE, "deploy", "debian-root.sh")], check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        subprocess.run(["rm", "-rf", new], check=True)
        os.makedirs(new)
        subprocess.run(["tar", "-x", "-f", os.path.join(TREE, "build", "debian", "rootfs.tar"), "-C", new], check=True)
        shutil.copy("/etc/resolv.conf", f"{new}/etc/resolv.conf")
        _chroot(new, "apt-get", "update", "-q")
        _chroot(new, "apt-get", "install", "-q", "-y", "--no-install-recommends", *INCLUDED)
        _chroot(new, "sh", "-c", PREPARE)
    except (FileNotFoundError, subprocess.CalledProcessError) as e:
        raise Missing(f"no base of Debian: {(getattr(e, 'stdout', None) or str(e)).strip()[-300:]}") from None
    os.rename(new, path)
    return path


def supply(package):
    """Into the base: what apt would download for this .deb file, by apt's own choice, and its index."""
    root = base()
    there = f"tmp/{os.path.basename(package)}"
    shutil.copy(package, os.path.join(root, there))
    try:
        _chroot(root, "apt-get", "update", "-q")
        _chroot(root, "apt-get", "install", "-q", "-y", "--download-only", "-o", f"Dir::Cache::archives=/{DEBS}", f"/{there}")
    except subprocess.CalledProcessError as e:
        raise Missing(f"apt has not got what the package needs: {e.stdout.strip()[-600:]}") from None
    finally:
        os.remove(os.path.join(root, there))
    with open(f"{root}/{DEBS}/Packages", "w") as f:
        subprocess.run(["dpkg-scanpackages", "--multiversion", "."], cwd=f"{root}/{DEBS}", check=True, stdout=f, stderr=subprocess.DEVNULL)


class Screen:
    """The console: what it shows, and a keyboard. The pair of terminals outlives the machine, as a screen does."""
    # What is written between saving the cursor's place (7) and going back to it (8) stands elsewhere: apt's bar.
    CONTROLS = re.compile(r"\x1b7.*?\x1b8|\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][0-9A-B]|\x1b[=>]|[\x07\x00]", re.S)

    def __init__(self):
        self.master, self.slave = pty.openpty()
        self.path = os.ttyname(self.slave)
        self.shown, self.changed = "", threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while True:
            select.select([self.master], [], [])
            try:
                got = os.read(self.master, 65536).decode(errors="replace")
            except OSError as e:
                if e.errno != errno.EIO:  # a hang-up, as agetty does it
                    return
                time.sleep(0.05)
                continue
            with self.changed:
                self.shown += got
                self.changed.notify_all()

    def write(self, text):
        os.write(self.master, text.encode())

    def since(self, place=0):
        """As a reader sees it: of a line that was written over, what was written last."""
        text = self.CONTROLS.sub("", self.shown[place:]).replace("\r\n", "\n")
        return "\n".join(line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n"))

    def wait(self, pattern, place=0, patience_s=120):
        """Until the screen shows it behind this place: the match."""
        end = time.monotonic() + patience_s
        with self.changed:
            while not (found := re.search(pattern, self.since(place), re.M)):
                if (left := end - time.monotonic()) <= 0:
                    raise AssertionError(f"no {pattern!r} on the screen:\n{self.since(place)}")
                self.changed.wait(left)
        return found


class Machine(Systemd):
    """On a lan's node of its name. hosts: lines of /etc/hosts. environment: of whoever logs in."""

    def __init__(self, lan, name, hosts="", environment=""):
        super().__init__(name)
        self.lan, self.name = lan, name
        self.screen = Screen()
        self.own = os.path.join(FOLDER, f"machine-{name}")
        self.remove()
        for d in ("changes/etc/apt", "work", "root"):
            os.makedirs(os.path.join(self.own, d))
        self._write("etc/hostname", f"{name}\n")
        self._write("etc/hosts", f"127.0.0.1 localhost\n{lan.address(name)} {name}\n{hosts}")
        self._write("etc/machine-id", os.urandom(16).hex() + "\n")
        self._write("etc/resolv.conf", "")
        self._write("etc/environment", environment)
        self._write("etc/apt/sources.list", f"deb [trusted=yes] file:/{DEBS} ./\n")

    def _write(self, path, text):
        with open(os.path.join(self.own, "changes", path), "w") as f:
            f.write(text)

    def switch_on(self):
        self.since_boot = len(self.screen.shown)
        self.start(BOOT, base(), self.own, self.name, self.screen.path, netns=f"/run/netns/{self.lan.name(self.name)}")

    def wait_for_login(self):
        """Until multi-user.target is reached, with what is enabled, and the user is logged in on the console."""
        self.wait_until_booted(patience_s=120)
        self.screen.wait(self.prompt(), self.since_boot)

    def prompt(self):
        return rf"^{USER}@{self.name}:[^\n]*\$ \Z"

    def put(self, path, to):
        """A file into the machine."""
        with open(path, "rb") as f:
            init = self.init()
            subprocess.run(["nsenter", "-t", init, "-m", "-p", "sh", "-c", 'cat >"$0"', to], stdin=f, check=True)

    def type(self, line):
        """A line and Enter. The place on the screen behind which its output begins."""
        place = len(self.screen.shown)
        self.screen.write(line + "\r")
        self.screen.wait(r"\n", place)  # its echo
        return self.screen.shown.index("\n", place) + 1

    def ended(self, place, patience_s=300):
        """Until the line that was typed before this place has ended: its output and its status."""
        self.screen.wait(self.prompt(), place, patience_s)
        out = re.sub(self.prompt(), "", self.screen.since(place), flags=re.M)
        status = self.type("echo $?")
        return out, int(self.screen.wait(r"^\d+$", status)[0])

    def remove(self):
        self.stop()
        subprocess.run(["rm", "-rf", self.own], check=True)
