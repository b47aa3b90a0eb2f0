#include "tests/bench/live/recall_run.h"

#include "common/base/mem.h"
#include "common/base/pool.h"
#include "common/compute/device.h"
#include "common/compute/open_device.h"
#include "main-node/engine/model.h"
#include "tests/bench/live/recall_models.h"
#include "tests/bench/live/recall_progress.h"
#include "tests/bench/live/recall_rival.h"
#include "tests/bench/live/recall_shadow.h"
#include "tests/bench/live/rivals.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* State that the threads share while they run. */
struct crew {
	struct recall_run *run;
	struct od_device *rivals_device; /* device of the thread whose turn it is */
	struct recall_rival *rival[RECALL_CONFIGS_MAX]; /* NULL: a shadow's configuration */
	FILE *dump;
	struct recall_progress progress;
	pthread_mutex_t lock;
	pthread_cond_t turn_changed;
	/* Under lock: */
	size_t next; /* prompt that nobody has taken */
	size_t turn; /* prompt whose rivals are next */
	int rc; /* the first failure */
	struct od_err err;
};

struct recall_hand {
	struct crew *crew;
	pthread_t thread;
	struct od_device *device;
	struct recall_recorder *recorder;
	struct od_strbuf dump; /* one prompt's */
	struct recall_tape *tape; /* [configs], of one prompt; NULL: not wanted */
};

/* ---- One prompt ---- */

static struct od_forward_opts forward_of(const struct crew *w, struct od_device *device, const struct recall_config *c,
					 uint32_t max_rows)
{
	return (struct od_forward_opts){
		.config = od_pack_config(w->run->pack),
		.dense = recall_models_dense(w->run->models, c),
		.device = device,
		.profile = w->run->opt.profile,
		.max_rows = max_rows,
	};
}

static int open_board(struct recall_hand *h, size_t config, size_t prompt, struct recall_recording *rec,
		      struct recall_board *board, struct od_err *err)
{
	struct recall_run *r = h->crew->run;

	*board = (struct recall_board){
		.rec = rec,
		.config = od_pack_config(r->pack),
		.counts = recall_run_counts(r, config) + prompt,
		.name = r->configs->config[config].name,
		.dump = r->opt.dump != NULL ? &h->dump : NULL,
	};
	return recall_board_open(board, err);
}

static int replay_shadow(struct recall_hand *h, size_t config, size_t prompt, struct recall_recording *rec,
			 struct od_err *err)
{
	const struct recall_config *c = &h->crew->run->configs->config[config];
	const struct recall_shadow shadow = {
		.forward = forward_of(h->crew, h->device, c, ODS_MAX_FILL_ROWS),
		.experts = recall_models_experts(h->crew->run->models, c),
		.early = h->crew->run->opt.early,
		.align = c->align,
	};
	struct recall_board board;
	int rc = open_board(h, config, prompt, rec, &board, err);

	if (h->tape != NULL) {
		recall_tape_clear(&h->tape[config]);
		board.tape = &h->tape[config];
	}
	if (rc == OD_OK)
		rc = recall_shadow_replay(&shadow, &board, err);
	recall_board_close(&board);
	return rc;
}

static int replay_rival(struct recall_hand *h, size_t config, size_t prompt, struct recall_recording *rec,
			struct od_err *err)
{
	struct recall_rival *rival = h->crew->rival[config];
	struct recall_board board;
	int rc = open_board(h, config, prompt, rec, &board, err);

	if (rc == OD_OK)
		recall_rival_replay(rival, &board);
	recall_board_close(&board);
	return rc;
}

/* False: somebody failed, and nobody's turn comes any more. */
static bool wait_for_turn(struct crew *w, size_t prompt)
{
	bool go;

	pthread_mutex_lock(&w->lock);
	while (w->rc == OD_OK && w->turn != prompt)
		pthread_cond_wait(&w->turn_changed, &w->lock);
	go = w->rc == OD_OK;
	pthread_mutex_unlock(&w->lock);
	return go;
}

