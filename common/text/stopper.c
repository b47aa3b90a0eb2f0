/* Stop strings by Knuth, Morris and Pratt, one automaton each: the bytes that the furthest of them has matched are
 * those that must wait. What is found does not depend on how the text is cut into pieces: the stop string that is
 * complete first counts, the longest if several end on one byte. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "common/text/stopper.h"

#define MAX_STOP 256
#define MAX_STOP_BYTES 65536u

struct automaton {
	char *text;
	size_t len;
	size_t matched;
	size_t *fail; /* [len]: of the first i + 1 bytes, how many of the last are the first ones again */
};

struct od_stopper {
	struct automaton *v;
	size_t n;
	char *buf; /* text that waits, then the last piece */
	size_t held, shown, cap; /* buf[0, shown) was given out by the last call, held bytes follow */
	bool stopped;
	size_t found; /* index into v, when stopped */
};

static bool is_utf8(const char *s, size_t len)
{
	int32_t cp;

	for (size_t at = 0; at < len;) {
		utf8proc_ssize_t n =
			utf8proc_iterate((const utf8proc_uint8_t *)s + at, (utf8proc_ssize_t)(len - at), &cp);

		if (n <= 0)
			return false;
		at += (size_t)n;
	}
	return true;
}

static int init_one(struct automaton *a, const char *text, struct od_err *err)
{
	size_t len = strlen(text), k = 0;

	if (len == 0)
		return od_fail(err, OD_ERR_ARG, "stop string: expected at least one character, found none");
	if (len > MAX_STOP_BYTES)
		return od_fail(err, OD_ERR_ARG, "stop string: expected at most %u bytes, found %zu", MAX_STOP_BYTES,
			       len);
	if (!is_utf8(text, len)) /* it would cut characters in two */
		return od_fail(err, OD_ERR_ARG, "stop string \"%.64s\": expected UTF-8", text);
	a->text = strdup(text);
	a->fail = calloc(len, sizeof(*a->fail));
	if (a->text == NULL || a->fail == NULL)
		return od_fail(err, OD_ERR_NOMEM, "stop string");
	a->len = len;
	for (size_t i = 1; i < len; i++) {
		while (k > 0 && text[i] != text[k])
			k = a->fail[k - 1];
		if (text[i] == text[k])
			k++;
		a->fail[i] = k;
	}
	return OD_OK;
}

int od_stopper_new(struct od_stopper **out, const char *const *stop, size_t n_stop, struct od_err *err)
{
	struct od_stopper *s;
	int rc = OD_OK;

	*out = NULL;
	if (n_stop > MAX_STOP)
		return od_fail(err, OD_ERR_ARG, "stop strings: expected at most %d, found %zu", MAX_STOP, n_stop);
	s = calloc(1, sizeof(*s));
	if (s != NULL)
		s->v = calloc(n_stop + 1, sizeof(*s->v));
	if (s == NULL || s->v == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "stop strings");
	for (size_t i = 0; i < n_stop && rc == OD_OK; i++) {
		s->n++;
		rc = init_one(&s->v[i], stop[i], err);
	}
	if (rc != OD_OK) {
		od_stopper_free(s);
		return rc;
	}
	*out = s;
	return OD_OK;
}

void od_stopper_free(struct od_stopper *s)
{
	if (s == NULL)
		return;
	for (size_t i = 0; i < s->n; i++) {
		free(s->v[i].text);
		free(s->v[i].fail);
	}
	free(s->v);
	free(s->buf);
	free(s);
}

/* True when the automaton's whole string ends with byte c. */
static bool advance(struct automaton *a, char c)
{
	while (a->matched > 0 && a->text[a->matched] != c)
		a->matched = a->fail[a->matched - 1];
	if (a->text[a->matched] == c)
		a->matched++;
	return a->matched == a->len;
}

static int append(struct od_stopper *s, const char *piece, size_t len)
{
	size_t need = s->held + len;

	if (s->held > 0) /* the last call has shown this */
		memmove(s->buf, s->buf + s->shown, s->held);
	s->shown = 0;
	if (need < len)
		return OD_ERR_NOMEM;
	if (need > s->cap) {
		char *p = realloc(s->buf, need * 2);

		if (p == NULL)
			return OD_ERR_NOMEM;
		s->buf = p;
		s->cap = need * 2;
	}
	memcpy(s->buf + s->held, piece, len);
	return OD_OK;
}

static void show(struct od_stopper *s, size_t n, size_t held, const char **emit, size_t *emit_len)
{
	s->shown = n;
	s->held = held;
	*emit = n > 0 ? s->buf : "";
	*emit_len = n;
}

int od_stopper_push(struct od_stopper *s, const char *piece, size_t len, const char **emit, size_t *emit_len,
		    bool *stopped)
{
	size_t end, wait = 0, found = 0;
	int rc;

	*emit = "";
	*emit_len = 0;
	*stopped = s->stopped;
	if (s->stopped || len == 0)
		return OD_OK;
	end = s->held;
	rc = append(s, piece, len);
	if (rc != OD_OK)
		return rc;
	for (size_t i = 0; i < len && found == 0; i++) {
		end++;
		wait = 0;
		for (size_t k = 0; k < s->n; k++) {
			if (advance(&s->v[k], piece[i]) && s->v[k].len > found) {
				found = s->v[k].len;
				s->found = k;
			}
			if (s->v[k].matched > wait)
				wait = s->v[k].matched;
		}
	}
	if (found > 0) {
		*stopped = s->stopped = true;
		show(s, end - found, 0, emit, emit_len);
		return OD_OK;
	}
	show(s, end - wait, wait, emit, emit_len);
	return OD_OK;
}

size_t od_stopper_found(const struct od_stopper *s)
{
	return s->found;
}

int od_stopper_flush(struct od_stopper *s, const char **emit, size_t *emit_len)
{
	size_t n = s->held;

	*emit = "";
	*emit_len = 0;
	if (n == 0)
		return OD_OK;
	memmove(s->buf, s->buf + s->shown, n);
	for (size_t k = 0; k < s->n; k++)
		s->v[k].matched = 0;
	show(s, n, 0, emit, emit_len);
	return OD_OK;
}
