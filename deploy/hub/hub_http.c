#include "deploy/hub/hub_http.h"

#include "common/base/strbuf.h"
#include "common/base/version.h"
#include "deploy/hub/hub_name.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <curl/curl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_REDIRECTS 10
#define MAX_TRIES 8 /* in a row without a byte: about two minutes */
#define MAX_LATER_TRIES 20 /* when a part of a file is there: about a quarter of an hour */
#define MAX_FIRST_TRIES 3 /* before any server has answered: a wrong address is likely */
#define FIRST_WAIT_S 1
#define MAX_WAIT_S 60
#define MAX_RETRY_AFTER_S 600
#define CONNECT_SECONDS 20L
#define SLOW_SECONDS 60L /* slower than SLOW_BYTES_PER_S: the connection is given up */
#define SLOW_BYTES_PER_S 100L
#define URL_MAX_BYTES 8192
#define BUFFER_BYTES (512L << 10)

struct odp_http {
	struct odp_http_opts o;
	CURL *easy;
	CURLU *endpoint;
	char *authorization; /* the header's line; NULL: no token */
	bool held;
	bool reached; /* a server has answered */
	char linked[65]; /* see struct odp_http_answer; of this try's redirects */
	char why[CURL_ERROR_SIZE];
	/* The running request. */
	struct odp_http_request *r;
	struct odp_http_answer *a;
	bool begun, enough;
	struct od_err err; /* error of begin or take */
};

/* ---- addresses ---- */

static bool part_equal(CURLU *a, CURLU *b, CURLUPart what)
{
	char *x = NULL, *y = NULL;
	const bool same = curl_url_get(a, what, &x, CURLU_DEFAULT_PORT) == CURLUE_OK &&
			  curl_url_get(b, what, &y, CURLU_DEFAULT_PORT) == CURLUE_OK && strcasecmp(x, y) == 0;

	curl_free(x);
	curl_free(y);
	return same;
}

static bool is_same_origin(CURLU *a, CURLU *b)
{
	return part_equal(a, b, CURLUPART_SCHEME) && part_equal(a, b, CURLUPART_HOST) &&
	       part_equal(a, b, CURLUPART_PORT);
}

static bool is_plain(CURLU *u)
{
	char *scheme = NULL;
	const bool plain = curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK && strcmp(scheme, "http") == 0;

	curl_free(scheme);
	return plain;
}

/* By its number, because 127.example.com is a name like any other. */
static bool is_loopback(CURLU *u)
{
	char *host = NULL;
	struct in_addr a;
	const bool here = curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
			  (strcmp(host, "localhost") == 0 || strcmp(host, "[::1]") == 0 ||
			   (inet_pton(AF_INET, host, &a) == 1 && ntohl(a.s_addr) >> 24 == 127));

	curl_free(host);
	return here;
}

/* The host of an address for messages: the rest can hold a signature. */
static void show_host(CURLU *u, char out[261])
{
	char *host = NULL;

	snprintf(out, 261, "%s", curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK ? host : "(no host)");
	for (char *c = out; *c != '\0'; c++)
		*c = *c > ' ' && *c <= '~' ? *c : '?';
	curl_free(host);
}

#define SHOWN_BYTES 200 /* a message shows so much of an address */

/* An address that may be asked. from: the one that led to it, or NULL. */
static int check_address(const struct odp_http *h, CURLU *u, const char *url, CURLU *from, struct od_err *err)
{
	char *scheme = NULL, shown[SHOWN_BYTES];
	bool known;

	odp_url_shown(url, shown, sizeof(shown));
	if (strlen(url) > URL_MAX_BYTES || curl_url_set(u, CURLUPART_URL, url, 0) != CURLUE_OK)
		return od_fail(err, OD_ERR_ARG, "%s is no address that can be asked", shown);
	known = curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
		(strcmp(scheme, "https") == 0 || strcmp(scheme, "http") == 0);
	curl_free(scheme);
	if (!known)
		return od_fail(err, OD_ERR_ARG, "%s: expected https://", shown);
	if (!is_plain(u) || (from != NULL ? is_plain(from) : is_loopback(u) || is_same_origin(u, h->endpoint)))
		return OD_OK;
	return od_fail(err, OD_ERR_ARG,
		       "%s%s: expected https://, because anyone on the way can change what comes by http://", shown,
		       from != NULL ? " (a redirect)" : "");
}