static void end_turn(struct crew *w)
{
	pthread_mutex_lock(&w->lock);
	w->turn++;
	pthread_cond_broadcast(&w->turn_changed);
	pthread_mutex_unlock(&w->lock);
}

static int write_dump(struct recall_hand *h, struct od_err *err)
{
	size_t len;
	char *text;
	int rc = OD_OK;

	if (h->crew->dump == NULL)
		return OD_OK;
	text = od_strbuf_take(&h->dump, &len);
	if (text == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for the dump of a prompt");
	if (fwrite(text, 1, len, h->crew->dump) != len)
		rc = od_fail_errno(err, OD_ERR_IO, "%s", h->crew->run->opt.dump);
	free(text);
	return rc;
}

/* The prompt on the simulated clusters. */
static int simulate(struct recall_hand *h, size_t prompt, const struct recall_recording *rec, struct od_err *err)
{
	struct crew *w = h->crew;
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < w->run->configs->n; i++) {
		struct served_trace t;

		if (w->rival[i] != NULL)
			continue;
		t = recall_tape_trace(&h->tape[i], rec, od_pack_config(w->run->pack));
		rc = recall_served_run(&w->run->served, i, prompt, &t, err);
	}
	return rc;
}

/* Does the work that goes from prompt to prompt in order: the rivals, the simulated clusters, and the dump. */
static int in_order(struct recall_hand *h, size_t prompt, struct recall_recording *rec, struct od_err *err)
{
	struct crew *w = h->crew;
	int rc = OD_OK;

	if (!wait_for_turn(w, prompt))
		return OD_OK; /* the failure is known */
	for (size_t i = 0; rc == OD_OK && i < w->run->configs->n; i++) {
		if (w->rival[i] == NULL)
			continue;
		rc = replay_rival(h, i, prompt, rec, err);
		recall_progress_done(&w->progress, 1);
	}
	if (rc == OD_OK && h->tape != NULL)
		rc = simulate(h, prompt, rec, err);
	if (rc == OD_OK)
		rc = write_dump(h, err);
	if (rc == OD_OK)
		end_turn(w);
	return rc;
}

static int run_prompt(struct recall_hand *h, size_t prompt, struct od_err *err)
{
	struct crew *w = h->crew;
	const struct od_prompt *q = &w->run->prompts->prompt[prompt];
	struct recall_recording *rec;
	int rc = recall_record(h->recorder, q, &rec, err);

	recall_progress_done(&w->progress, 1);
	for (size_t i = 0; rc == OD_OK && i < w->run->configs->n; i++) {
		if (w->rival[i] != NULL)
			continue;
		rc = replay_shadow(h, i, prompt, rec, err);
		recall_progress_done(&w->progress, 1);
	}
	if (rc == OD_OK)
		rc = in_order(h, prompt, rec, err);
	if (rc != OD_OK)
		return od_fail_within(err, "%s", q->name);
	w->run->result[prompt] = (struct recall_prompt_result){ rec->n_tokens, rec->finish };
	return OD_OK;
}

/* ---- The crew ---- */

static void give_up(struct crew *w, const struct od_err *err, int rc)
{
	pthread_mutex_lock(&w->lock);
	if (w->rc == OD_OK) {
		w->rc = rc;
		w->err = *err;
	}
	pthread_cond_broadcast(&w->turn_changed);
	pthread_mutex_unlock(&w->lock);
}

static bool take_prompt(struct crew *w, size_t *prompt)
{
	bool took;

	pthread_mutex_lock(&w->lock);
	took = w->rc == OD_OK && w->next < w->run->prompts->n;
	*prompt = w->next;
	w->next += took;
	pthread_mutex_unlock(&w->lock);
	return took;
}

