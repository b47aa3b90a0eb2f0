#!/usr/bin/env python3
"""TAP: the Debian packages, from their bytes to their purge. make check-deb. Needs root for a Debian 12 of its own (build/debian), in
which packages are installed, upgraded and purged with chroot; no systemd runs there (tests/stranger boots machines).

Packages are built three times: as they are, once more elsewhere (the same bytes?), and of a next version."""
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "integ"))
import tap_tests  # noqa: E402
from tap_tests import Skip  # noqa: E402

HERE = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()
ARCHS = os.environ.get("DEB_ARCHS", "amd64 arm64" if HERE == "amd64" else HERE).split()
WORK = os.path.abspath("build/deb-check")
ROOT = f"{WORK}/root"
NEXT = "0.999.0"
EPOCH = subprocess.run(["git", "log", "-1", "--format=%ct"], capture_output=True, text=True, check=True).stdout.strip()
UNITS = ["od-main", "od-shadow", "od-worker"]
COMMANDS = ["od-main-keygen", "od-main-serve", "od-main-template", "od-bench-gemv"]
FILES = {
    "od-moe": ["etc/od-moe/od-main.conf", "etc/od-moe/od-shadow.conf", "etc/od-moe/od-worker.conf",
               "lib/systemd/system/od-main.service", "lib/systemd/system/od-shadow.service", "lib/systemd/system/od-worker.service",
               "usr/bin/od-main", "usr/bin/od-pack", "usr/bin/od-shadow", "usr/bin/od-worker", "usr/lib/od-moe/gpu.conf",
               "usr/lib/od-moe/restart-delay", "usr/lib/sysusers.d/od-moe.conf", "var/lib/od-moe/models/",
               "usr/share/man/man1/od-main.1.gz", "usr/share/man/man1/od-main-serve.1.gz", "usr/share/man/man1/od-pack.1.gz",
               "usr/share/man/man1/od-shadow.1.gz", "usr/share/man/man1/od-worker.1.gz",
               "usr/share/bash-completion/completions/od-main", "usr/share/doc/od-moe/copyright"],
    "od-chat": ["usr/bin/od-chat", "usr/share/man/man1/od-chat.1.gz", "usr/share/bash-completion/completions/od-chat"],
    "od-moe-tools": ["usr/bin/od-bench", "usr/share/man/man1/od-bench.1.gz", "usr/share/man/man1/od-bench-gemv.1.gz"],
    "od-moe-cuda": ["usr/lib/od-moe/libod_cuda.so"],
}
tests = []


def test(f):
    tests.append(f)
    return f


def run(*argv, ok=True, **kw):
    p = subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kw)
    assert not ok or p.returncode == 0, f"{' '.join(map(str, argv))}: status {p.returncode}\n{p.stdout[-3000:]}"
    return p.stdout


def build(source, out, **env):
    """CUDA's code of one architecture is enough to compare bytes; all take minutes."""
    run(f"{source}/deploy/make-deb.sh", *ARCHS, env={"CUDA_ARCHS": "90", "SOURCE_DATE_EPOCH": EPOCH, **os.environ, "OD_DEB_OUT": out, **env})
    return out


def copy_of_the_source(folder):
    """All copies are of one, made first, so that edits meanwhile are in none."""
    first = f"{WORK}/source"
    if not os.path.exists(first):
        os.makedirs(first)
        names = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        run("sh", "-c", f"tar -c --null --ignore-failed-read -T - | tar -x -C {first}", input=names)
    if folder != first:
        shutil.copytree(first, folder, symlinks=True)
    return folder


def built():
    out = f"{WORK}/first"
    if not os.path.exists(out):
        build(copy_of_the_source(f"{WORK}/source"), out)
    return out


