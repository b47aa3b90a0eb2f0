"""Runs the tests of a program and says in TAP how they went. Standard library.

Arguments choose tests by the names of their functions (without test_):
  NAME...          only these
  --but NAME...    all but these
$OD_SHARD, as 2/3, runs the second of three shards of what was chosen: each third test, so that neighbours are apart."""
import os
import sys
import traceback


class Skip(Exception):
    pass


def _chosen(tests):
    """Pairs of name and function. A name that no test has is an error: a list of slow tests must not rot."""
    names = sys.argv[1:]
    leave_out = names[:1] == ["--but"]
    names = names[1:] if leave_out else names
    if unknown := set(names) - {n for n, _ in tests}:
        sys.exit(f"{sys.argv[0]}: there is no test {', '.join(sorted(unknown))}")
    if leave_out:
        tests = [t for t in tests if t[0] not in names]
    elif names:
        tests = [t for t in tests if t[0] in names]
    shard, _, shards = os.environ.get("OD_SHARD", "1/1").partition("/")
    return tests[int(shard) - 1::int(shards)]


def run(functions):
    """The number of tests that failed. Each test may change the environment."""
    tests = _chosen([(f.__name__.removeprefix("test_"), f) for f in functions])
    bad = 0
    environment = dict(os.environ)
    print(f"1..{len(tests)}")
    for n, (name, f) in enumerate(tests, 1):
        name = name.replace("_", " ")
        os.environ.clear()
        os.environ.update(environment)
        try:
            f()
            print(f"ok {n} - {name}", flush=True)
        except Skip as s:
            print(f"ok {n} - {name} # SKIP {s}", flush=True)
        except Exception:  # every way to fail counts
            bad += 1
            print(f"not ok {n} - {name}", flush=True)
            for line in traceback.format_exc().splitlines():
                print(f"# {line}")
    return bad
