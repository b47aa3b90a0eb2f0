/* exchange.h - one HTTP request and its answer, as the endpoints see it.
 *
 * An exchange goes through its endpoint's functions: prepare on a request thread (parse, tokenise: what may take long),
 * then start, news, tick and gone on the HTTP thread. Until prepare returns, the request thread owns the exchange; then
 * the HTTP thread does. The answer is one text, or a stream of server-sent events or of lines of JSON. After the first
 * refusal or reply the others do nothing.
 * Owner: counted references. The connection holds one until the answer is sent or the client has gone. */
#ifndef ODM_EXCHANGE_H
#define ODM_EXCHANGE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "main-node/serve/http/api_error.h"

struct odm_exchange;

#define ODM_REQUEST_ID_BYTES 65 /* includes the final NUL */

/* The log shows what a request cost. */
struct odm_work {
	size_t texts, tokens; /* generated tokens, EOS included */
	uint64_t queue_ns, first_token_ns; /* the longest time that a text took, counted from its submission */
};

enum odm_endpoint_flag {
	ODM_ENDPOINT_OPEN = 1, /* no API key is needed */
	ODM_ENDPOINT_DRAINING = 2, /* still answered while the server is ending */
	ODM_ENDPOINT_ANTHROPIC = 4, /* refusals and the header request-id have Anthropic's format */
	ODM_ENDPOINT_PROBE = 8, /* asked by machines all the time: good answers are logged for debugging only */
	ODM_ENDPOINT_OLLAMA = 16, /* refusals have Ollama's format, and streams are lines of JSON */
};

/* Each function may be NULL, except that one of prepare and start replies, or begins what news ends, unless there is a
 * refusal. */
struct odm_endpoint {
	const char *method; /* "GET" (HEAD too), "POST" (with a JSON body) or "DELETE" */
	const char *path; /* '*' at its end: every path that begins so */
	unsigned flags; /* enum odm_endpoint_flag */
	/* nothing here does it: whatever the body, the answer is 501 with this text; NULL: it is done */
	const char *refusal;
	void (*prepare)(struct odm_exchange *x);
	void (*start)(struct odm_exchange *x);
	/* called after odm_exchange_wake, or when all of the stream so far has been sent */
	void (*news)(struct odm_exchange *x);
	/* called about once a second until the answer is complete */
	void (*tick)(struct odm_exchange *x, uint64_t now_ns);
	/* called once, after start: the answer is sent, or the client went away before */
	void (*gone)(struct odm_exchange *x);
	void (*free_state)(void *state); /* called with the last reference, on any thread; state may be NULL */
};

/* The request. */
void *odm_exchange_app(const struct odm_exchange *x); /* as in odm_http_opts */
/* The client's X-Request-Id if it is short and printable, else unique in this process: "4f2a9c01-17". It goes back with
 * the answer, and into the logs of main, workers and shadow. */
const char *odm_exchange_id(const struct odm_exchange *x);
bool odm_exchange_trusted(const struct odm_exchange *x); /* it came with an API key, or the server has none */
const char *odm_exchange_rest(const struct odm_exchange *x); /* the rest of the path, instead of '*'; else "" */
const char *odm_exchange_body(const struct odm_exchange *x, size_t *len);
void odm_exchange_set_state(struct odm_exchange *x, void *state);
/* Sets the state to so many zero bytes, which odm_endpoint.free_state frees. NULL: out of memory; it is answered. */
void *odm_exchange_new_state(struct odm_exchange *x, size_t bytes);
void *odm_exchange_state(const struct odm_exchange *x);

/* HTTP thread: adds the work of a text that is done */
void odm_exchange_add_work(struct odm_exchange *x, const struct odm_work *w);

struct odm_exchange *odm_exchange_ref(struct odm_exchange *x); /* this and the next two: any thread */
void odm_exchange_unref(struct odm_exchange *x); /* NULL ok */
void odm_exchange_wake(struct odm_exchange *x);

/* A whole answer. text: malloc'd, taken; NULL: out of memory, which is answered with 503. */
void odm_exchange_reply(struct odm_exchange *x, int status, const char *content_type, char *text, size_t len);
/* takes the reference; NULL: out of memory */
void odm_exchange_reply_json(struct odm_exchange *x, int status, json_t *o);
/* A file that is part of the program. Borrowed until the process ends. */
struct odm_exchange_file {
	const char *content_type;
	const char *etag; /* names its bytes, with quotes: a client that has them already gets 304 */
	const char *bytes;
	size_t len;
	const char *const (*headers)[2]; /* names and values; ends with a NULL name */
};
void odm_exchange_reply_file(struct odm_exchange *x, const struct odm_exchange_file *f);
void odm_exchange_fail(struct odm_exchange *x, const struct odm_api_error *e);
bool odm_exchange_replied(const struct odm_exchange *x);

/* HTTP thread: a stream, of server-sent events unless the endpoint is ODM_ENDPOINT_OLLAMA. */
void odm_exchange_stream(struct odm_exchange *x);
void odm_exchange_write(struct odm_exchange *x, const char *text, size_t len);
void odm_exchange_write_json(struct odm_exchange *x, json_t *o); /* an event, or a line; takes the reference */
/* Writes an event, "data: TEXT", or a line. text: of one line. */
void odm_exchange_write_line(struct odm_exchange *x, const char *text, size_t len);
/* Writes o as odm_exchange_write_json does, after the line "event: TYPE" that the clients of some APIs need: o has it
 * as "type". */
void odm_exchange_write_event(struct odm_exchange *x, json_t *o);
void odm_exchange_write_comment(struct odm_exchange *x, const char *text); /* clients skip it; lines have none */
void odm_exchange_end(struct odm_exchange *x);
size_t odm_exchange_unsent(const struct odm_exchange *x); /* bytes that the client has not taken */

#endif