def built_next():
    """A later version, whose default options of main differ."""
    out, source = f"{WORK}/next", f"{WORK}/next-source"
    if not os.path.exists(out):
        copy_of_the_source(source)
        for path, old, new in (("common/base/version.h", r'OD_VERSION ".*"', f'OD_VERSION "{NEXT}"'),
                               ("deploy/systemd/od-main.conf", "127.0.0.1:8080", "127.0.0.1:8090"),
                               ("deploy/systemd/od-worker.conf", "1GB", "2GB")):
            with open(f"{source}/{path}") as f:
                text, n = re.subn(old, new, f.read())
            assert n, path
            with open(f"{source}/{path}", "w") as f:
                f.write(text)
        run(f"{source}/deploy/make-deb.sh", env={**os.environ, "CUDA": "0", "OD_DEB_OUT": out, "SOURCE_DATE_EPOCH": "2000000000"})
    return out


def packages(folder, arch=HERE):
    return {os.path.basename(p).split("_")[0]: p for p in sorted(glob.glob(f"{folder}/*_{arch}.deb"))}


def chroot(*argv, ok=True, **env):
    return run("env", "-i", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8",
               "DEBIAN_FRONTEND=noninteractive", *[f"{k}={v}" for k, v in env.items()], "unshare", "--mount", "sh", "-c",
               'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"', ROOT, *argv, ok=ok)


def new_root():
    """A Debian that can install: a network, and stubs that write down what is asked of systemd, as if it ran."""
    if os.geteuid() != 0:
        raise Skip("chroot and debootstrap need root")
    run("deploy/debian-root.sh")
    shutil.rmtree(ROOT, ignore_errors=True)
    os.makedirs(ROOT)
    run("tar", "-x", "-f", "build/debian/rootfs.tar", "-C", ROOT)
    shutil.copy("/etc/resolv.conf", f"{ROOT}/etc/resolv.conf")
    for name in ("deb-systemd-invoke", "systemctl"):
        with open(f"{ROOT}/usr/local/bin/{name}", "w") as f:
            f.write(f'#!/bin/sh\necho "{name} $*" >>/asked\n')
        os.chmod(f"{ROOT}/usr/local/bin/{name}", 0o755)
    os.makedirs(f"{ROOT}/run/systemd/system")
    with open(f"{ROOT}/etc/apt/apt.conf.d/path", "w") as f: # apt's own leaves out /usr/local
        f.write('DPkg::Path "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";\n')
    chroot("apt-get", "update", "-q")


def tree():
    """Every path of the root but those where apt and dpkg keep their own records."""
    skip = ("var/lib/apt", "var/lib/dpkg", "var/cache", "var/log", "tmp", "debs", "usr/share/man", "usr/share/locale", "proc", "dev", "sys")
    return {os.path.relpath(os.path.join(d, n), ROOT) for d, dirs, files in os.walk(ROOT) for n in dirs + files
            if not os.path.relpath(os.path.join(d, n), ROOT).startswith(skip)}


def install(folder, *names, options=()):
    os.makedirs(f"{ROOT}/debs", exist_ok=True)
    for name in names:
        shutil.copy(packages(folder)[name], f"{ROOT}/debs")
    files = [f"/debs/{os.path.basename(packages(folder)[n])}" for n in names]
    return chroot("apt-get", "install", "-q", "-y", "--no-install-recommends", *options, *files)


def asked():
    path = f"{ROOT}/asked"
    with open(path) if os.path.exists(path) else open(os.devnull) as f:
        text = f.read()
    open(path, "w").close()
    return text


def read(path):
    with open(f"{ROOT}/{path}") as f:
        return f.read()


@test
def test_packages_hold_what_they_should():
    for arch in ARCHS:
        found = packages(built(), arch)
        want = set(FILES) - (set() if "od-moe-cuda" in found else {"od-moe-cuda"})
        assert set(found) == want | {f"{p}-dbgsym" for p in want}, found
        for package in want:
            listed = [line.split()[5].removeprefix("./") for line in run("dpkg-deb", "-c", found[package]).splitlines()]
            assert not set(FILES[package]) - set(listed), (package, set(FILES[package]) - set(listed))
            assert not [f for f in listed if f.startswith("usr/local")], listed
    if "od-moe-cuda" not in packages(built()):
        print("# od-moe-cuda was not built: no nvcc, or CUDA=0")


