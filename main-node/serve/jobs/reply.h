/* reply.h - the answer of an exchange whose texts are generated, whole or as a stream of server-sent events.
 *
 * It polls the choices' jobs, keeps a stream alive, tells of waiting and prefill, and notes how each choice ended. What
 * events look like is the endpoint's, through odm_reply_ops.
 * Thread: the HTTP thread; the fields above the line are set before. Owner: the endpoint's state, which contains it. */
#ifndef ODM_REPLY_H
#define ODM_REPLY_H

#include "main-node/serve/jobs/choices.h"
#include "main-node/serve/jobs/generation.h"

struct odm_reply_ops {
	/* Handles new text of a choice; ended[choice].done: nothing more comes. Returns true if it wrote to the
	 * stream. */
	bool (*news)(void *arg, size_t choice, const struct odm_news *news);
	/* Writes the whole answer, or the last events of the stream, when all choices are done. */
	void (*end)(void *arg);
	/* Writes the error instead, whole or as an event; NULL: in OpenAI's format. */
	void (*fail)(void *arg, const struct odm_api_error *e);
	void (*keep_alive)(void *arg); /* writes to a stream when nothing else comes for long; NULL: a comment */
};

struct odm_choice_end {
	bool done, early; /* early: odm_reply_end_choice was called */
	enum odm_finish finish;
	size_t n_tokens, shared_tokens, drafted_tokens, accepted_tokens; /* as in odm_news */
	uint64_t queue_ns, first_token_ns, total_ns;
};

/* Times of an answer, each the longest of its texts. The first three add up to total_ns if there is one text. */
struct odm_reply_times {
	uint64_t queue_ns, prompt_ns, generation_ns; /* until it began; until its first token; until its end */
	uint64_t total_ns; /* from submission to the end */
};

struct odm_reply {
	const struct odm_reply_ops *ops;
	void *arg; /* passed to ops */
	struct odm_exchange *exchange;
	const char *model; /* its name in answers */
	struct odm_choices *choices; /* the caller's, or NULL until there is one */
	bool stream, include_usage;
	/* ---- */
	struct odm_choice_end ended[ODM_MAX_CHOICES];
	struct odm_api_error error; /* the first error of a choice */
	int64_t created; /* seconds since 1970 */
	char fingerprint[ODM_FINGERPRINT_CHARS]; /* the engine's */
	uint64_t written_ns;
	bool over;
};

/* model: its name in answers. */
void odm_reply_init(struct odm_reply *r, const struct odm_reply_ops *ops, void *arg, struct odm_exchange *x,
		    const char *model);

/* The end of an endpoint's prepare: submits the choices if rc, the result of reading the request, is OD_OK. A request
 * that could not be read, or is not taken, is answered with the error *e. */
void odm_reply_submit(struct odm_reply *r, struct odm_engine_thread *t, int rc, struct odm_api_error *e);

/* Call these from the endpoint's functions of the same names. */
void odm_reply_start(struct odm_reply *r); /* begins the stream, if it is one; call odm_reply_news next */
void odm_reply_news(struct odm_reply *r);
void odm_reply_tick(struct odm_reply *r, uint64_t now_ns);
void odm_reply_gone(struct odm_reply *r);

/* These can be an endpoint's functions as they are: the exchange's state, if there is one, begins with its struct
 * odm_reply. */
void odm_reply_on_start(struct odm_exchange *x);
void odm_reply_on_news(struct odm_exchange *x);
void odm_reply_on_tick(struct odm_exchange *x, uint64_t now_ns);
void odm_reply_on_gone(struct odm_exchange *x);

/* The choice needs no more text: its job is cancelled, and it ends with ODM_FINISH_EOS. */
void odm_reply_end_choice(struct odm_reply *r, size_t choice);

/* Sums over all choices. The n choices of one prompt follow each other, and the prompt counts once. */
struct odm_usage odm_reply_usage(const struct odm_reply *r, size_t n);
struct odm_reply_times odm_reply_times(const struct odm_reply *r);

/* OpenAI's answers and events begin with these fields: {"id": prefix + the exchange's, "object", "created", "model",
 * "system_fingerprint", "choices"}. Takes choices. */
json_t *odm_reply_json(const struct odm_reply *r, const char *id_prefix, const char *object, json_t *choices);
/* An event of an OpenAI stream, with `usage` null if the request wants its usage. Takes o. ends: a choice ends with it.
 * n: as in odm_reply_usage. */
void odm_reply_write(struct odm_reply *r, json_t *o, bool ends, size_t n);
/* Call one of these from odm_reply_ops.end: they write the last events of an OpenAI stream, or the whole answer, which
 * takes choices. n: as in odm_reply_usage. Answers, and the last event with choices or usage, have llama-server's
 * `timings`. */
void odm_reply_end_stream(struct odm_reply *r, const char *id_prefix, const char *object, size_t n);
void odm_reply_whole(struct odm_reply *r, const char *id_prefix, const char *object, json_t *choices, size_t n);
/* With one more field, whose value is taken; NULL: without it. */
void odm_reply_whole_with(struct odm_reply *r, const char *id_prefix, const char *object, json_t *choices, size_t n,
			  const char *name, json_t *value);

#endif