/* ---- headers ---- */

static void copy_value(char *out, size_t size, const char *value, size_t n)
{
	snprintf(out, size, "%.*s", (int)(n < size ? n : size - 1), value);
	for (char *c = out; *c != '\0'; c++)
		*c = *c >= ' ' && *c <= '~' ? *c : '?';
}

/* "bytes 100-199/1000" */
static void read_range(struct odp_http_answer *a, const char *value)
{
	uint64_t begin, end;
	char total[24] = "";

	if (sscanf(value, "bytes %20" SCNu64 "-%20" SCNu64 "/%20[0-9*]", &begin, &end, total) < 2)
		return;
	a->has_range = true;
	a->range_begin = begin;
	a->range_total = strtoull(total, NULL, 10);
}

/* '<https://...>; rel="next"', perhaps among others. A page that cannot be asked for is still one: "?". */
static void read_link(struct odp_http_answer *a, const char *value, bool cut)
{
	if (cut)
		snprintf(a->next, sizeof(a->next), "?");
	for (const char *at = strchr(value, '<'); at != NULL; at = strchr(at + 1, '<')) {
		const char *end = strchr(at, '>');
		const size_t n = end != NULL ? strcspn(end, ",") : 0;

		if (end == NULL)
			return;
		if (memmem(end, n, "rel=\"next\"", 10) == NULL && memmem(end, n, "rel=next", 8) == NULL)
			continue;
		if ((size_t)(end - at - 1) < sizeof(a->next))
			snprintf(a->next, sizeof(a->next), "%.*s", (int)(end - at - 1), at + 1);
		else
			snprintf(a->next, sizeof(a->next), "?");
		return;
	}
}

/* The hub's '"api";r=0;t=55': t seconds until it answers again. */
static void read_limit(struct odp_http_answer *a, const char *value)
{
	const char *t = strstr(value, ";t=");

	if (t != NULL)
		a->limit_s = strtoul(t + 3, NULL, 10);
}

/* '"SHA-256"'; of other forms nothing is known. */
static void read_linked(struct odp_http *h, const char *value)
{
	char end = '\0', sum[65];

	if (sscanf(value, "\"%64[0-9a-f]%c", sum, &end) == 2 && end == '"' && strlen(sum) == 64)
		memcpy(h->linked, sum, sizeof(sum));
}

/* Forgets an answer of the same host. */
static void clear_answer(struct odp_http_answer *a)
{
	struct odp_http_answer empty = { .of_endpoint = a->of_endpoint };

	memcpy(empty.host, a->host, sizeof(empty.host));
	*a = empty;
}

static size_t on_header(char *line, size_t size, size_t n, void *arg)
{
	struct odp_http *h = arg;
	char text[4096], *value = NULL;
	size_t len = n < sizeof(text) ? n : sizeof(text) - 1;

	(void)size; /* always 1 */
	memcpy(text, line, len);
	text[len] = '\0';
	text[strcspn(text, "\r\n")] = '\0';
	if (strncmp(text, "HTTP/", 5) == 0) {
		clear_answer(h->a);
		return n;
	}
	value = strchr(text, ':');
	if (value == NULL)
		return n;
	for (*value++ = '\0'; *value == ' ' || *value == '\t';)
		value++;
	len = strlen(value);
	if (strcasecmp(text, "etag") == 0)
		copy_value(h->a->etag, sizeof(h->a->etag), value, len);
	else if (strcasecmp(text, "last-modified") == 0)
		copy_value(h->a->modified, sizeof(h->a->modified), value, len);
	else if (strcasecmp(text, "x-error-code") == 0)
		copy_value(h->a->code, sizeof(h->a->code), value, len);
	else if (strcasecmp(text, "x-error-message") == 0)
		copy_value(h->a->message, sizeof(h->a->message), value, len);
	else if (strcasecmp(text, "content-range") == 0)
		read_range(h->a, value);
	else if (strcasecmp(text, "link") == 0)
		read_link(h->a, value, n >= sizeof(text));
	else if (strcasecmp(text, "x-linked-etag") == 0)
		read_linked(h, value);
	else if (strcasecmp(text, "ratelimit") == 0)
		read_limit(h->a, value);
	return n;
}

