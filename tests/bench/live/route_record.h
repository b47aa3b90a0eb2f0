/* route_record.h - writes every router decision of main's engine to a file (route_file.h), as an observer of its
 * requests.
 *
 * Thread: the engine's. Owner: route_record_open ... route_record_close by the caller. */
#ifndef OD_BENCH_ROUTE_RECORD_H
#define OD_BENCH_ROUTE_RECORD_H

#include "main-node/engine/engine.h"
#include "tests/bench/sim/route_file.h"

struct route_record {
	struct od_route_writer *writer;
	size_t n_rows, row; /* rows of the current step; the row whose experts are next */
};

OD_MUST_CHECK int route_record_open(struct route_record *r, const char *path, const struct od_pack *p,
				    struct od_err *err);
struct odm_observer route_record_observer(struct route_record *r);
/* Reports write errors. A recorder that was not opened gives OD_OK. */
OD_MUST_CHECK int route_record_close(struct route_record *r, struct od_err *err);

#endif
