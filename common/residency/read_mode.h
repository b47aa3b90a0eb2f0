/* read_mode.h - chooses whether experts are read through the page cache, which keeps data in free memory, or past
 * it, which is faster when little of it fits.
 *
 * Thread: one, before there are loaders. Owner: the caller. */
#ifndef OD_RESIDENCY_READ_MODE_H
#define OD_RESIDENCY_READ_MODE_H

#include "common/pack/load/expert_form.h"
#include "common/residency/loader.h"

#define OD_READ_MODE_BYTES (64u << 20) /* a measurement reads at most as much */

enum od_read_mode { OD_READ_AUTO, OD_READ_BUFFERED, OD_READ_DIRECT };
extern const char *const od_read_mode_names[]; /* "auto", "buffered", "direct", NULL */

struct od_read_mode_opts {
	struct od_pack *pack;
	struct od_device *device;
	enum od_form form;
	const struct od_expert_mem *mem; /* memory of one expert; overwritten */
	unsigned n_readers;
	enum od_read_mode asked;
	uint64_t free_bytes; /* page cache for experts */
	od_read_fn *read; /* NULL: from the pack */
	void *read_arg;
	uint64_t (*now_ns)(void); /* NULL: od_now_ns; for tests */
};

/* Sets the pack's read mode: as asked, if the file system supports it. OD_READ_AUTO: if not all experts fit into the
 * page cache, the mode with the lower mean read time; the read threads then time a few slices of some experts, which
 * takes a fraction of a second. Parts that cannot be read are left out: the load that needs them will report it. Only
 * SM bytes and coded exponents with buffers of their own, and experts that are stored as bytes, are read past it. */
OD_MUST_CHECK int od_read_mode_choose(bool *direct, const struct od_read_mode_opts *o, struct od_err *err);

#endif
