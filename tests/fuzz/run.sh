#!/bin/bash
# Runs a fuzzer, or each, with these options of libFuzzer, from its seeds on. What it finds goes to
# build-fuzz/corpus; with a limit of time it begins with that too, without one every run is the same.
#   tests/fuzz/run.sh fuzz_wire|all -runs=2000 -seed=1
set -u
cd "$(dirname "$0")/../.." || exit 2
out=build-fuzz
bad=0
fuzzers=$1
shift
[ "$fuzzers" != all ] || fuzzers=$(basename -s .c -a tests/fuzz/fuzz_*.c)
for name in $fuzzers; do
	corpus=$out/corpus/$name
	case $* in
	*-max_total_time=*) ;;
	*) corpus=$out/smoke/$name && rm -rf "$corpus" ;;
	esac
	mkdir -p "$corpus"
	if $out/fuzz/"$name" "$@" -rss_limit_mb=1024 -print_final_stats=0 -artifact_prefix=$out/"$name"- \
		"$corpus" tests/fuzz/seeds/"$name" >$out/"$name".log 2>&1; then
		echo "$name: $(grep -E '^Done' $out/"$name".log)"
	else
		tail -40 $out/"$name".log
		echo "FAIL: $name"
		bad=1
	fi
done
exit $bad
