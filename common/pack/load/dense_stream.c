#include "common/pack/load/dense_stream.h"

#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/pack/checksum.h"
#include "common/pack/load/dense_piece.h"
#include "common/pack/pack_internal.h"
#include "common/pack/team.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define ATTEMPTS 3

struct streamed_part {
	struct od_dense_stream_part p;
	size_t first_piece, n_pieces;
	uint8_t *host; /* its weights in the host's memory; NULL: in the file alone */
	bool in_host; /* they have been read there */
};

struct read_piece {
	size_t part;
	uint64_t row, n;
	uint64_t sum; /* XXH3-64 */
};

struct ring_stage {
	size_t first, n; /* its parts among the streamed ones */
	uint64_t ticket; /* the compute queue's, when the stage was given back last */
};

/* Streamed parts are read in their order, round the end. Each reading has a number: round * n + index of the part. */
struct od_dense_stream {
	const struct od_pack *pack;
	struct od_device *device;
	struct streamed_part *part; /* [n_parts] */
	struct read_piece *piece; /* [n_pieces], by part */
	size_t n_parts, n_pieces;
	size_t *streamed; /* [n]: their parts */
	size_t n;
	struct ring_stage *stage; /* [n_stages] */
	uint32_t n_stages;
	bool maps; /* the host writes into the ring itself */
	struct reader {
		struct od_dense_stream *stream;
		struct od_dense_reader file;
		uint8_t *host; /* a piece on its way to the device; after the start NULL if that maps its memory */
		uint64_t stage_bytes;
		pthread_t thread;
		bool started;
	} reader[OD_DENSE_READERS];
	_Atomic uint64_t read_bytes, host_bytes, wait_ns;

	pthread_mutex_t lock;
	pthread_cond_t room, ready; /* readers wait for the one, the computing thread for the other */
	uint64_t next, given; /* reading to begin; those before it are used no more */
	size_t next_piece; /* the next one in reading `next` */
	uint64_t *done; /* [n]: number of the last complete reading + 1 */
	size_t *left; /* [n]: pieces of the reading under way */
	size_t n_busy; /* readers in a piece */
	bool lost; /* readings do not go on where the last one ended */
	bool stop;
	int rc; /* why reading has stopped */
	struct od_err why;
};

/* ---- a piece ---- */

static uint64_t row_bytes(const struct od_dense_tensor *t)
{
	return od_mat_row_bytes(&t->type, t->n_in);
}

static int read_file(struct od_dense_stream *s, const struct reader *r, const struct read_piece *c, uint8_t *to,
		     struct od_err *err)
{
	const struct od_dense_tensor *t = s->part[c->part].p.tensor;
	const int rc = od_dense_piece_read(&r->file, t, c->row, c->n, to, err);

	if (rc == OD_OK)
		atomic_fetch_add_explicit(&s->read_bytes, c->n * row_bytes(t), memory_order_relaxed);
	return rc;
}

static int check_piece(const struct od_dense_stream *s, const struct read_piece *c, const uint8_t *bytes,
		       struct od_err *err)
{
	const struct od_dense_tensor *t = s->part[c->part].p.tensor;
	const uint64_t each = row_bytes(t), found = XXH3_64bits(bytes, c->n * each);
	const struct od_data_file *f = od_data_file(&s->pack->dense, t->offset);

	if (found == c->sum)
		return OD_OK;
	return od_fail(err, OD_ERR_CORRUPT,
		       "%s at offset %" PRIu64 ": checksum: expected %016" PRIx64 ", found %016" PRIx64, f->path,
		       t->offset + c->row * each - f->begin, c->sum, found);
}

