#include "main-node/cluster/unsent.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct odm_unsent {
	_Atomic uint64_t refs, bytes;
};

/* A frame that waits. */
struct waiting {
	struct odm_unsent *unsent; /* a reference */
	uint64_t bytes; /* as counted */
	uint8_t data[];
};

struct odm_unsent *odm_unsent_new(void)
{
	struct odm_unsent *u = calloc(1, sizeof(*u));

	if (u != NULL)
		atomic_init(&u->refs, 1);
	return u;
}

void odm_unsent_unref(struct odm_unsent *u)
{
	if (u != NULL && atomic_fetch_sub(&u->refs, 1) == 1)
		free(u);
}

uint64_t odm_unsent_bytes(const struct odm_unsent *u)
{
	return atomic_load(&u->bytes);
}

/* Perhaps on ZeroMQ's I/O thread. */
static void left(void *data, void *hint)
{
	struct waiting *w = hint;

	(void)data;
	atomic_fetch_sub(&w->unsent->bytes, w->bytes);
	odm_unsent_unref(w->unsent);
	free(w);
}

static struct waiting *count(struct odm_unsent *u, const void *bytes, size_t len)
{
	struct waiting *w = malloc(sizeof(*w) + len);

	if (w == NULL)
		return NULL;
	w->unsent = u;
	w->bytes = len + ODM_UNSENT_FRAME_BYTES;
	if (len > 0)
		memcpy(w->data, bytes, len);
	atomic_fetch_add(&u->refs, 1);
	atomic_fetch_add(&u->bytes, w->bytes);
	return w;
}

static int count_header(struct odm_unsent *u, zmq_msg_t *packed)
{
	struct waiting *w = count(u, zmq_msg_data(packed), zmq_msg_size(packed));
	zmq_msg_t m;

	if (w == NULL)
		return OD_ERR_NOMEM;
	if (zmq_msg_init_data(&m, w->data, zmq_msg_size(packed), left, w) != 0) {
		left(w->data, w);
		return OD_ERR_NOMEM;
	}
	zmq_msg_move(packed, &m); /* closes what was there */
	return OD_OK;
}

static int count_frame(struct odm_unsent *u, const struct od_out_frame *src, struct od_out_frame *out)
{
	struct waiting *w;

	assert(src->done == NULL);
	if (src->len > OD_MAX_FRAME_BYTES)
		return OD_ERR_RANGE;
	w = count(u, src->bytes, src->len);
	if (w == NULL)
		return OD_ERR_NOMEM;
	*out = (struct od_out_frame){ .bytes = w->data, .len = src->len, .done = left, .hint = w };
	return OD_OK;
}

int odm_unsent_send(struct odm_unsent *u, void *socket, Od__Header *header, const struct od_out_frame *frames,
		    size_t n_frames)
{
	struct od_out_frame out[OD_MAX_FRAMES - 1];
	zmq_msg_t packed;
	size_t made = 0;
	int rc = n_frames < OD_MAX_FRAMES ? od_wire_pack(header, &packed) : OD_ERR_RANGE;

	if (rc != OD_OK)
		return rc;
	rc = count_header(u, &packed);
	while (rc == OD_OK && made < n_frames) {
		rc = count_frame(u, &frames[made], &out[made]);
		made += rc == OD_OK;
	}
	if (rc == OD_OK)
		rc = od_wire_send_packed(socket, NULL, &packed, out, n_frames);
	if (rc == OD_OK)
		return OD_OK;
	while (made-- > 0)
		left(NULL, out[made].hint);
	zmq_msg_close(&packed);
	return rc;
}
