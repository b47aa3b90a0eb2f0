/* /v1/choices: how probable each of some given answers is behind one prompt. Nothing is generated. */
#include "common/base/same_math.h"
#include "main-node/serve/api/api.h"
#include "main-node/serve/api/chat_turn.h"
#include "main-node/serve/api/choice_prompts.h"
#include "main-node/serve/jobs/token_text.h"

#include <stdlib.h>
#include <string.h>

#define MIN_CHOICES 2
#define MAX_CHOICES 128
#define ID_PREFIX "choices-"
#define OBJECT "choices"

struct choice_score {
	size_t n_tokens;
	double logprob; /* its tokens' together, and the end's if that counts */
	double end_logprob;
	json_t *logprobs; /* its tokens'; NULL: not asked for */
};

struct choice_scores {
	struct odm_reply reply; /* must be first (odm_reply_on_start) */
	const struct od_tokenizer *tokenizer;
	json_t *texts; /* an array of n strings */
	size_t n, from; /* from: tokens of the prompt that all choices begin with */
	bool ends, mean, logprobs;
	struct choice_score score[MAX_CHOICES];
};

/* Borrowed while preparing. */
struct choice_fields {
	const json_t *prompt, *messages, *choices;
	const char *normalize;
	bool ends, logprobs;
};

#define AT(field) offsetof(struct choice_fields, field)

static const struct odm_field fields[] = {
	{ "prompt", ODM_FIELD_JSON, AT(prompt), 0, 0, NULL },
	{ "messages", ODM_FIELD_JSON, AT(messages), 0, 0, NULL },
	{ "choices", ODM_FIELD_JSON, AT(choices), 0, 0, NULL },
	{ "normalize", ODM_FIELD_STRING, AT(normalize), 0, 0, NULL },
	{ "ends", ODM_FIELD_BOOL, AT(ends), 0, 0, NULL },
	{ "logprobs", ODM_FIELD_BOOL, AT(logprobs), 0, 0, NULL },
	{ 0 },
};

/* ---- The answer ---- */

static bool on_news(void *arg, size_t i, const struct odm_news *news)
{
	struct choice_scores *c = arg;
	struct choice_score *s = &c->score[i];
	const struct odm_token_record *r = news->tokens.record;
	const size_t of_prompt = odm_prompt_records(r, news->tokens.n);

	for (size_t k = 0; k < of_prompt; k++)
		s->logprob += r[k].logprob;
	s->n_tokens += of_prompt;
	if (s->logprobs != NULL)
		odm_chat_logprobs_add(s->logprobs, c->tokenizer, r, of_prompt, 0);
	/* The token that the engine chooses behind the choice says how probable an end is instead. */
	if (of_prompt < news->tokens.n)
		s->end_logprob = r[of_prompt].end_logprob;
	return false;
}

/* The number by which choices are compared. */
static double score_of(const struct choice_scores *c, size_t i)
{
	const size_t n = c->score[i].n_tokens + c->ends;

	return c->mean ? c->score[i].logprob / (double)n : c->score[i].logprob;
}

static json_t *choice_json(const struct choice_scores *c, size_t i, double probability)
{
	const struct choice_score *s = &c->score[i];
	json_t *o = json_pack("{s:I, s:O, s:f, s:I, s:f}", "index", (json_int_t)i, "text", json_array_get(c->texts, i),
			      "logprob", s->logprob, "n_tokens", (json_int_t)s->n_tokens, "probability", probability);

	if (c->ends)
		json_object_set_new(o, "end_logprob", json_real(s->end_logprob));
	if (c->logprobs)
		json_object_set(o, "logprobs", s->logprobs);
	return o;
}

/* Probabilities are a softmax of the scores. Returns the best choice; of equal ones the first. */
static size_t weigh(const struct choice_scores *c, double probability[MAX_CHOICES])
{
	size_t best = 0;
	double sum = 0;

	for (size_t i = 1; i < c->n; i++)
		best = score_of(c, i) > score_of(c, best) ? i : best;
	for (size_t i = 0; i < c->n; i++)
		sum += probability[i] = od_exp_same(score_of(c, i) - score_of(c, best));
	for (size_t i = 0; i < c->n; i++)
		probability[i] /= sum;
	return best;
}

