#!/usr/bin/env python3
"""Writes regex.json: patterns, texts, and which of them Python's re matches, as a whole and in some part.

    tests/golden/grammar/make_regex.py

Patterns are ECMA-262's. What Python writes in another way is translated: . and $, names of groups, \\u{...}, \\cX and classes without
members. Then both give the same answers: \\d, \\w and \\s are ASCII's.
"""
import json
import os
import random
import re
import warnings

warnings.simplefilter("ignore")  # Python warns of [[ and -- in classes
HERE = os.path.dirname(os.path.abspath(__file__))


def translated(pattern):
    out, i, in_class = [], 0, False
    while i < len(pattern):
        c = pattern[i]
        if c == "\\":
            m = re.match(r"\\u\{([0-9a-fA-F]+)\}", pattern[i:])
            pair = re.match(r"\\u(d[89ab]..)\\u(d[c-f]..)", pattern[i:])
            control = re.match(r"\\c([A-Za-z])", pattern[i:])
            if m:
                out.append(re.escape(chr(int(m.group(1), 16))))
                i += m.end()
            elif pair:
                text = pair.group(0).encode().decode("unicode-escape")
                out.append(text.encode("utf-16", "surrogatepass").decode("utf-16"))
                i += pair.end()
            elif control:
                out.append("\\x%02x" % (ord(control.group(1)) & 31))
                i += control.end()
            else:
                out.append({"\\z": "\\Z", "\\e": "\\x1b"}.get(pattern[i:i + 2], pattern[i:i + 2]))
                i += 2
            continue
        if in_class:
            in_class = c != "]"
            out.append("\\[" if c == "[" else c)
        elif pattern.startswith("[^]", i):
            out.append(r"[\s\S]")
            i += 2
        elif pattern.startswith("[]", i):
            out.append("(?!)")
            i += 1
        elif c == "[":
            in_class = True
            out.append(c)
        elif c == ".":
            out.append(r"[^\n\r\u2028\u2029]")
        elif c == "$":
            out.append(r"\Z")
        elif re.match(r"\(\?<[a-z]", pattern[i:]):
            out.append("(?P<")
            i += 2
        else:
            out.append(c)
        i += 1
    return "".join(out)


def case(pattern, texts):
    compiled = re.compile(translated(pattern), re.ASCII)
    return {"pattern": pattern, "full": "".join("01"[compiled.fullmatch(t) is not None] for t in texts),
            "search": "".join("01"[compiled.search(t) is not None] for t in texts)}