/* ---- the body ---- */

static bool is_good(long status)
{
	return status >= 200 && status < 300;
}

/* The status and length, which are known once the headers are there. */
static void read_info(struct odp_http *h)
{
	curl_off_t length = -1;

	curl_easy_getinfo(h->easy, CURLINFO_RESPONSE_CODE, &h->a->status);
	if (curl_easy_getinfo(h->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length) == CURLE_OK && length >= 0) {
		h->a->has_length = true;
		h->a->length = (uint64_t)length;
	}
}

static int begin(struct odp_http *h)
{
	if (h->begun)
		return OD_OK;
	h->begun = true;
	read_info(h);
	return is_good(h->a->status) && h->r->begin != NULL ? h->r->begin(h->r->arg, h->a, &h->err) : OD_OK;
}

static size_t on_bytes(char *bytes, size_t size, size_t n, void *arg)
{
	struct odp_http *h = arg;

	(void)size; /* always 1 */
	if (begin(h) != OD_OK)
		return 0;
	if (!is_good(h->a->status) || h->r->take == NULL)
		return n; /* the page of an error */
	if (h->r->take(h->r->arg, bytes, n, &h->enough, &h->err) != OD_OK || h->enough)
		return 0;
	return n;
}

/* ---- one try ---- */

static void set_options(struct odp_http *h)
{
#if LIBCURL_VERSION_NUM >= 0x075500
	curl_easy_setopt(h->easy, CURLOPT_PROTOCOLS_STR, "http,https");
#else /* as in Ubuntu 22.04 */
	curl_easy_setopt(h->easy, CURLOPT_PROTOCOLS, CURLPROTO_HTTP | CURLPROTO_HTTPS);
#endif
	curl_easy_setopt(h->easy, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(h->easy, CURLOPT_BUFFERSIZE, BUFFER_BYTES);
	curl_easy_setopt(h->easy, CURLOPT_FOLLOWLOCATION, 0L);
	curl_easy_setopt(h->easy, CURLOPT_CONNECTTIMEOUT, CONNECT_SECONDS);
	curl_easy_setopt(h->easy, CURLOPT_LOW_SPEED_LIMIT, SLOW_BYTES_PER_S);
	curl_easy_setopt(h->easy, CURLOPT_LOW_SPEED_TIME, SLOW_SECONDS);
	curl_easy_setopt(h->easy, CURLOPT_USERAGENT, "od-pack/" OD_VERSION);
	curl_easy_setopt(h->easy, CURLOPT_ERRORBUFFER, h->why);
	curl_easy_setopt(h->easy, CURLOPT_WRITEFUNCTION, on_bytes);
	curl_easy_setopt(h->easy, CURLOPT_WRITEDATA, h);
	curl_easy_setopt(h->easy, CURLOPT_HEADERFUNCTION, on_header);
	curl_easy_setopt(h->easy, CURLOPT_HEADERDATA, h);
}

/* One request, without its redirects. */
static int ask(struct odp_http *h, CURLU *u, CURLcode *code, struct od_err *err)
{
	const bool with_token = h->authorization != NULL && !h->held && is_same_origin(u, h->endpoint);
	struct curl_slist *headers = with_token ? curl_slist_append(NULL, h->authorization) : NULL;
	char range[48] = "";

	if (with_token && headers == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for a request");
	if (h->r->n > 0)
		snprintf(range, sizeof(range), "%" PRIu64 "-%" PRIu64, h->r->from, h->r->from + h->r->n - 1);
	else if (h->r->from > 0)
		snprintf(range, sizeof(range), "%" PRIu64 "-", h->r->from);
	h->why[0] = '\0';
	h->begun = h->enough = false;
	h->err = (struct od_err){ 0 };
	*h->a = (struct odp_http_answer){ 0 };
	show_host(u, h->a->host);
	h->a->of_endpoint = is_same_origin(u, h->endpoint);
	/* A proxy is another machine: what is for this one, with its token, does not go there. "": none. */
	curl_easy_setopt(h->easy, CURLOPT_PROXY, is_loopback(u) ? "" : NULL);
	curl_easy_setopt(h->easy, CURLOPT_CURLU, u);
	curl_easy_setopt(h->easy, CURLOPT_HTTPHEADER, headers);
	curl_easy_setopt(h->easy, CURLOPT_RANGE, range[0] != '\0' ? range : NULL);
	*code = curl_easy_perform(h->easy);
	curl_easy_setopt(h->easy, CURLOPT_HTTPHEADER, NULL);
	curl_easy_setopt(h->easy, CURLOPT_CURLU, NULL);
	curl_slist_free_all(headers);
	if (*code == CURLE_OK && begin(h) != OD_OK)
		*code = CURLE_WRITE_ERROR;
	read_info(h);
	h->reached = h->reached || h->a->status > 0;
	return OD_OK;
}

/* The address that a redirect leads to, in *u. */
static int follow(struct odp_http *h, CURLU **u, struct od_err *err)
{
	char *to = NULL;
	CURLU *next = curl_url();
	int rc;

	curl_easy_getinfo(h->easy, CURLINFO_REDIRECT_URL, &to);
	if (next == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for a request");
	rc = to != NULL ? check_address(h, next, to, *u, err) :
			  od_fail(err, OD_ERR_PROTOCOL, "%s: status %ld without a Location", h->a->host, h->a->status);
	if (rc != OD_OK) {
		curl_url_cleanup(next);
		return rc;
	}
	curl_url_cleanup(*u);
	*u = next;
	return OD_OK;
}

static bool is_redirect(long status)
{
	return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

/* Says why libcurl got no answer, or only a part. Its list of codes is long and open, so this is no switch. */
static int no_answer(struct odp_http *h, CURLcode code, struct od_err *err)
{
	const char *what = h->why[0] != '\0' ? h->why : curl_easy_strerror(code);

	if (h->err.code != OD_OK) {
		if (err != NULL)
			*err = h->err;
		return h->err.code;
	}
	if (code == CURLE_PEER_FAILED_VERIFICATION)
		return od_fail(err, OD_ERR_IO, "%s: its certificate is not trusted: %s", h->a->host, what);
	if (code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_RESOLVE_PROXY || code == CURLE_COULDNT_CONNECT)
		return od_fail(err, OD_ERR_UNREACHABLE, "%s: no connection: %s", h->a->host, what);
	if (code == CURLE_OPERATION_TIMEDOUT)
		return od_fail(err, OD_ERR_UNREACHABLE, "%s: no answer, or too slow: %s", h->a->host, what);
	if (code == CURLE_PARTIAL_FILE || code == CURLE_RECV_ERROR || code == CURLE_SEND_ERROR ||
	    code == CURLE_GOT_NOTHING || code == CURLE_SSL_CONNECT_ERROR || code == CURLE_HTTP2 ||
	    code == CURLE_HTTP2_STREAM)
		return od_fail(err, OD_ERR_UNREACHABLE, "%s: the connection broke off: %s", h->a->host, what);
	return od_fail(err, OD_ERR_IO, "%s: %s", h->a->host, what);
}

/* The server had no time, or asks for fewer requests. */
static bool may_be_better(long status)
{
	return status == 408 || status == 425 || status == 429 || status >= 500;
}

/* With its redirects. OD_ERR_UNREACHABLE, OD_ERR_BUSY: another try may help. */
static int try_once(struct odp_http *h, struct od_err *err)
{
	char shown[SHOWN_BYTES];
	CURLcode code = CURLE_OK;
	CURLU *u = curl_url();
	int rc = u == NULL ? od_fail(err, OD_ERR_NOMEM, "no memory for a request") :
			     check_address(h, u, h->r->url, NULL, err);

	odp_url_shown(h->r->url, shown, sizeof(shown));
	h->linked[0] = '\0';
	for (int n = 0; rc == OD_OK; n++) {
		rc = ask(h, u, &code, err);
		if (rc == OD_OK && code != CURLE_OK && !h->enough)
			rc = no_answer(h, code, err);
		if (rc != OD_OK || !is_redirect(h->a->status))
			break;
		rc = n < MAX_REDIRECTS ?
			     follow(h, &u, err) :
			     od_fail(err, OD_ERR_PROTOCOL, "%s: more than %d redirects", shown, MAX_REDIRECTS);
	}
	curl_url_cleanup(u);
	memcpy(h->a->linked, h->linked, sizeof(h->linked));
	if (rc != OD_OK || is_good(h->a->status))
		return rc;
	return od_fail(err, may_be_better(h->a->status) ? OD_ERR_BUSY : OD_ERR_IO, "%s: status %ld of %s%s%s", shown,
		       h->a->status, h->a->host, h->a->message[0] != '\0' ? ": " : "", h->a->message);
}

/* ---- several tries ---- */

/* Seconds until the next try: what the server asks for, else twice as many each time. */
static unsigned wait_of(const struct odp_http *h, unsigned tries)
{
	curl_off_t asked = 0;
	unsigned wait = FIRST_WAIT_S;

	for (unsigned i = 1; i < tries && wait < MAX_WAIT_S; i++)
		wait *= 2;
	if (h->a->status >= 400 && curl_easy_getinfo(h->easy, CURLINFO_RETRY_AFTER, &asked) == CURLE_OK && asked > 0)
		return asked < MAX_RETRY_AFTER_S ? (unsigned)asked : MAX_RETRY_AFTER_S;
	if (h->a->status == 429 && h->a->limit_s > 0)
		return h->a->limit_s < MAX_RETRY_AFTER_S ? (unsigned)h->a->limit_s : MAX_RETRY_AFTER_S;
	return wait < MAX_WAIT_S ? wait : MAX_WAIT_S;
}

static unsigned max_tries(const struct odp_http *h)
{
	return h->r->from > 0 ? MAX_LATER_TRIES : h->reached ? MAX_TRIES : MAX_FIRST_TRIES;
}

int odp_http_run(struct odp_http *h, struct odp_http_request *r, struct odp_http_answer *answer, struct od_err *err)
{
	struct od_err why = { 0 };
	char text[sizeof(why.msg) + 64];
	uint64_t reached = r->from;
	int rc;

	h->r = r;
	h->a = answer;
	*answer = (struct odp_http_answer){ 0 };
	for (unsigned tries = 1;; tries++) {
		unsigned wait;

		rc = try_once(h, &why);
		if (rc != OD_ERR_UNREACHABLE && rc != OD_ERR_BUSY)
			break;
		tries = r->from > reached ? 1 : tries;
		reached = r->from;
		if (tries == max_tries(h))
			break;
		wait = wait_of(h, tries);
		snprintf(text, sizeof(text), "%s; trying again in %u s", why.msg, wait);
		if (h->o.note != NULL)
			h->o.note(h->o.arg, text);
		nanosleep(&(struct timespec){ .tv_sec = (time_t)wait }, NULL);
	}
	if (rc != OD_OK && err != NULL)
		*err = why;
	return rc;
}

/* ---- a text ---- */

struct http_text {
	struct od_strbuf body;
	const char *url;
	size_t max_bytes;
};

static int on_text_begin(void *arg, const struct odp_http_answer *a, struct od_err *err)
{
	struct http_text *t = arg;

	(void)a;
	(void)err;
	od_strbuf_fini(&t->body);
	return OD_OK;
}

static int on_text(void *arg, const void *bytes, size_t n, bool *enough, struct od_err *err)
{
	struct http_text *t = arg;

	(void)enough;
	if (n > t->max_bytes - t->body.len) {
		char shown[SHOWN_BYTES];

		odp_url_shown(t->url, shown, sizeof(shown));
		return od_fail(err, OD_ERR_PROTOCOL, "%s: the answer is longer than %zu bytes", shown, t->max_bytes);
	}
	od_strbuf_append(&t->body, bytes, n);
	return t->body.failed ? od_fail(err, OD_ERR_NOMEM, "no memory for an answer") : OD_OK;
}

int odp_http_text(struct odp_http *h, const char *url, size_t max_bytes, char **out, size_t *len,
		  struct odp_http_answer *answer, struct od_err *err)
{
	struct http_text t = { .url = url, .max_bytes = max_bytes };
	struct odp_http_request r = { .url = url, .begin = on_text_begin, .take = on_text, .arg = &t };
	int rc = odp_http_run(h, &r, answer, err);

	*out = NULL;
	*len = 0;
	if (rc == OD_OK) {
		*out = od_strbuf_take(&t.body, len);
		if (*out == NULL)
			rc = od_fail(err, OD_ERR_NOMEM, "no memory for an answer");
	}
	od_strbuf_fini(&t.body);
	return rc;
}

/* ---- ends ---- */

static int set_token(struct odp_http *h, struct od_err *err)
{
	struct od_strbuf line = { 0 };
	size_t len;

	for (const char *c = h->o.token; *c != '\0'; c++)
		if (*c <= ' ' || *c > '~')
			return od_fail(err, OD_ERR_ARG, "the token of the hub has a character that no token has");
	od_strbuf_printf(&line, "Authorization: Bearer %s", h->o.token);
	h->authorization = od_strbuf_take(&line, &len);
	h->held = is_plain(h->endpoint) && !is_loopback(h->endpoint);
	return h->authorization != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "no memory for a token");
}

int odp_http_new(struct odp_http **out, const struct odp_http_opts *opts, struct od_err *err)
{
	struct odp_http *h = calloc(1, sizeof(*h));
	int rc = OD_OK;

	*out = NULL;
	if (h == NULL)
		return od_fail(err, OD_ERR_NOMEM, "HTTP client");
	if (curl_global_init(CURL_GLOBAL_DEFAULT) != 0) {
		free(h);
		return od_fail(err, OD_ERR_INTERNAL, "libcurl does not start");
	}
	h->o = *opts;
	h->easy = curl_easy_init();
	h->endpoint = curl_url();
	if (h->easy == NULL || h->endpoint == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "HTTP client");
	else if (!(strncmp(opts->endpoint, "https://", 8) == 0 || strncmp(opts->endpoint, "http://", 7) == 0) ||
		 curl_url_set(h->endpoint, CURLUPART_URL, opts->endpoint, 0) != CURLUE_OK)
		rc = od_fail(err, OD_ERR_ARG,
			     "HF_ENDPOINT: expected an address as https://huggingface.co, found \"%.200s\"",
			     opts->endpoint);
	if (rc == OD_OK && opts->token != NULL)
		rc = set_token(h, err);
	if (rc != OD_OK) {
		odp_http_free(h);
		return rc;
	}
	set_options(h);
	*out = h;
	return OD_OK;
}

void odp_http_free(struct odp_http *h)
{
	if (h == NULL)
		return;
	curl_easy_cleanup(h->easy);
	curl_url_cleanup(h->endpoint);
	if (h->authorization != NULL)
		explicit_bzero(h->authorization, strlen(h->authorization));
	free(h->authorization);
	free(h);
	curl_global_cleanup();
}

bool odp_http_token_held(const struct odp_http *h)
{
	return h->held;
}
