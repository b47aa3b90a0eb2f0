/* mem.h - overflow-checked sizes and aligned memory.
 *
 * Every product or sum that contains a number from a file or a peer goes through these. Thread: any. */
#ifndef OD_BASE_MEM_H
#define OD_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OD_PAGE_BYTES 4096u
#define OD_PAD_BYTES 64u /* zero bytes behind every weight buffer: vector loads may reach that far */

/* *out = a * b, a + b; false (and *out = 0) on overflow. */
static inline bool od_mul(uint64_t a, uint64_t b, uint64_t *out)
{
	bool bad = __builtin_mul_overflow(a, b, out);

	if (bad)
		*out = 0;
	return !bad;
}

static inline bool od_add(uint64_t a, uint64_t b, uint64_t *out)
{
	bool bad = __builtin_add_overflow(a, b, out);

	if (bad)
		*out = 0;
	return !bad;
}

/* Makes room for `more` elements behind the first n of *v [*cap], which is malloc'd or NULL; sizes double. False: there
 * is no memory, and nothing has changed. */
bool od_grow(void **v, size_t n, size_t more, size_t *cap, size_t size);

/* True when [offset, offset + length) lies within [0, limit). */
static inline bool od_within(uint64_t offset, uint64_t length, uint64_t limit)
{
	return offset <= limit && length <= limit - offset;
}

static inline uint64_t od_round_up(uint64_t n, uint64_t step) /* step: a power of two; n + step must fit */
{
	return (n + step - 1) & ~(step - 1);
}

/* Zeroed memory, 64-byte aligned, followed by OD_PAD_BYTES zero bytes. NULL when out of memory.
 * Large blocks are mapped separately, so od_free returns them to the kernel at once. */
void *od_alloc(size_t bytes);
void *od_alloc_array(size_t n, size_t each_bytes); /* NULL on overflow too */
void od_free(void *p); /* NULL ok */

/* As od_alloc, but always mapped: od_map_bytes(bytes) bytes of whole pages, returned to the kernel by od_unmap. */
uint64_t od_map_bytes(uint64_t bytes);
void *od_map(size_t bytes);
void *od_map_sparse(size_t bytes); /* as od_map, but never in huge pages: what is not written takes no memory */
void od_unmap(void *p, size_t bytes); /* NULL ok */
/* Memory that the first `used` bytes of such a block can take: whole pages, and up to a huge one more in a large
 * block. */
uint64_t od_map_used_bytes(uint64_t bytes, uint64_t used);
/* Returns the whole pages within [p, p + bytes) to the kernel. They then hold zeros, and take memory again when they
 * are written. */
void od_map_release(void *p, uint64_t bytes);

/* Peak resident memory of this process in bytes (VmHWM), 0 when unknown. */
uint64_t od_peak_rss_bytes(void);
uint64_t od_rss_bytes(void); /* now */
uint64_t od_ram_bytes(void); /* this machine's; 0 when unknown */
uint64_t od_available_ram_bytes(void); /* MemAvailable, or what a container's limit leaves; 0 when unknown */
uint64_t od_cache_bytes(void); /* last-level cache, 0 when unknown */

#endif
