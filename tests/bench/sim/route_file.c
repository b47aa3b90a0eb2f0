#include "tests/bench/sim/route_file.h"

#include "common/base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "od-route"
#define VERSION 1u
#define HEAD_BYTES 56u
#define STEP_BYTES 14u /* bytes of 'S', before its rows */
#define ROW_BYTES 12u
#define END_BYTES 9u
#define BUFFER_BYTES (1u << 16)
#define MAX_BYTES (1ull << 32)

/* ---- Writing ---- */

struct od_route_writer {
	FILE *file;
	char *path, *buffer;
	uint32_t top_k;
	bool wide; /* experts as u16 */
	bool failed;
	uint64_t n_steps;
};

static void put_bytes(struct od_route_writer *w, const void *bytes, size_t n)
{
	w->failed = w->failed || fwrite(bytes, 1, n, w->file) != n;
}

static void put(struct od_route_writer *w, uint64_t number, unsigned n_bytes)
{
	uint8_t bytes[8];

	for (unsigned i = 0; i < n_bytes; i++)
		bytes[i] = (uint8_t)(number >> 8 * i);
	put_bytes(w, bytes, n_bytes);
}

static void free_writer(struct od_route_writer *w)
{
	if (w->file != NULL)
		fclose(w->file);
	free(w->buffer);
	free(w->path);
	free(w);
}

int od_route_open(struct od_route_writer **out, const char *path, const struct od_route_head *head, struct od_err *err)
{
	struct od_route_writer *w = calloc(1, sizeof(*w));

	*out = NULL;
	if (w == NULL || (w->buffer = malloc(BUFFER_BYTES)) == NULL || (w->path = strdup(path)) == NULL) {
		if (w != NULL)
			free_writer(w);
		return od_fail(err, OD_ERR_NOMEM, "recording routes");
	}
	w->file = fopen(path, "we");
	if (w->file == NULL) {
		free_writer(w);
		return od_fail_errno(err, OD_ERR_IO, "cannot write routes to %s", path);
	}
	setvbuf(w->file, w->buffer, _IOFBF, BUFFER_BYTES);
	w->top_k = head->top_k;
	w->wide = head->n_experts > 256;
	put_bytes(w, MAGIC, 8);
	put(w, VERSION, 4);
	put(w, head->n_moe, 4);
	put(w, head->n_experts, 4);
	put(w, head->top_k, 4);
	put_bytes(w, head->fingerprint, sizeof(head->fingerprint));
	*out = w;
	return OD_OK;
}

void od_route_step(struct od_route_writer *w, uint64_t step, bool prompt, uint32_t n_rows)
{
	put(w, 'S', 1);
	put(w, prompt, 1);
	put(w, n_rows, 4);
	put(w, step, 8);
	w->n_steps++;
}

void od_route_row(struct od_route_writer *w, uint64_t sequence, uint32_t position)
{
	put(w, sequence, 8);
	put(w, position, 4);
}

void od_route_layer(struct od_route_writer *w)
{
	put(w, 'L', 1);
}

void od_route_experts(struct od_route_writer *w, const uint16_t *expert)
{
	for (uint32_t i = 0; i < w->top_k; i++)
		put(w, expert[i], w->wide ? 2 : 1);
}

int od_route_close(struct od_route_writer *w, struct od_err *err)
{
	int rc = OD_OK;

	if (w == NULL)
		return OD_OK;
	put(w, 'E', 1);
	put(w, w->n_steps, 8);
	if (fclose(w->file) != 0)
		w->failed = true;
	w->file = NULL;
	if (w->failed)
		rc = od_fail(err, OD_ERR_IO, "%s: some of the routes could not be written; is the disk full?", w->path);
	free_writer(w);
	return rc;
}

/* ---- Reading ---- */

struct route_reader {
	const uint8_t *bytes;
	size_t len, at;
	const char *where;
	struct od_routes *r;
	size_t n_rows, n_experts; /* sums over all steps so far */
	unsigned wide; /* bytes of an expert */
};

static uint64_t get(const uint8_t *p, unsigned n_bytes)
{
	uint64_t number = 0;

	for (unsigned i = 0; i < n_bytes; i++)
		number |= (uint64_t)p[i] << 8 * i;
	return number;
}

static int bad(const struct route_reader *in, const char *what, struct od_err *err)
{
	return od_fail(err, OD_ERR_FORMAT, "%s: at byte %zu: %s", in->where, in->at, what);
}

static int cut_off(const struct route_reader *in, struct od_err *err)
{
	return od_fail(err, OD_ERR_FORMAT,
		       "%s: the file ends early, at byte %zu; record it again (a recording is complete when "
		       "the recording program has exited)",
		       in->where, in->len);
}

static int read_head(struct route_reader *in, struct od_err *err)
{
	struct od_route_head *h = &in->r->head;

	if (in->len < HEAD_BYTES || memcmp(in->bytes, MAGIC, 8) != 0)
		return od_fail(err, OD_ERR_FORMAT, "%s: not a recording of routes (od-bench cache --record makes one)",
			       in->where);
	if (get(in->bytes + 8, 4) != VERSION)
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: routes of version %llu; this program reads version %u",
			       in->where, (unsigned long long)get(in->bytes + 8, 4), VERSION);
	h->n_moe = (uint32_t)get(in->bytes + 12, 4);
	h->n_experts = (uint32_t)get(in->bytes + 16, 4);
	h->top_k = (uint32_t)get(in->bytes + 20, 4);
	memcpy(h->fingerprint, in->bytes + 24, sizeof(h->fingerprint));
	if (h->n_moe == 0 || h->n_moe > OD_ROUTE_MAX_LAYERS || h->n_experts == 0 ||
	    h->n_experts > OD_ROUTE_MAX_EXPERTS || h->top_k == 0 || h->top_k > OD_ROUTE_MAX_TOP_K ||
	    h->top_k > h->n_experts)
		return od_fail(err, OD_ERR_RANGE, "%s: routes of %u layers, %u experts, top %u: no such model",
			       in->where, h->n_moe, h->n_experts, h->top_k);
	in->wide = h->n_experts > 256 ? 2 : 1;
	in->at = HEAD_BYTES;
	return OD_OK;
}

