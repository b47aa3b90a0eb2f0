#include "common/net/hosts.h"

#include "common/base/args.h"
#include "common/base/file.h"

#include <arpa/inet.h>
#include <float.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FILE_BYTES (1024 * 1024)
#define MAX_WORDS 32
#define MAX_NAME 253 /* longest host name in DNS */

const char *const od_node_names[] = { "worker", "shadow", NULL };

static const uint16_t default_port[] = { OD_DEFAULT_WORKER_PORT, OD_DEFAULT_SHADOW_PORT };

struct host_words {
	char line[OD_HOSTS_LINE];
	char *word[MAX_WORDS];
	size_t n;
};

/* In a key '#' is a character like others. */
size_t od_hosts_comment(const char *line, size_t len)
{
	static const char setting[] = "key=";
	const size_t n = sizeof(setting) - 1;
	size_t word = 0;

	for (size_t i = 0; i < len; i++) {
		if (line[i] == ' ' || line[i] == '\t')
			word = i + 1;
		else if (line[i] == '#' && (i < word + n || memcmp(line + word, setting, n) != 0))
			return i;
	}
	return len;
}

/* The line without its comment, cut at blanks. */
static int split(struct host_words *w, const char *line, size_t len, struct od_err *err)
{
	char *save = NULL;

	w->n = 0;
	len = od_hosts_comment(line, len);
	if (len >= sizeof(w->line))
		return od_fail(err, OD_ERR_ARG, "expected at most %zu characters, found %zu", sizeof(w->line) - 1, len);
	for (size_t i = 0; i < len; i++) {
		unsigned char c = (unsigned char)line[i];

		if ((c < 0x20 && c != '\t' && c != '\r') || c >= 0x7f)
			return od_fail(err, OD_ERR_ARG, "expected plain text, found byte 0x%02x", c);
	}
	memcpy(w->line, line, len);
	w->line[len] = '\0';
	for (char *t = strtok_r(w->line, " \t\r", &save); t != NULL; t = strtok_r(NULL, " \t\r", &save)) {
		if (w->n == MAX_WORDS)
			return od_fail(err, OD_ERR_ARG, "more than %d words", MAX_WORDS);
		w->word[w->n++] = t;
	}
	return OD_OK;
}

static bool only(const char *text, size_t len, const char *extra)
{
	for (size_t i = 0; i < len; i++) {
		char c = text[i];
		bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');

		if (!plain && strchr(extra, c) == NULL)
			return false;
	}
	return len > 0;
}

/* One spelling for each address, so that duplicates are seen. zone: "%eth0" behind a link-local address. */
static int set_ipv6(struct od_host *h, const char *text, struct od_err *err)
{
	const char *zone = strchr(text, '%');
	size_t len = zone != NULL ? (size_t)(zone - text) : strlen(text);
	char bare[INET6_ADDRSTRLEN];
	struct in6_addr a;

	if (len >= sizeof(bare) || (zone != NULL && (strlen(zone) > 16 || !only(zone + 1, strlen(zone + 1), "._-"))))
		return od_fail(err, OD_ERR_ARG, "expected an IPv6 address, found \"%s\"", text);
	memcpy(bare, text, len);
	bare[len] = '\0';
	if (inet_pton(AF_INET6, bare, &a) != 1)
		return od_fail(err, OD_ERR_ARG, "expected an IPv6 address, found \"%s\"", text);
	inet_ntop(AF_INET6, &a, h->host, sizeof(h->host));
	if (zone != NULL)
		strncat(h->host, zone, sizeof(h->host) - strlen(h->host) - 1);
	return OD_OK;
}

static int set_name(struct od_host *h, const char *name, struct od_err *err)
{
	size_t len = strlen(name);
	struct in_addr a;

	if (len > MAX_NAME || !only(name, len, ".-_") || name[0] == '-' || name[0] == '.')
		return od_fail(err, OD_ERR_ARG, "expected a host name or address, found \"%s\"", name);
	if (strspn(name, "0123456789.") == len && inet_pton(AF_INET, name, &a) != 1)
		return od_fail(err, OD_ERR_ARG, "expected an IPv4 address such as 192.168.1.20, found \"%s\"", name);
	memcpy(h->host, name, len + 1);
	return OD_OK;
}