static void *work(void *arg)
{
	struct recall_hand *h = arg;
	struct od_err err;
	size_t prompt;

	while (take_prompt(h->crew, &prompt)) {
		int rc = run_prompt(h, prompt, &err);

		if (rc != OD_OK)
			give_up(h->crew, &err, rc);
	}
	return NULL;
}

static uint32_t positions(const struct recall_run *r)
{
	size_t longest = 0, all;

	for (size_t i = 0; i < r->prompts->n; i++)
		longest = r->prompts->prompt[i].n_ids > longest ? r->prompts->prompt[i].n_ids : longest;
	all = longest + r->opt.max_tokens - 1; /* the last token is not passed through the model */
	return all < r->opt.ctx_tokens ? (uint32_t)all : (uint32_t)r->opt.ctx_tokens;
}

static bool has_rivals(const struct recall_run *r)
{
	for (size_t i = 0; i < r->configs->n; i++) {
		if (r->configs->config[i].predictor != NULL)
			return true;
	}
	return false;
}

static struct recall_recorder_opts recorder_opts(const struct recall_run *r, const struct od_forward_opts *forward,
						 const struct od_expert *experts)
{
	return (struct recall_recorder_opts){
		.forward = *forward,
		.experts = experts,
		.positions = positions(r),
		.ctx_tokens = (uint32_t)r->opt.ctx_tokens,
		.max_tokens = r->opt.max_tokens,
		.residual = has_rivals(r),
	};
}

static int open_rivals(struct crew *w, struct od_err *err)
{
	const struct recall_configs *all = w->run->configs;
	const struct od_forward_opts f = forward_of(w, w->rivals_device, NULL, w->run->opt.prefill_rows);
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < all->n; i++) {
		if (all->config[i].predictor != NULL)
			rc = recall_rival_new(&w->rival[i], rival_kind(all->config[i].predictor), &f, err);
	}
	return rc;
}

static int open_tapes(const struct recall_run *r, struct recall_hand *h, struct od_err *err)
{
	int rc = OD_OK;

	if (r->opt.served == NULL)
		return OD_OK;
	h->tape = calloc(r->configs->n, sizeof(*h->tape));
	if (h->tape == NULL)
		return od_fail(err, OD_ERR_NOMEM, "predictions of %zu configurations", r->configs->n);
	for (size_t i = 0; rc == OD_OK && i < r->configs->n; i++) {
		if (r->configs->config[i].predictor == NULL)
			rc = recall_tape_init(&h->tape[i], od_pack_config(r->pack)->n_moe, r->opt.max_tokens, err);
	}
	return rc;
}

static void close_hand(struct recall_hand *h, size_t n_configs)
{
	recall_recorder_free(h->recorder);
	od_device_free(h->device);
	od_strbuf_fini(&h->dump);
	for (size_t i = 0; h->tape != NULL && i < n_configs; i++)
		recall_tape_fini(&h->tape[i]);
	free(h->tape);
}

/* A device each: a device computes for one thread. */
static int open_device(const struct crew *w, struct od_device **device, struct od_err *err)
{
	return od_device_open(device, w->run->opt.device, (enum od_cpu)w->run->opt.cpu, 1, "od-recall", err);
}

static int open_recorder(struct recall_hand *h, struct od_err *err)
{
	const struct recall_run *r = h->crew->run;
	const struct od_forward_opts f = forward_of(h->crew, h->device, NULL, r->opt.prefill_rows);
	const struct recall_recorder_opts o = recorder_opts(r, &f, recall_models_experts(r->models, NULL));

	return recall_recorder_new(&h->recorder, &o, err);
}

static int open_hands(struct crew *w, struct recall_hand *hand, size_t n, struct od_err *err)
{
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < n; i++) {
		hand[i].crew = w;
		rc = open_device(w, &hand[i].device, err);
		if (rc == OD_OK)
			rc = open_recorder(&hand[i], err);
		if (rc == OD_OK)
			rc = open_tapes(w->run, &hand[i], err);
	}
	return rc;
}

