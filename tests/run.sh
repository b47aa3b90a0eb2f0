#!/bin/bash
# Runs tests and adds up. A test is a program that speaks TAP ("ok 1 - name", "not ok 2 - name",
# "ok 3 - name # SKIP why"); one that ends badly without saying which test failed counts as a failure.
#   tests/run.sh [--fail-fast] FILTER     programs whose path contains FILTER, with all their tests
#   tests/run.sh [--fail-fast] PART...
#     --check       the quick tier, which tests/tiers.txt chooses (make check)
#     --rest        all tests that --check leaves out
#     --far         the tests that say most of it on the far device (tests/gpu)
#     --emulated    the GPU device's tests on an emulated GPU (tests/gpu)
#     --source      tests/check-source.sh
#     --page        the page that od-main serves, in headless Chromium (tests/page)
#     --fuzz        the fuzzers, each on its seeds and a few inputs
#     --gpu         the GPU device's tests on the GPU of $OD_CUDA_PLUGIN (make gpu-check)
#     --ptx         the same on the kernels' PTX, of the versions in $PTX (make check-ptx)
# Without an argument: --check --rest, and --far --emulated unless OD_DEVICE names a device for all tests.
# --fail-fast: when a program fails, no other begins, and those that run are interrupted.
# JOBS programs run at once (default: one more than there are CPUs; with --ptx as many). Those that take longest begin first, and before
# them those whose names contain a word of FIRST. A program that runs for LIMIT_S seconds counts as hung.
# ONLY may have lines: of the parts, only programs whose names contain one are run.
# SKIPS may have lines "name reason": programs, or shards of them, that are not run, but counted and shown as skipped.
set -u
cd "$(dirname "$0")/.." || exit 2
B=${B:-build}
export B CMOCKA_MESSAGE_OUTPUT=TAP
unset OD_TEST OD_TEST_RUNS OD_TEST_MARKS OD_SHARD # all tests, and all of each
fail_fast=""
if [ "${1:-}" = --fail-fast ]; then
	fail_fast=yes
	shift
fi
filter=""
case ${1:-} in
--*) parts=$* ;;
"")
	parts="--check --rest"
	[ -n "${OD_DEVICE:-}" ] || parts+=" --far --emulated"
	;;
*) parts=--filter filter=$1 ;;
esac
jobs=${JOBS:-$(($(nproc) + 1))} # most tests wait for a part of their time
[ "$parts" != --ptx ] || jobs=${JOBS:-$(nproc)} # these do not
limit_s=${LIMIT_S:-2400} # the longest takes a few minutes, on a GPU under a sanitizer more
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: >"$work/sums"
n_started=0
TIMEFORMAT='%U %S %R'

