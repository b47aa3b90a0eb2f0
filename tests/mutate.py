#!/usr/bin/env python3
"""How many planted mistakes do the tiers of tests find? (make mutations)

    tests/mutate.py [--count 40] [--commit HEAD] [--report]

Mutations are drawn over all rooms of the product, each from the commit's first eight hex digits and its number. One that does not
compile, or compiles to the same code, is drawn again. Each is built in a copy of the commit and meets those tests of make check that know
its file, until one fails. Those that none finds are built together and meet all of make check. The test that fails first meets one half
of them and the other, and so on, until its failure has its mutation; then the others go on. Those still left meet what make check-all
runs beyond make check in the same way. A test finds a mutation only if it fails with that one alone, fails twice, and passes without: a
slow machine finds nothing. (Together, a mutation could keep a test from reaching another one: those that break every cluster are found
before, by test_cluster.) All of it lies in build/mutations/COMMIT. The script can be ended at any time: started again,
it goes on where it was. --report only says what is known so far. The status is 0 if make check finds 90% of what make check-all finds.
Standard library only."""
import argparse
import collections
import ctypes
import glob
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

N_MUTATIONS = 40
WANTED = 0.9
LIMIT_S = 300  # a program of tests that runs longer has met an endless loop
MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8 * 7  # of a process: a wrong length must not take all of the machine's
# Which parts of tests/run.sh belong to a tier, and what make builds for them. check-source is not among them: it would find how a mutation
# is written.
PARTS = [("check", "--check", "check-build-quick"), ("check-all", "--rest", "check-build"), ("check-all", "--far --emulated", "check-build"),
         ("check-all", "--fuzz", "fuzz")]
# Programs of tests/integ that know a room best; unit tests are found by what they include.
INTEG = {"common/model": "conform", "common/pack": "test_pack", "common/text": "template chat", "common/net": "keys",
         "main-node/chat": "chat responses anthropic", "main-node/cluster": "members", "main-node/serve": "serve responses anthropic",
         "main-node/store": "store", "main-node/terminal": "chat_terminal", "main-node/predict": "prediction drafts", "deploy": "test_pack",
         "worker-node/pull": "store", "shadow-node": "lying_shadow prediction shadow_parts",
         "common": "cluster", "main-node": "cluster", "worker-node": "cluster"}  # what breaks every cluster would hide the others


# What is mutated: C without comments, strings and lines of the preprocessor, which are blanks here.