@test
def test_the_plugin_depends_on_its_own_build():
    if "od-moe-cuda" not in packages(built()):
        raise Skip("od-moe-cuda was not built: no nvcc, or CUDA=0")
    depends = run("dpkg-deb", "-f", packages(built())["od-moe-cuda"], "Depends")
    version = run("dpkg-deb", "-f", packages(built())["od-moe"], "Version").strip()
    assert f"od-moe (= {version})" in depends, depends


@test
def test_programs_are_stripped_and_have_debug_packages():
    for arch in ARCHS:
        found = packages(built(), arch)
        for package, program in (("od-moe", "usr/bin/od-worker"), ("od-chat", "usr/bin/od-chat"), ("od-moe-tools", "usr/bin/od-bench")):
            for p in (package, f"{package}-dbgsym"):
                shutil.rmtree(f"{WORK}/x", ignore_errors=True)
                run("dpkg-deb", "-x", found[p], f"{WORK}/x")
                if p == package:
                    sections = run("readelf", "-SW", f"{WORK}/x/{program}")
                    assert ".debug_info" not in sections and ".symtab" not in sections, p
                    build_id = re.search(r"Build ID: (\w+)", run("readelf", "-n", f"{WORK}/x/{program}")).group(1)
                else:
                    path = f"{WORK}/x/usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug"
                    assert ".debug_info" in run("readelf", "-SW", path), path


@test
def test_depends_of_another_architecture_are_those_of_this():
    """arm64 is built without arm64 packages on this machine: the names come from the libraries that were fetched."""
    if len(ARCHS) < 2:
        raise Skip("one architecture")
    names = []
    for arch in ARCHS:
        depends = run("dpkg-deb", "-f", packages(built(), arch)["od-moe"], "Depends")
        names.append(sorted(re.sub(r" *\(.*?\)", "", d).strip() for d in depends.split(",")))
    assert names[0] == names[1] and "libzmq5" in names[0] and "libc6" in names[0], names


@test
def test_lintian_is_content():
    if shutil.which("lintian") is None:
        raise Skip("there is no lintian here")
    hints = []
    for changes in glob.glob(f"{built()}/*.changes"):
        for line in run("lintian", "--allow-root", "-I", changes, ok=False).splitlines():
            word = re.search(r"spelling-error-in-binary (\S+)", line)
            if word and subprocess.run(["git", "grep", "-qwF", word.group(1)]).returncode != 0:
                continue # machine code that looks like a word: nothing in the source has it
            hints.append(line)
    assert not hints, "\n".join(hints)


@test
def test_two_builds_are_the_same_bytes():
    """Elsewhere, without ccache, with another locale, time zone, umask and number of jobs."""
    source = f"{WORK}/a/longer/path/source"
    copy_of_the_source(source)
    env = {"LC_ALL": "C.UTF-8", "LANG": "C.UTF-8", "TZ": "Asia/Tokyo", "DEB_BUILD_OPTIONS": "parallel=3", "CCACHE_DISABLE": "1",
           "HOME": "/nonexistent"}
    old = os.umask(0o027)
    try:
        again = build(source, f"{WORK}/again", **env)
    finally:
        os.umask(old)
    for arch in ARCHS:
        for name, path in packages(built(), arch).items():
            sums = []
            for p in (path, packages(again, arch)[name]):
                with open(p, "rb") as f:
                    sums.append(hashlib.sha256(f.read()).hexdigest())
            assert sums[0] == sums[1], f"{name} of {arch}: {path} and {packages(again, arch)[name]} differ"


