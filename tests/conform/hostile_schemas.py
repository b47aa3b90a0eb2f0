#!/usr/bin/env python3
"""CPU time for schemas that are made to cost much: each is refused or compiled, with the first mask of a vocabulary, within 100 ms of
one core.

    make hostile-schemas TOKENIZER=tokenizer.json

Prints a row for each, with the work that counted (a unit is about 30 ns), and fails if one needs more."""
import argparse
import json
import sys

from schema_driver import SchemaDriver

LIMIT_MS = 100
TIMES = 3  # the least counts: other programs take caches


def nest(n, opening, inner, closing):
    return opening * n + inner + closing * n


def alphabet(n):
    return [chr(ord("a") + i % 26) + str(i) for i in range(n)]


def pattern(p, **more):
    return {"type": "string", "pattern": p, **more}


def all_of(schemas):
    return {"allOf": list(schemas)}


def chain(n):
    return {"$ref": "#/$defs/d0", "$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(n)} | {f"d{n}": {"type": "null"}}}


def tree(n, keyword):
    """n levels, at each of which two references lead on to the same."""
    return {"$ref": "#/$defs/d0",
            "$defs": {f"d{i}": {keyword: [{"$ref": f"#/$defs/d{i + 1}"}, {"$ref": f"#/$defs/d{i + 1}", "title": "b"}]} for i in range(n)}
            | {f"d{n}": {"type": "null"}}}


def objects_by_choice(n):
    """Objects of n properties, each of them one of two objects that look alike for long."""
    return {"properties": {k: {"anyOf": [{"required": ["x" * 50 + "1"], "properties": {"x" * 50 + "1": {}}},
                                         {"required": ["x" * 50 + "2"], "properties": {"x" * 50 + "2": {}}}]} for k in alphabet(n)}}


def grow(n, of):
    """The conjunction of n schemas, each with an own property for the same nested schema."""
    return {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"properties": {k: {"$ref": "#/$defs/a"} for k in alphabet(of)},
                                                              "additionalProperties": {"$ref": "#/$defs/b"}, "title": str(i)}
                                                             for i in range(n)]},
                                           "b": {"properties": {"z": {"$ref": "#/$defs/a"}}}}}


def subsets(n):
    """Nested schemas that each hold for a set of names of their own: 2^n sets of schemas may hold for one value."""
    return {"$ref": "#/$defs/s", "$defs": {"s": {"allOf": [{"$ref": f"#/$defs/d{i}"} for i in range(n)]},
                                           **{f"d{i}": {"properties": {f"p{k}": {"$ref": f"#/$defs/d{(i + k * 7) % n}"} for k in range(n) if k != i}}
                                              for i in range(n)}}}


