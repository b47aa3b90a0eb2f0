/* A shadow's part (part.h): its layers compute what the whole model computes, and numbers that a peer may have wrong
 * are refused before they index anything. */
#include "tests/unit/emulator_model.h"

#include "shadow-node/part.h"

#include <string.h>

#define BEGIN 1u /* it holds layers 1 and 2 */
#define PAGES 4u /* pages of two contexts */
#define SEQUENCES 2u
#define N 3u /* rows of the run */

struct part_world {
	struct model model;
	struct od_config held;
	struct ods_part *p;
	/* The newest answer. */
	Od__Header__BodyCase kind;
	uint64_t run;
	uint32_t layer;
	int code;
	char reason[200];
	float rows[STEP_ROWS * 64];
	size_t n_floats;
	unsigned n_answers;
};

static void take_answer(void *arg, Od__Header *h, const struct od_out_frame *frames, size_t n_frames)
{
	struct part_world *w = arg;

	w->kind = h->body_case;
	w->n_answers++;
	w->n_floats = n_frames > 0 ? frames[0].len / sizeof(float) : 0;
	if (h->body_case != OD__HEADER__BODY_PART_RESULT)
		return;
	w->run = h->part_result->run;
	w->layer = h->part_result->layer;
	w->code = h->part_result->code;
	snprintf(w->reason, sizeof(w->reason), "%s", h->part_result->reason);
	assert_true(w->n_floats <= sizeof(w->rows) / sizeof(float));
	if (n_frames > 0)
		memcpy(w->rows, frames[0].bytes, frames[0].len);
}

static void open_world(struct part_world *w)
{
	struct ods_emulator_opts o;
	struct od_err err;

	memset(w, 0, sizeof(*w));
	make_model(&w->model, 11);
	w->held = config;
	assert_int_equal(od_config_take_layers(&w->held, BEGIN, LAYERS, &err), OD_OK);
	memset(&w->model.layer[0], 0, sizeof(w->model.layer[0]));
	w->model.dense.embed = w->model.dense.head = (struct od_weight){ 0 };
	w->model.dense.final_norm = (struct od_ref){ 0 };
	o = (struct ods_emulator_opts){ .forward = pass_opts(&w->model, OD_PROFILE_F32),
					.experts = w->model.expert,
					.ctx_tokens = CTX,
					.max_sequences = SEQUENCES,
					.n_pages = PAGES };
	o.forward.config = &w->held;
	o.forward.max_rows = STEP_ROWS;
	assert_int_equal(ods_part_new(&w->p, &o, take_answer, w, &err), OD_OK);
}

static void close_world(struct part_world *w)
{
	ods_part_free(w->p);
	free_model(&w->model);
}

/* ---- messages ---- */

struct part_message {
	struct od_msg m;
	Od__Header header;
	Od__PartRun run;
	Od__PartTable table[3], *tables[3];
	int32_t token[N];
	uint32_t page[2];
	float x[N * 64];
	size_t x_bytes, page_bytes, n_frames;
	Od__PartLayer layer;
	uint32_t keep[2];
	Od__PartState state;
	Od__PartRows range, *ranges[1];
	float row[2][64];
	size_t row_bytes[2];
	Od__PartCommit commit;
	uint32_t kept[3];
};

static void add_frame(struct od_msg *m, const void *bytes, size_t n)
{
	assert_int_equal(zmq_msg_init_size(&m->frame[m->n_frames], n), 0);
	memcpy(zmq_msg_data(&m->frame[m->n_frames++]), bytes, n);
}

static int send_message(struct part_world *w, struct part_message *s, struct od_err *err)
{
	int rc;

	s->m = (struct od_msg){ .header = &s->header };
	if (s->header.body_case == OD__HEADER__BODY_PART_RUN && s->n_frames > 0)
		add_frame(&s->m, s->x, s->x_bytes);
	if (s->header.body_case == OD__HEADER__BODY_PART_RUN && s->n_frames > 1)
		add_frame(&s->m, s->page, s->page_bytes);
	for (size_t i = 0; s->header.body_case == OD__HEADER__BODY_PART_STATE && i < s->n_frames; i++)
		add_frame(&s->m, s->row[i], s->row_bytes[i]);
	rc = ods_part_message(w->p, &s->m, err);
	for (size_t i = 0; i < s->m.n_frames; i++)
		zmq_msg_close(&s->m.frame[i]);
	return rc;
}

