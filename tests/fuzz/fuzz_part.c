/* Any PART_ messages go to a shadow's part (part.h), which must refuse them or compute something. Input: messages, each
 * a header behind its length in two bytes, the number of frames, and their lengths in two bytes each. Short frames
 * (page numbers) follow their length; others are made of whatever follows. */
#include "tests/unit/emulator_model.h"

#include "shadow-node/part.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

#define MAX_FRAME 4096u
#define SHORT_FRAME 16u
#define MAX_MESSAGES 12

static struct model model;
static struct od_config part_config;

static void ignore(void *arg, Od__Header *header, const struct od_out_frame *frames, size_t n_frames)
{
	(void)arg;
	(void)header;
	for (size_t i = 0; i < n_frames; i++) { /* all of it can be read */
		uint8_t *copy = malloc(frames[i].len + 1);

		memcpy(copy, frames[i].bytes, frames[i].len);
		free(copy);
	}
}

static void open_model(void)
{
	struct od_err err;

	make_model(&model, 11);
	part_config = config;
	if (od_config_take_layers(&part_config, 1, LAYERS, &err) != OD_OK)
		abort();
	memset(&model.layer[0], 0, sizeof(model.layer[0]));
	model.dense.embed = model.dense.head = (struct od_weight){ 0 };
	model.dense.final_norm = (struct od_ref){ 0 };
}

static size_t take(const uint8_t **data, size_t *size, size_t most)
{
	size_t n = *size >= 2 ? (size_t)(*data)[0] | (size_t)(*data)[1] << 8 : 0, head = *size >= 2 ? 2 : *size;

	*data += head;
	*size -= head;
	return n % (most + 1);
}

static void add_frame(struct od_msg *m, const uint8_t **data, size_t *size)
{
	const size_t n = take(data, size, MAX_FRAME), used = n > SHORT_FRAME ? 0 : n < *size ? n : *size;
	uint8_t *bytes;

	if (zmq_msg_init_size(&m->frame[m->n_frames], n) != 0)
		abort();
	bytes = zmq_msg_data(&m->frame[m->n_frames++]);
	for (size_t i = 0; i < n; i++)
		bytes[i] = *size > 0 ? (*data)[i % *size] : 0;
	*data += used;
	*size -= used;
}

/* False: the input is over. */
static bool one_message(struct ods_part *p, const uint8_t **data, size_t *size)
{
	const size_t len = take(data, size, *size);
	struct od_msg m = { 0 };
	struct od_err err;
	size_t n_frames;

	if (*size == 0)
		return false;
	m.header = od__header__unpack(NULL, len < *size ? len : *size, *data);
	*data += len < *size ? len : *size;
	*size -= len < *size ? len : *size;
	if (m.header == NULL)
		return *size > 0;
	n_frames = take(data, size, OD_MAX_FRAMES - 1);
	while (m.n_frames < n_frames)
		add_frame(&m, data, size);
	(void)!ods_part_message(p, &m, &err);
	for (size_t i = 0; i < m.n_frames; i++)
		zmq_msg_close(&m.frame[i]);
	od__header__free_unpacked(m.header, NULL);
	return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ods_emulator_opts o;
	struct ods_part *p;
	struct od_err err;

	if (model.device == NULL)
		open_model();
	o = (struct ods_emulator_opts){ .forward = pass_opts(&model, OD_PROFILE_F32),
					.experts = model.expert,
					.ctx_tokens = CTX,
					.max_sequences = 2,
					.n_pages = 4 };
	o.forward.config = &part_config;
	if (ods_part_new(&p, &o, ignore, NULL, &err) != OD_OK)
		abort();
	for (int i = 0; i < MAX_MESSAGES && one_message(p, &data, &size); i++)
		;
	ods_part_free(p);
	return 0;
}
