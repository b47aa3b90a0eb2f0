#include "tests/bench/live/bench_prompts.h"

#include "common/base/file.h"
#include "common/base/json.h"
#include "tests/bench/bench_draw.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FILE_BYTES (64u << 20)
#define MAX_PROMPTS 1000000u

void od_prompts_fini(struct od_prompts *p)
{
	for (size_t i = 0; i < p->n; i++) {
		free(p->prompt[i].name);
		free(p->prompt[i].text);
		free(p->prompt[i].ids);
	}
	free(p->prompt);
	*p = (struct od_prompts){ 0 };
}

static int out_of_memory(struct od_err *err)
{
	return od_fail(err, OD_ERR_NOMEM, "no memory for prompts");
}

/* A new prompt at the end, named after its number; NULL when there is no memory. */
static struct od_prompt *append(struct od_prompts *p)
{
	struct od_prompt *grown = reallocarray(p->prompt, p->n + 1, sizeof(*grown));
	char name[32];

	if (grown == NULL)
		return NULL;
	p->prompt = grown;
	snprintf(name, sizeof(name), "prompt %zu", p->n + 1);
	grown[p->n] = (struct od_prompt){ .name = strdup(name) };
	return grown[p->n].name == NULL ? NULL : &grown[p->n++];
}

static int read_strings(struct od_prompt *q, const json_t *o, const char *where, struct od_err *err)
{
	const char *s;
	int rc;

	if (od_json_has(o, "name")) {
		rc = od_json_str(o, "name", &s, where, err);
		if (rc != OD_OK)
			return rc;
		if (s[0] != '\0') { /* messages name it */
			free(q->name);
			q->name = strdup(s);
		}
	}
	if (od_json_has(o, "text")) {
		rc = od_json_str(o, "text", &s, where, err);
		if (rc != OD_OK)
			return rc;
		q->text_len = json_string_length(json_object_get(o, "text")); /* JSON text may hold a NUL */
		q->text = malloc(q->text_len + 1);
		if (q->text != NULL)
			memcpy(q->text, s, q->text_len + 1);
	}
	if (q->name == NULL || (q->text == NULL && od_json_has(o, "text")))
		return out_of_memory(err);
	return OD_OK;
}

static int read_ids(struct od_prompt *q, const json_t *o, const char *where, struct od_err *err)
{
	json_t *a, *v;
	size_t i;
	int rc;

	if (!od_json_has(o, "ids"))
		return OD_OK;
	rc = od_json_arr(o, "ids", &a, where, err);
	if (rc != OD_OK)
		return rc;
	q->n_ids = json_array_size(a);
	q->ids = calloc(q->n_ids + 1, sizeof(*q->ids)); /* never of size 0, which may be NULL */
	if (q->ids == NULL)
		return out_of_memory(err);
	json_array_foreach(a, i, v)
	{
		json_int_t id = json_integer_value(v);

		if (!json_is_integer(v) || id < 0 || id > INT32_MAX)
			return od_fail(err, OD_ERR_FORMAT,
				       "%s: field \"ids\": expected token ids, 0 to %d, found %s at "
				       "index %zu",
				       where, INT32_MAX, json_is_integer(v) ? "another integer" : "something else", i);
		q->ids[i] = (int32_t)id;
	}
	return OD_OK;
}

static int check_count(const struct od_prompt *q, const json_t *o, const char *where, struct od_err *err)
{
	uint32_t said;
	int rc = od_json_u32_or(o, "tokens", 0, UINT32_MAX, (uint32_t)q->n_ids, &said, where, err);

	if (rc != OD_OK)
		return rc;
	if (q->text == NULL && q->ids == NULL)
		return od_fail(err, OD_ERR_MISSING, "%s: expected \"text\" or \"ids\", found neither", where);
	if (q->ids != NULL && q->n_ids == 0)
		return od_fail(err, OD_ERR_FORMAT, "%s: field \"ids\": expected at least one token id, found none",
			       where);
	if (q->ids != NULL && said != q->n_ids)
		return od_fail(err, OD_ERR_FORMAT,
			       "%s: field \"tokens\": expected the number of \"ids\", %zu, found %u", where, q->n_ids,
			       said);
	return OD_OK;
}

static int read_line(struct od_prompts *p, const char *line, size_t len, const char *where, struct od_err *err)
{
	struct od_prompt *q = NULL;
	json_t *o;
	int rc = od_json_parse(line, len, where, &o, err);

	if (rc != OD_OK)
		return rc;
	if (p->n == MAX_PROMPTS)
		rc = od_fail(err, OD_ERR_RANGE, "%s: expected at most %u prompts", where, MAX_PROMPTS);
	else if ((q = append(p)) == NULL)
		rc = out_of_memory(err);
	if (rc == OD_OK)
		rc = read_strings(q, o, where, err);
	if (rc == OD_OK)
		rc = read_ids(q, o, where, err);
	if (rc == OD_OK)
		rc = check_count(q, o, where, err);
	json_decref(o);
	return rc;
}

static bool is_blank(const char *line, size_t len)
{
	return strspn(line, " \t\r") >= len;
}

