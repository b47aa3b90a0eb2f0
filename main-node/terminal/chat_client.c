#include "main-node/terminal/chat_client.h"

#include "common/base/json.h"
#include "common/base/strbuf.h"
#include "main-node/terminal/chat_reply.h"
#include "main-node/terminal/interrupt.h"
#include "main-node/terminal/plain_text.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_SECONDS 10L
#define POLL_MS 1000
#define MAX_ANSWER_BYTES (1u << 20) /* limit of an answer that is not a stream */
/* A server that is gone without a word, such as a machine without power, is noticed after about two minutes. */
#define KEEP_ALIVE_IDLE_SECONDS 60L
#define KEEP_ALIVE_SECONDS 10L

struct odm_chat_client {
	CURLM *multi;
	CURL *easy;
	struct curl_slist *headers;
	char *url;
	char why[CURL_ERROR_SIZE];
	/* The running request. */
	odm_chat_take *take; /* NULL: collect in body */
	void *arg;
	struct od_strbuf body; /* a refusal's, or without take any body */
	struct od_err err; /* error of take, or of body */
};

/* "host:8080/" becomes "http://host:8080", as curl understands it. */
static char *base_url(const char *url)
{
	struct od_strbuf b = { 0 };
	size_t len = strlen(url);

	while (len > 0 && url[len - 1] == '/')
		len--;
	if (len > 3 && memcmp(url + len - 3, "/v1", 3) == 0)
		len -= 3;
	if (strstr(url, "://") == NULL)
		od_strbuf_append(&b, "http://", 7);
	od_strbuf_append(&b, url, len);
	return od_strbuf_take(&b, &len);
}

static size_t on_bytes(char *bytes, size_t size, size_t n, void *arg)
{
	struct odm_chat_client *c = arg;
	long status = 0;

	(void)size; /* always 1 */
	curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
	if (c->take != NULL && status == 200)
		return c->take(c->arg, bytes, n, &c->err) == OD_OK ? n : 0;
	if (c->body.len + n > MAX_ANSWER_BYTES) {
		od_fail(&c->err, OD_ERR_PROTOCOL, "%s: the answer is longer than %u bytes", c->url, MAX_ANSWER_BYTES);
		return 0;
	}
	od_strbuf_append(&c->body, bytes, n);
	return n;
}

static bool add_header(struct odm_chat_client *c, const char *line)
{
	struct curl_slist *longer = curl_slist_append(c->headers, line);

	if (longer != NULL)
		c->headers = longer;
	return longer != NULL;
}

static bool add_headers(struct odm_chat_client *c, const char *api_key)
{
	struct od_strbuf line = { 0 };
	bool good;

	od_strbuf_printf(&line, "Authorization: Bearer %s", api_key != NULL ? api_key : "");
	good = !line.failed && add_header(c, "Content-Type: application/json") &&
	       (api_key == NULL || add_header(c, line.text));
	od_strbuf_fini(&line);
	return good;
}