# As JSON where json.dumps cannot nest so deep.
CASES = {
    # recursion
    "$ref to itself": {"$ref": "#"},
    "$ref in a circle": {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/b"}]}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}},
    "array of itself, minItems 1": {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    "object that requires itself": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "unsatisfiable 40 levels deep": nest(40, '{"type":"object","required":["a"],"properties":{"a":', "false", "}}"),
    "unsatisfiable number 40 levels deep": 
        nest(40, '{"type":"array","minItems":1,"items":', '{"type":"integer","minimum":3,"maximum":2}', "}"),
    "unsatisfiable pattern": pattern("^[a-c]{5}$", maxLength=4),
    "unsatisfiable patterns": all_of(pattern(p) for p in ("^(..)*$", "^(...)*$", "^(.{5})*$", "^(.{7})*$", "^.{1,209}$")),
    "$ref chain of 10,000": chain(10000),
    "$ref chain of 90": chain(90),
    "tree of anyOf, 15 levels": tree(15, "anyOf"),
    "tree of allOf, 15 levels": tree(15, "allOf"),
    "tree of oneOf, 9 levels": tree(9, "oneOf"),
    "conjunctions of conjunctions": grow(30, 30),
    "sets of schemas": subsets(12),
    "sets of schemas, more": subsets(40),
    # size
    "1 MB of description": {"description": "x" * 1000000},
    "1 MB name of a property": {"properties": {"x" * 1000000: {}}, "additionalProperties": False},
    "1 MB constant": {"const": "x" * 1000000},
    "1 MB enum of one value": {"enum": ["é" * 500000]},
    "1 MB pattern": pattern("x" * 1000000),
    "60 KB pattern": pattern("x" * 60000),
    "60 KB of alternatives": pattern("|".join(alphabet(15000))[:60000]),
    "60 KB of classes": pattern("[a-cx-z0-5]" * 5400),
    "100,000 properties": {"properties": {k: {} for k in alphabet(100000)}},
    "2,000 properties": {"properties": {k: {} for k in alphabet(2000)}},
    "2,000 properties, no others": {"properties": {k: {} for k in alphabet(2000)}, "additionalProperties": False},
    "2,000 properties, none required, at most 9": {"properties": {k: {} for k in alphabet(2000)}, "maxProperties": 9},
    "1,000 properties with schemas": {"properties": {k: {"type": "integer", "minimum": i, "maximum": 7 * i} for i, k in
                                                     enumerate(alphabet(1000))}, "additionalProperties": False},
    "2,000 properties with patterns": {"properties": {k: pattern(f"^{k}(a|b)*{k}$") for k in alphabet(2000)}},
    "2,000 required names": {"required": alphabet(2000)},
    "100,000 required names": {"required": alphabet(100000)},
    "2,000 properties and four patterns for names": {"properties": {k: {} for k in alphabet(2000)},
                                                     "patternProperties": {p: {} for p in ("a.*b", "c.*d", "1.*2.*3", "z$")}},
    "100,000 items in prefixItems": {"prefixItems": [{"type": "null"}] * 100000},
    "2,000 items in prefixItems": {"prefixItems": [{"const": i} for i in range(2000)]},
    "10,000 words in an enum": {"enum": alphabet(10000)},
    "10,000 numbers in an enum": {"enum": list(range(10000))},
    "10,000 words that a pattern allows": {"enum": alphabet(10000), "pattern": "^[a-z0-9]*$", "maxLength": 6},
    "10,000 numbers within bounds": {"enum": list(range(10000)), "minimum": 5, "maximum": 9000, "multipleOf": 7},
    "10,000 objects in an enum": {"enum": [{"a": {k: i}} for i, k in enumerate(alphabet(10000))]},
    "1,000 objects in an enum": {"enum": [{"a": {k: i}} for i, k in enumerate(alphabet(1000))]},
    "10,000 long words in an enum": {"enum": ["é" * 50 + k for k in alphabet(10000)]},
    "enum of 3,000 within an enum of 3,000": all_of([{"enum": alphabet(3000)}, {"enum": alphabet(3000)[::-1]}]),
    "200 enums of 3,000": {"properties": {k: {"enum": [k + x for x in alphabet(3000)]} for k in alphabet(200)}},
    "names of an enum of 10,000": {"propertyNames": {"enum": alphabet(10000)}},
    "2,000 levels of items": nest(2000, '{"items":', "{}", "}"),
    "900 levels of objects": nest(900, '{"properties":{"a":', "{}", "}}"),
    "900 levels of anyOf": nest(900, '{"anyOf":[', "{}", "]}"),
    "90 levels of allOf": nest(90, '{"allOf":[', "{}", "]}"),
    "900 levels of a constant": '{"const":' + nest(900, "[", "1", "]") + "}",
    "180 levels of a constant": '{"const":' + nest(180, '{"a":', "1", "}") + "}",
    "1 MB of small schemas": {"properties": {k: {"properties": {x: {"type": "string", "minLength": 1} for x in alphabet(20)}}
                                             for k in alphabet(1300)}},
    "minLength 1,000,000": {"type": "string", "minLength": 1000000},
    "minItems 1,000,000": {"type": "array", "items": {"type": "null"}, "minItems": 1000000},
    "maxItems of maxItems": nest(100, '{"maxItems":100000,"type":"array","items":', '{"type":"null"}', "}"),
    "bounds of 60 digits": {"type": "number", "minimum": 1e-59, "maximum": 1.2345678901234567e59},
    "bounds of 60 digits, multiples": {"type": "integer", "minimum": int("1" * 60), "maximum": int("7" * 60), "multipleOf": 99991},
    "multiples of 100,000 numbers": {"type": "integer", "multipleOf": 99991},
    "multiples within bounds": {"type": "integer", "multipleOf": 99991, "minimum": 1, "maximum": 99990},
    "multiples that never meet": all_of([{"type": "integer", "multipleOf": 313}, {"multipleOf": 317}, {"minimum": 99222, "maximum": 198441}]),
    # expressions
    "(a*)*b": pattern("^(a*)*b$"),
    "(a|aa)+$": pattern("(a|aa)+$"),
    "(a|a|a)*{30}": pattern("^((a|aa|aaa)*){30}$"),
    "(.*a){20}": pattern("(.*a){20}"),
    "(.*a){200}": pattern("(.*a){200}"),
    "(.*a.{20}": pattern("^.*a.{20}$"),
    "[ab]*a[ab]{16}": pattern("^[ab]*a[ab]{16}$"),
    "[^x]{1,1000}{1,1000}": pattern("^[^x]{1,1000}{1,1000}$"),
    "([^x]{1,1000}y?){1,1000}": pattern("^([^x]{1,1000}y?){1,1000}$"),
    "x{0,100000}(y|z)": pattern("^x{0,100000}(y|z)$"),
    "(x{0,1000}y{0,1000}z{0,1000})*": pattern("^(x{0,1000}y{0,1000}z{0,1000})*$"),
    "((x?){1000}){1000}": pattern("^((x?){1000}){1000}$"),
    "x?{500}x{500}": pattern("^" + "x?" * 500 + "x" * 500 + "$"),
    "(x{1,9}){1,9} five times": pattern("^" + nest(5, "(", "x", "{1,9}){1,9}") + "$"),
    "brackets, 190 levels": pattern(nest(190, "(", "a", ")*")),
    "brackets, 5,000 levels": pattern(nest(5000, "(", "a", ")")),
    "20 look-aheads": pattern("^" + "".join(f"(?=.*{k}.*{k})" for k in "abcdefghijklmnopqrst") + ".*$"),
    "20 negative look-aheads": pattern("^" + "".join(f"(?!.*{k}.{{3}}{k})" for k in "abcdefghijklmnopqrst") + ".*$"),
    "30 patterns by allOf": all_of(pattern(f"{chr(97 + i % 26)}.*{i}") for i in range(30)),
    "60 patterns by allOf, of growing periods": all_of(pattern(f"^(.{{{i}}})*$") for i in range(2, 62)),
    "patterns that nothing satisfies": all_of(pattern(p) for p in ("^(a|b)*a(a|b){9}$", "^(a|b)*b(a|b){9}$")),
    "patterns and lengths": pattern("^(a|b)*a(a|b){12}$", minLength=500, maxLength=1000),
    "uri of at most 1,000, with a pattern": {"type": "string", "format": "uri", "maxLength": 1000, "pattern": "a.*b.*c"},
    "email, uri and date-time at once": all_of({"type": "string", "format": f} for f in ("email", "uri", "date-time")),
    "uri and email": all_of({"type": "string", "format": f} for f in ("email", "uri")),
    "ipv6 and a pattern": {"type": "string", "format": "ipv6", "pattern": "(.*a){5}"},
    "200 uris": {"properties": {k: {"format": "uri", "type": "string", "maxLength": 100 + i} for i, k in enumerate(alphabet(200))},
                 "required": alphabet(200)},
    "anyOf of 200 uris": {"anyOf": [{"format": "uri", "type": "string", "maxLength": 100 + i} for i in range(200)]},
    "anyOf of 200 patterns": {"anyOf": [pattern(f"^.*{k}.*{k}$") for k in alphabet(200)]},
    "oneOf of 60 patterns": {"oneOf": [pattern(f"^.*{k}.*{k}$") for k in alphabet(60)]},
    "oneOf of 400 constants": {"oneOf": [{"const": k} for k in alphabet(400)]},
    "oneOf of 60 objects": {"oneOf": [{"properties": {"kind": {"const": k}, "v": {}}, "required": ["kind"]} for k in alphabet(60)]},
    "20,000 characters in a class": pattern("[" + "".join(chr(0x4e00 + 2 * i) for i in range(10000)) + "]*"),
    # combinations
    "anyOf of 200 x allOf": all_of({"anyOf": [{"minLength": i + 200 * k} for i in range(200)]} for k in range(3)),
    "anyOf of 200 x allOf of 40": {"anyOf": [all_of({"minimum": i, "maximum": 99 + k, "title": f"{i}/{k}"} for k in range(40))
                                             for i in range(200)]},
    "anyOf of 20 x anyOf of 20": all_of([{"anyOf": [pattern(f"^{k}.*") for k in alphabet(20)]}, {"anyOf": [pattern(f"{k}$") for k in alphabet(20)]}]),
    "anyOf of 2, ten times": all_of({"anyOf": [{"required": [k]}, {"properties": {k: {"type": "null"}}}]} for k in alphabet(10)),
    "anyOf of 2, nine times, nested": {"$ref": "#/$defs/a", "$defs": {"a": {
        "allOf": [{"anyOf": [{"required": [k]}, {"properties": {k: {"$ref": "#/$defs/a"}}}]} for k in alphabet(9)]}}},
    "objects that look alike": objects_by_choice(60),
    "anyOf of 500 objects that look alike": {"anyOf": [{"properties": {"a" * 20: {"type": "integer"}, k: {"type": "null"}}, "required": ["a" * 20, k]}
                                                       for k in alphabet(500)]},
    "anyOf of 300 arrays of all": {"anyOf": [{"type": "array", "minItems": i, "maxItems": 1000 - i} for i in range(300)]},
    "60 dependentRequired": {"dependentRequired": {k: [x] for k, x in zip(alphabet(60), alphabet(60)[1:])}},
    "dependentSchemas of itself": {"dependentSchemas": {k: {"$ref": "#"} for k in alphabet(20)}},
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", help="tokenizer.json of a large vocabulary")
    parser.add_argument("only", nargs="*", help="cases whose names contain this")
    args = parser.parse_args()
    driver = SchemaDriver(args.tokenizer)
    slow = []
    print("| schema | CPU, ms | units of work | answer |\n|---|---|---|---|")
    for name, schema in CASES.items():
        if args.only and not any(o in name for o in args.only):
            continue
        line = '{"schema":' + (schema if isinstance(schema, str) else json.dumps(schema)) + "}"
        answers = [driver.ask_text(line) for _ in range(TIMES)]
        ms = min(a["cpu_ms"] for a in answers)
        a = answers[0]
        print(f"| {name} | {ms:.1f} | {a['work']} | {'refused: ' + a['error'].replace('|', ' ')[:90] if 'error' in a else 'enforced'} |", flush=True)
        if ms > LIMIT_MS:
            slow.append(name)
    print(f"\n{len(CASES)} schemas; above {LIMIT_MS} ms: {', '.join(slow) or 'none'}")
    sys.exit(bool(slow))


main()
