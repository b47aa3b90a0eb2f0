#!/bin/bash
# Runs every test and adds up. A test is a program that speaks TAP ("ok 1 - name", "not ok 2 - name",
# "ok 3 - name # SKIP why"); one that ends badly without saying which test failed counts as a failure.
#   tests/run.sh [FILTER]    only tests whose path contains FILTER
#   tests/run.sh --gpu       only those of the GPU device, on the GPU of $OD_CUDA_PLUGIN (make gpu-check)
#   tests/run.sh --ptx       the same on the kernels' PTX, of the versions in $PTX (make check-ptx)
# JOBS tests run at once (default: one more than there are CPUs; with --ptx as many). Those that take longest begin first.
# Without FILTER those that say most of it are run once more on the far device, and some on an emulated GPU (tests/gpu). If $OD_DEVICE
# names a device, all of them are run on that one alone (make check-far).
# SKIPS may have lines "name reason": tests that are not run, but counted and shown as skipped.
set -u
cd "$(dirname "$0")/.."
B=${B:-build}
export B CMOCKA_MESSAGE_OUTPUT=TAP
unset OD_TEST OD_TEST_RUNS OD_TEST_MARKS # all tests, and all of each
filter=${1:-}
jobs=${JOBS:-$(($(nproc) + 1))} # most tests wait for a part of their time
[ "$filter" != --ptx ] || jobs=${JOBS:-$(nproc)} # these do not
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: >"$work/sums"
n_started=0

# Runs a test, prints its lines as one block when it has ended, and adds its sums.
run_one() { # folder name command...
	local dir=$1 name=$2 log=$1/log status ok bad skip why
	shift 2
	mkdir -p "$dir/reports"
	echo "$name" >"$dir/name"
	# Builds with SANITIZE write what they find to files: of daemons that a test kills, nobody reads the rest.
	export TSAN_OPTIONS=${TSAN_OPTIONS:-suppressions=$PWD/tests/tsan.supp}:log_path=$dir/reports/report
	export ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}log_path=$dir/reports/report
	export UBSAN_OPTIONS=${UBSAN_OPTIONS:+$UBSAN_OPTIONS:}log_path=$dir/reports/report
	why=$(sed -n "s|^$name  *||p" <<<"${SKIPS:-}")
	if [ -n "$why" ]; then
		echo "ok 1 - $name # SKIP $why" >"$log"
		status=0
	else
		timeout --kill-after=60 2400 "$@" >"$log" 2>&1 </dev/null # the longest takes a few minutes, on a GPU under a sanitizer more
		status=$?
		[ "$status" -ne 124 ] || echo "not ok - $name hung: ended after 40 minutes" >>"$log"
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
	echo "$ok $bad $skip" >"$dir/sums"
	flock "$work/sums" sh -c "cat '$dir/block'; cat '$dir/sums' >>'$work/sums'"
}

start() { # name command...
	while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do
		wait -n
	done
	n_started=$((n_started + 1))
	run_one "$work/$n_started" "$@" &
}

on_far="unit:device unit:ops unit:ops_experts unit:ops_loads unit:ops_attention unit:mixers unit:forward unit:forward_steps
	unit:fixed_state unit:prefix_store unit:route unit:expert_ffn unit:emulator unit:od_shadow unit:od_worker
	unit:worker_cache unit:expert_form unit:generate integ:conform integ:cluster"
on_gpu="device ops ops_64 ops_experts ops_experts_64 ops_loads ops_attention ops_attention_64 ops_delta ops_float64 route expert_form
	loader_cache"

# Those of tests/integ that take a minute or more, the longest first: begun last, one would run alone at the end.
longest="gpu store services faults prediction drafts shadow_parts prefix_cache serve keys pack_families results"

start_all() {
	local long
	# shellcheck disable=SC2086
	long=$(printf 'tests/integ/test_%s.py\n' $longest)
	for t in $long $(printf '%s\n' tests/integ/test_*.py | grep -vxF "$long"); do
		case $t in *"$filter"*) start "${t#tests/}" python3 "$t" ;; esac
	done
	for t in "$B"/tests/test_*; do
		[ -x "$t" ] && [ -f "$t" ] && case $t in *"$filter"*) start "${t#"$B"/tests/}" "$t" ;; esac
	done
}

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
	for t in device expert_form loader_cache; do # a GPU without memory of its own
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

if [ "$filter" = --gpu ]; then
	start_on_gpu "$OD_CUDA_PLUGIN"
	wait # sanitizers need the names of the tests
	start integ/test_gpu.py python3 tests/integ/test_gpu.py
	start integ/test_gpu_lost.py python3 tests/integ/test_gpu_lost.py
	start_sanitizer
elif [ "$filter" = --ptx ]; then
	start_on_ptx
else
	start_all
	if [ -z "$filter" ] && [ -z "${OD_DEVICE:-}" ]; then
		start_on_far
		start_on_gpu "$PWD/$B/lib/libod_gpu_host.so"
	fi
fi
wait
for kernels in "$work"/kernels-*; do # only emulated GPUs write them
	[ -e "$kernels" ] && start "${kernels##*/kernels-} kernels" tests/gpu/gpu_launched.sh "$OD_CUDA_PLUGIN" "$kernels"
done
wait
read -r passed failed skipped n_ended < <(awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0, NR }' "$work/sums")
if [ "$n_ended" -ne "$n_started" ]; then
	echo "$((n_started - n_ended)) tests left no result"
	failed=$((failed + n_started - n_ended))
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