static void set_options(struct odm_chat_client *c, const char *ca_file)
{
#if LIBCURL_VERSION_NUM >= 0x075500
	curl_easy_setopt(c->easy, CURLOPT_PROTOCOLS_STR, "http,https");
#else /* as in Ubuntu 22.04 */
	curl_easy_setopt(c->easy, CURLOPT_PROTOCOLS, CURLPROTO_HTTP | CURLPROTO_HTTPS);
#endif
	curl_easy_setopt(c->easy, CURLOPT_PROXY, "");
	/* so that to stop an answer is to close */
	curl_easy_setopt(c->easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
	curl_easy_setopt(c->easy, CURLOPT_HTTPHEADER, c->headers);
	curl_easy_setopt(c->easy, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(c->easy, CURLOPT_CONNECTTIMEOUT, CONNECT_SECONDS);
	curl_easy_setopt(c->easy, CURLOPT_TCP_KEEPALIVE, 1L);
	curl_easy_setopt(c->easy, CURLOPT_TCP_KEEPIDLE, KEEP_ALIVE_IDLE_SECONDS);
	curl_easy_setopt(c->easy, CURLOPT_TCP_KEEPINTVL, KEEP_ALIVE_SECONDS);
	curl_easy_setopt(c->easy, CURLOPT_ERRORBUFFER, c->why);
	curl_easy_setopt(c->easy, CURLOPT_WRITEFUNCTION, on_bytes);
	curl_easy_setopt(c->easy, CURLOPT_WRITEDATA, c);
	if (ca_file != NULL)
		curl_easy_setopt(c->easy, CURLOPT_CAINFO, ca_file);
}

int odm_chat_client_new(struct odm_chat_client **out, const char *url, const char *api_key, const char *ca_file,
			struct od_err *err)
{
	struct odm_chat_client *c = calloc(1, sizeof(*c));

	*out = NULL;
	if (c == NULL)
		return od_fail(err, OD_ERR_NOMEM, "HTTP client");
	if (curl_global_init(CURL_GLOBAL_DEFAULT) != 0) {
		free(c);
		return od_fail(err, OD_ERR_INTERNAL, "libcurl does not start");
	}
	c->url = base_url(url);
	c->multi = curl_multi_init();
	c->easy = curl_easy_init();
	if (c->url == NULL || c->multi == NULL || c->easy == NULL || !add_headers(c, api_key)) {
		odm_chat_client_free(c);
		return od_fail(err, OD_ERR_NOMEM, "HTTP client");
	}
	set_options(c, ca_file);
	*out = c;
	return OD_OK;
}

void odm_chat_client_free(struct odm_chat_client *c)
{
	if (c == NULL)
		return;
	curl_easy_cleanup(c->easy);
	curl_multi_cleanup(c->multi);
	curl_slist_free_all(c->headers);
	od_strbuf_fini(&c->body);
	free(c->url);
	free(c);
	curl_global_cleanup();
}

const char *odm_chat_client_url(const struct odm_chat_client *c)
{
	return c->url;
}

static const char *advice(long status, const char *body)
{
	if (status == 401)
		return "; --api-key-file FILE names the file with a key for this server";
	if (status == 404 || status == 405)
		return "; --url names the server";
	if (strstr(body, "\"context_length_exceeded\"") != NULL)
		return "; /clear begins a new conversation";
	return "";
}

/* A refusal: "status 429: the server's words; what to do". */
static int refusal(struct odm_chat_client *c, long status, struct od_err *err)
{
	const char *body = od_strbuf_text(&c->body);
	curl_off_t seconds = 0;
	char said[512], retry[64] = "";

	if (!odm_chat_error_text(body, c->body.len, said, sizeof(said)))
		snprintf(said, sizeof(said), "the server does not say why");
	if (curl_easy_getinfo(c->easy, CURLINFO_RETRY_AFTER, &seconds) == CURLE_OK && seconds > 0)
		snprintf(retry, sizeof(retry), " (try again in %lld s)", (long long)seconds);
	return od_fail(err, status == 429 || status == 503 ? OD_ERR_BUSY : OD_ERR_IO, "%s: status %ld: %s%s%s", c->url,
		       status, said, retry, advice(status, body));
}

/* Says to a user why libcurl got no answer. Its list of codes is long and open, so this is no switch. */
static int no_answer(struct odm_chat_client *c, CURLcode code, struct od_err *err)
{
	const char *what = c->why[0] != '\0' ? c->why : curl_easy_strerror(code);

	if (c->err.code != OD_OK) {
		*err = c->err;
		return err->code;
	}
	if (code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST)
		return od_fail(err, OD_ERR_UNREACHABLE,
			       "%s: %s; is od-main serve running there? --url names another server", c->url, what);
	if (code == CURLE_PEER_FAILED_VERIFICATION)
		return od_fail(err, OD_ERR_IO, "%s: %s; --cacert FILE names the certificate to trust", c->url, what);
	if (code == CURLE_PARTIAL_FILE || code == CURLE_RECV_ERROR || code == CURLE_SEND_ERROR ||
	    code == CURLE_GOT_NOTHING)
		return od_fail(err, OD_ERR_IO, "%s: the connection broke off: %s", c->url, what);
	return od_fail(err, OD_ERR_IO, "%s: %s", c->url, what);
}

/* Until the transfer ends, or Ctrl-C. */
static int wait_for_end(struct odm_chat_client *c, CURLcode *code, struct od_err *err)
{
	struct curl_waitfd interrupt = { .fd = odm_interrupt_fd(), .events = CURL_WAIT_POLLIN };
	int running = 1, n;

	while (running > 0) {
		const CURLMcode rc = curl_multi_perform(c->multi, &running);

		if (rc != CURLM_OK)
			return od_fail(err, OD_ERR_IO, "%s: %s", c->url, curl_multi_strerror(rc));
		if (odm_interrupt_take())
			return od_fail(err, OD_ERR_CANCELLED, "stopped");
		/* A signal may make it fail; perform finds any other failure. */
		if (running > 0)
			(void)curl_multi_poll(c->multi, &interrupt, interrupt.fd >= 0, POLL_MS, NULL);
	}
	for (CURLMsg *m; (m = curl_multi_info_read(c->multi, &n)) != NULL;) {
		if (m->msg == CURLMSG_DONE)
			*code = m->data.result;
	}
	return OD_OK;
}

static int request(struct odm_chat_client *c, const char *path, odm_chat_take *take, void *arg, struct od_err *err)
{
	CURLcode code = CURLE_OK;
	struct od_strbuf url = { 0 };
	long status = 0;
	int rc;

	c->take = take;
	c->arg = arg;
	c->err = (struct od_err){ 0 };
	c->why[0] = '\0';
	od_strbuf_fini(&c->body);
	od_strbuf_printf(&url, "%s%s", c->url, path);
	if (url.failed || curl_easy_setopt(c->easy, CURLOPT_URL, url.text) != CURLE_OK) {
		od_strbuf_fini(&url);
		return od_fail(err, OD_ERR_NOMEM, "HTTP client");
	}
	od_strbuf_fini(&url);
	curl_multi_add_handle(c->multi, c->easy);
	rc = wait_for_end(c, &code, err);
	curl_easy_getinfo(c->easy, CURLINFO_RESPONSE_CODE, &status);
	if (rc == OD_OK && code != CURLE_OK)
		rc = no_answer(c, code, err);
	else if (rc == OD_OK && status != 200)
		rc = refusal(c, status, err);
	curl_multi_remove_handle(c->multi, c->easy); /* closes the connection unless the answer is complete */
	return rc;
}

int odm_chat_client_get(struct odm_chat_client *c, const char *path, json_t **out, struct od_err *err)
{
	char line[512];
	int rc;

	*out = NULL;
	curl_easy_setopt(c->easy, CURLOPT_HTTPGET, 1L);
	rc = request(c, path, NULL, NULL, err);
	if (rc != OD_OK)
		return rc;
	rc = od_json_parse(od_strbuf_text(&c->body), c->body.len, path, out, err);
	if (rc != OD_OK) { /* it quotes the answer */
		odm_plain_line(line, sizeof(line), err->msg, strlen(err->msg));
		return od_fail(err, rc, "%s: %s; --url names the server", c->url, line);
	}
	return OD_OK;
}

int odm_chat_client_post(struct odm_chat_client *c, const char *path, const json_t *body, odm_chat_take *take,
			 void *arg, struct od_err *err)
{
	char *text = json_dumps(body, JSON_COMPACT);
	int rc;

	if (text == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for the request");
	curl_easy_setopt(c->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(text));
	curl_easy_setopt(c->easy, CURLOPT_POST, 1L);
	curl_easy_setopt(c->easy, CURLOPT_POSTFIELDS, text);
	rc = request(c, path, take, arg, err);
	curl_easy_setopt(c->easy, CURLOPT_POSTFIELDS, NULL); /* it is borrowed */
	free(text);
	return rc;
}