/* Arrays for as much as the bytes can hold. */
static int make_room(struct route_reader *in, struct od_err *err)
{
	struct od_routes *r = in->r;

	r->step = calloc(in->len / (STEP_BYTES + ROW_BYTES) + 1, sizeof(*r->step));
	r->rows = calloc(in->len / ROW_BYTES + 1, sizeof(*r->rows));
	r->experts = calloc(in->len / in->wide + 1, sizeof(*r->experts));
	if (r->step == NULL || r->rows == NULL || r->experts == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for the routes of %zu bytes", in->where, in->len);
	return OD_OK;
}

static int read_step(struct route_reader *in, struct od_err *err)
{
	struct od_routes *r = in->r;
	struct od_route_step *s = &r->step[r->n_steps];
	const uint8_t *p = in->bytes + in->at;

	if (in->len - in->at < STEP_BYTES)
		return cut_off(in, err);
	*s = (struct od_route_step){
		.prompt = p[1] == 1,
		.n_rows = (uint32_t)get(p + 2, 4),
		.step = get(p + 6, 8),
		.row = r->rows + in->n_rows,
		.expert = r->experts + in->n_experts,
	};
	if (p[1] > 1 || s->n_rows == 0 || s->n_rows > OD_ROUTE_MAX_ROWS)
		return bad(in, "a step with an impossible number of rows, or neither of a prompt nor not", err);
	if (r->n_steps > 0 && s->step <= s[-1].step)
		return bad(in, "the step number is not greater than the previous one", err);
	if (in->len - in->at - STEP_BYTES < (size_t)s->n_rows * ROW_BYTES)
		return cut_off(in, err);
	p += STEP_BYTES;
	for (uint32_t i = 0; i < s->n_rows; i++, p += ROW_BYTES)
		r->rows[in->n_rows++] = (struct od_route_row){ get(p, 8), (uint32_t)get(p + 8, 4) };
	in->at += STEP_BYTES + (size_t)s->n_rows * ROW_BYTES;
	r->n_steps++;
	return OD_OK;
}

static int read_layer(struct route_reader *in, struct od_err *err)
{
	struct od_routes *r = in->r;
	struct od_route_step *s = r->n_steps > 0 ? &r->step[r->n_steps - 1] : NULL;
	const uint8_t *p = in->bytes + in->at + 1;
	size_t n;

	if (s == NULL || s->n_moe == r->head.n_moe)
		return bad(in, "a layer that belongs to no step", err);
	n = (size_t)s->n_rows * r->head.top_k;
	if (in->len - in->at - 1 < n * in->wide)
		return cut_off(in, err);
	for (size_t i = 0; i < n; i++, p += in->wide) {
		uint16_t *e = &r->experts[in->n_experts + i];

		*e = (uint16_t)get(p, in->wide);
		if (*e >= r->head.n_experts)
			return bad(in, "an expert that the model does not have", err);
		for (size_t k = 1; k <= i % r->head.top_k; k++) {
			if (e[0] == *(e - k))
				return bad(in, "a row with the same expert twice", err);
		}
	}
	s->n_moe++;
	in->n_experts += n;
	in->at += 1 + n * in->wide;
	return OD_OK;
}

static int read_end(struct route_reader *in, struct od_err *err)
{
	if (in->len - in->at < END_BYTES)
		return cut_off(in, err);
	if (get(in->bytes + in->at + 1, 8) != in->r->n_steps)
		return bad(in, "the number of steps is not the one that was written", err);
	in->at += END_BYTES;
	return in->at == in->len ? OD_OK : bad(in, "something follows the end", err);
}

static int read_records(struct route_reader *in, struct od_err *err)
{
	int rc;

	while (in->at < in->len) {
		switch (in->bytes[in->at]) {
		case 'S': rc = read_step(in, err); break;
		case 'L': rc = read_layer(in, err); break;
		case 'E': return read_end(in, err);
		default: return bad(in, "expected a step, a layer or the end", err);
		}
		if (rc != OD_OK)
			return rc;
	}
	return cut_off(in, err);
}

int od_routes_parse(struct od_routes *r, const void *bytes, size_t len, const char *where, struct od_err *err)
{
	struct route_reader in = { .bytes = bytes, .len = len, .where = where, .r = r };
	int rc;

	*r = (struct od_routes){ 0 };
	rc = read_head(&in, err);
	if (rc == OD_OK)
		rc = make_room(&in, err);
	if (rc == OD_OK)
		rc = read_records(&in, err);
	if (rc != OD_OK)
		od_routes_fini(r);
	return rc;
}

int od_routes_load(struct od_routes *r, const char *path, struct od_err *err)
{
	char *bytes;
	size_t len;
	int rc;

	*r = (struct od_routes){ 0 };
	rc = od_file_read(path, MAX_BYTES, &bytes, &len, err);
	if (rc != OD_OK)
		return rc;
	rc = od_routes_parse(r, bytes, len, path, err);
	free(bytes);
	return rc;
}

void od_routes_fini(struct od_routes *r)
{
	free(r->step);
	free(r->rows);
	free(r->experts);
	*r = (struct od_routes){ 0 };
}