/* name, name:port, v4, v4:port, v6, [v6], [v6]:port */
static int set_address(struct od_host *h, char *word, struct od_err *err)
{
	char *colon = strchr(word, ':'), *close_bracket = strchr(word, ']'), *port = NULL;
	uint64_t number;
	int rc;

	if (strstr(word, "://") != NULL)
		return od_fail(err, OD_ERR_ARG, "expected host or host:port, found a URL, \"%s\"", word);
	if (word[0] == '[') {
		if (close_bracket == NULL || (close_bracket[1] != ':' && close_bracket[1] != '\0'))
			return od_fail(err, OD_ERR_ARG, "expected [IPv6 address]:port, found \"%s\"", word);
		port = close_bracket[1] == ':' ? close_bracket + 2 : NULL;
		*close_bracket = '\0';
		rc = set_ipv6(h, word + 1, err);
	} else if (colon != NULL && strchr(colon + 1, ':') != NULL) {
		rc = set_ipv6(h, word, err);
	} else {
		if (colon != NULL) {
			*colon = '\0';
			port = colon + 1;
		}
		rc = set_name(h, word, err);
	}
	if (rc != OD_OK || port == NULL)
		return rc;
	if (od_parse_u64(port, 1, UINT16_MAX, &number, err) != OD_OK)
		return od_fail_within(err, "port");
	h->port = (uint16_t)number;
	return OD_OK;
}

static int find_role(const char *word)
{
	for (int i = 0; od_node_names[i] != NULL; i++) {
		if (strcmp(od_node_names[i], word) == 0)
			return i;
	}
	return -1;
}

/* ---- the words behind a host ---- */

enum word_unit { UNIT_BYTES, UNIT_BITS, UNIT_NUMBER };

static const struct word_row {
	const char *name;
	size_t offset; /* in od_host_words */
	enum word_unit unit;
	double min, max; /* Values outside them are slips of the pen: a missing G, bytes for bits. */
} word_rows[] = {
	{ "memory=", offsetof(struct od_host_words, memory_bytes), UNIT_BYTES, 0x1p20, 0x1p49 },
	{ "read=", offsetof(struct od_host_words, read_rate), UNIT_BYTES, 0x1p10, 0x1p49 },
	{ "speed=", offsetof(struct od_host_words, speed), UNIT_NUMBER, 1e-6, 1e6 },
	{ "many=", offsetof(struct od_host_words, many), UNIT_NUMBER, 1e-6, 1e6 },
	{ "link=", offsetof(struct od_host_words, link_bits), UNIT_BITS, 1e3, 1e13 },
	{ "latency=", offsetof(struct od_host_words, latency_ms), UNIT_NUMBER, 1e-4, 1e5 },
	{ "fixed=", offsetof(struct od_host_words, fixed_ms), UNIT_NUMBER, 1e-6, 1e5 },
	{ "recall=", offsetof(struct od_host_words, recall), UNIT_NUMBER, 1e-4, 1 },
	{ "accept=", offsetof(struct od_host_words, accept), UNIT_NUMBER, 1e-4, 1 },
};
#define N_WORD_ROWS (sizeof(word_rows) / sizeof(word_rows[0]))
static const char key_word[] = "key=";

static double *word_value(struct od_host_words *words, const struct word_row *row)
{
	return (double *)((char *)words + row->offset);
}

const char *od_hosts_word(const char *setting, size_t len)
{
	for (size_t i = 0; i < N_WORD_ROWS; i++) {
		size_t n = strlen(word_rows[i].name);

		if (len >= n && memcmp(setting, word_rows[i].name, n) == 0)
			return word_rows[i].name;
	}
	return len >= strlen(key_word) && memcmp(setting, key_word, strlen(key_word)) == 0 ? key_word : NULL;
}

/* "2.5G", "100M", "1e9": powers of 1,000, as networks have them. */
static int parse_bits(const char *text, double *out, struct od_err *err)
{
	static const char units[] = "KMG";
	char number[32];
	size_t len = strlen(text);
	const char *unit = len > 0 ? strchr(units, text[len - 1] & ~0x20) : NULL;
	int rc;

	*out = 0;
	if (len >= sizeof(number))
		return od_fail(err, OD_ERR_ARG, "expected bits a second such as 1G, found \"%s\"", text);
	memcpy(number, text, len + 1);
	if (unit != NULL)
		number[len - 1] = '\0';
	rc = od_parse_real(number, 0, 1e15, out, err);
	if (rc != OD_OK)
		return od_fail(err, rc, "expected bits a second such as 1G, found \"%s\"", text);
	for (; unit != NULL && unit >= units; unit--)
		*out *= 1000;
	return OD_OK;
}

