#!/bin/bash
# Runs every test and adds up. A test is a program that speaks TAP ("ok 1 - name", "not ok 2 - name",
# "ok 3 - name # SKIP why"); one that ends badly without saying which test failed counts as a failure.
#   tests/run.sh [FILTER]    only tests whose path contains FILTER
# Without FILTER those that say most of it are run once more on the device far; OD_DEVICE=far runs all of them on it.
# SKIPS may have lines "name reason": tests that are not run, but counted and shown as skipped.
set -u
cd "$(dirname "$0")/.."
B=${B:-build}
export B CMOCKA_MESSAGE_OUTPUT=TAP
# Builds with SANITIZE write what they find to files: of daemons that a test kills, nobody reads the rest.
reports=$(mktemp -d)
export TSAN_OPTIONS=${TSAN_OPTIONS:-suppressions=$PWD/tests/tsan.supp}:log_path=$reports/report
export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}log_path=$reports/report
export UBSAN_OPTIONS=${UBSAN_OPTIONS:+$UBSAN_OPTIONS:}log_path=$reports/report
filter=${1:-}
passed=0 failed=0 skipped=0
log=$(mktemp)
trap 'rm -rf "$log" "$reports"' EXIT

run_one() { # name command...
	local name=$1 status ok bad skip why
	shift
	why=$(sed -n "s|^$name  *||p" <<<"${SKIPS:-}")
	if [ -n "$why" ]; then
		echo "ok 1 - $name # SKIP $why" >"$log"
		status=0
	else
		"$@" >"$log" 2>&1 </dev/null
		status=$?
	fi
	# cmocka 1.1 writes "not ok 3 # SKIP name", which TAP knows as a failure that is expected.
	sed -i -E 's/^not ok ([0-9]+ # SKIP)/ok \1/' "$log"
	skip=$(grep -cE '^ok .*# SKIP' "$log")
	ok=$(($(grep -cE '^ok ' "$log") - skip))
	bad=$(grep -cE '^not ok ' "$log")
	if [ "$bad" -eq 0 ] && { [ "$status" -ne 0 ] || [ $((ok + skip)) -eq 0 ]; }; then
		bad=1
		echo "not ok - $name ended with status $status" >>"$log"
	fi
	if [ -n "$(ls "$reports")" ]; then
		bad=$((bad + 1))
		echo "not ok - $name: sanitizers found something in it, or in a program that it started" >>"$log"
		cat "$reports"/* >>"$log"
		rm -f "$reports"/*
	fi
	passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
	printf '%-44s %4d passed %3d failed %3d skipped\n' "$name" "$ok" "$bad" "$skip"
	grep -E '^ok .*# SKIP' "$log"
	if [ "$bad" -gt 0 ]; then
		echo "----- $name"
		cat "$log"
		echo "-----"
	fi
}

for t in "$B"/tests/test_*; do
	[ -x "$t" ] && [ -f "$t" ] && case $t in *"$filter"*) run_one "${t#"$B"/tests/}" "$t" ;; esac
done
for t in tests/integ/test_*.py; do
	case $t in *"$filter"*) run_one "${t#tests/}" python3 "$t" ;; esac
done
on_far="unit:device unit:ops unit:ops_attention unit:mixers unit:forward unit:forward_steps unit:fixed_state unit:route unit:expert_ffn unit:emulator unit:od_shadow
	unit:od_worker unit:worker_cache unit:expert_form unit:generate integ:conform integ:cluster"
if [ -z "$filter" ] && [ -z "${OD_DEVICE:-}" ]; then
	export OD_DEVICE=far
	for t in $on_far; do
		case $t in
		unit:*) run_one "far $t" "$B/tests/test_${t#unit:}" ;;
		integ:*) run_one "far $t" python3 "tests/integ/test_${t#integ:}.py" ;;
		esac
	done
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