@test
def test_an_installation_enables_and_starts_nothing():
    new_root()
    install(built(), "od-moe", "od-chat", "od-moe-tools")
    assert re.search(r"^od-moe:x:\d+:\d+:od-moe:/var/lib/od-moe:/usr/sbin/nologin$", read("etc/passwd"), re.M), read("etc/passwd")
    assert not glob.glob(f"{ROOT}/etc/systemd/system/*.wants/od-*")
    assert not re.search(r"(start|enable).*od-", asked())
    for folder in ("etc/od-moe", "var/lib/od-moe", "var/lib/od-moe/models"):
        s = os.stat(f"{ROOT}/{folder}")
        assert (s.st_mode & 0o7777, s.st_uid) == (0o755, 0), (folder, oct(s.st_mode))
    version = run("dpkg-deb", "-f", packages(built())["od-moe"], "Version").strip()
    for program in ("od-main", "od-worker", "od-shadow", "od-pack", "od-chat", "od-bench"):
        assert chroot(program, "--version") == f"{program} {version}\n"


@test
def test_units_are_correct_and_closed():
    units = [f"/lib/systemd/system/{u}.service" for u in UNITS]
    assert chroot("systemd-analyze", "verify", "--man=no", *units) == ""
    for u in units:
        assert "/usr/local" not in read(u[1:])
        for document in re.findall(r"file:///(\S+)", read(u[1:])):
            assert os.path.exists(f"{ROOT}/{document}"), document
        level = re.search(r"Overall exposure level for \S+: ([0-9.]+)", chroot("systemd-analyze", "security", "--offline=true", u))
        assert level and float(level.group(1)) <= 1.2, level # docs/ARCHITECTURE.md


@test
def test_manual_pages_are_clean():
    chroot("apt-get", "install", "-q", "-y", "--no-install-recommends", "man-db", "bash-completion")
    pages = sorted(glob.glob(f"{ROOT}/usr/share/man/man1/od-*"))
    names = {os.path.basename(p).removesuffix(".1.gz") for p in pages}
    assert names >= {"od-main", "od-pack", "od-worker", "od-shadow", "od-chat", "od-bench", *COMMANDS}, names
    for p in pages:
        there = p.removeprefix(ROOT)
        warnings = chroot("sh", "-c", 'man --warnings -E UTF-8 -l "$0" >/dev/null', there, MANWIDTH="80")
        assert warnings == "", f"{p}: {warnings}"
        assert " - " in chroot("lexgrog", there), p
    for option in ("--prefix-cache", "--parallel", "--workers"):
        assert option in chroot("man", "od-main", "serve"), option


def complete(*words):
    """What bash offers for the last word."""
    script = ("source /usr/share/bash-completion/bash_completion; source /usr/share/bash-completion/completions/$1; COMP_WORDS=(\"$@\"); "
              "COMP_CWORD=$(($# - 1)); COMP_LINE=\"$*\"; COMP_POINT=${#COMP_LINE}; _${1//-/_}; printf '%s\\n' \"${COMPREPLY[@]}\"")
    return chroot("bash", "-c", script, "bash", *words).split()


@test
def test_bash_completes_commands_options_and_values():
    os.makedirs(f"{ROOT}/od-test-models/inner", exist_ok=True)
    assert complete("od-main", "key") == ["keygen"]
    assert set(complete("od-main", "")) >= {"keygen", "serve", "template"}
    assert complete("od-main", "serve", "--prof") == ["--profile"]
    assert complete("od-main", "serve", "--profile", "") == ["f32", "bf16"]
    assert complete("od-main", "serve", "--max-tok") != complete("od-main", "--max-tok")
    assert complete("od-worker", "--listen", "") == []
    assert complete("od-pack", "ver") == ["verify"]
    assert complete("od-pack", "verify", "/od-test-mo") == ["/od-test-models"]
    assert complete("od-bench", "gem") == ["gemv"]
    os.makedirs(f"{ROOT}/var/lib/od-moe/models/talebook")
    for words in (("od-worker", "--pack"), ("od-main", "serve", "--pack"), ("od-pack", "verify")):
        assert complete(*words, "tale") == ["talebook"], words
    os.rmdir(f"{ROOT}/var/lib/od-moe/models/talebook")
    for path in glob.glob(f"{ROOT}/usr/share/bash-completion/completions/od-*"):
        if shutil.which("shellcheck"):
            run("shellcheck", "-s", "bash", path)