/* Copies a piece to the device when what used the memory last is through, and waits. */
static int put_piece(struct od_dense_stream *s, const struct read_piece *c, uint64_t after, struct od_ref to,
		     const uint8_t *from, uint64_t n, struct od_err *err)
{
	struct od_device *d = s->device;
	const uint64_t errors = od_device_load_errors(d);
	int rc;

	if (after > 0)
		od_device_after(d, OD_QUEUE_LOADS, OD_QUEUE_COMPUTE, after);
	od_device_put(d, OD_QUEUE_LOADS, to, from, n);
	rc = od_device_wait(d, OD_QUEUE_LOADS, od_device_ticket(d, OD_QUEUE_LOADS), err);
	if (rc == OD_OK && od_device_load_errors(d) != errors)
		rc = od_fail(err, OD_ERR_IO, "%s: copying rows from %" PRIu64 " on failed", od_device_name(d), c->row);
	return rc;
}

/* From the file, or from the host's memory, to its place. sum: NULL after the start. At the start it gets the bytes,
 * which are checked later, and parts that do not stay go nowhere. */
static int load_piece(struct od_dense_stream *s, const struct reader *r, struct read_piece *c, uint64_t after,
		      XXH3_state_t *sum, struct od_err *err)
{
	const struct streamed_part *p = &s->part[c->part];
	const uint64_t each = row_bytes(p->p.tensor), at = (c->row - p->p.row) * each, n = c->n * each;
	const struct od_ref to = od_ref_at(p->p.to, at);
	const bool last = c->row + c->n == p->p.row + p->p.n;
	const bool checks = sum != NULL && !p->p.stays;
	uint8_t *map = checks ? NULL : od_ref_map(to), /* at the start several threads would use the ring at will */
		*host = map != NULL	? map :
			p->host != NULL ? p->host + at :
					  r->host;
	int rc = OD_OK;

	if (p->in_host) {
		atomic_fetch_add_explicit(&s->host_bytes, n, memory_order_relaxed);
	} else {
		rc = read_file(s, r, c, host, err);
		if (rc == OD_OK && sum == NULL)
			rc = check_piece(s, c, host, err);
		else if (rc == OD_OK)
			c->sum = XXH3_64bits(host, n);
		if (rc == OD_OK && sum != NULL)
			XXH3_64bits_update(sum, host, n);
	}
	if (rc != OD_OK)
		return rc;
	/* Others' weights were there before: zeros follow a matrix, as everywhere. */
	if (last && !p->in_host)
		memset(host + n, 0, OD_PAD_BYTES);
	if (map != NULL || checks)
		return OD_OK;
	return put_piece(s, c, after, to, host, n + (last ? OD_PAD_BYTES : 0), err);
}

static int try_piece(struct od_dense_stream *s, const struct reader *r, struct read_piece *c, uint64_t after,
		     struct od_err *err)
{
	const struct od_dense_tensor *t = s->part[c->part].p.tensor;
	struct od_err why;
	int rc = OD_OK;

	for (int i = 0; i < ATTEMPTS; i++) {
		rc = load_piece(s, r, c, after, NULL, &why);
		if (rc == OD_OK)
			return OD_OK;
	}
	/* No text is at fault if the file is shorter than it was. */
	return od_fail(err, rc == OD_ERR_CORRUPT ? rc : OD_ERR_IO, "tensor %s of layer %u: %s (tried %d times)",
		       od_role_name(t->role), t->layer, why.msg, ATTEMPTS);
}

/* ---- readers ---- */

/* Under the lock: the piece to read next, if there is room for it. */
static bool claim(struct od_dense_stream *s, uint64_t *number, struct read_piece **c, uint64_t *after)
{
	const size_t i = (size_t)(s->next % s->n);
	const struct streamed_part *p = &s->part[s->streamed[i]];

	if (s->rc != OD_OK || s->next >= s->given + p->p.behind)
		return false;
	*number = s->next;
	*c = &s->piece[p->first_piece + s->next_piece];
	/* the part that was there: its stage was given back */
	*after = s->stage[s->part[s->streamed[(s->next + s->n - p->p.behind) % s->n]].p.stage].ticket;
	if (s->next_piece == 0)
		s->left[i] = p->n_pieces;
	if (++s->next_piece == p->n_pieces) {
		s->next++;
		s->next_piece = 0;
	}
	s->n_busy++;
	return true;
}