int od_prompts_load(struct od_prompts *p, const char *path, size_t limit, struct od_err *err)
{
	size_t len, number = 1;
	char *text, where[600];
	int rc;

	*p = (struct od_prompts){ 0 };
	rc = od_file_read(path, MAX_FILE_BYTES, &text, &len, err);
	if (rc != OD_OK)
		return rc;
	for (char *line = text; rc == OD_OK && line < text + len && (limit == 0 || p->n < limit); number++) {
		char *end = memchr(line, '\n', (size_t)(text + len - line));
		size_t n = (size_t)((end != NULL ? end : text + len) - line);

		snprintf(where, sizeof(where), "%.*s:%zu", 512, path, number);
		if (!is_blank(line, n))
			rc = read_line(p, line, n, where, err);
		line += n + 1;
	}
	free(text);
	if (rc == OD_OK && p->n == 0)
		rc = od_fail(err, OD_ERR_FORMAT, "%s: expected a JSON object a line, found no prompt", path);
	return rc;
}

int od_prompts_encode(struct od_prompts *p, const struct od_tokenizer *t, struct od_err *err)
{
	for (size_t i = 0; i < p->n; i++) {
		struct od_prompt *q = &p->prompt[i];
		int32_t *ids;
		size_t n;
		int rc;

		if (t == NULL && q->ids == NULL)
			return od_fail(err, OD_ERR_UNSUPPORTED,
				       "%s has only text, and the model has no tokenizer to "
				       "make token ids of it",
				       q->name);
		if (t == NULL || q->text == NULL)
			continue;
		/* Not OD_ENCODE_PARSE_SPECIAL: "<s>" within a passage is two brackets and a letter. */
		rc = od_tokenizer_encode(t, q->text, q->text_len, OD_ENCODE_ADD_SPECIAL, &ids, &n, err);
		if (rc != OD_OK)
			return od_fail_within(err, "%s", q->name);
		free(q->ids);
		q->ids = ids;
		q->n_ids = n;
	}
	return OD_OK;
}

int od_prompts_encode_by_file(struct od_prompts *p, const char *path, struct od_err *err)
{
	struct od_tokenizer *t = NULL;
	int rc = path != NULL ? od_tokenizer_load(&t, path, err) : OD_OK;

	if (rc == OD_OK)
		rc = od_prompts_encode(p, t, err);
	od_tokenizer_free(t);
	return rc;
}

int od_prompts_random(struct od_prompts *p, size_t n, size_t n_tokens, uint32_t vocab, int32_t bos, uint64_t seed,
		      struct od_err *err)
{
	*p = (struct od_prompts){ 0 };
	for (size_t i = 0; i < n; i++) {
		struct od_prompt *q = append(p);

		if (q == NULL || (q->ids = calloc(n_tokens + 1, sizeof(*q->ids))) == NULL)
			return out_of_memory(err);
		q->n_ids = n_tokens;
		for (size_t k = 0; k < n_tokens; k++)
			q->ids[k] = k == 0 && bos >= 0 ? bos : (int32_t)(od_draw(&seed) % vocab);
	}
	return OD_OK;
}

static int append_id(struct od_prompts *p, size_t n_tokens, int32_t id, struct od_err *err)
{
	struct od_prompt *q = p->n > 0 && p->prompt[p->n - 1].n_ids < n_tokens ? &p->prompt[p->n - 1] : append(p);

	if (q != NULL && q->ids == NULL)
		q->ids = malloc(n_tokens * sizeof(*q->ids));
	if (q == NULL || q->ids == NULL)
		return out_of_memory(err);
	q->ids[q->n_ids++] = id;
	return OD_OK;
}

static bool begins_with(const struct od_prompt *q, int32_t id)
{
	return q->n_ids > 0 && q->ids[0] == id;
}

int od_prompts_join(struct od_prompts *p, size_t n_tokens, int32_t bos, struct od_err *err)
{
	const bool with_bos = begins_with(&p->prompt[0], bos);
	struct od_prompts joined = { 0 };
	size_t n_ids = 0;
	int rc = OD_OK;

	for (size_t i = 0; rc == OD_OK && i < p->n; i++)
		for (size_t j = begins_with(&p->prompt[i], bos); rc == OD_OK && j < p->prompt[i].n_ids; j++, n_ids++) {
			const bool begins = joined.n == 0 || joined.prompt[joined.n - 1].n_ids == n_tokens;

			if (begins && with_bos)
				rc = append_id(&joined, n_tokens, bos, err);
			if (rc == OD_OK)
				rc = append_id(&joined, n_tokens, p->prompt[i].ids[j], err);
		}
	if (rc == OD_OK && (joined.n == 0 || (joined.n == 1 && joined.prompt[0].n_ids < n_tokens)))
		rc = od_fail(err, OD_ERR_RANGE, "expected prompts of at least %zu tokens together, found %zu", n_tokens,
			     n_ids);
	if (rc != OD_OK) {
		od_prompts_fini(&joined);
		return rc;
	}
	if (joined.prompt[joined.n - 1].n_ids < n_tokens) { /* the rest is too short */
		joined.n--;
		free(joined.prompt[joined.n].name);
		free(joined.prompt[joined.n].ids);
	}
	od_prompts_fini(p);
	*p = joined;
	return OD_OK;
}