/* The prompt counts once, and each choice's tokens. */
static json_t *usage_json(const struct choice_scores *c)
{
	struct odm_usage u = { .prompt_tokens = c->from, .cached_tokens = c->reply.ended[0].shared_tokens };

	for (size_t i = 0; i < c->n; i++)
		u.prompt_tokens += c->score[i].n_tokens;
	return odm_usage_json(&u);
}

static void on_end(void *arg)
{
	struct choice_scores *c = arg;
	double probability[MAX_CHOICES];
	json_t *choices = json_array(), *o;
	size_t best;

	for (size_t i = 0; c->ends && i < c->n; i++)
		c->score[i].logprob += c->score[i].end_logprob;
	best = weigh(c, probability);
	for (size_t i = 0; i < c->n; i++)
		json_array_append_new(choices, choice_json(c, i, probability[i]));
	o = odm_reply_json(&c->reply, ID_PREFIX, OBJECT, choices);
	json_object_set_new(o, "best", json_integer((json_int_t)best));
	json_object_set_new(o, "usage", usage_json(c));
	odm_exchange_reply_json(c->reply.exchange, 200, o);
}

/* ---- The request ---- */

static int check_choices(const json_t *choices, struct odm_api_error *e)
{
	const size_t n = json_array_size(choices);
	char found[64];

	if (!json_is_array(choices) || n < MIN_CHOICES || n > MAX_CHOICES)
		return odm_api_fail(e, 400, "choices", choices == NULL ? OD_ERR_MISSING : OD_ERR_FORMAT,
				    "choices: expected an array of %d to %d strings, found %s of %zu", MIN_CHOICES,
				    MAX_CHOICES, odm_json_describe(choices, found, sizeof(found)), n);
	for (size_t i = 0; i < n; i++) {
		const json_t *v = json_array_get(choices, i);

		if (json_string_length(v) == 0)
			return odm_api_fail(e, 400, "choices", OD_ERR_FORMAT,
					    "choices[%zu]: expected a string that is not empty, found %s", i,
					    odm_json_describe(v, found, sizeof(found)));
		for (size_t k = 0; k < i; k++)
			if (json_equal(v, json_array_get(choices, k)))
				return odm_api_fail(e, 400, "choices", OD_ERR_FORMAT,
						    "choices[%zu]: the text of choices[%zu] again; expected different "
						    "ones",
						    i, k);
	}
	return odm_field_check_kept("choices", choices, e);
}

static int check_fields(struct choice_scores *c, const struct choice_fields *f, struct odm_api_error *e)
{
	char found[64];

	if ((f->prompt != NULL) == (f->messages != NULL))
		return odm_api_fail(e, 400, "prompt", f->prompt == NULL ? OD_ERR_MISSING : OD_ERR_ARG,
				    "prompt: expected either prompt or messages, found %s",
				    f->prompt == NULL ? "none" : "both");
	if (f->prompt != NULL && !json_is_string(f->prompt) && !json_is_array(f->prompt))
		return odm_api_fail(e, 400, "prompt", OD_ERR_FORMAT,
				    "prompt: expected a string or an array of token ids, found %s",
				    odm_json_describe(f->prompt, found, sizeof(found)));
	c->mean = f->normalize != NULL && strcmp(f->normalize, "mean") == 0;
	if (f->normalize != NULL && !c->mean && strcmp(f->normalize, "sum") != 0)
		return odm_api_fail(e, 400, "normalize", OD_ERR_FORMAT,
				    "normalize: expected \"sum\" or \"mean\", found \"%.40s\"", f->normalize);
	c->ends = f->ends;
	c->logprobs = f->logprobs;
	return check_choices(f->choices, e);
}

