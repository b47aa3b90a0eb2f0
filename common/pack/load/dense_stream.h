/* dense_stream.h - dense weights that do not all stay in memory: those that stay are loaded at the start, the others
 * are read into a ring in each step, ahead of the computing queue by as much as the ring holds.
 *
 * A device with memory of its own has the ring there. Weights that its host has memory for are copied from there, the
 * others from the file. All weights are read once at the start, to check them like any other tensor; a checksum of each
 * piece is kept, so that what is read later is known to be what was checked.
 * Thread: the one of the device's compute queue; od_dense_stream_figures: any. Owner: od_dense_stream_new's caller; the
 * pack, the device and the buffers outlive it. */
#ifndef OD_PACK_DENSE_STREAM_H
#define OD_PACK_DENSE_STREAM_H

#include "common/compute/device.h"
#include "common/pack/manifest.h"
#include "common/pack/pack.h"

#define OD_DENSE_READERS 8 /* threads: the disk is busy while some of them check, or have no CPU */

/* Rows of a matrix. The parts of a tensor follow one another and have all of its rows. */
struct od_dense_stream_part {
	const struct od_dense_tensor *tensor;
	uint64_t row, n;
	uint32_t stage; /* ascending */
	bool stays;
	uint32_t behind; /* od_dense_part */
	struct od_ref to; /* its weights, followed by OD_PAD_BYTES */
	struct od_ref scales; /* the whole tensor's (od_mat_scale_memory_bytes); nowhere: it has none */
};

struct od_dense_stream_opts {
	const struct od_pack *pack;
	struct od_device *device;
	const struct od_dense_stream_part *part; /* [n]; copied */
	size_t n;
	bool direct; /* past the page cache, where the data is open that way */
	uint64_t host_bytes; /* beside a device with memory of its own: for parts that do not stay there */
};

struct od_dense_stream;

/* Reads and checks all parts, and starts the threads. */
OD_MUST_CHECK int od_dense_stream_new(struct od_dense_stream **out, const struct od_dense_stream_opts *o,
				      struct od_err *err);
void od_dense_stream_free(struct od_dense_stream *s); /* NULL ok; all work that uses the weights has been waited for */
/* Memory that it takes beside the weights. */
uint64_t od_dense_stream_bytes(const struct od_dense_stream_part *part, size_t n);

/* The functions of an od_weight_stream (weights.h) whose arg is a struct od_dense_stream. Stages are taken one at a
 * time, in any order; in ascending order, round the end, they have been read ahead. A read that fails, or gives other
 * bytes than those that were checked, is tried again before it is an error. */
OD_MUST_CHECK int od_dense_stream_take(void *arg, uint32_t stage, struct od_err *err);
void od_dense_stream_give(void *arg, uint32_t stage);

struct od_dense_figures {
	uint64_t read_bytes; /* from the file, since the start */
	uint64_t host_bytes; /* from host memory beside the device */
	uint64_t wait_ns; /* the computing thread has waited */
};
void od_dense_stream_figures(const struct od_dense_stream *s, struct od_dense_figures *f); /* NULL: all zero */

#endif
