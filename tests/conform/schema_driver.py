"""od-schema (od_schema.c) as a child: schemas in, what the server would do with them out. Standard library."""
import json
import os
import subprocess

PROGRAM = os.path.join(os.environ.get("B", "build"), "tests", "od-schema")


class SchemaDriver:
    def __init__(self, *args):
        self.p = subprocess.Popen([PROGRAM, *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")

    def ask(self, schema, check=(), texts=0, seed=1):
        return self.ask_text(json.dumps({"schema": schema, "check": list(check), "texts": texts, "seed": seed}))

    def ask_text(self, line):
        """line: the request as JSON, which json.dumps could not nest deep enough."""
        self.p.stdin.write(line + "\n")
        self.p.stdin.flush()
        answer = self.p.stdout.readline()
        assert answer, f"od-schema ended with {self.p.wait()}: {line[:300]}"
        return json.loads(answer)
