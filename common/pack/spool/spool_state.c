#include "common/pack/spool/spool_state.h"

#include "common/base/file.h"
#include "common/base/strbuf.h"
#include "common/pack/checksum.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES (16u << 20)

/* Exactly what a file with this content looks like. */
static void render(const struct od_spool_state *s, struct od_strbuf *out)
{
	od_strbuf_printf(out, "od-moe spool 1\nfingerprint %s\nshare %u %u %u\n", s->fingerprint, s->share.n_workers,
			 s->share.worker, s->share.n_groups);
	for (uint32_t m = 0; m < s->n_moe; m++) {
		for (uint32_t e = 0; e < s->n_experts; e++)
			od_strbuf_append(out, s->whole[(size_t)m * s->n_experts + e] ? "1" : "0", 1);
		od_strbuf_append(out, "\n", 1);
	}
	od_strbuf_printf(out, "xxh3 %016" PRIx64 "\n", out->failed ? 0 : (uint64_t)XXH3_64bits(out->text, out->len));
}

/* Takes what can be read; the comparison with render() tells whether that is all. */
static void scan(struct od_spool_state *s, const char *text, size_t len, char fingerprint[65])
{
	size_t at;
	int head = 0;

	fingerprint[0] = '\0';
	s->share = (struct od_share){ 0 };
	if (sscanf(text, "od-moe spool 1\nfingerprint %64s\nshare %u %u %u%n", fingerprint, &s->share.n_workers,
		   &s->share.worker, &s->share.n_groups, &head) != 4)
		return;
	at = (size_t)head;
	for (uint32_t m = 0; m < s->n_moe; m++) {
		at++; /* a newline */
		for (uint32_t e = 0; e < s->n_experts && at < len; e++)
			s->whole[(size_t)m * s->n_experts + e] = text[at++] == '1';
	}
}

/* A whole file of whatever model ends with the checksum of what is before it. */
static bool sums_up(const char *text, size_t len)
{
	char last[32];
	const size_t n = sizeof("xxh3 0123456789abcdef\n") - 1;

	if (len < n)
		return false;
	snprintf(last, sizeof(last), "xxh3 %016" PRIx64 "\n", (uint64_t)XXH3_64bits(text, len - n));
	return memcmp(text + len - n, last, n) == 0;
}

int od_spool_state_read(struct od_spool_state *s, const char *dir, struct od_err *err)
{
	struct od_strbuf good = { 0 };
	char path[PATH_MAX], found[65], *text;
	size_t len;
	int rc = od_path(path, sizeof(path), dir, OD_SPOOL_STATE_NAME, err);

	s->share = (struct od_share){ 0 };
	memset(s->whole, 0, (size_t)s->n_moe * s->n_experts);
	if (rc == OD_OK)
		rc = od_file_read(path, MAX_BYTES, &text, &len, err);
	if (rc != OD_OK)
		return rc;
	scan(s, text, len, found);
	render(s, &good);
	if (good.failed)
		rc = od_fail(err, OD_ERR_NOMEM, "%s: no memory", path);
	else if (found[0] != '\0' && strcmp(found, s->fingerprint) != 0 && sums_up(text, len))
		rc = od_fail(err, OD_ERR_MISMATCH,
			     "%s belongs to another model: fingerprint: expected %.12s, found %.12s", path,
			     s->fingerprint, found);
	else if (good.len != len || memcmp(good.text, text, len) != 0 ||
		 (s->share.n_workers > 0 && !od_share_good(&s->share)))
		rc = od_fail(err, OD_ERR_CORRUPT,
			     "%s is damaged: expected the list of %u layers of %u experts that od-moe "
			     "wrote",
			     path, s->n_moe, s->n_experts);
	if (rc != OD_OK) {
		s->share = (struct od_share){ 0 };
		memset(s->whole, 0, (size_t)s->n_moe * s->n_experts);
	}
	od_strbuf_fini(&good);
	free(text);
	return rc;
}

int od_spool_state_write(const struct od_spool_state *s, const char *dir, struct od_err *err)
{
	struct od_strbuf text = { 0 };
	char path[PATH_MAX];
	int rc = od_path(path, sizeof(path), dir, OD_SPOOL_STATE_NAME, err);

	render(s, &text);
	if (rc == OD_OK && text.failed)
		rc = od_fail(err, OD_ERR_NOMEM, "%s: no memory", path);
	if (rc == OD_OK)
		rc = od_file_write_atomic(path, text.text, text.len, err);
	od_strbuf_fini(&text);
	return rc;
}