static int add_jobs(struct choice_scores *c, const struct odm_choice_prompts *p, const struct odm_turn *turn,
		    struct odm_api_error *e)
{
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < p->n; i++) {
		struct odm_job_spec spec = { .req = { .prompt = p->ids[i],
						      .n_prompt = p->n_ids[i],
						      .max_tokens = 1, /* there is no text without one */
						      .prompt_logprobs = true,
						      .prompt_logprobs_from = p->from } };

		od_sampler_defaults(&spec.req.sampling);
		if (turn != NULL)
			spec.req.end = odm_turn_ends(turn, &spec.req.n_ends);
		if (c->logprobs && (c->score[i].logprobs = odm_chat_logprobs_new()) == NULL)
			return odm_no_memory(e);
		rc = odm_choices_add(c->reply.choices, &spec, e);
	}
	return rc;
}

static int add_choices(struct choice_scores *c, struct odm_exchange *x, const struct odm_engine *engine,
		       const json_t *prompt, struct odm_turn *turn, struct odm_api_error *e)
{
	struct odm_choice_prompts p;
	size_t n_ends = od_pack_config(odm_engine_pack(engine))->n_eos, n_turn = 0;
	int rc;

	if (turn != NULL)
		(void)odm_turn_ends(turn, &n_turn);
	if (c->ends && n_ends + n_turn == 0)
		return odm_api_fail(e, 400, "ends", OD_ERR_UNSUPPORTED,
				    "ends: the model has no token that ends a text");
	rc = odm_choice_prompts_make(&p, engine, prompt, turn, c->texts, e);
	if (rc == OD_OK)
		rc = odm_choices_new(&c->reply.choices, x, e);
	if (rc == OD_OK)
		rc = add_jobs(c, &p, turn, e);
	c->n = p.n;
	c->from = p.from;
	odm_choice_prompts_fini(&p);
	return rc;
}

static int read_request(struct choice_scores *c, struct odm_exchange *x, struct odm_api_error *e)
{
	const struct odm_engine *engine;
	struct choice_fields f = { 0 };
	struct odm_turn *turn = NULL;
	json_t *request;
	int logprobs;
	int rc = odm_api_begin(x, ODM_API_CHOICES, &request, &engine, e);

	/* A chat's answer ends with its turn; a text goes on. */
	f.ends = json_is_array(json_object_get(request, "messages"));
	if (rc == OD_OK)
		rc = odm_fields_read(fields, request, &f, e);
	if (rc == OD_OK)
		rc = check_fields(c, &f, e);
	if (rc == OD_OK && f.messages != NULL)
		rc = odm_turn_new(&turn, x, engine, request, &logprobs, e);
	if (rc == OD_OK) {
		c->texts = json_incref((json_t *)(uintptr_t)f.choices);
		c->tokenizer = odm_engine_tokenizer(engine);
		rc = add_choices(c, x, engine, f.prompt, turn, e);
	}
	odm_turn_free(turn);
	json_decref(request);
	return rc;
}

static void prepare(struct odm_exchange *x)
{
	static const struct odm_reply_ops ops = { .news = on_news, .end = on_end };
	struct choice_scores *c = odm_exchange_new_state(x, sizeof(*c));
	struct odm_api_error e;
	int rc;

	if (c == NULL)
		return;
	odm_reply_init(&c->reply, &ops, c, x, odm_app_of(x)->model);
	rc = read_request(c, x, &e);
	odm_reply_submit(&c->reply, odm_app_of(x)->thread, rc, &e);
}

static void free_state(void *state)
{
	struct choice_scores *c = state;

	if (c == NULL)
		return;
	odm_choices_free(c->reply.choices);
	for (size_t i = 0; i < MAX_CHOICES; i++)
		json_decref(c->score[i].logprobs);
	json_decref(c->texts);
	free(c);
}

const struct odm_endpoint odm_choices_endpoint = {
	.method = "POST",
	.path = "/v1/choices",
	.prepare = prepare,
	.start = odm_reply_on_start,
	.news = odm_reply_on_news,
	.tick = odm_reply_on_tick,
	.gone = odm_reply_on_gone,
	.free_state = free_state,
};
