/* engine.h - main's engine: a pack, a device with the dense weights, sequences, and somebody who runs the experts.
 *
 * Several texts are written at once: each is submitted, worked on by odm_engine_work together with the others, and taken when
 * it is done. No text's tokens depend on who else is there.
 * Thread: one engine thread calls everything but odm_sequence_cancel, and owns the device's compute queue. Owner:
 * odm_engine_open's caller. */
#ifndef ODM_ENGINE_H
#define ODM_ENGINE_H

#include "common/base/args.h"
#include "common/model/sampler.h"
#include "common/pack/pack.h"
#include "common/pack/shadow/shadow_load.h"
#include "common/text/tokenizer.h"
#include "main-node/cluster/cluster.h"
#include "main-node/engine/expert_service.h"

struct odm_engine;

/* From ODM_PREDICT_OWN on, main's own: od_predictor_kinds in their order. */
enum odm_predictor { ODM_PREDICTOR_AUTO = -1, ODM_PREDICT_SHADOW, ODM_PREDICT_NONE, ODM_PREDICT_OWN };
extern const char *const odm_predictor_names[]; /* "shadow", "none", OD_PREDICTOR_NAMES, NULL */

enum odm_mode { ODM_RESIDENT, ODM_LOCAL, ODM_WORKERS };

#define ODM_MAX_PARALLEL 1024

struct odm_engine_opts {
	const char *pack;	   /* NULL: $OD_PACK, else /var/lib/od-moe/pack */
	enum od_profile profile;
	int cpu;		   /* enum od_cpu */
	uint64_t threads;	   /* 0: the CPUs there are */
	uint64_t ctx_tokens;	   /* of a text; 0: the model's, at most 4096 */
	uint64_t parallel;	   /* texts that are written at once at most; 0: 1 */
	uint64_t state_bytes;	   /* of all texts' state at most; 0: what `parallel` contexts take, at most what is free */
	uint64_t prefill_rows;	   /* rows of a prefill chunk at most */
	enum odm_mode mode;
	int form;		   /* enum od_form of experts in memory, here or on workers of --local; or OD_FORM_AUTO */
	bool quiet;		   /* no progress while loading */
	const atomic_bool *cancel; /* becomes true when everything is to end: looked at between layers; NULL: never */
	const char *trace;	   /* NULL, or a file for od_trace; --local adds the children's events at the end */
	const char *serve_store;   /* NULL, or where workers can pull the pack from while the engine is open */
	bool insecure;		   /* serve_store may be an address that is not loopback */
	/* A cluster. */
	const char *hosts_path;	     /* ODM_WORKERS */
	uint32_t local_workers;	     /* ODM_LOCAL */
	struct odm_align align;	     /* of the shadow */
	int predictor;		     /* index of odm_predictor_names; ODM_PREDICTOR_AUTO: the shadow if there is one */
	bool no_stand_in;	     /* for measuring a shadow alone: main predicts nothing while it is silent */
	const struct od_predictor_kind *own; /* with ODM_PREDICT_OWN: this one; NULL: as predictor says */
	double hedge_percent;	     /* budget of wasted loads over expert uses; 0: no hedges */
	uint64_t group_size;	     /* 0: top-k */
	bool mixed;
	struct od_arg_list worker_args, shadow_args; /* ODM_LOCAL: handed on to each worker, and to the shadow */
};

void odm_engine_defaults(struct odm_engine_opts *o);
OD_MUST_CHECK int odm_engine_open(struct odm_engine **out, const struct odm_engine_opts *opts, struct od_err *err);
/* Not OD_OK: the trace could not be written (logged). NULL ok. */
int odm_engine_close(struct odm_engine *e);

