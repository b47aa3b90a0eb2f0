/* engine.h - main's inference engine: a model (model.h), sequences, and an expert service.
 *
 * It generates several texts at once: submit a request, call odm_engine_work until it is done, take the result. The
 * tokens of a text never depend on the other texts.
 * Thread: one engine thread calls everything except odm_sequence_cancel and odm_engine_check, and owns the device's
 * compute queue. Owner: odm_engine_open's caller. */
#ifndef ODM_ENGINE_H
#define ODM_ENGINE_H

#include <stdatomic.h>

#include "common/grammar/constraint.h"
#include "common/model/logprobs.h"
#include "common/model/sampler.h"
#include "common/pack/load/expert_form.h"
#include "common/pack/pack.h"
#include "common/text/tokenizer.h"
#include "main-node/step/expert_service.h"

struct odm_engine;

#define ODM_MAX_PARALLEL 1024

/* Where drafts come from (verified drafts: several tokens of a text in one step). */
enum odm_draft_source {
	ODM_DRAFT_OFF,
	ODM_DRAFT_FORCED, /* only tokens that a constraint leaves no choice about, as with the following ones, too */
	ODM_DRAFT_SHADOW,
	ODM_DRAFT_LOOKUP,
};

#define ODM_PREFIX_CACHE_AUTO UINT64_MAX
#define ODM_DEFAULT_PREFILL_ROWS 512u

struct odm_engine_opts {
	const char *pack; /* NULL: $OD_PACK, else /var/lib/od-moe/pack */
	enum od_profile profile;
	bool cache_prior; /* cache-aware routing (router.h) */
	double routing_lambda;
	/* experts that are kept, and that count as cached; UINT64_MAX, and 0: as od_config_prior says */
	uint64_t routing_keep, routing_recent;
	const char *device; /* NULL: od_device_open's default */
	int cpu; /* enum od_cpu */
	uint64_t threads; /* 0: one per CPU */
	uint64_t ctx_tokens; /* context of a text; 0: what the model was trained for, as far as memory allows */
	uint64_t parallel; /* limit of texts generated at once; 0: 1 */
	uint64_t state_bytes; /* limit of the KV cache; 0: `parallel` contexts, at most the free memory */
	/* KV cache of ended texts, beside state_bytes, for texts that begin alike; or ODM_PREFIX_CACHE_AUTO */
	uint64_t prefix_cache_mib;
	/* with fixed state, its snapshots for that, beside these; or ODM_PREFIX_CACHE_AUTO; 0: no prefix cache */
	uint64_t snapshot_mib;
	const char *prefix_cache_dir; /* folder in which it outlives the process; NULL: none */
	uint64_t prefill_rows; /* limit of rows of a prefill chunk */
	bool resident; /* the experts are in this process's memory, too */
	/* or as many as fit: within memory_bytes, which limit the process. 0: within what is free */
	bool tiered;
	uint64_t memory_bytes;
	/* for measurements: limits of kept experts, and of them and the KV cache together; 0: none but memory; and
	 * enum od_read_mode, 0: auto */
	uint64_t expert_bytes, shared_bytes;
	int read_mode;
	/* enum od_form of experts in memory, here or on workers of --local; or OD_FORM_AUTO */
	int form;
	bool quiet; /* no progress while loading */
	const atomic_bool *cancel; /* true: stop; checked between layers; NULL: never */
	/* for measurements: attention and router of each layer of a decode step take at least as long */
	uint64_t layer_ns;
	bool mixed; /* other kernel classes may compute experts */
	int draft; /* enum odm_draft_source */
	uint64_t draft_tokens; /* in a step, of a text: always so many if there are; 0: as many as pay */
};

void odm_engine_defaults(struct odm_engine_opts *o);
struct odm_model;
/* Opens the engine of a loaded model, with a service that was made with its odm_model_forward_opts. The model is
 * borrowed, and freed after the engine. The service is the engine's from now on, also when it fails; one without drafts
 * makes ODM_DRAFT_SHADOW ODM_DRAFT_FORCED. */
OD_MUST_CHECK int odm_engine_open(struct odm_engine **out, struct odm_model *model, struct odm_expert_service *service,
				  struct od_err *err);
void odm_engine_close(struct odm_engine *e); /* NULL ok */

const struct od_pack *odm_engine_pack(const struct odm_engine *e);
#define ODM_FINGERPRINT_CHARS 128
/* Tokens depend on this beside the request: "fp_", the pack's fingerprint's first digits, profile, kernel class, "mixed"
 * if it is, and routing, in buf. Returns buf. */