static int parse_value(double *out, const char *text, enum word_unit unit, struct od_err *err)
{
	uint64_t bytes;
	int rc;

	if (unit == UNIT_BITS)
		return parse_bits(text, out, err);
	if (unit == UNIT_NUMBER)
		return od_parse_real(text, -DBL_MAX, DBL_MAX, out, err);
	rc = od_parse_size(text, &bytes, err);
	*out = (double)bytes;
	return rc;
}

/* "12G" for 12 * 2^30: the shortest text with four digits. */
static void value_text(double value, enum word_unit unit, char *buf, size_t size)
{
	static const char *const suffix[] = { "", "K", "M", "G", "T" };
	const double step = unit == UNIT_BYTES ? 1024 : 1000;
	const size_t most = unit == UNIT_NUMBER ? 0 : unit == UNIT_BITS ? 3 : 4;
	size_t n = 0;

	for (; n < most && value >= step; n++)
		value /= step;
	snprintf(buf, size, value < 10000 ? "%.4g%s" : "%.0f%s", value, suffix[n]);
}

const char *od_host_words_text(const struct od_host_words *words, char *buf, size_t size)
{
	struct od_host_words copy = *words;
	size_t len = 0;

	buf[0] = '\0';
	for (size_t i = 0; i < N_WORD_ROWS && len < size; i++) {
		double value = *word_value(&copy, &word_rows[i]);
		char text[32];

		if (value <= 0)
			continue;
		value_text(value, word_rows[i].unit, text, sizeof(text));
		len += (size_t)snprintf(buf + len, size - len, " %s%s", word_rows[i].name, text);
	}
	return buf;
}

static int set_value(struct od_host_words *words, const struct word_row *row, const char *text, struct od_err *err)
{
	double *out = word_value(words, row), value;
	char least[32], most[32];

	if (*out > 0)
		return od_fail(err, OD_ERR_ARG, "expected %s once, found it twice", row->name);
	if (parse_value(&value, text, row->unit, err) != OD_OK)
		return od_fail_within(err, "%s", row->name);
	if (!(value >= row->min && value <= row->max)) {
		value_text(row->min, row->unit, least, sizeof(least));
		value_text(row->max, row->unit, most, sizeof(most));
		return od_fail(err, OD_ERR_ARG, "%s: expected %s to %s, found %s", row->name, least, most, text);
	}
	*out = value;
	return OD_OK;
}

static int set_word(struct od_host *h, const char *word, struct od_err *err)
{
	const char *name = od_hosts_word(word, strlen(word));

	if (name == NULL)
		return od_fail(
			err, OD_ERR_ARG,
			"expected key=, memory=, read=, speed=, many=, link=, latency=, fixed=, recall= or accept= after the "
			"host, found \"%s\"",
			word);
	for (size_t i = 0; i < N_WORD_ROWS; i++) {
		if (name == word_rows[i].name)
			return set_value(&h->words, &word_rows[i], word + strlen(name), err);
	}
	if (h->has_key)
		return od_fail(err, OD_ERR_ARG, "expected key= once, found it twice");
	h->has_key = true;
	return od_key_parse(h->key, word + strlen(name), err) == OD_OK ? OD_OK : od_fail_within(err, "key=");
}

static int set_host(struct od_host *h, struct host_words *w, struct od_err *err)
{
	size_t at = 0;
	int role = find_role(w->word[0]);

	h->is_main = strcmp(w->word[0], "main") == 0;
	/* A first word in front of another that is no setting must be a role. */
	if (role < 0 && !h->is_main && w->n > 1 && strchr(w->word[1], '=') == NULL)
		return od_fail(err, OD_ERR_ARG, "expected main, worker or shadow in front of a host, found \"%s\"",
			       w->word[0]);
	if (role >= 0 || h->is_main)
		at = 1;
	if (at == w->n)
		return od_fail(err, OD_ERR_ARG, "expected a host behind \"%s\"", w->word[0]);
	if (strchr(w->word[at], '=') != NULL)
		return od_fail(err, OD_ERR_ARG, "expected a host, found \"%s\"", w->word[at]);
	h->role = role >= 0 ? (enum od_node_kind)role : OD_NODE_WORKER;
	h->port = default_port[h->role];
	for (size_t i = at + 1; i < w->n; i++) {
		if (set_word(h, w->word[i], err) != OD_OK)
			return err->code;
	}
	return set_address(h, w->word[at], err);
}

