#include "deploy/hub/gguf_begin.h"

#include "common/base/mem.h"
#include "common/pack/gguf/gguf.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define MAX_KEY_BYTES 65535

struct reader {
	const uint8_t *at;
	size_t left;
};

static bool skip(struct reader *r, uint64_t n)
{
	if (n > r->left)
		return false;
	r->at += n;
	r->left -= (size_t)n;
	return true;
}

/* A number of n bytes, little-endian. */
static bool number(struct reader *r, int n, uint64_t *out)
{
	*out = 0;
	if (r->left < (size_t)n)
		return false;
	for (int i = 0; i < n; i++)
		*out |= (uint64_t)r->at[i] << (8 * i);
	return skip(r, (uint64_t)n);
}

static bool string(struct reader *r, const char **text, uint64_t *len)
{
	if (!number(r, 8, len))
		return false;
	*text = (const char *)r->at;
	return skip(r, *len);
}

/* 0: of no fixed size, or unknown. */
static int size_of(uint64_t kind)
{
	static const int sizes[OD_GGUF_N_KINDS] = {
		[OD_GGUF_U8] = 1,  [OD_GGUF_I8] = 1,  [OD_GGUF_U16] = 2, [OD_GGUF_I16] = 2,
		[OD_GGUF_U32] = 4, [OD_GGUF_I32] = 4, [OD_GGUF_F32] = 4, [OD_GGUF_BOOL] = 1,
		[OD_GGUF_U64] = 8, [OD_GGUF_I64] = 8, [OD_GGUF_F64] = 8,
	};

	return kind < OD_GGUF_N_KINDS ? sizes[kind] : 0;
}

static bool skip_array(struct reader *r)
{
	const char *text;
	uint64_t kind, n, len, bytes;

	if (!number(r, 4, &kind) || !number(r, 8, &n))
		return false;
	if (size_of(kind) > 0)
		return od_mul(n, (uint64_t)size_of(kind), &bytes) && skip(r, bytes);
	if (kind != OD_GGUF_STRING)
		return false;
	for (uint64_t i = 0; i < n; i++)
		if (!string(r, &text, &len))
			return false;
	return true;
}

static void take_arch(struct odp_gguf_begin *out, const char *text, uint64_t len)
{
	snprintf(out->arch, sizeof(out->arch), "%.*s", (int)(len < sizeof(out->arch) ? len : sizeof(out->arch) - 1),
		 text);
	for (char *c = out->arch; *c != '\0'; c++)
		if (!isalnum((unsigned char)*c) && *c != '-' && *c != '_')
			*c = '?';
}

static bool is_key(const char *key, uint64_t len, const char *name)
{
	return len == strlen(name) && memcmp(key, name, len) == 0;
}

static bool is_expert_count(const char *key, uint64_t len)
{
	static const char end[] = ".expert_count";

	return len > strlen(end) && memcmp(key + len - strlen(end), end, strlen(end)) == 0;
}

/* Reads a pair of key and value. False: the bytes end before it does, or it is of an unknown kind. */
static bool pair(struct odp_gguf_begin *out, struct reader *r)
{
	const char *key, *text;
	uint64_t len, kind, value = 1, text_len;

	if (!string(r, &key, &len) || len > MAX_KEY_BYTES || !number(r, 4, &kind))
		return false;
	if (kind == OD_GGUF_STRING) {
		if (!string(r, &text, &text_len))
			return false;
		if (is_key(key, len, "general.architecture"))
			take_arch(out, text, text_len);
		return true;
	}
	if (kind == OD_GGUF_ARRAY ? !skip_array(r) : size_of(kind) == 0 || !number(r, size_of(kind), &value))
		return false;
	out->has_experts = out->has_experts || (is_expert_count(key, len) && value > 0);
	return true;
}

int odp_gguf_begin_read(struct odp_gguf_begin *out, const uint8_t *bytes, size_t n, const char *where,
			struct od_err *err)
{
	struct reader r = { bytes, n };
	uint64_t version, n_tensors, n_pairs;

	*out = (struct odp_gguf_begin){ 0 };
	if (n < 4 || memcmp(bytes, "GGUF", 4) != 0)
		return od_fail(err, OD_ERR_FORMAT, "%s is no GGUF file: it does not begin with \"GGUF\"", where);
	if (!skip(&r, 4) || !number(&r, 4, &version) || !number(&r, 8, &n_tensors) || !number(&r, 8, &n_pairs))
		return od_fail(err, OD_ERR_FORMAT, "%s is no GGUF file: it has only %zu bytes", where, n);
	if (version != 2 && version != 3)
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "%s: expected a GGUF file of version 2 or 3, found version %llu", where,
			       (unsigned long long)version);
	for (uint64_t i = 0; i < n_pairs && !out->has_experts; i++)
		if (!pair(out, &r))
			return OD_OK;
	out->complete = true;
	return OD_OK;
}
