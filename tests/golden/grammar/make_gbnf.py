#!/usr/bin/env python3
"""Writes gbnf.json: random grammars in the part of GBNF that XGrammar (0.2.9) reads, too, texts, and whether XGrammar takes them: as the
beginning of a text of the grammar, and as a whole one.

    pip install xgrammar==0.2.9; tests/golden/grammar/make_gbnf.py
"""
import json
import os
import random

import xgrammar

HERE = os.path.dirname(os.path.abspath(__file__))
LETTERS = "abcé\n"
LEAVES = ['"a"', '"b"', '"ab"', '"c\\n"', '"é"', '"\\u00e9"', "[ab]", "[^a]", "[^bé\\n]", "[a-c]", "[b-é]", '"\\x61"']


def expression(rng, depth, rules):
    kind = rng.randrange(9 if depth > 0 else 3)
    if kind < 3:
        return rng.choice(LEAVES)
    if kind == 3 and rules:
        return rng.choice(rules)
    if kind < 6:
        return " ".join(expression(rng, depth - 1, rules) for _ in range(rng.randrange(2, 4)))
    if kind < 8:
        return "(" + " | ".join(expression(rng, depth - 1, rules) for _ in range(rng.randrange(2, 4))) + ")"
    return "(" + expression(rng, depth - 1, rules) + ")" + rng.choice(["*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}"])


def grammar(rng):
    """Rules may name later ones; root also itself, behind a letter, so that nothing is left recursive."""
    names = ["root", "x", "y-1"]
    lines = []
    for i, name in enumerate(names):
        body = expression(rng, 3, names[i + 1:])
        if rng.randrange(3) > 0:
            inner = rng.choice(names[:i + 1])
            body += rng.choice([' | "(" %s ")"', ' | "a" %s', ' | "b" %s "c"?']) % inner
        lines.append("%s ::= %s\n" % (name, body))
    return "".join(lines)


def read(compiled, text):
    matcher = xgrammar.GrammarMatcher(compiled, terminate_without_stop_token=True)
    if not text:
        return True, matcher.is_completed()
    return (True, matcher.is_completed()) if matcher.accept_string(text) else (False, False)


def texts_of(rng, compiled):
    """Half of them are random walks through what is taken, each letter with a neighbour."""
    out = [""]
    for i in range(24):
        text = ""
        for _ in range(rng.randrange(1, 9)):
            good = [c for c in LETTERS + "()" if read(compiled, text + c)[0]] if i % 2 else list(LETTERS)
            text += rng.choice(good) if good else ""
        out.append(text)
        out.append(text + rng.choice(LETTERS))
    return sorted(set(out))


def main():
    rng = random.Random(3)
    info = xgrammar.TokenizerInfo(["</s>"] + [chr(c) for c in range(32, 127)], stop_token_ids=[0])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    out = []
    for _ in range(150):
        text = grammar(rng)
        compiled = compiler.compile_grammar(xgrammar.Grammar.from_ebnf(text))
        texts = texts_of(rng, compiled)
        found = [read(compiled, t) for t in texts]
        out.append({"grammar": text, "texts": texts, "begins": "".join("01"[b] for b, _ in found), "whole": "".join("01"[w] for _, w in found)})
    with open(os.path.join(HERE, "gbnf.json"), "w", encoding="utf-8") as f:
        json.dump(out, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