# Runs a test, prints its lines as one block when it has ended, and adds its sums: passed, failed, skipped, three times, budget, name.
run_one() { # folder budget name command...
	local dir=$1 budget=$2 name=$3 log=$1/log status ok bad skip why
	shift 3
	mkdir -p "$dir/reports"
	echo "$name" >"$dir/name"
	echo 0 0 0 >"$dir/times"
	# Builds with SANITIZE write what they find to files: of daemons that a test kills, nobody reads the rest.
	export TSAN_OPTIONS=${TSAN_OPTIONS:-suppressions=$PWD/tests/tsan.supp}:log_path=$dir/reports/report
	export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}log_path=$dir/reports/report
	export UBSAN_OPTIONS=${UBSAN_OPTIONS:+$UBSAN_OPTIONS:}log_path=$dir/reports/report
	why=$(sed -nE "s#^($name|${name%%:*}) +##p" <<<"${SKIPS:-}")
	if [ -n "$why" ]; then
		echo "ok 1 - $name # SKIP $why" >"$log"
		status=0
	else
		{ time timeout --kill-after=60 "$limit_s" "$@" >"$log" 2>&1 </dev/null; } 2>"$dir/times"
		status=$?
		[ "$status" -ne 124 ] || echo "not ok - $name hung: ended after $limit_s seconds" >>"$log"
	fi
	if [ -e "$work/interrupted" ]; then
		return # that it failed now says nothing of it
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
	if [ -n "$(ls "$dir/reports")" ]; then
		bad=$((bad + 1))
		echo "not ok - $name: sanitizers found something in it, or in a program that it started" >>"$log"
		cat "$dir/reports"/* >>"$log"
	fi
	{
		printf '%-44s %4d passed %3d failed %3d skipped\n' "$name" "$ok" "$bad" "$skip"
		grep -E '^ok .*# SKIP' "$log"
		if [ "$bad" -gt 0 ]; then
			echo "----- $name"
			cat "$log"
			echo "-----"
		fi
	} >"$dir/block"
	echo "$ok $bad $skip $(tail -1 "$dir/times") $budget $name" >"$dir/sums"
	flock "$work/sums" sh -c "cat '$dir/block'; cat '$dir/sums' >>'$work/sums'"
}

# With --fail-fast, when a test has failed: interrupts those that run, as ctrl-C does, so that they end what they have started.
stop_if_failed() {
	local runs
	if [ -z "$fail_fast" ] || awk '$2 > 0 { exit 1 }' "$work/sums"; then
		return
	fi
	: >"$work/interrupted"
	for runs in $(jobs -rp); do
		# shellcheck disable=SC2046
		kill -INT $(cat "/proc/$runs/task/$runs/children") 2>/dev/null
	done
	wait
	echo "stopped at the first failure"
	print_sums
	exit 1
}

wait_for_fewer() { # running tests than this
	while [ "$(jobs -rp | wc -l)" -ge "$1" ]; do
		wait -n
		stop_if_failed
	done
}

start_within() { # budget name command...
	[ -z "${ONLY:-}" ] || grep -qF "$ONLY" <<<"$2" || return 0
	wait_for_fewer "$jobs"
	n_started=$((n_started + 1))
	run_one "$work/$n_started" "$@" &
}

start() { # name command...
	start_within 60 "$@"
}

unit_tests() {
	find -L "$B/tests" -maxdepth 1 -name 'test_*' -type f -executable | sort
}

# The programs of tests/integ and tests/unit, with what tests/tiers.txt says of them: lines of tier, seconds, shard, name and command.
planned() {
	local t name run tier seconds slow slow_seconds tests
	declare -A said
	while read -r name tier; do
		said[$name]=$tier
	done < <(grep -vE '^(#|$)' tests/tiers.txt)
	for t in tests/integ/test_*.py $(unit_tests); do
		case $t in
		*.py) name=${t#tests/} run="python3 $t" tier="rest 60" ;;
		*) name=${t##*/} run=$t tier="check 5" ;;
		esac
		read -r tier seconds slow slow_seconds tests <<<"${said[$name]:-$tier}"
		if [ "$slow" = slow ]; then
			in_shards "$tier" "$seconds" "$name" "$run --but $tests"
			in_shards rest "$slow_seconds" "$name:slow" "$run $tests"
		else
			in_shards "$tier" "$seconds" "$name" "$run"
		fi
	done
}

in_shards() { # tier seconds[/shards] name command
	local n=1 i
	case $2 in */*) n=${2#*/} ;; esac
	if [ "$n" -eq 1 ]; then
		echo "$1 $2 1/1 $3 $4"
		return
	fi
	for ((i = 1; i <= n; i++)); do
		echo "$1 $((${2%/*} / n)) $i/$n $3:$i/$n $4"
	done
}

start_tier() { # tier
	local seconds shard name command
	while read -r _ seconds shard name command; do
		# shellcheck disable=SC2086
		start_within "$seconds" "$name" env OD_SHARD="$shard" $command
	done < <(planned | awk -v tier="$1" -v first="${FIRST:-}" 'BEGIN { n = split(first, words) }
		$1 == tier { $1 = n + 1; for (i = n; i > 0; i--) if (index($4, words[i])) $1 = i; print }' | sort -k1,1n -k2,2rn)
}

start_pages() {
	local t
	for t in tests/page/test_*.py; do
		start "${t#tests/}" python3 "$t"
	done
}

start_filtered() {
	local t
	for t in tests/integ/test_*.py tests/page/test_*.py; do
		case $t in *"$filter"*) start "${t#tests/}" python3 "$t" ;; esac
	done
	for t in $(unit_tests); do
		case $t in *"$filter"*) start "${t##*/}" "$t" ;; esac
	done
}