/* Under the lock. */
static void finish(struct od_dense_stream *s, uint64_t number, int rc, const struct od_err *why)
{
	const size_t i = (size_t)(number % s->n);

	s->n_busy--;
	if (rc != OD_OK && s->rc == OD_OK) {
		s->rc = rc;
		s->why = *why;
	}
	if (rc == OD_OK && --s->left[i] == 0)
		s->done[i] = number + 1;
	pthread_cond_signal(&s->ready);
}

static void *read_ahead(void *arg)
{
	struct reader *r = arg;
	struct od_dense_stream *s = r->stream;
	struct read_piece *c;
	uint64_t number, after;

	pthread_mutex_lock(&s->lock);
	while (!s->stop) {
		struct od_err why;
		int rc;

		if (!claim(s, &number, &c, &after)) {
			pthread_cond_wait(&s->room, &s->lock);
			continue;
		}
		pthread_mutex_unlock(&s->lock);
		rc = try_piece(s, r, c, after, &why);
		pthread_mutex_lock(&s->lock);
		finish(s, number, rc, &why);
	}
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* ---- the computing thread ---- */

/* Under the lock: reading begins anew with this part. What is being read is waited for, because it would be written
 * into the memory of what comes next. */
static void begin_at(struct od_dense_stream *s, size_t first)
{
	const uint64_t ticket = od_device_ticket(s->device, OD_QUEUE_COMPUTE);

	s->rc = OD_ERR_CANCELLED; /* no further pieces */
	while (s->n_busy > 0)
		pthread_cond_wait(&s->ready, &s->lock);
	s->rc = OD_OK;
	/* A step that was given up may have queued work that uses the ring. */
	if (s->maps)
		(void)!od_device_wait(s->device, OD_QUEUE_COMPUTE, ticket, NULL);
	for (uint32_t i = 0; i < s->n_stages; i++)
		s->stage[i].ticket = ticket;
	s->next = s->given = (s->next / s->n + 1) * s->n + first;
	s->next_piece = 0;
	s->lost = false;
	pthread_cond_broadcast(&s->room);
}

static bool all_done(const struct od_dense_stream *s, const struct ring_stage *g)
{
	for (size_t i = 0; i < g->n; i++)
		if (s->done[g->first + i] != s->given + i + 1)
			return false;
	return true;
}

int od_dense_stream_take(void *arg, uint32_t stage, struct od_err *err)
{
	struct od_dense_stream *s = arg;
	const struct ring_stage *g = &s->stage[stage];
	const uint64_t begin_ns = od_now_ns();
	int rc;

	if (g->n == 0)
		return OD_OK;
	pthread_mutex_lock(&s->lock);
	/* An error of an earlier time says nothing of now. */
	if (s->lost || s->rc != OD_OK || s->given % s->n != g->first)
		begin_at(s, g->first);
	/* A later stage that cannot be read does not concern this one, whose pieces were begun before. */
	while (!all_done(s, g) && (s->rc == OD_OK || s->n_busy > 0))
		pthread_cond_wait(&s->ready, &s->lock);
	rc = all_done(s, g) ? OD_OK : s->rc;
	if (rc != OD_OK) {
		*err = s->why;
		s->lost = true;
	}
	pthread_mutex_unlock(&s->lock);
	atomic_fetch_add_explicit(&s->wait_ns, od_now_ns() - begin_ns, memory_order_relaxed);
	return rc;
}

void od_dense_stream_give(void *arg, uint32_t stage)
{
	struct od_dense_stream *s = arg;
	struct ring_stage *g = &s->stage[stage];
	const uint64_t ticket = od_device_ticket(s->device, OD_QUEUE_COMPUTE);

	if (g->n == 0)
		return;
	/* The host writes when it likes, not in the order of a queue. An error stays for the next wait. */
	if (s->maps)
		(void)!od_device_wait(s->device, OD_QUEUE_COMPUTE, ticket, NULL);
	pthread_mutex_lock(&s->lock);
	g->ticket = ticket;
	s->given += g->n;
	pthread_cond_broadcast(&s->room);
	pthread_mutex_unlock(&s->lock);
}

void od_dense_stream_figures(const struct od_dense_stream *s, struct od_dense_figures *f)
{
	*f = (struct od_dense_figures){ 0 };
	if (s == NULL)
		return;
	f->read_bytes = atomic_load_explicit(&s->read_bytes, memory_order_relaxed);
	f->host_bytes = atomic_load_explicit(&s->host_bytes, memory_order_relaxed);
	f->wait_ns = atomic_load_explicit(&s->wait_ns, memory_order_relaxed);
}

/* ---- the start ---- */

/* Scales of a tensor, which stay, and are behind its weights in the sum. */
static int load_scales(struct od_dense_stream *s, const struct od_dense_stream_part *p, XXH3_state_t *sum,
		       struct od_err *err)
{
	const struct od_dense_tensor *t = p->tensor;
	const uint64_t weights = t->n_out * row_bytes(t), n = t->bytes - weights;
	uint8_t *raw = malloc(n + 1);
	struct od_fill fill;
	int rc;

	if (raw == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for the scales of %s", od_role_name(t->role));
	rc = od_fill_begin(&fill, p->scales, od_mat_scale_memory_bytes(&t->type, t->n_out, t->n_in), err);
	if (rc == OD_OK) {
		rc = od_data_read(&s->pack->dense, false, raw, n, t->offset + weights, err);
		if (rc == OD_OK) {
			XXH3_64bits_update(sum, raw, n);
			od_mat_put_scales_apart(&t->type, t->n_out, t->n_in, fill.host, raw);
		}
		rc = od_fill_end(&fill, rc, err);
	}
	free(raw);
	return rc;
}

struct loading {
	struct od_dense_stream *stream;
	size_t *first; /* [n]: the first part of each tensor */
	size_t n;
	pthread_mutex_t compute; /* the compute queue belongs to one thread at a time */
};

static int load_tensor(void *arg, unsigned thread, size_t item, uint64_t *bytes, struct od_err *err)
{
	struct loading *l = arg;
	struct od_dense_stream *s = l->stream;
	const size_t first = l->first[item];
	const struct od_dense_tensor *t = s->part[first].p.tensor;
	XXH3_state_t *sum = XXH3_createState();
	int rc = OD_OK;

	*bytes = t->bytes;
	if (sum == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory to check dense weights");
	XXH3_64bits_reset(sum);
	for (size_t at = first; rc == OD_OK && at < s->n_parts && s->part[at].p.tensor == t; at++) {
		struct streamed_part *p = &s->part[at];

		for (size_t i = 0; rc == OD_OK && i < p->n_pieces; i++)
			rc = load_piece(s, &s->reader[thread], &s->piece[p->first_piece + i], 0, sum, err);
		p->in_host = p->host != NULL;
	}
	if (rc == OD_OK && s->part[first].p.scales.buf != NULL) {
		pthread_mutex_lock(&l->compute);
		rc = load_scales(s, &s->part[first].p, sum, err);
		pthread_mutex_unlock(&l->compute);
	}
	if (rc == OD_OK)
		rc = od_dense_check_sum(s->pack, t, XXH3_64bits_digest(sum), err);
	XXH3_freeState(sum);
	return rc;
}

static int load_all(struct od_dense_stream *s, struct od_err *err)
{
	struct loading l = { .stream = s, .first = calloc(s->n_parts, sizeof(*l.first)) };
	int rc;

	if (l.first == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for a list of dense weights");
	pthread_mutex_init(&l.compute, NULL);
	for (size_t i = 0; i < s->n_parts; i++)
		if (i == 0 || s->part[i].p.tensor != s->part[i - 1].p.tensor)
			l.first[l.n++] = i;
	rc = od_team_run(
		&(struct od_team_job){ .fn = load_tensor, .arg = &l, .n_items = l.n, .n_threads = OD_DENSE_READERS },
		err);
	pthread_mutex_destroy(&l.compute);
	free(l.first);
	atomic_store(&s->read_bytes, 0);
	return rc;
}

static size_t pieces_of(const struct od_dense_stream_part *p)
{
	const uint64_t each = od_dense_piece_rows(p->tensor);

	return (size_t)((p->n + each - 1) / each);
}

static void list_pieces(struct od_dense_stream *s)
{
	size_t n = 0;

	for (size_t i = 0; i < s->n_parts; i++) {
		struct streamed_part *p = &s->part[i];
		const uint64_t each = od_dense_piece_rows(p->p.tensor);

		p->first_piece = n;
		p->n_pieces = pieces_of(&p->p);
		for (uint64_t at = 0; at < p->p.n; at += each)
			s->piece[n++] = (struct read_piece){ .part = i,
							     .row = p->p.row + at,
							     .n = p->p.n - at < each ? p->p.n - at : each };
	}
}

static void list_streamed(struct od_dense_stream *s)
{
	for (size_t i = 0; i < s->n_parts; i++) {
		struct ring_stage *g = &s->stage[s->part[i].p.stage];

		if (s->part[i].p.stays)
			continue;
		if (g->n++ == 0)
			g->first = s->n;
		s->streamed[s->n++] = i;
	}
}

static uint64_t stage_bytes(const struct od_dense_stream_part *part, size_t n)
{
	uint64_t most = 0;

	for (size_t i = 0; i < n; i++) {
		const uint64_t bytes = od_dense_piece_stage_bytes(part[i].tensor);

		most = bytes > most ? bytes : most;
	}
	return most;
}

uint64_t od_dense_stream_bytes(const struct od_dense_stream_part *part, size_t n)
{
	uint64_t sum = sizeof(struct od_dense_stream);

	for (size_t i = 0; i < n; i++)
		sum += sizeof(struct streamed_part) + sizeof(struct ring_stage) + 3 * sizeof(uint64_t) +
		       pieces_of(&part[i]) * sizeof(struct read_piece);
	return sum + 2 * OD_DENSE_READERS * od_map_bytes(stage_bytes(part, n));
}

static int make_tables(struct od_dense_stream *s, const struct od_dense_stream_opts *o, struct od_err *err)
{
	size_t n_pieces = 0;

	for (size_t i = 0; i < o->n; i++)
		n_pieces += pieces_of(&o->part[i]);
	s->n_stages = o->part[o->n - 1].stage + 1;
	s->part = calloc(o->n, sizeof(*s->part));
	s->piece = calloc(n_pieces, sizeof(*s->piece));
	s->streamed = calloc(o->n, sizeof(*s->streamed));
	s->stage = calloc(s->n_stages, sizeof(*s->stage));
	s->done = calloc(o->n, sizeof(*s->done));
	s->left = calloc(o->n, sizeof(*s->left));
	if (s->part == NULL || s->piece == NULL || s->streamed == NULL || s->stage == NULL || s->done == NULL ||
	    s->left == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for %zu parts of dense weights", o->n);
	s->n_parts = o->n;
	s->n_pieces = n_pieces;
	for (size_t i = 0; i < o->n; i++)
		s->part[i].p = o->part[i];
	list_pieces(s);
	list_streamed(s);
	s->maps = s->n > 0 && od_ref_map(s->part[s->streamed[0]].p.to) != NULL;
	return OD_OK;
}

/* Every part is as good as any other to have there: each is read once in a step. */
static void make_host(struct od_dense_stream *s, uint64_t left)
{
	for (size_t i = 0; i < s->n; i++) {
		struct streamed_part *p = &s->part[s->streamed[i]];
		const uint64_t bytes = p->p.n * row_bytes(p->p.tensor);

		if (bytes > left)
			continue;
		p->host = od_host_new(s->device, bytes);
		if (p->host == NULL) /* the system pins no more: the others are read from the file */
			return;
		left -= bytes;
	}
}

static int make_readers(struct od_dense_stream *s, const struct od_dense_stream_opts *o, struct od_err *err)
{
	const uint64_t bytes = stage_bytes(o->part, o->n);

	for (size_t i = 0; i < OD_DENSE_READERS; i++) {
		struct reader *r = &s->reader[i];

		*r = (struct reader){ .stream = s, .file = { .pack = o->pack, .direct = o->direct } };
		r->stage_bytes = bytes;
		r->file.stage = od_map(bytes);
		if (r->file.stage != NULL)
			r->host = od_host_new(s->device, bytes);
		if (r->host == NULL)
			return od_fail(err, OD_ERR_NOMEM, "no memory to read dense weights");
	}
	return OD_OK;
}

static int start_readers(struct od_dense_stream *s, struct od_err *err)
{
	for (size_t i = 0; s->maps && i < OD_DENSE_READERS; i++) {
		od_host_free(s->device, s->reader[i].host, s->reader[i].stage_bytes);
		s->reader[i].host = NULL;
	}
	for (size_t i = 0; s->n > 0 && i < OD_DENSE_READERS; i++) {
		if (pthread_create(&s->reader[i].thread, NULL, read_ahead, &s->reader[i]) != 0)
			return od_fail(err, OD_ERR_NOMEM, "cannot start a thread that reads dense weights");
		s->reader[i].started = true;
		pthread_setname_np(s->reader[i].thread, "od-dense");
	}
	return OD_OK;
}

int od_dense_stream_new(struct od_dense_stream **out, const struct od_dense_stream_opts *o, struct od_err *err)
{
	struct od_dense_stream *s = calloc(1, sizeof(*s));
	int rc;

	*out = NULL;
	if (s == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory to read dense weights");
	s->pack = o->pack;
	s->device = o->device;
	pthread_mutex_init(&s->lock, NULL);
	pthread_cond_init(&s->room, NULL);
	pthread_cond_init(&s->ready, NULL);
	rc = make_tables(s, o, err); /* from here on od_dense_stream_free() is valid */
	if (rc == OD_OK && !od_device_shares(s->device))
		make_host(s, o->host_bytes);
	if (rc == OD_OK)
		rc = make_readers(s, o, err);
	if (rc == OD_OK)
		rc = load_all(s, err);
	if (rc == OD_OK)
		rc = start_readers(s, err);
	if (rc != OD_OK) {
		od_dense_stream_free(s);
		return rc;
	}
	*out = s;
	return OD_OK;
}

void od_dense_stream_free(struct od_dense_stream *s)
{
	if (s == NULL)
		return;
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	pthread_cond_broadcast(&s->room);
	pthread_mutex_unlock(&s->lock);
	for (size_t i = 0; i < OD_DENSE_READERS; i++) {
		struct reader *r = &s->reader[i];

		if (r->started)
			pthread_join(r->thread, NULL);
		od_unmap(r->file.stage, r->stage_bytes);
		od_host_free(s->device, r->host, r->stage_bytes);
	}
	for (size_t i = 0; i < s->n_parts; i++)
		od_host_free(s->device, s->part[i].host, s->part[i].p.n * row_bytes(s->part[i].p.tensor));
	pthread_mutex_destroy(&s->lock);
	pthread_cond_destroy(&s->room);
	pthread_cond_destroy(&s->ready);
	free(s->part);
	free(s->piece);
	free(s->streamed);
	free(s->stage);
	free(s->done);
	free(s->left);
	free(s);
}
