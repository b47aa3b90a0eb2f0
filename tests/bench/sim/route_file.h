/* route_file.h - a file with every router decision of a run: the rows of each step and the experts that each layer
 * chose.
 *
 * Little-endian, without padding. The head:
 *   8 bytes "od-route", u32 version (1), u32 n_moe, u32 n_experts, u32 top_k, 32 bytes fingerprint of the model
 * Then records; the first byte of each is its kind:
 *   'S' a step begins:  u8 prompt (1: its rows are a prompt's), u32 n_rows, u64 step (greater than the last),
 *                       n_rows times (u64 sequence, u32 position)
 *   'L' a layer:        for each row of the step its top_k experts, best first, as u8 when n_experts is at most 256,
 *                       else u16. The first 'L' after an 'S' is layer 0, the next layer 1. An aborted step has fewer
 *                       than n_moe.
 *   'E' the end:        u64 number of steps. A file without it was cut off.
 * A decoded token of Mixtral 8x7B (32 layers, top 2) takes 122 bytes.
 *
 * Thread: writer and recording belong to one thread each. Owner: the caller that opened or loaded them. */
#ifndef OD_BENCH_ROUTE_FILE_H
#define OD_BENCH_ROUTE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

#define OD_ROUTE_MAX_LAYERS 4096u
#define OD_ROUTE_MAX_EXPERTS 4096u
#define OD_ROUTE_MAX_TOP_K 64u
#define OD_ROUTE_MAX_ROWS 65536u

struct od_route_head {
	uint32_t n_moe, n_experts, top_k;
	uint8_t fingerprint[32];
};

struct od_route_row {
	uint64_t sequence;
	uint32_t position;
};

/* ---- Writing ---- */

/* Overwrites an existing file. od_route_close also reports earlier write errors, so that the calls in between need no
 * check. No allocation after opening. */
struct od_route_writer;
OD_MUST_CHECK int od_route_open(struct od_route_writer **out, const char *path, const struct od_route_head *head,
				struct od_err *err);
void od_route_step(struct od_route_writer *w, uint64_t step, bool prompt, uint32_t n_rows); /* then n_rows rows */
void od_route_row(struct od_route_writer *w, uint64_t sequence, uint32_t position);
void od_route_layer(struct od_route_writer *w); /* then n_rows calls of od_route_experts */
void od_route_experts(struct od_route_writer *w, const uint16_t *expert); /* [top_k] */
/* Frees w in any case; NULL is OD_OK. */
int od_route_close(struct od_route_writer *w, struct od_err *err);

/* ---- Reading ---- */

struct od_route_step {
	uint64_t step;
	bool prompt;
	uint32_t n_rows, n_moe; /* n_moe: recorded layers */
	const struct od_route_row *row; /* [n_rows] */
	const uint16_t *expert; /* [n_moe][n_rows][top_k], best first, all different within a row */
};

struct od_routes {
	struct od_route_head head;
	struct od_route_step *step; /* [n_steps] */
	size_t n_steps;
	struct od_route_row *rows;
	uint16_t *experts;
};

/* Checks everything. *r is empty unless OD_OK; OD_ERR_FORMAT: err names the offset of the error. */
OD_MUST_CHECK int od_routes_load(struct od_routes *r, const char *path, struct od_err *err);
OD_MUST_CHECK int od_routes_parse(struct od_routes *r, const void *bytes, size_t len, const char *where,
				  struct od_err *err);
void od_routes_fini(struct od_routes *r); /* all zero is fine */

#endif