def code_of(text):
    def blank(m):
        return re.sub(r"[^\n]", " ", m.group())
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|' r"'(?:\\.|[^'\\\n])*'" r"|^[ \t]*#(?:\\\n|[^\n])*", blank, text, flags=re.S | re.M)


def swaps(code, pattern, becomes):
    for m in re.finditer(pattern, code):
        yield m.start(1), m.end(1), becomes[m.group(1)] if isinstance(becomes, dict) else becomes(m.group(1))


def conditions(code):
    for m in re.finditer(r"\b(?:if|while) \(", code):
        depth, end = 1, m.end()
        while depth > 0:
            depth += {"(": 1, ")": -1}.get(code[end], 0)
            end += 1
        yield m.end(), end - 1, "!({})"


def calls(code):
    """Statements of one line that only call a function."""
    for m in re.finditer(r"(?<=[;{}:)\n])\n\t+((?!return\b|if\b|for\b|while\b|switch\b|else\b)[a-z_][\w.>-]*\([^;\n]*\);)(?=\n)", code):
        before = code[:m.start()].rstrip()
        if before.endswith((";", "{", "}", ":", ")", "else")):
            yield m.start(1), m.end(1), "(void)0;"


OPERATORS = {
    "negate a condition": conditions,
    "delete a call": calls,
    "move a bound": lambda c: swaps(c, r" (<=|>=|<|>) (?=\S)", {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}),
    "negate a comparison": lambda c: swaps(c, r" (==|!=) ", {"==": "!=", "!=": "=="}),
    "swap + and -": lambda c: swaps(c, r"[\w)\]] ([+-])=? ", {"+": "-", "-": "+"}),
    "swap && and ||": lambda c: swaps(c, r" (&&|\|\|) ", {"&&": "||", "||": "&&"}),
    "change a constant": lambda c: swaps(c, r"(?<![\w.])(\d+)(?=[uUlL]*(?![\w.]))", lambda n: str(int(n) + 1)),
    "swap success and failure": lambda c: swaps(c, r"\breturn (OD_OK|OD_ERR_\w+|true|false);",
                                                lambda v: {"OD_OK": "OD_ERR_INTERNAL", "true": "false", "false": "true"}.get(v, "OD_OK")),
}


def sites(text):
    """Of each operator, triples of begin, end and what stands there then."""
    code = code_of(text)
    return {name: [(a, b, new.replace("{}", text[a:b])) for a, b, new in operator(code)] for name, operator in OPERATORS.items()}


class Tree:
    """The copy of a commit in which mutations are built."""

    def __init__(self, commit):
        self.commit = commit
        self.work = os.path.abspath(f"build/mutations/{commit[:8]}")
        self.path = os.path.join(self.work, "tree")
        self.tmp = os.path.join(self.work, "tmp")
        self.build_log = os.path.join(self.work, "build.log")
        self.objects = {}

    def prepare(self):
        if not os.path.isdir(self.path):
            os.makedirs(self.path + ".new", exist_ok=True)
            archive = subprocess.Popen(["git", "archive", self.commit], stdout=subprocess.PIPE)
            subprocess.run(["tar", "-x", "-C", self.path + ".new"], stdin=archive.stdout, check=True)
            assert archive.wait() == 0
            os.makedirs(self.path + ".new/build")
            for fetched in "clients", "prometheus":  # by make check and make check-all
                if os.path.isdir(f"build/{fetched}"):
                    os.symlink(os.path.abspath(f"build/{fetched}"), f"{self.path}.new/build/{fetched}")
            os.rename(self.path + ".new", self.path)
        self.build("check-build")

    def build(self, target):
        if not self.make(target):
            sys.exit(f"mutate: make {target} fails in {self.path}: {self.build_log}")

    def make(self, *targets):
        """Warnings are no errors here: else no call could be deleted that was the last use of a function."""
        with open(self.build_log, "w") as log:
            return subprocess.run(["make", f"-j{os.cpu_count()}", "CFLAGS=-w", *targets], cwd=self.path, stdout=log,
                                  stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).returncode == 0

    def read(self, file):
        with open(os.path.join(self.path, file)) as f:
            return f.read()

    def write(self, file, text):
        if self.read(file) != text:
            with open(os.path.join(self.path, file), "w") as f:
                f.write(text)

    def original(self, file):
        return subprocess.run(["git", "show", f"{self.commit}:{file}"], capture_output=True, text=True, check=True).stdout

    def object_of(self, file):
        """Where the build puts it; None: this machine does not compile it."""
        for o in f"build/obj/{file[:-2]}.o", f"build/pic/{file}.o":
            if os.path.exists(os.path.join(self.path, o)):
                return o
        return None

    def code(self, file):
        """What it compiles to, without what debuggers read; None: it does not compile."""
        o = self.object_of(file)
        if not self.make(o):
            return None
        bare = os.path.join(self.work, "bare.o")
        subprocess.run(["objcopy", "--strip-debug", os.path.join(self.path, o), bare], check=True)
        with open(bare, "rb") as f:
            return f.read()

    def rooms(self):
        """The files of each folder below a daemon or common/, and of a daemon's own."""
        rooms = collections.defaultdict(list)
        for top in "common", "main-node", "shadow-node", "worker-node", "deploy":
            for file in sorted(glob.glob(f"{top}/**/*.c", root_dir=self.path, recursive=True)):
                if self.object_of(file):
                    parts = file.split("/")
                    rooms["/".join(parts[:2]) if len(parts) > 2 else top].append(file)
        return rooms


def rooms_of_all(tree, seed):
    """Which room each of 40 mutations is in: one for each room, the others by the rooms' lines."""
    rooms = tree.rooms()
    lines = {r: sum(tree.read(f).count("\n") for f in files) for r, files in rooms.items()}
    left, total = N_MUTATIONS - len(rooms), sum(lines.values())
    n = {r: 1 + left * lines[r] // total for r in rooms}
    for r in sorted(rooms, key=lambda r: left * lines[r] % total, reverse=True)[:N_MUTATIONS - sum(n.values())]:
        n[r] += 1
    order = [r for r in sorted(rooms) for _ in range(n[r])]
    random.Random(seed).shuffle(order)
    return order


def draw(tree, seed, number, room, others):
    """A mutation that changes what is compiled, and no place that another one changes."""
    rng = random.Random(f"{seed}/{number}")
    texts = {f: tree.read(f) for f in tree.rooms()[room]}
    found = collections.defaultdict(list)
    for file, text in texts.items():
        for operator, where in sites(text).items():
            found[operator] += [(file, *w) for w in where]
    while True:
        operator = rng.choice(sorted(o for o in found if found[o]))
        file, a, b, new = rng.choice(found[operator])
        if any(m["file"] == file and a < m["at"][1] and m["at"][0] < b for m in others):
            continue
        text = texts[file]
        before = tree.code(file)
        tree.write(file, text[:a] + new + text[b:])
        after = tree.code(file)
        tree.write(file, text)
        if after is not None and after != before:
            end = text.find("\n", b)
            begin = text.rfind("\n", 0, a) + 1
            return {"room": room, "file": file, "line": text.count("\n", 0, a) + 1, "operator": operator, "at": [a, b], "new": new,
                    "was": text[begin:end].strip(), "is": (text[begin:a] + new + text[b:end]).strip(), "verdict": None}


def near_tests(tree, file):
    """Words of names of tests that know a file, the likeliest first."""
    folder, name = os.path.split(file)
    words = ["test_" + name[:-2]]
    for include in f'#include "{file[:-2]}.h"', f'#include "{folder}/':
        words += [os.path.basename(t)[:-2] for t in sorted(glob.glob(os.path.join(tree.path, "tests/unit/test_*.c")))
                  if include in tree.read(t)]
    words += [f"{w if w.startswith('test_') else 'test_' + w}.py" for room, names in INTEG.items() if file.startswith(room + "/") for w in names.split()]
    return list(dict.fromkeys(words))


def end_strays():
    """Ends all that this process has started, whether it waits for it or not: main() asked for what has lost its parent."""
    while strays := open(f"/proc/self/task/{os.getpid()}/children").read().split():
        for pid in map(int, strays):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def run_tests(tree, parts, only=(), skips=(), fail_fast=False, limit_s=LIMIT_S):
    """The names of the programs that failed, and of those that did not. only: words of names; none: all programs."""
    def limit():
        if parts != "--fuzz":  # fuzzers limit themselves, and an address sanitizer maps more than any limit
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    shutil.rmtree(tree.tmp, ignore_errors=True)
    os.makedirs(tree.tmp)
    environment = dict(os.environ, FIRST=" ".join(w for w in only if " " not in w), ONLY="\n".join(only), LIMIT_S=str(limit_s),
                       TMPDIR=tree.tmp, B="build", SKIPS="\n".join(f"{s} is left out" for s in skips))
    log = os.path.join(tree.work, "tests.log")
    with open(log, "w") as f:
        status = subprocess.run(["tests/run.sh", *["--fail-fast"][:fail_fast], *parts.split()], cwd=tree.path, env=environment, stdout=f,
                                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, preexec_fn=limit).returncode
    end_strays()
    shutil.rmtree(tree.tmp, ignore_errors=True)
    with open(log, errors="replace") as f:
        lines = f.read().splitlines()
    failing = [m.group(1) for line in lines if (m := re.match("----- (.+)", line))]
    assert (status != 0) == bool(failing), f"tests/run.sh ended with {status}: {log}"
    return failing, [m.group(1) for line in lines if (m := re.fullmatch(r"(\S.*?) +\d+ passed +0 failed +\d+ skipped", line))]


class Judge:
    """Finds out which tests find which mutations."""

    def __init__(self, tree, path):
        self.tree, self.path = tree, path
        self.all = {"mutations": [], "without": {}, "done": []}  # without: by test, its seconds without a mutation, 0: it fails
        if os.path.exists(path):
            with open(path) as f:
                self.all = json.load(f)
        self.mutations = self.all["mutations"]

    def save(self):
        with open(self.path + ".new", "w") as f:
            json.dump(self.all, f, indent=1)
        os.replace(self.path + ".new", self.path)

    def plant(self, group):
        """Exactly these mutations are in the tree."""
        for file in {m["file"] for m in self.mutations}:
            text = self.tree.original(file)
            for m in sorted((m for m in group if m["file"] == file), key=lambda m: m["at"], reverse=True):
                a, b = m["at"]
                text = text[:a] + m["new"] + text[b:]
            self.tree.write(file, text)

    def run(self, group, part, only=(), but=(), **how):
        _, parts, target = part
        self.plant(group)
        self.tree.build(target)
        return run_tests(self.tree, parts, only, [t for t, seconds in self.all["without"].items() if not seconds] + list(but), **how)

    def fails(self, group, part, test):
        """Whether a test that has failed with these mutations fails with them again, and passes without any."""
        if test not in self.all["without"]:
            for _ in range(2):
                begin = time.monotonic()
                failing, _ = self.run([], part, [test])
                self.all["without"][test] = round(time.monotonic() - begin) + 1 if test not in failing else 0
                if test not in failing:
                    break
            self.save()
        seconds = self.all["without"][test]
        return seconds > 0 and test in self.run(group, part, [test], limit_s=min(LIMIT_S, 30 + 4 * seconds))[0]

    def found_by(self, test, group, part):
        """The mutations of a group with which it fails alone."""
        if not self.fails(group, part, test):
            return []
        if len(group) == 1:
            return group
        return self.found_by(test, group[:len(group) // 2], part) + self.found_by(test, group[len(group) // 2:], part)

    def judge_group(self, group, part, only=()):
        """Finds out which mutations of a group tests of a part find. A test that passes with all of them finds none of them."""
        group, done = list(group), []
        while group:
            failing, passed = self.run(group, part, only, done, fail_fast=True)
            done += passed
            if not failing:
                break
            found = self.found_by(failing[0], group, part)
            done.append(failing[0])
            print(f"  {failing[0]} fails: {len(found)} of {len(group)}", flush=True)
            for m in found:
                m["verdict"], m["by"] = part[0], failing[0]
                group.remove(m)
            self.save()

    def judge(self):
        for i, m in enumerate(self.mutations, 1):
            if m["verdict"] is None and not m.get("alone"):
                print(f"{i}: {m['file']}:{m['line']}: {m['operator']}", flush=True)
                self.judge_group([m], PARTS[0], near_tests(self.tree, m["file"]))
                m["alone"] = True
                self.save()
        for part in PARTS:
            left = [m for m in self.mutations if m["verdict"] is None]
            if part[1] not in self.all["done"]:
                print(f"{len(left)} mutations: {part[1]}", flush=True)
                self.judge_group(left, part)
                self.all["done"].append(part[1])
                self.save()
        for m in self.mutations:
            m["verdict"] = m["verdict"] or "nobody"
        self.save()


def report(commit, mutations):
    n = collections.Counter()
    for i, m in enumerate(mutations, 1):
        n[m["verdict"]] += 1
        print(f"{i:2} {m['verdict'] or 'not yet':9} {m.get('by', ''):28} {m['file']}:{m['line']}: {m['operator']}\n"
              f"     - {m['was']}\n     + {m['is']}")
    known = n["check"] + n["check-all"]
    print(f"{commit[:8]}: {n['check']} mutations found by make check, {n['check-all']} by make check-all only, {n['nobody']} by neither"
          + (f", {n[None]} not yet tried" if n[None] else ""))
    if known:
        print(f"make check finds {100 * n['check'] / known:.0f}% of what make check-all finds; at least {100 * WANTED:.0f}% are expected")
    return known > 0 and n["check"] >= WANTED * known


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--count", type=int, default=N_MUTATIONS, help=f"how many of the {N_MUTATIONS} (all)")
    p.add_argument("--commit", default="HEAD")
    p.add_argument("--report", action="store_true", help="only say what is known so far")
    args = p.parse_args()
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    commit = subprocess.run(["git", "rev-parse", args.commit], capture_output=True, text=True, check=True).stdout.strip()
    seed = commit[:8]
    tree = Tree(commit)
    os.makedirs(tree.work, exist_ok=True)
    judge = Judge(tree, os.path.join(tree.work, "state.json"))
    if not args.report:
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER, for end_strays()
        if os.path.isdir(tree.path):
            judge.plant([])  # it may have been ended halfway
        tree.prepare()
        rooms = rooms_of_all(tree, seed)
        for i in range(len(judge.mutations), min(args.count, N_MUTATIONS)):
            judge.mutations.append(draw(tree, seed, i, rooms[i], judge.mutations))
            judge.save()
        judge.judge()
    sys.exit(0 if report(commit, judge.mutations) else 1)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(f"mutate: ended by signal {number}; started again, it goes on from here"))
    try:
        main()
    finally:
        end_strays()
