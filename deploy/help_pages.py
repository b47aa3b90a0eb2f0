#!/usr/bin/env python3
"""Man pages and bash completions from the tables behind --help. The programs print them as rows (common/base/args.h).

    help_pages.py BIN OUT     BIN: a folder of programs; OUT/man1 and OUT/completions are written

Commands that --help lists under "Commands", or names in its usage as "(od-worker join --help)", have pages of their own. $SOURCE_DATE_EPOCH is the date of the pages."""
import os
import re
import subprocess
import sys
import time

SUMMARIES = {
    "od-bench": "benchmarks of od-moe",
    "od-chat": "chat in the terminal with a server of OpenAI's API",
    "od-main": "run a mixture-of-experts language model on several machines, or on this one",
    "od-plan": "say whether a model runs on given machines, how fast, and what limits it",
    "od-pack": "make, check and inspect packs of models",
    "od-shadow": "predict the experts that od-main needs next",
    "od-worker": "load and run experts for od-main",
}


class Option:
    def __init__(self, row):
        self.name, self.metavar, choices, self.help = row.split("\t")
        self.choices = choices.split()
        if not self.choices and re.fullmatch(r"[a-z0-9]+(\|[a-z0-9]+)+", self.metavar):
            self.choices = self.metavar.split("|")