/* Two sequences: one row behind a position, and two rows of a new text. */
static void fill_run(struct part_message *s, uint64_t number)
{
	memset(s, 0, sizeof(*s));
	od__header__init(&s->header);
	od__part_run__init(&s->run);
	for (size_t i = 0; i < 3; i++) {
		od__part_table__init(&s->table[i]);
		s->tables[i] = &s->table[i];
		s->table[i].place = (uint32_t)i;
		s->table[i].n_pages = 1;
		s->table[i].next = 1;
		s->table[i].n_rows = i == 0 ? 1 : 2;
		s->table[i].length = i == 0 ? 1 : 0;
	}
	s->page[0] = 3;
	s->page[1] = 2;
	for (size_t i = 0; i < N; i++)
		s->token[i] = (int32_t)i + 3;
	for (size_t i = 0; i < N * config.hidden; i++)
		s->x[i] = (float)(i % 17) / 8 - 1;
	s->run.run = number;
	s->run.tables = s->tables;
	s->run.n_tables = 2;
	s->run.tokens = s->token;
	s->run.n_tokens = N;
	s->x_bytes = N * config.hidden * sizeof(float);
	s->page_bytes = sizeof(s->page);
	s->n_frames = 2;
	s->header.body_case = OD__HEADER__BODY_PART_RUN;
	s->header.part_run = &s->run;
}

static void fill_layer(struct part_message *s, uint64_t run, uint32_t layer)
{
	memset(s, 0, sizeof(*s));
	od__header__init(&s->header);
	od__part_layer__init(&s->layer);
	s->layer.run = run;
	s->layer.layer = layer;
	s->layer.probabilities = true;
	s->layer.keep = s->keep;
	s->header.body_case = OD__HEADER__BODY_PART_LAYER;
	s->header.part_layer = &s->layer;
}

static void fill_state(struct part_message *s)
{
	memset(s, 0, sizeof(*s));
	od__header__init(&s->header);
	od__part_state__init(&s->state);
	od__part_rows__init(&s->range);
	s->ranges[0] = &s->range;
	s->range.page = 3;
	s->range.n = 1;
	s->state.layer = BEGIN;
	s->state.rows = s->ranges;
	s->state.n_rows = 1;
	s->n_frames = 2;
	for (size_t i = 0; i < 2; i++) {
		const struct od_mixer *mix = &od_config_layer(&config, BEGIN)->mix;

		s->row_bytes[i] = mix->n_kv_heads * (i == 0 ? mix->k_dim : mix->v_dim) * sizeof(float);
		for (size_t j = 0; j < s->row_bytes[i] / sizeof(float); j++)
			s->row[i][j] = (float)(i + j) / 16;
	}
	s->header.body_case = OD__HEADER__BODY_PART_STATE;
	s->header.part_state = &s->state;
}

/* All layers of a run; the rows come out. */
static void run_all(struct part_world *w, uint64_t number)
{
	struct part_message s;
	struct od_err err;

	fill_run(&s, number);
	assert_int_equal(send_message(w, &s, &err), OD_OK);
	for (uint32_t layer = BEGIN; layer <= LAYERS; layer++) {
		fill_layer(&s, number, layer);
		assert_int_equal(send_message(w, &s, &err), OD_OK);
		assert_int_equal(w->code, OD_OK);
		assert_int_equal(w->layer, layer);
		assert_int_equal(w->n_floats, layer < LAYERS ? N * EXPERTS : N * config.hidden);
	}
}

/* ---- tests ---- */

static void test_a_run(void **unused)
{
	static float first[N * 64];
	struct part_world w;
	struct part_message s;
	struct od_err err;

	(void)unused;
	open_world(&w);
	fill_state(&s);
	assert_int_equal(send_message(&w, &s, &err), OD_OK);
	run_all(&w, 1);
	assert_true(w.n_floats <= sizeof(first) / sizeof(first[0]));
	memcpy(first, w.rows, w.n_floats * sizeof(float));
	run_all(&w, 7); /* nothing depends on earlier runs */
	assert_memory_equal(first, w.rows, w.n_floats * sizeof(float));
	fill_state(&s);
	s.row[1][0] += 1; /* main's row: the first sequence's row sees it */
	assert_int_equal(send_message(&w, &s, &err), OD_OK);
	run_all(&w, 8);
	assert_memory_not_equal(first, w.rows, config.hidden * sizeof(float));
	assert_memory_equal(first + config.hidden, w.rows + config.hidden, (N - 1) * config.hidden * sizeof(float));
	close_world(&w);
}