GROUPS = [
    # classes, escapes, Unicode
    (["", "a", "b", "Z", "_", "0", "7", "-", "]", "[", "^", "\\", "/", " ", "\t", "\n", "\r", "\v", "\f", "\x00", "\x1b", "\x1f", "\x7f",
      "\b", "\"", "'", ".", "é", "ß", "Ω", "\u0800", "\uf900", "二", "\uffff", "\ufffd", "\ud7ff", "\ue000", "😀", "𐀀", "\U0010ffff",
      "\u2028", "ab", "a-", "é二", "😀a", "{", "}", "a{", "a{,", "a}", "\u0080", "\u07ff", "{1}", ",", "\x01"],
     [r".", r"[a-c]", r"[^a-c]", r"\d", r"\D", r"\w", r"\W", r"\s", r"[\d_]", r"[^\d_]", r"[\w-]", r"[-\w]", r"[a\-z]", r"[a-]", r"[\]]",
      r"[\[]", r"[[]", r"[\\]", r"[\b]", r"[^\s]", r"[.]", r"\.", r"\/", r"\-", r"[^]", r"[]", r"[^^]", r"[\^a]", r"\t|\n|\r|\v|\f",
      r"\0", r"\x61", r"\x1B", r"\u0061", r"é", r"\u00e9", r"\u00E9", r"[à-ü]", r"[^à-ü]", r"\u4e8c", r"[一-龥]", r"\u{1F600}", r"😀",
      r"[😀-😂]", r"\ud83d\ude00", r"[\u0000-\u001f]", r"[\u{10000}-\u{10ffff}]", r"[\u0000-\u{10ffff}]", r"\cA", "[\u07ff-\u0800]",
      "[\ud7ff-\ue000]", r"[\ufffd-\u{10000}]", r"[^\u{0}-\u{ffff}]", r"\e", r"[\x00-\x7f]", r"[^\x00-\x7f]", r"..", r"\w\W", r"[\W]",
      r"[\w\W]", r"[\D\d]", r"{", r"a{", r"a{,", r"a\{", r"}", r"\}", r"]", r"\]", r"[+--]", r"[!-~]", r"a{}", r"\"", "\"",
      r"[\"\\]", r"[^\"\\]"]),
    # repetitions
    (["", "a", "aa", "aaa", "aaaa", "aaaaa", "b", "ab", "ba", "abab", "ababab", "aab", "abb", "aabb", "c", "abc", "ca", "aaab", "bab",
      "a" * 12, "ab" * 6, "é", "éé", "ééé", "\n\n"],
     [r"", r"a*", r"a+", r"a?", r"a{2}", r"a{2,}", r"a{2,4}", r"a{0}", r"a{0,1}", r"a{1}", r"a{,3}", r"(ab)*", r"(?:ab)+", r"(ab){2}", r"(ab){2,3}",
      r"a*b*", r"(a|b)*", r"(a|b){3}", r"a*?", r"a+?b", r"a??", r"a{2,4}?", r"(a*)*", r"(a*)+b", r"(a+)+", r"(a?){3}", r"(a?){2,4}b",
      r"(a|aa){2}", r"(a|ab)(b|)", r"(?<x>a)b", r"((a))", r"()", r"(|a)", r"(a|)", r"a||b", r"|", r"(?:)*", r"(?:)+a", r"(a{2}){2}",
      r"(a{1,2}){2,3}", r"a{12}", r"é{2}", r"[aé]+", r"(ab|a)*", r"\n{2}", r"(a*b?){2}c?", r"(?:a|b|)+", r"(b?a){2,}", r"a{3,3}", r"(a{0})+"]),
    # anchors, and look-aheads at the start
    (["", "a", "b", "ab", "ba", "aa", "bb", "aba", "bab", "abc", "cab", "xab", "abx", "xabx", "a1", "1a", "Abc123", "abc", "A1", "a\n", "\na",
      "c", "ac", "bc", "aab", "abb", "\"", "a\"b", "é", "aé", "éa"],
     [r"^", r"$", r"^$", r"$^", r"^a", r"a$", r"^a$", r"^ab|c$", r"(^a|b)", r"(^a|b)$", r"(?:^|x)ab", r"ab(?:$|x)", r"(?:^|x)ab(?:$|x)", r"a|^b",
      r"a|b$", r"(a|^)b", r"a(b|$)", r"^(a|b)$", r"(^|a)b($|a)", r"a^", r"$a", r"a^b", r"a$b", r"a*^b", r"a*$", r"^a*", r"^a*$", r"a?^b?$", r"(a|$)(b|^)",
      r"(^)?a", r"(?:^a)?b", r"(?:a$)?", r"b(?:$)?", r"^^a", r"a$$", r"(^(a))", r"((a)$)", r"(^a$|^b$)", r"^(?:a|b$)", r"\Aab", r"ab\z", r"ab\Z",
      r"(?:^a){1}b", r"(?:^a){0}", r"(?:^a){0}b", r"(?:^a){0,1}b", r"(?:^|a)(?:^|b)(?:$|c)", r"(?:(?:^|x)a|b$)", r"^(?=a)", r"^(?=a).*b", r"^(?!a)", r"^(?!a).*", r"^(?!.*b)",
      r"^(?=.*\d)(?=.*[A-Z]).{2,}$", r"^(?!ab$)", r"^(?!ab$).*$", r"^(?=a$)", r"^(?=^a)", r"^(?=a|b$)..", r"^(?!a|b)(?!x)", r"^(?=(a|b)+$)a", r"^(?![^\"]*\")", r"^(?!^a)b",
      r"^(?=)", r"^(?!)", r"[^a]$", r"^[^a]", r"^.$", r"^..$", r"(?:$)", r"(?:^)", r"(?:a|^)(?:b|$)", r"(a*^)b*", r"^abcdefghijklmnopqrstuvwxyz0123456789$",
      r"(?:(?:(?:^|a)|b)|c)(?:$|x)"]),
    # patterns of schemas
    (["2024-01-31", "2024-1-31", "24-01-31", "+1 (555) 123-4567", "555-1234", "a@b.co", "a@b", "x.y+z@ex-ample.org", "#ff00AA", "#ff0", "#ggg",
      "192.168.0.1", "256.1.1.1", "1.5", "-0.25", "1e10", "01", "v1.2.3", "1.2.3-rc.1", "550e8400-e29b-41d4-a716-446655440000", "PT1H", "snake_case",
      "CamelCase", "", "\"quoted\"", "C:\\dir", "a/b/c", "/usr/bin", "grüße", "12:30", "25:00"],
     [r"^\d{4}-\d{2}-\d{2}$", r"^(\+\d{1,2}\s)?\(?\d{3}\)?[\s.-]\d{3}[\s.-]\d{4}$", r"^(\([0-9]{3}\))?[0-9]{3}-[0-9]{4}$",
      r"^[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,}$", r"^#([A-Fa-f0-9]{6}|[A-Fa-f0-9]{3})$",
      r"^((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)\.){3}(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)$", r"^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$",
      r"^v?(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-((?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(?:\.(?:0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*))?$",
      r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", r"^P.+$", r"^[a-z]+(_[a-z]+)*$", r"^([A-Z][a-z]+)+$", r"^\"[^\"]*\"$", r"\\", r"^(/[^/]+)+$",
      r"^\S+$", r"^([01]?[0-9]|2[0-3]):[0-5][0-9]$", r"[äöüß]", r"^.{1,8}$", r"\d", r"[^\x00-\x7f]"]),
]