/* The first hand is this thread. */
static int run_hands(struct crew *w, struct recall_hand *hand, size_t n, struct od_err *err)
{
	size_t started = 1;

	for (; started < n; started++) {
		int rc = pthread_create(&hand[started].thread, NULL, work, &hand[started]);

		if (rc != 0) {
			od_fail(err, OD_ERR_NOMEM, "thread %zu of %zu: %s", started + 1, n, strerror(rc));
			give_up(w, err, OD_ERR_NOMEM);
			break;
		}
	}
	work(&hand[0]);
	for (size_t i = 1; i < started; i++)
		pthread_join(hand[i].thread, NULL);
	if (w->rc != OD_OK)
		*err = w->err;
	return w->rc;
}

static int open_dump(struct crew *w, struct od_err *err)
{
	const char *path = w->run->opt.dump;

	if (path == NULL)
		return OD_OK;
	w->dump = fopen(path, "w");
	return w->dump != NULL ? OD_OK : od_fail_errno(err, OD_ERR_IO, "%s", path);
}

static int close_dump(struct crew *w, int rc, struct od_err *err)
{
	if (w->dump != NULL && fclose(w->dump) != 0 && rc == OD_OK)
		rc = od_fail_errno(err, OD_ERR_IO, "%s", w->run->opt.dump);
	return rc;
}