/* Spoils a PART_RUN in one way; returns the expected text, NULL: it is good. */
static const char *spoil_run(struct part_message *s, int how)
{
	switch (how) {
	case 0: s->run.run = 4; return "late or repeated";
	case 1: s->run.n_tables = 0; return "0 sequences";
	case 2: s->run.n_tokens = 0; return "0 rows";
	case 3: s->n_frames = 1; return "frames";
	case 4: s->x_bytes -= 4; return "frames";
	case 5: s->table[1].place = 0; return "place";
	case 6: s->table[1].place = 2 * SEQUENCES; return "place";
	case 7: s->table[1].place = UINT32_MAX; return "place";
	case 8: s->table[0].n_rows = 0; return "0 rows from";
	case 9: s->table[0].length = CTX; return "from position";
	case 10: s->table[0].length = UINT32_MAX; return "from position";
	case 11: s->table[0].n_rows = UINT32_MAX; return "from position";
	case 12: s->table[0].n_pages = 0; return "pages: expected";
	case 13: s->table[0].n_pages = 3; return "pages: expected";
	case 14: s->table[0].length = 64; return "pages: expected";
	case 15: s->page[0] = PAGES; return "page: expected below";
	case 16: s->page[1] = UINT32_MAX; return "page: expected below";
	case 17: s->page_bytes = 4; return "more rows or pages";
	case 18: s->page_bytes = 7; return "more rows or pages";
	case 19: s->table[1].n_rows = 3; return "more rows or pages";
	case 20: s->table[1].n_rows = 1; return "tables of 2 rows";
	case 21: s->run.n_tables = 1; return "tables of 1 rows";
	case 22: s->table[0].committed = 1; return "copies";
	case 23: s->table[0].next = ODS_FIXED_COPIES; return "copies";
	case 24: s->token[2] = -1; return "token: expected";
	case 25: s->token[0] = (int32_t)VOCAB; return "token: expected";
	default: return NULL;
	}
}

static void test_wrong_runs(void **unused)
{
	struct part_world w;
	struct od_err err;

	(void)unused;
	open_world(&w);
	run_all(&w, 4);
	for (int how = 0;; how++) {
		const uint64_t number = 5 + (uint64_t)how;
		struct part_message s;
		const char *said;

		fill_run(&s, number);
		said = spoil_run(&s, how);
		if (said == NULL)
			break;
		assert_int_not_equal(send_message(&w, &s, &err), OD_OK);
		if (strstr(err.msg, said) == NULL)
			fail_msg("how %d: expected \"%s\", found \"%s\"", how, said, err.msg);
		/* The next message with an answer tells it, once. */
		fill_layer(&s, number, BEGIN);
		assert_int_not_equal(send_message(&w, &s, &err), OD_OK);
		assert_int_not_equal(w.code, OD_OK);
		assert_non_null(strstr(w.reason, said));
	}
	run_all(&w, 1000);
	close_world(&w);
}

static void test_wrong_layers(void **unused)
{
	struct part_world w;
	struct part_message s;
	struct od_err err;

	(void)unused;
	open_world(&w);
	for (int how = 0; how < 6; how++) {
		fill_run(&s, 1 + (uint64_t)how);
		assert_int_equal(send_message(&w, &s, &err), OD_OK);
		fill_layer(&s, 1 + (uint64_t)how, BEGIN);
		switch (how) {
		case 0: s.layer.layer = 0; break;
		case 1: s.layer.layer = BEGIN + 1; break;
		case 2: s.layer.layer = UINT32_MAX; break;
		case 3: s.layer.run += 1; break;
		case 4: s.layer.n_keep = 1, s.keep[0] = N; break;
		default: s.layer.n_keep = 2, s.keep[0] = s.keep[1] = 1; break;
		}
		assert_int_not_equal(send_message(&w, &s, &err), OD_OK);
		assert_int_not_equal(w.code, OD_OK);
		fill_layer(&s, 1 + (uint64_t)how, BEGIN); /* the run is over */
		assert_int_not_equal(send_message(&w, &s, &err), OD_OK);
	}
	close_world(&w);
}