def random_pattern(rng, depth, anchors):
    kind = rng.randrange(12 if depth > 0 else 5)
    if kind < 3:
        return rng.choice(["a", "b", "c", "é", "\\n", "\""])
    if kind == 3:
        return rng.choice(["[ab]", "[^a]", ".", "[^bé]", "[c-é]", "\\w", "\\W"])
    if kind == 4:
        return rng.choice(["^", "$"]) if anchors else "a"
    if kind < 8:
        return "".join(random_pattern(rng, depth - 1, anchors) for _ in range(rng.randrange(2, 4)))
    if kind < 10:
        return "(?:" + "|".join(random_pattern(rng, depth - 1, anchors) for _ in range(rng.randrange(1, 4))) + ")"
    times = rng.choice(["*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}", "*?"])
    return "(?:" + random_pattern(rng, depth - 1, anchors and times == "?") + ")" + times


def random_group(rng):
    texts = ["", "\n", "\""] + ["".join(rng.choice("abcé\n\"" if i % 3 else "ab") for _ in range(1 + i % 5)) for i in range(45)]
    return (sorted(set(texts)), [random_pattern(rng, 4, i % 2 == 0) for i in range(400)])


def main():
    groups = GROUPS + [random_group(random.Random(1))]
    out = [{"texts": texts, "json": [json.dumps(t, ensure_ascii=False)[1:-1] for t in texts],
            "cases": [case(p, texts) for p in dict.fromkeys(patterns)]} for texts, patterns in groups]
    with open(os.path.join(HERE, "regex.json"), "w", encoding="utf-8") as f:
        json.dump(out, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