# A program that does not speak TAP, but fails or not.
start_plain() { # name command...
	local name=$1
	shift
	# shellcheck disable=SC2016
	start "$name" bash -c '"${@:2}" && echo "ok 1 - $1" || { echo "not ok 1 - $1"; exit 1; }' bash "$name" "$@"
}

start_fuzzers() {
	local f
	if ! command -v clang >/dev/null; then
		start fuzz echo "ok 1 - fuzz # SKIP the fuzzers need clang"
		return
	fi
	for f in tests/fuzz/fuzz_*.c; do
		f=${f##*/}
		start_plain "fuzz/${f%.c}" tests/fuzz/run.sh "${f%.c}" -runs="${FUZZ_RUNS:-2000}" -seed=1
	done
}

on_far="unit:device unit:ops unit:ops_experts unit:ops_loads unit:ops_attention unit:mixers unit:forward unit:forward_steps
	unit:fixed_state unit:prefix_store unit:route unit:expert_ffn unit:emulator unit:od_shadow unit:od_worker
	unit:worker_cache unit:expert_form unit:dense_stream unit:generate integ:conform integ:cluster"
on_gpu="device ops ops_64 ops_experts ops_experts_64 ops_loads ops_attention ops_attention_64 ops_delta ops_float64 route expert_form"

start_on_far() {
	export OD_DEVICE=cuda OD_CUDA_PLUGIN=$PWD/$B/lib/libod_far.so
	for t in $on_far; do
		case $t in
		unit:*) start "far $t" "$B/tests/test_${t#unit:}" ;;
		integ:*) start "far $t" python3 "tests/integ/test_${t#integ:}.py" ;;
		esac
	done
}

start_on_gpu() { # plugin [what it is]
	local gpu=${2:-gpu} like=()
	export OD_DEVICE=cuda OD_CUDA_PLUGIN=$1 OD_GPU_KERNELS=$work/kernels-$gpu
	# The number of multiprocessors decides which kernels are launched. With that of an H100 or H200 all have to be, or make gpu-check
	# would not test them there.
	case $1 in *gpu_host*) like=(env OD_GPU_SM=132) ;; esac
	for t in $on_gpu; do
		start "$gpu unit:$t" "${like[@]}" "$B/tests/test_$t"
	done
	case $1 in *gpu_host*) ;; *) return ;; esac
	unset OD_GPU_KERNELS
	for t in device ops ops_experts ops_loads ops_attention; do # with two multiprocessors
		start "gpu in any order unit:$t" env OD_GPU_ORDER=7 "$B/tests/test_$t"
	done
	for t in seq_pages prefix_store expert_cache tiered; do # memory that comes and goes
		start "$gpu unit:$t" "$B/tests/test_$t"
	done
	for t in device expert_form; do # a GPU without memory of its own
		start "unified gpu unit:$t" env OD_GPU_HOST_UNIFIED=1 "$B/tests/test_$t"
	done
	for t in ops ops_delta; do # sanitizers run a sample of each test, which has to have all of its kernels
		start "gpu sample unit:$t" tests/gpu/gpu_sample.sh "$B/tests/test_$t"
	done
}

start_on_ptx() {
	local version
	for version in $PTX; do
		export OD_PTX=$B/ptx/$version
		start_on_gpu "$PWD/$B/lib/libod_gpu_ptx.so" "ptx$version"
	done
	start "ptx faults" python3 tests/gpu/ptx/ptx_faults.py "$OD_PTX" "$B/tests" # the last one: the newest
}