int od_host_parse(struct od_host *out, const char *text, uint16_t usual_port, struct od_err *err)
{
	char word[sizeof(out->host) + 16];

	*out = (struct od_host){ .port = usual_port };
	if (strlen(text) >= sizeof(word))
		return od_fail(err, OD_ERR_ARG, "expected a host, found %zu characters", strlen(text));
	memcpy(word, text, strlen(text) + 1);
	return set_address(out, word, err);
}

/* Against the hosts before it. */
static int check_host(const struct od_hosts *all, const struct od_host *h, struct od_err *err)
{
	size_t shadows = h->role == OD_NODE_SHADOW;

	for (size_t i = 0; i < all->n; i++) {
		const struct od_host *o = &all->host[i];

		if (o->port == h->port && strcasecmp(o->host, h->host) == 0)
			return od_fail(err, OD_ERR_ARG, "host %s with port %u is on line %u already", h->host,
				       (unsigned)h->port, o->line);
		shadows += o->role == OD_NODE_SHADOW;
	}
	if (shadows > OD_MAX_SHADOWS)
		return od_fail(err, OD_ERR_ARG, "more than %d shadows", OD_MAX_SHADOWS);
	return all->n < OD_MAX_HOSTS ? OD_OK : od_fail(err, OD_ERR_ARG, "more than %d hosts", OD_MAX_HOSTS);
}

static int set_main(struct od_hosts *all, const struct od_host *h, struct od_err *err)
{
	if (all->has_main)
		return od_fail(err, OD_ERR_ARG, "expected one main, found a second: the first is on line %u",
			       all->main.line);
	all->has_main = true;
	all->main = *h;
	return OD_OK;
}

static int parse_line(struct od_hosts *all, unsigned number, const char *line, size_t len, struct od_err *err)
{
	struct od_host h = { .line = number };
	struct host_words w;
	int rc = split(&w, line, len, err);

	if (rc != OD_OK || w.n == 0)
		return rc;
	rc = set_host(&h, &w, err);
	if (rc == OD_OK && h.is_main)
		return set_main(all, &h, err);
	if (rc == OD_OK)
		rc = check_host(all, &h, err);
	if (rc == OD_OK)
		all->host[all->n++] = h;
	return rc;
}

static bool has_worker(const struct od_hosts *all)
{
	for (size_t i = 0; i < all->n; i++) {
		if (all->host[i].role == OD_NODE_WORKER)
			return true;
	}
	return false;
}

int od_hosts_parse_some(struct od_hosts *out, const char *text, size_t len, const char *where, struct od_err *err)
{
	unsigned number = 0;
	int rc = OD_OK;

	*out = (struct od_hosts){ .host = calloc(OD_MAX_HOSTS, sizeof(*out->host)) };
	if (out->host == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s", where);
	for (size_t at = 0; at < len && rc == OD_OK;) {
		const char *end = memchr(text + at, '\n', len - at);
		size_t n = end != NULL ? (size_t)(end - text) - at : len - at;

		rc = parse_line(out, ++number, text + at, n, err);
		at += n + 1;
	}
	if (rc == OD_OK)
		return OD_OK;
	od_fail_within(err, "%s line %u", where, number);
	od_hosts_fini(out);
	return rc;
}

int od_hosts_parse(struct od_hosts *out, const char *text, size_t len, const char *where, struct od_err *err)
{
	int rc = od_hosts_parse_some(out, text, len, where, err);

	if (rc == OD_OK && !has_worker(out)) {
		od_hosts_fini(out);
		rc = od_fail(err, OD_ERR_ARG, "%s: expected at least one worker, found none", where);
	}
	return rc;
}

void od_hosts_without_shadow(struct od_hosts *h)
{
	size_t n = 0;

	for (size_t i = 0; i < h->n; i++) {
		if (h->host[i].role != OD_NODE_SHADOW)
			h->host[n++] = h->host[i];
	}
	h->n = n;
}

int od_hosts_load(struct od_hosts *out, const char *path, struct od_err *err)
{
	char *text;
	size_t len;
	int rc = od_file_read_text(path, MAX_FILE_BYTES, &text, &len, err);

	*out = (struct od_hosts){ 0 };
	if (rc == OD_ERR_MISSING)
		return od_fail(
			err, rc,
			"there is no file %s: expected a file with one host a line, such as \"worker 10.0.0.11\"; od-main pair writes it",
			path);
	if (rc != OD_OK)
		return rc;
	rc = od_hosts_parse(out, text, len, path, err);
	free(text);
	return rc;
}

void od_hosts_fini(struct od_hosts *h)
{
	free(h->host);
	*h = (struct od_hosts){ 0 };
}
