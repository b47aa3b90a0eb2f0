"""Random JSON schemas of what od-main serve enforces, seeded. Standard library.

Every second one has at least three levels of arrays or objects and eight keywords that constrain. Most strings, arrays and numbers are
bounded, so that texts of them are short even if each choice is made by chance; what each part needs at least is always possible."""
import json
import random
import urllib.parse

MIN_LEVELS, MIN_KEYWORDS = 3, 8  # of every second schema
ANNOTATIONS = {"$defs", "description", "properties", "title"}
NAMES = ["name", "age", "größe", "ключ", "名前", "a b", "x-1", "kind", "id", "tags", "🐦", "it's", "a/b", "m~n", "q\"q", "back\\slash", "",
         "tab\there", "size", "next", "value", "Note", "_", "0"]
WORDS = ["king", "bird", "daughter", "Ende", "Straße", "über", "да", "雪", "🐦🐦", "two words", "it's", "a\"b", "c\\d", "line\nbreak", "",
         "null", "3", "é"]
FORMATS = ["date", "time", "date-time", "uuid", "email", "ipv4", "ipv6", "uri"]
# Patterns and the least length of what matches.
BOUNDED = [
    (r"^[a-z]{2,5}$", 2), (r"^[A-Z][a-z]{1,6}$", 2), (r"^\d{3}-\d{4}$", 8), (r"^(yes|no|perhaps)$", 2), (r"^#[0-9a-fA-F]{6}$", 7),
    (r"^(?:a|bc|def){1,3}$", 1), (r"^[äöüß]{1,4}$", 1), (r"^[\u0430-\u044f]{2,5}$", 2), (r"^v\d+\.\d+\.\d+$", 6), (r"^\S{1,6}$", 1),
    (r"^[^\s\d]{1,4}$", 1), (r"^\w{1,3}\.(txt|md)$", 4), (r"^(\+|-)?[1-9]\d{0,3}$", 1), (r"^.{2,4}$", 2), (r"^\[\w+\]$", 3),
    (r"^a?b?c?d$", 1), (r"^(0|1){4}$", 4), (r"^x{3}(y|z)?$", 3), (r"^\x41\u0042?$", 1), (r"^雪{1,2}[🐦🦊]$", 2),
    (r"^[\"\\/]{1,2}$", 1), (r"^\D{2}$", 2), (r"^\W{1,2}$", 1), (r"^[^\w]$", 1), (r"^[\w.-]{1,6}@[a-z]{2,4}\.(?:de|org)$", 7), (r"^$", 0),
    (r"^(?!ab)[a-c]{2,3}$", 2), (r"^(?=.*z)[x-z]{1,4}$", 1), (r"^(?:\t|\n)$", 1),
]
UNBOUNDED = [
    (r"^[a-z]+$", 1), (r"^[A-Z][a-z]*$", 1), (r"^(ab|cd)+$", 2), (r"ing$", 3), (r"^The ", 4), (r"[0-9]", 1), (r"^\w+( \w+)*$", 1),
    (r"(king|queen)", 4), (r"^[^,;]*,[^,;]*$", 1), (r"^\d+$", 1), (r"", 0), (r"^a|b$", 1),
]