class Help:
    """What a program, or one of its commands, prints as its help."""

    def __init__(self, path, words):
        p = subprocess.run([path, *words, "--help"], env={**os.environ, "OD_HELP_ROWS": "1", "LC_ALL": "C.UTF-8"},
                           stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if p.returncode != 0:
            sys.exit(f"help_pages: {' '.join([path, *words])} --help: {p.stderr.strip()}")
        self.program = os.path.basename(path)
        self.name = " ".join([self.program, *words])
        lines = p.stdout.splitlines()
        self.options = [Option(line[1:]) for line in lines if line.startswith("\t")]
        text = [line for line in lines if not line.startswith("\t")]
        at = next((i for i, line in enumerate(text) if line.startswith("Commands")), len(text))
        self.commands = dict(re.findall(r"^  ([a-z]+) +(.+)$", "\n".join(text[at:]), re.M))
        text = [line for line in text[:at] if line != "Options:"]
        self.n_usage = next((i for i, line in enumerate(text) if not re.match(r"Usage: |       |" + self.program, line)), len(text))
        self.usage = [line.removeprefix("Usage: ").removeprefix("       ") for line in text[:self.n_usage]]
        self.description = text[self.n_usage:]
        for word in re.findall(rf"\({self.name} ([a-z]+) --help\)", "\n".join(self.usage)):
            self.commands.setdefault(word, "")

    def summary(self):
        """The first sentence of the description, for a command that no list explains."""
        text = " ".join(line for line in self.description if line)
        return text[:1].lower() + text[1:].split(". ")[0].rstrip(".")

    def words(self):
        """Commands, also those that only the usage names."""
        usage = re.findall(rf"\b{self.name} ([a-z]+)\b(?!:)", "\n".join(self.usage))
        return sorted({*self.commands, *usage} - {"COMMAND"})


def roff(text):
    text = text.replace("\\", "\\e")
    for char, name in (("-", "\\-"), ("'", "\\(aq"), ("`", "\\(ga"), ("^", "\\(ha"), ("~", "\\(ti")):
        text = text.replace(char, name)
    return "\\&" + text if text.startswith(".") else text


def verbatim(lines):
    return [".EX", *map(roff, lines), ".EE"]


def paragraphs(lines):
    """Prose is filled; tables and examples keep their lines."""
    out, example = [], False
    for line in lines:
        example = line.startswith("Example: ") or (example and line.startswith(" "))
        if line == "":
            out.append(".PP")
        elif line.startswith(" ") or example:
            out += [*verbatim([line])]
        else:
            out.append(roff(line))
    text = "\n".join(out).replace("\n.EE\n.EX", "")
    text = re.sub(r"(\n?\.PP)+$", "", re.sub(r"^(\.PP\n?)+", "", text))
    return re.sub(r"(\.PP\n)+", ".PP\n", text)


def option_entry(o):
    value = f" \\fI{roff(o.metavar)}\\fR" if o.metavar else ""
    return [".TP", f"\\fB\\-\\-{roff(o.name)}\\fR{value}", roff(o.help)]


def man_page(h, summary, version, date):
    page = h.name.replace(" ", "-")
    out = [f'.TH {page.upper()} 1 "{date}" "od-moe {version}" "od-moe"', ".SH NAME", f"{roff(page)} \\- {roff(summary)}",
           ".SH SYNOPSIS", *verbatim(h.usage)]
    described = paragraphs(h.description)
    if described:
        out += [".SH DESCRIPTION", described]
    if h.options:
        out.append(".SH OPTIONS")
    for o in h.options:
        out += option_entry(o) if o.name else [".SS " + roff(o.help)]
    if h.commands:
        out.append(".SH COMMANDS")
    for name, what in sorted(h.commands.items()):
        out += [".TP", f"\\fB{name}\\fR", f"{roff(what)}; see \\fB{roff(page)}\\-{name}\\fR(1)"]
    others = [f".BR {roff(o)} (1)" for o in SUMMARIES if o != page]
    return "\n".join([*out, ".SH SEE ALSO", ",\n".join(others)]) + "\n"


def option_words(h):
    return " ".join("--" + o.name for o in h.options if o.name)


def value_cases(h, indent):
    """Words or files for the value of an option. Nothing is offered for other values."""
    kinds = {}
    for o in h.options:
        if not o.metavar:
            continue
        if o.choices:
            what = f"mapfile -t COMPREPLY < <(compgen -W '{' '.join(o.choices)}' -- \"$cur\")"
        elif o.name == "pack":
            what = "_od_models"
        elif "FILE" in o.metavar:
            what = "_filedir"
        elif "DIR" in o.metavar:
            what = "_filedir -d"
        else:
            what = ":"
        kinds.setdefault(what, []).append("--" + o.name)
    lines = ["case $prev in"]
    lines += [f"{' | '.join(names)}) {what}; return ;;" for what, names in kinds.items()]
    return [indent + line for line in [*lines, "esac", '[ "$split" = false ] || return 0']]


def offers(h, first_words, indent):
    positional = "_od_models" if h.program == "od-pack" else "_filedir"
    if first_words: # od-pack also takes a folder as its first word
        positional = f"[ \"$cword\" -gt 1 ] || mapfile -t COMPREPLY < <(compgen -W '{' '.join(first_words)}' -- \"$cur\")" + (
            "; _od_models" if h.program == "od-pack" else "")
    lines = ["case $cur in", f"-*) mapfile -t COMPREPLY < <(compgen -W '{option_words(h)}' -- \"$cur\") ;;",
             f"*) {positional} ;;", "esac"]
    return [indent + line for line in lines]


# Files and folders, and the names of models in the folders where programs look for them.
MODELS = """_od_models()
{
	local folder
	_filedir
	case $cur in */*) return ;; esac
	for folder in "${OD_MODELS-}" /var/lib/od-moe/models "${XDG_DATA_HOME:-$HOME/.local/share}/od-moe/models"; do
		[ ! -d "$folder" ] || mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(cd "$folder" && compgen -f -- "$cur")
	done
} &&"""


def completion(h, commands):
    function = "_" + h.name.replace("-", "_")
    out = [f"# Completes {h.name} in bash. Made by deploy/help_pages.py.", f"{function}()", "{",
           "\t# shellcheck disable=SC2034 # _init_completion sets all of them", "\tlocal cur prev words cword split", "\t_init_completion -s || return"]
    if commands:
        out += ["\tif [ \"$cword\" -gt 1 ]; then", "\t\tcase ${words[1]} in"]
        for c in commands:
            out += [f"\t\t{c.name.split()[-1]})", *value_cases(c, "\t\t\t"), *offers(c, [], "\t\t\t"), "\t\t\treturn", "\t\t\t;;"]
        out += ["\t\tesac", "\tfi"]
    out += [*value_cases(h, "\t"), *offers(h, h.words(), "\t"), "} &&", f"\tcomplete -F {function} {h.name}"]
    if any("_od_models" in line for line in out):
        out.insert(1, MODELS)
    return "\n".join(out) + "\n"


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def main(bin_dir, out_dir):
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    date = time.strftime("%Y-%m-%d", time.gmtime(int(epoch))) if epoch else ""
    for program, summary in SUMMARIES.items():
        path = os.path.join(bin_dir, program)
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
        h = Help(path, [])
        commands = [Help(path, [word]) for word in sorted(h.commands)]
        for c in commands:
            word = c.name.split()[-1]
            h.commands[word] = h.commands[word] or c.summary()
        for page, what in [(h, summary)] + [(c, h.commands[c.name.split()[-1]]) for c in commands]:
            write(f"{out_dir}/man1/{page.name.replace(' ', '-')}.1", man_page(page, what, version, date))
        write(f"{out_dir}/completions/{program}", completion(h, commands))


if __name__ == "__main__":
    main(*sys.argv[1:])
