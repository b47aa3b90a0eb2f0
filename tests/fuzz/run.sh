#!/bin/bash
# Runs each fuzzer that is built, with these options of libFuzzer, from its seeds on. What it finds goes to
# build-fuzz/corpus; with a limit of time it begins with that too, without one every run is the same.
#   tests/fuzz/run.sh -runs=2000 -seed=1
set -u
cd "$(dirname "$0")/../.."
out=build-fuzz
bad=0
for f in tests/fuzz/fuzz_*.c; do
	name=$(basename "$f" .c)
	[ -x $out/fuzz/"$name" ] || continue
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