@test
def test_an_upgrade_keeps_options_and_restarts_what_runs():
    """Options that the user changed stay; others become the new ones. try-restart leaves alone what does not run."""
    with open(f"{ROOT}/etc/od-moe/od-main.conf", "a") as f:
        f.write("# mine\n")
    before = read("etc/od-moe/od-main.conf")
    for name in ("node.key", "peers", "hosts.txt"):
        with open(f"{ROOT}/etc/od-moe/{name}", "w") as f:
            f.write("mine\n")
    asked()
    install(built_next(), "od-moe", options=["-o", "Dpkg::Options::=--force-confold"])
    assert chroot("od-main", "--version") == f"od-main {NEXT}\n"
    assert read("etc/od-moe/od-main.conf") == before
    assert "2GB" in read("etc/od-moe/od-worker.conf")
    assert read("etc/od-moe/node.key") == "mine\n"
    said = asked()
    assert "deb-systemd-invoke try-restart od-main.service od-shadow.service od-worker.service" in said, f"asked: {said}"
    assert "stop" not in said and " start" not in said, said


@test
def test_a_purge_leaves_models_and_nothing_else():
    new_root()
    install(built(), "od-moe")
    asked()
    chroot("apt-get", "purge", "-q", "-y", "od-moe") # what it needed stays
    clean = tree()
    install(built(), "od-moe")
    chroot("/usr/bin/systemctl", "enable", "od-worker", SYSTEMD_OFFLINE="1")
    assert os.path.lexists(f"{ROOT}/etc/systemd/system/multi-user.target.wants/od-worker.service")
    for path in ("etc/od-moe/node.key", "etc/od-moe/peers", "etc/od-moe/hosts.txt", "var/cache/od-moe/sums", "var/lib/od-moe/spool/piece",
                 "var/lib/od-moe/models/mine/model.json"):
        os.makedirs(os.path.dirname(f"{ROOT}/{path}"), exist_ok=True)
        with open(f"{ROOT}/{path}", "w") as f:
            f.write("x")
    asked()
    chroot("apt-get", "remove", "-q", "-y", "od-moe")
    said = asked()
    assert "deb-systemd-invoke stop od-main.service od-shadow.service od-worker.service" in said, f"asked: {said}"
    assert os.path.exists(f"{ROOT}/etc/od-moe/node.key") and os.path.exists(f"{ROOT}/etc/od-moe/od-main.conf")
    said = chroot("apt-get", "purge", "-q", "-y", "od-moe")
    assert "models in /var/lib/od-moe are kept" in said, said
    models = {"var/lib/od-moe", "var/lib/od-moe/models", "var/lib/od-moe/models/mine", "var/lib/od-moe/models/mine/model.json"}
    assert tree() - clean == models, tree() ^ clean
    assert not os.path.exists(f"{ROOT}/var/cache/od-moe")


def text_of(main, worker_folder, tmp):
    """od-main of a folder of programs with two workers of another: its status, text and errors."""
    env = {**os.environ, "OD_PACK": f"{WORK}/pack"}
    ports, workers = [], []
    for _ in range(2):
        r, w = os.pipe()
        workers.append(subprocess.Popen([f"{worker_folder}/usr/bin/od-worker", "--port", "0", "--ready-fd", str(w), "--quiet"], env=env,
                                        pass_fds=[w], stdin=subprocess.DEVNULL))
        os.close(w)
        with os.fdopen(r) as f:
            ports.append(f.readline().strip())
    try:
        with open(f"{tmp}/hosts", "w") as f:
            f.writelines(f"127.0.0.1:{p}\n" for p in ports)
        return subprocess.run([f"{main}/usr/bin/od-main", "--workers", f"{tmp}/hosts", "--prompt", "The king", "--max-tokens", "12", "--quiet"],
                              env=env, capture_output=True, text=True, timeout=300)
    finally:
        for p in workers:
            p.terminate()
            p.wait()