int recall_run_all(struct recall_run *r, struct od_err *err)
{
	size_t n = r->opt.threads < r->prompts->n ? r->opt.threads : r->prompts->n;
	struct recall_hand *hand = calloc(n, sizeof(*hand));
	struct crew w = { .run = r };
	int rc;

	if (hand == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%zu threads", n);
	pthread_mutex_init(&w.lock, NULL);
	pthread_cond_init(&w.turn_changed, NULL);
	rc = open_device(&w, &w.rivals_device, err);
	if (rc == OD_OK)
		rc = open_rivals(&w, err);
	if (rc == OD_OK)
		rc = open_hands(&w, hand, n, err);
	if (rc == OD_OK)
		rc = open_dump(&w, err);
	if (rc == OD_OK) {
		recall_progress_begin(&w.progress, r->opt.progress, r->prompts->n * (r->configs->n + 1));
		rc = run_hands(&w, hand, n, err);
		recall_progress_end(&w.progress);
	}
	rc = close_dump(&w, rc, err);
	for (size_t i = 0; i < n; i++)
		close_hand(&hand[i], r->configs->n);
	for (size_t i = 0; i < r->configs->n; i++)
		recall_rival_free(w.rival[i]);
	od_device_free(w.rivals_device);
	pthread_cond_destroy(&w.turn_changed);
	pthread_mutex_destroy(&w.lock);
	free(hand);
	return rc;
}

/* ---- Opening ---- */

static int check_prompts(const struct recall_run *r, struct od_err *err)
{
	const uint32_t vocab = od_pack_config(r->pack)->vocab;

	for (size_t i = 0; i < r->prompts->n; i++) {
		const struct od_prompt *q = &r->prompts->prompt[i];

		if (q->n_ids == 0)
			return od_fail(err, OD_ERR_ARG,
				       "%s: the prompt is empty, and the tokenizer puts no BOS in front of it",
				       q->name);
		if (q->n_ids > r->opt.ctx_tokens)
			return od_fail(err, OD_ERR_RANGE,
				       "%s: the prompt has %zu tokens, more than the context of %llu; "
				       "shorten it or raise --ctx-size",
				       q->name, q->n_ids, (unsigned long long)r->opt.ctx_tokens);
		for (size_t k = 0; k < q->n_ids; k++) {
			if (q->ids[k] < 0 || (uint32_t)q->ids[k] >= vocab)
				return od_fail(err, OD_ERR_RANGE, "%s: token %zu: expected 0 to %u, found %d", q->name,
					       k, vocab - 1, q->ids[k]);
		}
	}
	return OD_OK;
}

static int choose_ctx(struct recall_run *r, struct od_err *err)
{
	const uint32_t max = od_pack_config(r->pack)->ctx_max;

	if (r->opt.ctx_tokens == 0)
		r->opt.ctx_tokens = od_config_least_ctx(od_pack_config(r->pack));
	if (r->opt.ctx_tokens > max)
		return od_fail(err, OD_ERR_ARG, "--ctx-size: the model was made for %u tokens at most, found %llu", max,
			       (unsigned long long)r->opt.ctx_tokens);
	/* No text is longer, the token that has no place in the context any more counted; figures are kept for each. */
	if (r->opt.max_tokens > r->opt.ctx_tokens)
		r->opt.max_tokens = (uint32_t)r->opt.ctx_tokens + 1;
	return OD_OK;
}

static int encode_prompts(struct recall_run *r, struct od_err *err)
{
	int rc = od_prompts_encode_by_file(r->prompts, od_pack_tokenizer_path(r->pack), err);

	return rc == OD_OK ? check_prompts(r, err) : rc;
}

static int open_counts(struct recall_run *r, struct od_err *err)
{
	const size_t n = r->configs->n * r->prompts->n;
	int rc = OD_OK;

	r->counts = calloc(n, sizeof(*r->counts));
	r->result = calloc(r->prompts->n, sizeof(*r->result));
	if (r->counts == NULL || r->result == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for the results of %zu prompts", r->prompts->n);
	for (size_t i = 0; rc == OD_OK && i < n; i++)
		rc = recall_counts_init(&r->counts[i], od_pack_config(r->pack)->n_moe, r->opt.max_tokens, err);
	return rc;
}

/* Memory that the threads will take: a recorder each, and a shadow's sequence about as large. */
static uint64_t thread_bytes(const struct recall_run *r)
{
	const struct od_forward_opts f = {
		.config = od_pack_config(r->pack),
		.profile = r->opt.profile,
		.max_rows = r->opt.prefill_rows,
	};
	const struct recall_recorder_opts o = recorder_opts(r, &f, NULL);
	uint64_t one, all;

	if (!od_add(recall_recorder_bytes(&o), od_state_pool_bytes(f.config, f.profile, od_state_pages(o.positions), 1),
		    &one) ||
	    !od_mul(one, r->opt.threads, &all))
		return UINT64_MAX;
	if (r->opt.served != NULL)
		all += recall_tape_bytes(f.config->n_moe, r->opt.max_tokens) * r->opt.threads * r->configs->n;
	return all;
}

int recall_run_open(struct recall_run *r, struct od_err *err)
{
	int rc = od_pack_open(&r->pack, r->opt.pack, err);

	if (rc == OD_OK)
		rc = odm_set_routing(r->pack, r->opt.routing, err);
	if (r->opt.threads == 0)
		r->opt.threads = od_cpu_count();
	if (rc == OD_OK)
		rc = choose_ctx(r, err);
	if (rc == OD_OK)
		rc = encode_prompts(r, err);
	if (rc == OD_OK)
		rc = open_counts(r, err);
	if (rc == OD_OK)
		rc = recall_models_open(&r->models, r->pack, r->configs, r->opt.device, (unsigned)r->opt.threads,
					thread_bytes(r), r->opt.progress, err);
	if (rc == OD_OK && r->opt.served != NULL)
		rc = recall_served_init(&r->served, r->opt.served, r->configs, r->prompts->n, od_pack_config(r->pack),
					err);
	return rc;
}

void recall_run_close(struct recall_run *r)
{
	for (size_t i = 0; r->counts != NULL && i < r->configs->n * r->prompts->n; i++)
		recall_counts_fini(&r->counts[i]);
	free(r->counts);
	free(r->result);
	recall_served_fini(&r->served);
	recall_models_close(r->models);
	od_pack_close(r->pack);
	r->counts = NULL;
	r->result = NULL;
	r->models = NULL;
	r->pack = NULL;
}
