#!/bin/bash
# Rules of the house that a compiler does not know: layers, unique names, banned calls.
set -u
cd "$(dirname "$0")/.." || exit 2
bad=0
complain() { echo "check-source: $*" >&2; bad=1; }
sources() { git ls-files --cached --others --exclude-standard -- "$@" | grep -E '\.(c|h|cu|cuh)$'; }

# Layers: a folder, with those in it, includes only headers of the folders (or the header) named behind it. An order of storeys is to be
# kept, so that a part can be read, tested and used without what stands on it.
layer() { # folder, what it may include beside itself
	local folder=$1 allowed=$1/ what
	for what in ${2:-}; do allowed+="|$what"; done
	while read -r hit; do complain "$folder must not include this (only ${2:-nothing else}): $hit"; done < <(
		sources "$folder" | xargs -r grep -nE '#include "(common|main-node|shadow-node|worker-node|tests|deploy)/' |
			grep -vE "#include \"($allowed)")
}
layer common
layer common/base
layer common/text 'common/base/'
layer common/compute 'common/base/'
layer common/model 'common/base/ common/compute/'
layer common/pack 'common/base/ common/text/ common/compute/ common/model/'
layer common/net 'common/base/'
layer common/pair 'common/base/ common/net/'
layer common/daemon 'common/base/ common/net/ common/compute/'
layer common/residency 'common/base/ common/compute/ common/model/ common/pack/'
layer common/predict 'common/base/ common/compute/ common/model/'
layer deploy/hub 'common/'
layer deploy/plan 'common/ main-node/ shadow-node/ worker-node/'
layer main-node 'common/'
layer main-node/step 'common/'
layer main-node/predict 'common/ main-node/step/'
layer main-node/cluster 'common/ main-node/step/ main-node/predict/'
layer main-node/engine 'common/ main-node/step/ main-node/predict/'
layer main-node/engine/prefix 'common/'
layer main-node/store 'common/'
layer main-node/node 'common/ main-node/step/ main-node/predict/ main-node/cluster/ main-node/engine/ main-node/store/'
layer main-node/chat 'common/'
layer main-node/serve/http 'common/'
layer main-node/serve/page 'common/ main-node/serve/http/'
layer main-node/serve/jobs 'common/ main-node/step/ main-node/engine/ main-node/node/ main-node/serve/http/'
layer main-node/serve/api 'common/ main-node/step/ main-node/engine/ main-node/chat/ main-node/serve/app.h main-node/serve/http/ main-node/serve/jobs/'
layer main-node/serve/ops 'common/ main-node/step/ main-node/engine/ main-node/serve/app.h main-node/serve/http/ main-node/serve/jobs/'
layer main-node/terminal 'common/base/ common/text/'
layer shadow-node 'common/'
layer worker-node 'common/'
layer worker-node/pull 'common/'

# od-chat is a program of its own: od-main knows nothing of it.
while read -r hit; do complain "only od-chat may include main-node/terminal: $hit"; done < <(
	sources main-node ':!main-node/terminal' | xargs -r grep -nE '#include "main-node/terminal/')

# The planner drives the daemons' own code; nothing else that is deployed beside them does.
while read -r hit; do complain "only deploy/plan may include a daemon's headers: $hit"; done < <(
	sources deploy ':!deploy/plan' | xargs -r grep -nE '#include "(main-node|shadow-node|worker-node|tests)/')

# What only tests need is not in common/: rules.mk there list all that is compiled.
while read -r file; do complain "common/ has $file, which no rules.mk there lists: what only tests build belongs to tests/"; done < <(
	comm -23 <(sources common | sed -nE 's|.*/([^/]*\.cu?)$|\1|p' | sort) \
		<(git ls-files -- 'common/*rules.mk' | xargs cat | grep -oE '[a-z0-9_]+\.cu?\b' | sort))

# File names are unique, so that a name in a message or a talk is enough.
while read -r name; do complain "file name used twice: $name"; done < <(
	sources . | sed 's|.*/||' | sort | uniq -d)

# Calls that have a safe sibling.
while read -r hit; do complain "banned call: $hit"; done < <(
	sources . | xargs -r grep -nE '\b(strcpy|strcat|sprintf|vsprintf|gets|system|popen|atoi|atol|atof|mktemp|tmpnam)\(' )

page_files() { git ls-files --cached --others --exclude-standard -- main-node/serve/page/*.{html,css,js,svg}; }
# The page shows texts of models, which are hostile: nothing there may be parsed as HTML or run as a script, or come from elsewhere.
while read -r hit; do complain "the page must not parse HTML, run texts or load from elsewhere: $hit"; done < <(
	page_files | xargs -r grep -nE \
		'\b(inner|outer)HTML\b|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|setHTML|\beval\(|new Function|srcdoc|\bstyle="| on[a-z]+="|(src|href)="(https?:)?//|@import|url\(')
[ "$(page_files | xargs -r cat | wc -c)" -le 204800 ] ||
	complain "main-node/serve/page has more than 200 KB"
# shellcheck disable=SC2016 # $0 is awk's
while read -r hit; do complain "longer than 150 columns: $hit"; done < <(
	git ls-files --cached --others --exclude-standard -- 'main-node/serve/page/*.js' 'tests/page/*.js' | xargs -r awk \
		'{ gsub(/\t/, "        ") } length($0) > 150 { print FILENAME ":" FNR }')

# Scripts that the documents run by their names can be run so.
while read -r script; do
	[ -x "$script" ] || complain "$script: a document runs it, but it is missing or not executable"
done < <(grep -hoE '(^    |^    [A-Z]="|`)tests/[a-z0-9_/]+\.(py|sh)( |$)' README.md docs/*.md | grep -oE 'tests/[^ ]+' | sort -u)

# Comments have subjects, and tags name one thing.
while read -r line; do complain "$line"; done < <(python3 tests/words_check.py)

# A public function stands in the file beside its header.
while read -r line; do complain "$line"; done < <(python3 tests/beside_check.py)

# The table of the architecture page that says where things are names what is there.
while read -r line; do complain "$line"; done < <(python3 tests/where_check.py)

# Messages that the page of troubleshooting explains are said somewhere.
while read -r line; do complain "$line"; done < <(python3 tests/messages_check.py)

# tests/tiers.txt names tests that there are.
while read -r name; do
	[ -e "tests/$name" ] || [ -e "tests/unit/$name.c" ] || complain "tests/tiers.txt: there is no test $name"
done < <(grep -vE '^(#|$)' tests/tiers.txt | cut -d' ' -f1)

# C is formatted as make format does.
while read -r line; do
	case $line in *SKIP*) echo "$line" ;; *) complain "$line" ;; esac
done < <(tests/format.sh --check)

# Shell scripts.
if command -v shellcheck >/dev/null; then
	while read -r line; do complain "$line"; done < <(
		git grep -lE '^#!/bin/(ba)?sh' | xargs shellcheck -f gcc)
else
	echo "check-source: SKIP shell scripts: there is no shellcheck here"
fi

# What is written for CUDA has a twin for the emulated GPU.
python3 tests/gpu/gpu_twins.py || bad=1

[ $bad -eq 0 ] && echo "check-source: ok"
exit $bad
