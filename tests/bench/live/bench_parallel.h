/* bench_parallel.h - od-bench decode with several texts at once; its options are decode's.
 *
 * Thread: main(). Owner: the caller of its options. */
#ifndef OD_BENCH_PARALLEL_H
#define OD_BENCH_PARALLEL_H

#include "tests/bench/live/decode_common.h"

/* --parallel 1,4,16: how the speed grows with the number of texts, and in resident mode what memory's bandwidth would allow.
 * Measures and reports. */
OD_MUST_CHECK int parallel_bench(const struct decode_options *o, struct od_err *err);

/* --parallel N --prefill-beside TOKENS: how fast N texts are written while a prompt goes through the layers. Measures and
 * reports. */
OD_MUST_CHECK int beside_bench(const struct decode_options *o, struct od_err *err);

#endif