const char *odm_engine_fingerprint(const struct odm_engine *e, char buf[ODM_FINGERPRINT_CHARS]);
const struct od_tokenizer *odm_engine_tokenizer(const struct odm_engine *e); /* NULL: the pack has none */
uint32_t odm_engine_ctx(const struct odm_engine *e);
uint32_t odm_engine_parallel(const struct odm_engine *e); /* limit of texts generated at once */
uint64_t odm_engine_state_bytes(const struct odm_engine *e); /* limit of the KV cache of all texts */
enum od_form odm_engine_form(const struct odm_engine *e); /* resident experts' form */
/* Folder of this model's files of the prefix cache, which no other process uses; NULL: none. */
const char *odm_engine_prefix_dir(const struct odm_engine *e);
bool odm_engine_wants_forks(const struct odm_engine *e); /* odm_request.fork is of use */
const struct od_device *odm_engine_device(const struct odm_engine *e); /* to query its properties */
/* Any thread: OD_OK, or why a step would have to wait for a worker that is not there. */
OD_MUST_CHECK int odm_engine_ready(const struct odm_engine *e, struct od_err *why);
/* Any thread: OD_OK, or why it can compute nothing any more: its device is lost, or all workers of --local have
 * ended. */
OD_MUST_CHECK int odm_engine_failed(const struct odm_engine *e, struct od_err *why);

enum odm_finish {
	ODM_FINISH_LENGTH,
	ODM_FINISH_EOS,
	ODM_FINISH_STOP,
	ODM_FINISH_CONTEXT,
	ODM_FINISH_CANCELLED,
	ODM_FINISH_ERROR
};
const char *odm_finish_name(enum odm_finish f); /* "length", "eos", "stop", "context", "cancelled", "error" */

#define ODM_MAX_LOGPROBS 20
#define ODM_MAX_STOP_TOKENS 1024

/* A token of a text, in order. Borrowed. */
struct odm_token {
	int32_t token;
	uint32_t position; /* in the text; below n_prompt: of the prompt */
	bool has_logprob; /* false: odm_request.logprobs is -1, or it is the first of the prompt */
	double logprob; /* by the model's raw logits, whatever the sampler makes of them */
	uint32_t rank; /* 1: it is the most probable one there */
	double end_logprob; /* the text ends there instead: all tokens that end it together; -INFINITY: none does */
	/* [n_top]: the most probable tokens there, best first; it may be among them or not */
	const struct od_logprob *top;
	size_t n_top;
};

/* Callbacks during a generation, on the engine thread. Each may be NULL. */
struct odm_observer {
	void *arg;
	/* The prompt leaves the queue, with `done` tokens that another text had; then: so many were read from files, or
	 * went through the model. */
	void (*progress)(void *arg, uint32_t done, uint32_t n_prompt);
	/* Tokens of the prompt if odm_request.prompt_logprobs, then each generated one, before the text that it
	 * completes. Draft tokens are reported only if they stand. */
	void (*token)(void *arg, const struct odm_token *t);
	/* A piece of the text that may be shown; returning false ends the generation. */
	bool (*text)(void *arg, const char *piece, size_t len);
	/* Gets the same piece after `text`. True: the text ends here as with a stop string; the piece is shown. */
	bool (*ends)(void *arg, const char *piece, size_t len);
	/* A step with these rows of the text begins; their routes follow, layer by layer. */
	void (*step)(void *arg, const struct odm_step *step, const struct odm_part *part);
	/* The experts of one row, best first, and their weights [top_k]. */
	void (*route)(void *arg, enum odm_phase phase, uint32_t position, uint32_t m, const uint16_t *experts,
		      const float *weights, float margin);
	/* Logits [vocab] of every position that went through the model, before `token` is called for the next one. */
	void (*logits)(void *arg, enum odm_phase phase, uint32_t position, const float *logits);
	/* A draft token was verified behind right ones only: its margin, and the probability that the engine gave it
	 * before. */
	void (*drafted)(void *arg, float margin, double probability, bool right);
};

/* Speculative decoding: proposes next tokens, so that several rows of a text go through the model in one step. Tokens
 * that the sampler would have chosen are kept, the others undone; so drafts never change the text. */
struct odm_drafter {
	/* Writes at most max draft tokens after text [n] (prompt included) to out; returns their number. Engine thread.
	 * NULL: drafts come from where odm_engine_opts.draft says. Not with ODM_DRAFT_OFF on a cluster. */
	size_t (*draft)(void *arg, const int32_t *text, size_t n, int32_t *out, size_t max);
	void *arg;
};

#define ODM_MAX_FORKS 4