const struct od_pack *odm_engine_pack(const struct odm_engine *e);
const struct od_tokenizer *odm_engine_tokenizer(const struct odm_engine *e); /* NULL: the pack has none */
uint32_t odm_engine_ctx(const struct odm_engine *e);
uint32_t odm_engine_parallel(const struct odm_engine *e); /* texts that are written at once at most */
uint64_t odm_engine_state_bytes(const struct odm_engine *e); /* memory of all texts' state at most */
enum od_form odm_engine_form(const struct odm_engine *e);	 /* of resident experts */
const struct od_device *odm_engine_device(const struct odm_engine *e); /* to ask what it is */

enum odm_finish {
	ODM_FINISH_LENGTH,
	ODM_FINISH_EOS,
	ODM_FINISH_STOP,
	ODM_FINISH_CONTEXT,
	ODM_FINISH_CANCELLED,
	ODM_FINISH_ERROR
};
const char *odm_finish_name(enum odm_finish f); /* "length", "eos", "stop", "context", "cancelled", "error" */

/* Who wants to see what happens. Every callback may be NULL. */
struct odm_observer {
	void *arg;
	/* A piece of the text as it may be shown; false ends the generation. */
	bool (*text)(void *arg, const char *piece, size_t len);
	/* A step with these rows of the text begins; then come their routes, layer by layer. */
	void (*step)(void *arg, const struct odm_step *step, const struct odm_part *part);
	/* The experts of one row, best first, and their weights [top_k]. */
	void (*route)(void *arg, enum odm_phase phase, uint32_t position, uint32_t m, const uint16_t *experts,
		      const float *weights, float margin);
	/* Logits [vocab] of every position that was passed through the model. */
	void (*logits)(void *arg, enum odm_phase phase, uint32_t position, const float *logits);
};

/* Says what may come next, so that several tokens go through the model in one step: those that it would have sampled stand,
 * the rest is undone. It changes no token. */
struct odm_drafter {
	/* out gets at most max tokens that may follow text [n], the prompt included; returns how many. Engine thread. NULL: no
	 * drafts. */
	size_t (*draft)(void *arg, const int32_t *text, size_t n, int32_t *out, size_t max);
	void *arg;
};

struct odm_request {
	const int32_t *prompt; /* [n_prompt], BOS included */
	size_t n_prompt;
	uint64_t max_tokens; /* 0: to the end of the context */
	bool ignore_eos;
	struct od_sampler_opts sampling;
	const char *const *stop; /* [n_stop] stop strings; need a tokeniser */
	size_t n_stop;
	struct odm_observer observer;
	struct odm_drafter drafter;
	struct od_recall *recall; /* NULL, or added to: recall by layer and token index (cluster with a predictor) */
};

struct odm_result {
	int32_t *tokens; /* malloc'd: what was generated, EOS included */
	size_t n_tokens;
	char *text; /* malloc'd, without special tokens and stop string; NULL without a tokeniser */
	size_t text_len;
	enum odm_finish finish;
	struct odm_figures figures;
};

/* A text that waits, is being written, or is done. */
struct odm_sequence;

/* The request is checked here, and borrowed until the text is done. OD_ERR_NOMEM: its state could never fit. */
OD_MUST_CHECK int odm_engine_submit(struct odm_engine *e, const struct odm_request *req, struct odm_sequence **out,
				    struct od_err *err);
/* One piece of work for all texts: a decode step, and some layers of prompts. False: none is left that is not done. */
bool odm_engine_work(struct odm_engine *e);
bool odm_sequence_done(const struct odm_sequence *q);
/* Any thread: it ends soon, with ODM_FINISH_CANCELLED. */
void odm_sequence_cancel(struct odm_sequence *q);
/* Of one that is done: *r gets what there was (odm_result_fini it), and q is gone. Returns why it failed, or OD_OK. */
OD_MUST_CHECK int odm_sequence_take(struct odm_sequence *q, struct odm_result *r, struct od_err *err);

/* Submits, works and takes. *r is filled (odm_result_fini it) even on failure, with what there was until then. */
OD_MUST_CHECK int odm_generate(struct odm_engine *e, const struct odm_request *req, struct odm_result *r,
			       struct od_err *err);
void odm_result_fini(struct odm_result *r);

#endif