static void test_kept_rows_stay(void **unused)
{
	static float plain[N * 64];
	struct part_world w;
	struct part_message s;
	struct od_err err;

	(void)unused;
	open_world(&w);
	run_all(&w, 1);
	memcpy(plain, w.rows, w.n_floats * sizeof(float));
	for (uint64_t run = 2; run < 4; run++) {
		fill_state(&s);
		/* main's row at position 0 of the second sequence, of which the run has rows 0 and 1 */
		s.range.page = 2;
		assert_int_equal(send_message(&w, &s, &err), OD_OK);
		fill_run(&s, run);
		assert_int_equal(send_message(&w, &s, &err), OD_OK);
		fill_layer(&s, run, BEGIN);
		if (run == 3)
			s.layer.n_keep = 1, s.keep[0] = 1;
		assert_int_equal(send_message(&w, &s, &err), OD_OK);
		/* Layer 1 of another run of row 1 alone shows which row is there. */
		fill_run(&s, run + 10);
		s.table[0] = s.table[1];
		s.table[0].length = s.table[0].n_rows = 1;
		s.run.n_tables = s.run.n_tokens = 1;
		s.page[0] = 2;
		s.page_bytes = 4;
		s.x_bytes = config.hidden * sizeof(float);
		memcpy(s.x, s.x + 2 * config.hidden, s.x_bytes);
		assert_int_equal(send_message(&w, &s, &err), OD_OK);
		for (uint32_t layer = BEGIN; layer <= LAYERS; layer++) {
			fill_layer(&s, run + 10, layer);
			assert_int_equal(send_message(&w, &s, &err), OD_OK);
		}
		if (run == 2) /* its own row: as in the run of both */
			assert_memory_equal(plain + 2 * config.hidden, w.rows, config.hidden * sizeof(float));
		else
			assert_memory_not_equal(plain + 2 * config.hidden, w.rows, config.hidden * sizeof(float));
		w.n_answers = 0;
		ods_part_free(w.p);
		w.p = NULL;
		close_world(&w);
		open_world(&w);
	}
	close_world(&w);
}

/* A question in the middle of a run changes nothing; a new connection's begins anew. */
static void test_opening(void **unused)
{
	struct part_world w;
	struct part_message s;
	Od__Header header = OD__HEADER__INIT;
	Od__PartOpen open = OD__PART_OPEN__INIT;
	struct od_msg m = { .header = &header };
	struct od_err err;

	(void)unused;
	open_world(&w);
	header.body_case = OD__HEADER__BODY_PART_OPEN;
	header.part_open = &open;
	fill_run(&s, 9);
	assert_int_equal(send_message(&w, &s, &err), OD_OK);
	assert_int_equal(ods_part_message(w.p, &m, &err), OD_OK);
	assert_int_equal(w.kind, OD__HEADER__BODY_PART_READY);
	fill_layer(&s, 9, BEGIN);
	assert_int_equal(send_message(&w, &s, &err), OD_OK);
	fill_state(&s);
	s.range.page = PAGES; /* an error without an answer */
	assert_int_not_equal(send_message(&w, &s, &err), OD_OK);
	assert_int_equal(ods_part_message(w.p, &m, &err), OD_OK); /* is not forgotten */
	fill_layer(&s, 9, BEGIN + 1);
	assert_int_not_equal(send_message(&w, &s, &err), OD_OK);
	fill_run(&s, 3);
	assert_int_not_equal(send_message(&w, &s, &err), OD_OK);
	open.begin = true;
	assert_int_equal(ods_part_message(w.p, &m, &err), OD_OK);
	run_all(&w, 1);
	close_world(&w);
}

static void test_wrong_state(void **unused)
{
	struct part_world w;
	struct part_message s;
	struct od_err err;

	(void)unused;
	open_world(&w);
	for (int how = 0; how < 9; how++) {
		fill_state(&s);
		switch (how) {
		case 0: s.state.layer = 0; break;
		case 1: s.state.layer = LAYERS; break;
		case 2: s.state.layer = UINT32_MAX; break;
		case 3: s.range.page = PAGES; break;
		case 4: s.range.n = 0; break;
		case 5: s.range.first = 64; break;
		case 6: s.range.first = UINT32_MAX; break;
		case 7: s.n_frames = 1; break;
		default: s.row_bytes[1] -= 4; break;
		}
		assert_int_not_equal(send_message(&w, &s, &err), OD_OK);
	}
	fill_state(&s);
	s.state.n_rows = 0;
	s.row_bytes[0] = s.row_bytes[1] = 0;
	(void)!send_message(&w, &s, &err); /* nothing to write */
	s.header.body_case = OD__HEADER__BODY_STEP; /* the first shadow's */
	s.n_frames = 0;
	assert_int_not_equal(send_message(&w, &s, &err), OD_OK);
	assert_non_null(strstr(err.msg, "layers 1-2"));
	close_world(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_run),	     cmocka_unit_test(test_wrong_runs),
		cmocka_unit_test(test_wrong_layers), cmocka_unit_test(test_kept_rows_stay),
		cmocka_unit_test(test_opening),	     cmocka_unit_test(test_wrong_state),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