struct odm_request {
	const int32_t *prompt; /* [n_prompt], BOS included */
	size_t n_prompt;
	uint64_t max_tokens; /* 0: to the end of the context */
	uint64_t min_tokens; /* no token ends the text before so many */
	bool ignore_eos; /* and `end` */
	struct od_sampler_opts sampling;
	/* It says which texts are allowed, from the first token on; NULL: all. Borrowed, and the engine thread's until
	 * the text is done. */
	struct od_constraint *constraint;
	/* a name for logs and traces, here and on other nodes; NULL: none. Printable ASCII, no commas */
	const char *request;
	const char *const *stop; /* [n_stop] stop strings; need a tokeniser */
	size_t n_stop;
	const int32_t *end; /* [n_ends] tokens that end the text as EOS does */
	size_t n_ends;
	const int32_t *stop_token; /* [n_stop_tokens] tokens that end the text as EOS does, with ignore_eos too */
	size_t n_stop_tokens;
	const int32_t *shown; /* [n_shown] special tokens whose text is part of the text; others are left out */
	size_t n_shown;
	/* [n_forks], at most ODM_MAX_FORKS, ascending: lengths of the prompt at which others are likely to part from
	 * it, for models with fixed state (odm_engine_wants_forks) */
	const size_t *fork;
	size_t n_forks;
	/* for observer.token: -1: none; 0 to ODM_MAX_LOGPROBS: the token's own and that many of the best */
	int logprobs;
	/* observer.token sees the prompt's tokens too, from this one on (0: all of them). Rows whose logits are needed
	 * for that are computed, so the text shares no prefix behind the token before it. */
	bool prompt_logprobs;
	size_t prompt_logprobs_from; /* below n_prompt */
	struct odm_observer observer;
	struct odm_drafter drafter;
	/* recall by layer and token index is added to it (cluster with a predictor); NULL: none */
	struct od_recall *recall;
};

struct odm_result {
	int32_t *tokens; /* malloc'd: the generated tokens, EOS included */
	size_t n_tokens;
	char *text; /* malloc'd, without stop string and special tokens but `shown`; NULL without a tokeniser */
	size_t text_len;
	enum odm_finish finish;
	size_t stop; /* ODM_FINISH_STOP, not by observer.ends: which of the request's stop strings */
	struct odm_figures figures;
};

/* A text that is waiting, being generated, or done. */
struct odm_sequence;

/* Any thread: what odm_engine_submit would say of this request, except that memory may run out later. */
OD_MUST_CHECK int odm_engine_check(const struct odm_engine *e, const struct odm_request *req, struct od_err *err);
/* Checks the request and borrows it until the text is done. OD_ERR_NOMEM: its KV cache could never fit. */
OD_MUST_CHECK int odm_engine_submit(struct odm_engine *e, const struct odm_request *req, struct odm_sequence **out,
				    struct od_err *err);
/* Does a piece of work for all texts: a decode step, and some layers of prefill. False: all texts are done. */
bool odm_engine_work(struct odm_engine *e);
bool odm_sequence_done(const struct odm_sequence *q);
/* Any thread: the text soon ends with ODM_FINISH_CANCELLED. */
void odm_sequence_cancel(struct odm_sequence *q);

/* Figures for metrics. */
#define ODM_BATCH_BUCKETS 11 /* steps of at most 1, 2, 4, ... 1024 texts */
struct odm_report {
	uint64_t c[OD_N_COUNTERS]; /* sums over all texts since the start; a step's counts are added once */
	uint64_t batch[ODM_BATCH_BUCKETS]; /* decode steps: [i] of at most 2^i texts, and of more than 2^(i-1) */
	uint64_t decode_texts; /* summed over decode steps */
	uint64_t kv_bytes, kv_free_bytes; /* the whole KV cache; neither used nor promised to a running text */
	uint64_t prefix_cache_bytes; /* kept from ended texts, beside these */
	uint64_t snapshot_bytes; /* fixed state, beside these */
	uint64_t snapshots_written, snapshots_used, snapshots_dropped; /* dropped: for want of room */
};
/* Any thread: as of half a second ago at most while there is work, else of now. Never waits for work. */
void odm_engine_get_report(const struct odm_engine *e, struct odm_report *r);
/* Any thread: adds the daemons, as they last reported, to f. */
void odm_engine_get_nodes(const struct odm_engine *e, struct odm_figures *f);

/* Any thread: adds the daemons of the hosts file, with those that are not connected. */
void odm_engine_get_machines(const struct odm_engine *e, struct odm_machines *list);
uint64_t odm_engine_kept_experts(const struct odm_engine *e); /* any thread: experts that main itself keeps in memory */
/* Any thread, one: what steps do, while it is watched. Borrowed until the engine closes. */
struct odm_timeline *odm_engine_timeline(const struct odm_engine *e);

/* Moves the result of a text that is done to *r (for odm_result_fini) and frees q. Returns OD_OK, or the text's
 * error. */
OD_MUST_CHECK int odm_sequence_take(struct odm_sequence *q, struct odm_result *r, struct od_err *err);

/* Submits, works and takes. *r (for odm_result_fini) is filled even on failure, with the tokens so far. */
OD_MUST_CHECK int odm_generate(struct odm_engine *e, const struct odm_request *req, struct odm_result *r,
			       struct od_err *err);
void odm_result_fini(struct odm_result *r);

#endif