class SchemaWriter:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.seen = set()
        self.n = 0

    def schema(self):
        """A schema that was not written before."""
        rich = self.n % 2 == 1
        while True:
            s = self.one(rich)
            if rich and (levels(s) < MIN_LEVELS or len(keywords(s)) < MIN_KEYWORDS):
                continue
            text = json.dumps(s, sort_keys=True)
            if text not in self.seen:
                self.seen.add(text)
                self.n += 1
                return s

    def one(self, rich):
        self.defs = {}
        self.left = self.random.randint(8, 20) if rich else self.random.randint(1, 8)  # values
        s = self.nested(1) if rich or self.random.random() < 0.4 else self.value(1)
        if self.defs:
            s = {**s, self.random.choice(["$defs", "definitions"]): self.defs}
        place = "definitions" if "definitions" in s else "$defs"
        return json.loads(json.dumps(s).replace("#/DEFS/", f"#/{place}/"))

    def chance(self, p):
        return self.random.random() < p

    def nested(self, depth):
        return self.object(depth) if self.chance(0.7) else self.array(depth)

    def value(self, depth):
        """A schema for any value."""
        self.left -= 1
        r = self.random.random()
        if self.left <= 0 or depth > 5 or r < 0.38:
            return self.scalar()
        if r < 0.72:
            return self.nested(depth)
        return self.random.choice([self.reference, self.recursive, self.any_of, self.one_of, self.all_of, self.literal, self.types])(depth)

    # ---- Scalars ----

    def scalar(self):
        s = self.random.choice([self.string] * 3 + [self.number] * 3 + [self.enum, self.constant, self.boolean])()
        return {"description": self.random.choice(WORDS), **s} if self.chance(0.1) else s

    def boolean(self):
        return {"type": self.random.choice(["boolean", "null", ["boolean", "null"]])}

    def constant(self):
        return {"const": self.scalar_value()}

    def scalar_value(self):
        r = self.random
        return r.choice([None, True, False, r.randint(-99, 999), r.randint(-9999, 9999) / 100, 1e-3, r.choice(WORDS), r.choice(WORDS)])

    def enum(self):
        values = [self.random.choice(WORDS) + self.random.choice(["", "", "s", " 2"]) for _ in range(self.random.randint(2, 6))]
        s = {"enum": list(dict.fromkeys(values))}
        if self.chance(0.3):
            s["type"] = "string"
        if self.chance(0.2):
            s["enum"] += [7, None]
            s.pop("type", None)
        elif self.chance(0.2):
            s["maxLength"] = max(map(len, s["enum"])) - self.chance(0.5) * (len(min(s["enum"], key=len)) < max(map(len, s["enum"])))
        return s

    def string(self):
        r = self.random.random()
        s = {"type": "string"}
        if r < 0.25:
            s["pattern"], _ = self.random.choice(BOUNDED)
        elif r < 0.4:
            s["pattern"], least = self.random.choice(UNBOUNDED)
            s["maxLength"] = least + self.random.randint(2, 8)
            if self.chance(0.2):
                del s["maxLength"]
        elif r < 0.6:
            s["format"] = self.random.choice(FORMATS)
            if s["format"] in ("email", "uri"):
                s["maxLength"] = self.random.randint(12, 30)
        elif r < 0.97:
            s["maxLength"] = self.random.randint(0, 24)
            if self.chance(0.4):
                s["minLength"] = self.random.randint(0, s["maxLength"])
        return s

    def number(self):
        r = self.random
        kind = r.random()
        s = {"type": "integer" if kind < 0.5 else "number"}
        low = r.randint(-1000, 1000) if kind < 0.5 or self.chance(0.3) else round(r.uniform(-50, 50), r.randint(1, 3))
        high = low + (r.randint(20, 5000) if kind < 0.5 else round(r.uniform(20, 90), r.randint(0, 3)))
        if self.chance(0.8):
            s[r.choice(["minimum", "exclusiveMinimum"])] = low
        if self.chance(0.8):
            s[r.choice(["maximum", "exclusiveMaximum"])] = round(high, 3)
        if self.chance(0.3):
            s["multipleOf"] = r.choice([1, 2, 3, 4, 5, 7, 10])
        return s

    # ---- Arrays and objects ----

    def array(self, depth):
        r = self.random
        s = {"type": "array"}
        prefix = [self.value(depth + 1) for _ in range(r.randint(1, 3))] if self.chance(0.35) else []
        if prefix:
            s["prefixItems"] = prefix
        if prefix and self.chance(0.5):
            s["items"] = False
        else:
            s["items"] = self.value(depth + 1)
            if self.chance(0.9):
                s["maxItems"] = len(prefix) + r.randint(1, 4)
        if self.chance(0.5):
            s["minItems"] = r.randint(0, len(prefix) if s["items"] is False else min(s.get("maxItems", 2), len(prefix) + 2))
        return s

    def object(self, depth):
        r = self.random
        names = r.sample(NAMES, r.randint(1, 5))
        s = {"type": "object", "properties": {k: self.value(depth + 1) for k in names}}
        required = [k for k in names if self.chance(0.6)]
        if required:
            s["required"] = required
        more = r.random()
        if more < 0.65:
            s["additionalProperties"] = False
        elif more < 0.9:
            s["additionalProperties"] = self.scalar()
            s["propertyNames"] = {"maxLength": max(map(len, names)) + r.randint(1, 3)}
            s["maxProperties"] = len(names) + r.randint(0, 2)
        elif more < 0.92:
            s["additionalProperties"] = True
        else:
            s["additionalProperties"] = False
            s["patternProperties"] = {r.choice(["^[k-m]{1,2}$", "^n-"]): self.scalar()}
            s["propertyNames"] = {"maxLength": max(map(len, names)) + 3}
            s["maxProperties"] = len(names) + 1
        if self.chance(0.25):
            s["minProperties"] = r.randint(1, len(names))
        if self.chance(0.15) and "maxProperties" not in s:
            s["maxProperties"] = r.randint(max(len(required), s.get("minProperties", 0), 1), len(names) + 1)
        if self.chance(0.1) and len(names) > 1 and s.get("maxProperties", 9) > 2 + len(required):
            s["dependentRequired"] = {names[0]: [names[1]]}
        return s

    # ---- Several schemas for one value ----

    def reference(self, depth):
        if not self.defs or self.chance(0.5):
            name = f"d{len(self.defs)}" + self.random.choice(["", "é", "/x", "~y", " z"])
            self.defs[name] = {}  # its place, before those within it
            self.defs[name] = self.value(depth + 1)
        name = self.random.choice(list(self.defs))
        if self.defs[name] == {}:  # it stands within itself
            return self.scalar()
        s = {"$ref": pointer(name)}
        if self.chance(0.2) and self.defs[name].get("type") == "string" and "minLength" not in self.defs[name]:
            s["maxLength"] = self.defs[name].get("maxLength", 40)
        return s

    def recursive(self, depth):
        """A list, a tree, or a sum of sums."""
        name = f"r{len(self.defs)}"
        again = {"$ref": pointer(name)}
        self.defs[name] = {}
        value = self.scalar()
        self.defs[name] = self.random.choice([
            {"type": "object", "properties": {"value": value, "next": {"anyOf": [{"type": "null"}, again]}}, "required": ["value"],
             "additionalProperties": False},
            {"type": "object", "properties": {"v": value, "kids": {"type": "array", "items": again, "maxItems": 2}}, "required": ["v"],
             "additionalProperties": False},
            {"anyOf": [value, {"type": "array", "items": again, "maxItems": 2}]},
            {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 9},
                       {"type": "object", "properties": {"op": {"enum": ["+", "×"]}, "args": {"type": "array", "prefixItems": [again, again],
                                                                                             "items": False, "minItems": 2}},
                        "required": ["op", "args"], "additionalProperties": False}]},
        ])
        return again

    def any_of(self, depth):
        return {"anyOf": [self.value(depth + 1) for _ in range(self.random.randint(2, 3))]}

    def one_of(self, depth):
        """Branches that exclude each other: by type, by a constant, by a range."""
        r = self.random
        kind = r.randrange(4)
        if kind == 0:
            kinds = {"string": self.string, "number": self.number, "boolean": lambda: {"type": "boolean"}, "null": lambda: {"type": "null"},
                     "array": lambda: self.array(depth + 1), "object": lambda: self.object(depth + 1)}
            return {"oneOf": [kinds[k]() for k in r.sample(list(kinds), r.randint(2, 3))]}
        if kind == 1:
            words = r.sample(WORDS, 2)
            return {"oneOf": [{"type": "object", "properties": {"kind": {"const": w}, f"of {w}": self.value(depth + 2)},
                               "required": ["kind"], "additionalProperties": False} for w in words]}
        if kind == 2:
            return {"type": "integer", "oneOf": [{"maximum": -10, "minimum": -999}, {"minimum": 10, "exclusiveMaximum": r.randint(12, 5000)}]}
        return {"type": "string", "oneOf": [{"pattern": "^[a-m]{1,5}$"}, {"pattern": "^[n-z]{1,5}$"}, {"const": "7"}]}

    def all_of(self, depth):
        r = self.random
        kind = r.randrange(5)
        if kind == 0:
            return {"allOf": [{"type": "string", "minLength": r.randint(0, 3)}, {"maxLength": r.randint(3, 9)}, {"pattern": "^[a-zé雪]*$"}]}
        if kind == 1:
            return {"type": "integer", "allOf": [{"minimum": r.randint(-50, 0)}, {"exclusiveMaximum": r.randint(60, 999)},
                                                 {"multipleOf": r.choice([2, 3, 5])}, {"multipleOf": r.choice([2, 4, 10])}]}
        if kind == 2:
            words = r.sample(WORDS, 5)
            return {"allOf": [{"enum": words[:4]}, {"enum": words[1:]}]}
        if kind == 3:
            return {"allOf": [{"pattern": "^[^x]*a"}, {"pattern": "b[^x]*$"}, {"type": "string", "maxLength": r.randint(2, 8)}]}
        names = r.sample(NAMES, 3)
        return {"allOf": [{"properties": {names[0]: self.value(depth + 1)}, "required": [names[0]]},
                          {"properties": {names[1]: self.value(depth + 1)}}],
                "type": "object", "properties": {names[0]: {}, names[1]: {}, names[2]: self.scalar()}, "additionalProperties": False}

    def literal(self, depth):
        """Values that are no scalars, as they are."""
        values = [{"a": [1, {"b": None}]}, [], {}, ["é", 2.5, [True]], {"k ": {}}, [[[]]], self.scalar_value()]
        chosen = self.random.sample(values, 2)
        return self.random.choice([{"const": chosen[0]}, {"enum": chosen}])

    def types(self, depth):
        return {"type": self.random.sample(["string", "integer", "boolean", "null", "number"], 2), "maxLength": self.random.randint(1, 9),
                "minimum": self.random.randint(-9, 9), "maximum": self.random.randint(10, 99)}


def pointer(name):
    """To a definition; whether they stand in $defs or in definitions is decided at the end."""
    return "#/DEFS/" + urllib.parse.quote(name.replace("~", "~0").replace("/", "~1"), safe="~")


def parts(s):
    """Schemas within a schema, by keyword: (keyword, is a level deeper, schema)."""
    for k, v in s.items():
        if k in ("properties", "patternProperties", "$defs", "definitions"):
            yield from ((k, k in ("properties", "patternProperties"), x) for x in v.values())
        elif k in ("prefixItems", "anyOf", "oneOf", "allOf"):
            yield from ((k, k == "prefixItems", x) for x in v)
        elif k in ("items", "additionalProperties", "propertyNames"):
            yield k, k != "propertyNames", v


def levels(s):
    """Levels of arrays and objects in each other."""
    if isinstance(s, bool):
        return 0
    return max((deeper + levels(x) for _, deeper, x in parts(s)), default=0)


def keywords(s):
    """All keywords that constrain, each as often as it stands there."""
    if isinstance(s, bool):
        return []
    own = [k for k in s if k not in ANNOTATIONS and k != "definitions"]
    return own + [k for _, _, x in parts(s) for k in keywords(x)]
