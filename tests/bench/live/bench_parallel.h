/* bench_parallel.h - od-bench decode with several texts at once; its options are decode's.
 *
 * Thread: main(). Owner: the caller of its options. */
#ifndef OD_BENCH_PARALLEL_H
#define OD_BENCH_PARALLEL_H

#include "tests/bench/live/decode_common.h"

/* --parallel 1,4,16: measures and reports the speed by number of texts, and in resident mode the upper bound by memory
 * bandwidth. */
OD_MUST_CHECK int parallel_bench(const struct decode_options *o, struct od_err *err);

#endif
