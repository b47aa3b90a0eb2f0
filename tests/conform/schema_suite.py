#!/usr/bin/env python3
"""The JSON-Schema-Test-Suite against the schemas that od-main serve enforces: what is refused by name, what is accepted, what is written.

    make schema-suite

Each schema of the suite is refused with the path of a keyword, or enforced. Of those that are enforced, no invalid instance may be
accepted, and the texts that are written by chance must be valid by Python's jsonschema with its format checker. A valid instance may be
rejected for its form only: such a one is tried again with its keys in another order and its numbers in another spelling. What is
rejected still is listed, unless it breaks a format, which the standard leaves to the implementation."""
import argparse
import collections
import glob
import itertools
import json
import math
import os
import re
import sys

import jsonschema
from schema_driver import SchemaDriver

DRAFTS = {
    "draft4": jsonschema.Draft4Validator,
    "draft6": jsonschema.Draft6Validator,
    "draft7": jsonschema.Draft7Validator,
    "draft2019-09": jsonschema.Draft201909Validator,
    "draft2020-12": jsonschema.Draft202012Validator,
}
TEXTS = 20  # that are written for each schema
MAX_FORMS = 3000  # of an instance that is tried again
COLUMNS = ("schemas", "enforced", "valid", "accepted", "other form", "format", "rejected", "invalid", "invalid accepted", "texts",
           "texts invalid")


def plain_numbers(v):
    """Integers without point and exponent."""
    if isinstance(v, float) and math.isfinite(v) and v == math.floor(v) and abs(v) < 1e18:
        return int(v)
    if isinstance(v, list):
        return [plain_numbers(x) for x in v]
    return {k: plain_numbers(x) for k, x in v.items()} if isinstance(v, dict) else v


def orders(v):
    """The value with the keys of its objects in every order."""
    if isinstance(v, list):
        for items in itertools.product(*map(list, map(orders, v))):
            yield list(items)
    elif isinstance(v, dict):
        inner = {k: list(itertools.islice(orders(x), MAX_FORMS)) for k, x in v.items()}
        for keys in itertools.permutations(v):
            for values in itertools.product(*(inner[k] for k in keys)):
                yield dict(zip(keys, values))
    else:
        yield v


def spellings(v):
    return [json.dumps(v, ensure_ascii=False), json.dumps(v, ensure_ascii=False, separators=(",", ":")),
            json.dumps(v, ensure_ascii=False, indent=2)]


def keyword_of(error):
    """The last step of the path with which an error begins."""
    path = re.match(r"#(\S*?)(: | |$)", error)
    return path.group(1).rpartition("/")[2] or "(whole schema)" if path else error


class Suite:
    def __init__(self, folder):
        self.driver = SchemaDriver()
        self.folder = folder
        self.files = collections.defaultdict(collections.Counter)
        self.drafts = collections.defaultdict(collections.Counter)
        self.refused = collections.defaultdict(collections.Counter)
        self.rejected, self.bad = [], []

    def run(self):
        for draft, validator in DRAFTS.items():
            base = os.path.join(self.folder, draft)
            for path in sorted(glob.glob(f"{base}/*.json") + glob.glob(f"{base}/optional/format/*.json")):
                name = os.path.relpath(path, base)
                with open(path, encoding="utf-8") as f:
                    for group in json.load(f):
                        self.run_group(draft, name, group, validator)

    def run_group(self, draft, name, group, validator):
        sums = collections.Counter(schemas=1)
        where = f"{draft}/{name}: {group['description']}"
        check = [s for t in group["tests"] for s in spellings(t["data"])]
        answer = self.driver.ask(group["schema"], check, TEXTS, seed=7)
        if "error" in answer:
            self.refused[name][keyword_of(answer["error"])] += 1
        else:
            sums["enforced"] = 1
            if "late" in answer:
                self.bad.append(f"{where}: {answer['late']}")
            checker = validator(group["schema"], format_checker=validator.FORMAT_CHECKER)
            for i, t in enumerate(group["tests"]):
                self.run_test(where, group["schema"], t, answer["ok"][3 * i:3 * i + 3], checker, sums)
            for text in answer["texts"]:
                self.run_text(where, text, checker, sums)
        self.files[name].update(sums)
        self.drafts[draft].update(sums)

    def run_test(self, where, schema, test, ok, checker, sums):
        where = f"{where}: {test['description']}: {json.dumps(test['data'], ensure_ascii=False)[:80]}"
        if not test["valid"]:
            sums["invalid"] += 1
            if any(ok):
                sums["invalid accepted"] += 1
                self.bad.append(f"{where}: is accepted")
            return
        sums["valid"] += 1
        if all(ok):
            sums["accepted"] += 1
            return
        forms = itertools.islice(orders(plain_numbers(test["data"])), MAX_FORMS)
        if any(self.driver.ask(schema, [spellings(v)[0] for v in forms])["ok"]):
            sums["other form"] += 1
        elif not checker.is_valid(test["data"]):
            sums["format"] += 1
        else:
            sums["rejected"] += 1
            self.rejected.append(where)

    def run_text(self, where, text, checker, sums):
        sums["texts"] += 1
        try:
            good = checker.is_valid(json.loads(text))
        except (TypeError, ValueError):
            good = False
        if not good:
            sums["texts invalid"] += 1
            self.bad.append(f"{where}: is written: {text}")

    def table(self, title, rows, refused):
        print(f"\n| {title} | {' | '.join(COLUMNS)} |" + (" refused |" if refused else ""))
        print("|---" * (len(COLUMNS) + 1 + bool(refused)) + "|")
        for name, sums in rows:
            names = ", ".join(f"`{k}` {n}" for k, n in sorted(self.refused[name].items())) if refused else ""
            print(f"| {name} | {' | '.join(str(sums[c]) for c in COLUMNS)} |" + (f" {names} |" if refused else ""))

    def report(self):
        total = sum(self.drafts.values(), collections.Counter())
        self.table("draft", [*self.drafts.items(), ("all", total)], False)
        self.table("file", self.files.items(), True)
        print("\nValid instances that are rejected in every form:")
        for line in self.rejected:
            print("-", line)
        for line in self.bad:
            print("BAD", line)
        return not self.bad and total["accepted"] > 1000 and total["texts"] > 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="the tests folder of the suite")
    suite = Suite(parser.parse_args().folder)
    suite.run()
    sys.exit(0 if suite.report() else 1)


main()
