#!/bin/bash
# Rules of the house that a compiler does not know: layers, unique names, banned calls.
set -u
cd "$(dirname "$0")/.."
bad=0
complain() { echo "check-source: $*" >&2; bad=1; }
sources() { git ls-files --cached --others --exclude-standard -- "$@" | grep -E '\.(c|h|cu|cuh)$'; }

# common/ includes nothing above it; the daemons never include each other.
while read -r hit; do complain "common/ must not include a daemon: $hit"; done < <(
	sources common | xargs -r grep -nE '#include "(main-node|shadow-node|worker-node|tests|deploy)/')
for d in main-node shadow-node worker-node; do
	while read -r hit; do complain "$d must not include another daemon: $hit"; done < <(
		sources $d | xargs -r grep -nE '#include "(main-node|shadow-node|worker-node|tests)/' |
			grep -v "#include \"$d/")
done
# od-chat is a program of its own: it knows common/base and common/text, and od-main knows nothing of it.
while read -r hit; do complain "main-node/terminal may only include itself and common/(base|text): $hit"; done < <(
	sources main-node/terminal | xargs -r grep -nE '#include "' | grep -vE '#include "(main-node/terminal|common/(base|text))/')
while read -r hit; do complain "only od-chat may include main-node/terminal: $hit"; done < <(
	sources main-node ':!main-node/terminal' | xargs -r grep -nE '#include "main-node/terminal/')
# Within common/ the order is base < text, base < compute < model < pack, base < net < daemon, base < cache, and predict above model.
layer() { # folder, folders it may include
	local folder=$1 allowed=$2
	while read -r hit; do complain "common/$folder may only include common/($allowed): $hit"; done < <(
		sources "common/$folder" | xargs -r grep -nE '#include "common/' |
			grep -vE "#include \"common/($allowed)/")
}
layer base 'base'
layer cache 'base|cache'
layer compute 'base|compute'
layer text 'base|text'
layer model 'base|compute|model'
layer pack 'base|text|compute|model|pack'
layer net 'base|net'
layer daemon 'base|net|compute|daemon'
layer predict 'base|model|predict|compute'

# Within main-node/serve the order is http < jobs < api, ops; chat knows nothing of serving. server.c composes them.
serve_layer() { # folder of main-node, what of main-node it may include
	local folder=$1 allowed=$2
	while read -r hit; do complain "main-node/$folder may only include main-node/($allowed): $hit"; done < <(
		sources "main-node/$folder" | xargs -r grep -nE '#include "main-node/' |
			grep -vE "#include \"main-node/($allowed)")
}
serve_layer chat 'chat/'
serve_layer serve/http 'serve/http/'
serve_layer serve/jobs '(step|engine)/|serve/(http|jobs)/'
serve_layer serve/api '(step|engine|chat)/|serve/(app\.h|http/|jobs/|api/)'
serve_layer serve/ops '(step|engine)/|serve/(app\.h|http/|jobs/|ops/)'

# File names are unique, so that a name in a message or a talk is enough.
while read -r name; do complain "file name used twice: $name"; done < <(
	sources . | sed 's|.*/||' | sort | uniq -d)

# Calls that have a safe sibling.
while read -r hit; do complain "banned call: $hit"; done < <(
	sources . | xargs -r grep -nE '\b(strcpy|strcat|sprintf|vsprintf|gets|system|popen|atoi|atol|atof|mktemp|tmpnam)\(' )

# Scripts that the documents run by their names can be run so.
while read -r script; do
	[ -x "$script" ] || complain "$script: a document runs it, but it is missing or not executable"
done < <(grep -hoE '(^    |^    [A-Z]="|`)tests/[a-z0-9_/]+\.(py|sh)( |$)' README.md docs/*.md | grep -oE 'tests/[^ ]+' | sort -u)

# The table of the architecture page that says where things are names what is there.
while read -r line; do complain "$line"; done < <(python3 tests/where_check.py)

# C is formatted as make format does.
while read -r line; do
	case $line in *SKIP*) echo "$line" ;; *) complain "$line" ;; esac
done < <(tests/format.sh --check)

# What is written for CUDA has a twin for the emulated GPU.
python3 tests/gpu_twins.py || bad=1

[ $bad -eq 0 ] && echo "check-source: ok"
exit $bad