@test
def test_versions_work_together_while_a_cluster_is_upgraded():
    """A new main with workers of the version before, and the reverse."""
    for name, folder in (("old", built()), ("new", built_next())):
        shutil.rmtree(f"{WORK}/{name}", ignore_errors=True)
        run("dpkg-deb", "-x", packages(folder)["od-moe"], f"{WORK}/{name}")
    shutil.rmtree(f"{WORK}/pack", ignore_errors=True)
    run(f"{WORK}/old/usr/bin/od-pack", "deploy/models/talebook", f"{WORK}/pack")
    texts = []
    for main, worker in (("old", "old"), ("new", "old"), ("old", "new")):
        p = text_of(f"{WORK}/{main}", f"{WORK}/{worker}", WORK)
        assert p.returncode == 0, (main, worker, p.stderr)
        texts.append(p.stdout)
    assert texts[0] == texts[1] == texts[2] and len(texts[0]) > 20, texts


@test
def test_another_protocol_is_refused_by_name():
    source = f"{WORK}/protocol-source"
    copy_of_the_source(source)
    with open(f"{source}/common/net/wire.h") as f:
        text = f.read()
    number = int(re.search(r"OD_PROTOCOL_VERSION (\d+)", text).group(1))
    with open(f"{source}/common/net/wire.h", "w") as f:
        f.write(text.replace(f"OD_PROTOCOL_VERSION {number}", f"OD_PROTOCOL_VERSION {number + 1}"))
    run("make", "-s", "CUDA=0", "B=usr", "usr/bin/od-worker", cwd=source)
    p = text_of(f"{WORK}/old", source, WORK)
    assert p.returncode == 1 and f"protocol version: expected {number + 1}, found {number}" in p.stderr, p.stderr


@test
def test_an_image_writes_the_same_text():
    """Built and run without namespaces of its own, which a container may not make."""
    if shutil.which("buildah") is None:
        raise Skip("there is no buildah here")
    if os.geteuid() != 0:
        raise Skip("debootstrap needs root")
    with open(f"{WORK}/storage.conf", "w") as f:
        f.write(f'[storage]\ndriver = "vfs"\ngraphroot = "{WORK}/images"\nrunroot = "{WORK}/run"\n')
    env = {**os.environ, "CONTAINERS_STORAGE_CONF": f"{WORK}/storage.conf", "OD_DEB_OUT": built(), "IMAGE_ARGS": "--isolation chroot"}
    env.pop("STORAGE_DRIVER", None)
    run("deploy/make-image.sh", env=env)
    version = run("dpkg-deb", "-f", packages(built())["od-moe"], "Version").strip()
    try:
        container = run("buildah", "from", f"od-moe:{version}", env=env).split()[-1]
        argv = ["--resident", "--prompt", "The king", "--max-tokens", "12", "--quiet"]
        assert run("buildah", "run", "--isolation", "chroot", container, "--", "od-main", "--version", env=env) == f"od-main {version}\n"
        text = run("buildah", "run", "--isolation", "chroot", "-v", f"{WORK}/pack:/var/lib/od-moe/pack:ro", container, "--", "od-main", *argv,
                   env=env)
        assert text == run(f"{WORK}/old/usr/bin/od-main", "--pack", f"{WORK}/pack", *argv), text
    finally:
        run("buildah", "rm", "--all", env=env, ok=False) # in a storage of this test
        run("buildah", "rmi", "--all", "--force", env=env, ok=False)


if __name__ == "__main__":
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
    shutil.rmtree(WORK, ignore_errors=True)
    os.makedirs(WORK)
    failed = tap_tests.run(tests)
    shutil.rmtree(ROOT, ignore_errors=True)
    sys.exit(failed != 0)