# The tests in a program whose plain run on the GPU has ended: those that choose_tables() can choose from.
tests_in() { # program
	sed -nE 's/^(not )?ok [0-9]+ - (.*) scalar$/\2/p' "$(dirname "$(grep -lx "gpu unit:$1" "$work"/*/name)")/log"
}

# Races, accesses out of bounds and barriers that not all threads reach. The tools change each kernel that is loaded and slow down each
# launch, so the tests of a program run side by side, load only the kernels that they use, and do some of their runs (gpu_sample.sh).
# By default all sanitizers share ten ports, and racecheck has a thread for each CPU in each process, and keeps records of all accesses of
# the launches that nobody has waited for.
start_sanitizer() {
	local tool found only options
	found=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
	case $OD_CUDA_PLUGIN in *gpu_host*) found="" ;; esac
	for tool in racecheck memcheck synccheck; do # the slowest first
		options="--tool $tool"
		[ "$tool" != racecheck ] || options+=" --racecheck-num-workers 1 --force-synchronization-limit 4"
		for t in $on_gpu; do
			if [ -z "$found" ]; then
				start "$tool unit:$t" echo "ok 1 - $tool # SKIP there is no compute-sanitizer for this GPU"
				continue
			fi
			while read -r only; do # a program that has none is run as a whole
				# shellcheck disable=SC2086
				start "$tool unit:$t${only:+ $only}" env CUDA_MODULE_LOADING=LAZY ${only:+OD_TEST="$only"} tests/gpu/gpu_sample.sh \
					"$B/tests/test_$t" "$found" $options --error-exitcode 9 --report-api-errors no \
					--port $((49152 + n_started % 800 * 20))
			done < <(tests_in "$t" | grep . || echo)
		done
	done
}

# A table of the programs that took most, and the sum. Its status says whether all is well.
print_sums() {
	local passed failed skipped n_ended cpu
	read -r passed failed skipped n_ended cpu < <(awk '{ p += $1; f += $2; s += $3; t += $4 + $5 } END { print p + 0, f + 0, s + 0, NR, t + 0 }' 		"$work/sums")
	if [ "$n_ended" -ne "$n_started" ] && [ ! -e "$work/interrupted" ]; then
		echo "$((n_started - n_ended)) tests left no result"
		failed=$((failed + n_started - n_ended))
	fi
	if [ "$n_ended" -gt 20 ]; then
		echo "$cpu s of CPU time in $SECONDS s. Most of it, what tests/tiers.txt allows, and how long it took:"
		awk '{ printf "%7.1f s of %3d s %7.1f s ", $4 + $5, $7, $6; for (i = 8; i <= NF; i++) printf " %s", $i; print "" }' "$work/sums" |
			sort -k1,1nr | head -15
	fi
	echo "$passed passed, $failed failed, $skipped skipped"
	[ "$failed" -eq 0 ]
}


for part in $parts; do
	case $part in
	--filter) start_filtered ;;
	--check | --rest) start_tier "${part#--}" ;;
	--source) start_plain check-source tests/check-source.sh ;;
	--page) start_pages ;;
	--fuzz) start_fuzzers ;;
	--far) start_on_far ;;
	--emulated) start_on_gpu "$PWD/$B/lib/libod_gpu_host.so" ;;
	--gpu)
		start_on_gpu "$OD_CUDA_PLUGIN"
		wait_for_fewer 1 # sanitizers need the names of the tests
		start integ/test_gpu.py python3 tests/integ/test_gpu.py
		start integ/test_gpu_gguf.py python3 tests/integ/test_gpu_gguf.py
		start integ/test_gpu_lost.py python3 tests/integ/test_gpu_lost.py
		start_sanitizer
		;;
	--ptx) start_on_ptx ;;
	*)
		echo "run.sh: unknown part $part" >&2
		exit 2
		;;
	esac
done
wait_for_fewer 1
for kernels in "$work"/kernels-*; do # only emulated GPUs write them
	[ -e "$kernels" ] && start "${kernels##*/kernels-} kernels" tests/gpu/gpu_launched.sh "$OD_CUDA_PLUGIN" "$kernels"
done
wait_for_fewer 1
print_sums
