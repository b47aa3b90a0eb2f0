#include "main-node/serve/api/fim_prompt.h"

#include "common/text/tok_controls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ENDS 16
#define N(array) (sizeof(array) / sizeof((array)[0]))

/* Three tokens of one model. Without `middle` the suffix comes first, and the prefix ends the prompt. */
static const struct fim_names {
	const char *prefix, *suffix, *middle;
} names[] = {
	{ "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>" }, /* Qwen */
	{ "<fim_prefix>", "<fim_suffix>", "<fim_middle>" }, /* StarCoder, Granite */
	{ "<fim-prefix>", "<fim-suffix>", "<fim-middle>" }, /* SantaCoder */
	{ "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>" }, /* DeepSeek */
	{ "<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>" }, /* GLM */
	{ "▁<PRE>", "▁<SUF>", "▁<MID>" }, /* Code Llama */
	{ "<PRE>", "<SUF>", "<MID>" },
	{ "<|prefix|>", "<|suffix|>", "<|middle|>" }, /* Falcon */
	{ "<|plamo:fim_prefix|>", "<|plamo:fim_suffix|>", "<|plamo:fim_middle|>" },
	{ "[PREFIX]", "[SUFFIX]", NULL }, /* Codestral */
};
static const char *const repo_names[] = { "<|repo_name|>", "<|fim_repo|>", "<repo_name>",
					  "<reponame>",	   "<fim-repo>",   "<REPO>" };
static const char *const file_names[] = { "<|file_sep|>", "<file_sep>", "<|plamo:file_separator|>" };
static const char *const end_names[] = { "<|fim_pad|>",
					 "<fim_pad>",
					 "<fim-pad>",
					 "<PAD>",
					 "<EOT>",
					 "▁<EOT>",
					 "<|endoftext|>",
					 "<|end_of_text|>",
					 "<|im_end|>",
					 "<|eot_id|>",
					 "<｜end▁of▁sentence｜>" };

struct odm_fim {
	const struct od_tokenizer *t;
	struct od_controls *controls;
	int32_t prefix, suffix, middle, repo, file; /* -1: none */
	int32_t end[MAX_ENDS];
	size_t n_ends;
};

/* ---- Tokens ---- */

/* An added token with this name; -1: none. */
static int32_t find(struct odm_fim *f, const char *name)
{
	const int32_t id = od_tokenizer_find(f->t, name);

	od_controls_add(f->controls, name, strlen(name));
	return id >= 0 && od_controls_has(f->controls, id) ? id : -1;
}

static int32_t find_any(struct odm_fim *f, const char *const *name, size_t n)
{
	int32_t id = -1;

	for (size_t i = 0; i < n && id < 0; i++)
		id = find(f, name[i]);
	return id;
}

static void add_end(struct odm_fim *f, int32_t id)
{
	if (id >= 0 && f->n_ends < MAX_ENDS)
		f->end[f->n_ends++] = id;
}

/* False: the model has no tokens of one row. */
static bool find_tokens(struct odm_fim *f)
{
	bool found = false;

	for (size_t i = 0; i < N(names) && !found; i++) {
		f->prefix = find(f, names[i].prefix);
		f->suffix = find(f, names[i].suffix);
		f->middle = names[i].middle != NULL ? find(f, names[i].middle) : -1;
		found = f->prefix >= 0 && f->suffix >= 0 && (f->middle >= 0) == (names[i].middle != NULL);
	}
	f->repo = find_any(f, repo_names, N(repo_names));
	f->file = find_any(f, file_names, N(file_names));
	add_end(f, f->repo);
	add_end(f, f->file);
	for (size_t i = 0; i < N(end_names); i++)
		add_end(f, find(f, end_names[i]));
	return found;
}

int odm_fim_new(struct odm_fim **out, const struct od_tokenizer *t, const char *param, struct odm_api_error *e)
{
	struct odm_fim *f;
	struct od_err err;

	*out = NULL;
	if (t == NULL)
		return odm_api_fail(e, 400, param, OD_ERR_UNSUPPORTED, "%s: the model has no tokenizer", param);
	f = calloc(1, sizeof(*f));
	if (f == NULL)
		return odm_no_memory(e);
	f->t = t;
	if (od_controls_new(&f->controls, t, &err) != OD_OK) {
		odm_fim_free(f);
		return odm_no_memory(e);
	}
	if (!find_tokens(f)) {
		odm_fim_free(f);
		return odm_api_fail(e, 400, param, OD_ERR_UNSUPPORTED,
				    "%s: this model does not fill in the middle: its tokenizer has no tokens such as "
				    "%s, %s and %s; leave the field out, or load a model for code completion",
				    param, names[0].prefix, names[0].suffix, names[0].middle);
	}
	*out = f;
	return OD_OK;
}

void odm_fim_free(struct odm_fim *f)
{
	if (f == NULL)
		return;
	od_controls_free(f->controls);
	free(f);
}

const int32_t *odm_fim_ends(const struct odm_fim *f, size_t *n)
{
	*n = f->n_ends;
	return f->end;
}

/* ---- Prompts ---- */

static int add_ids(struct odm_fim_prompt *p, const int32_t *ids, size_t n, struct odm_api_error *e)
{
	int32_t *all = realloc(p->ids, (p->n + n + 1) * sizeof(*all));

	if (all == NULL)
		return odm_no_memory(e);
	p->ids = all;
	if (n > 0)
		memcpy(all + p->n, ids, n * sizeof(*all));
	p->n += n;
	return OD_OK;
}

/* A control token; -1: none. */
static int add_id(struct odm_fim_prompt *p, int32_t id, struct odm_api_error *e)
{
	return add_ids(p, &id, id >= 0, e);
}

/* A user's text. */
static int add_text(struct odm_fim_prompt *p, const struct odm_fim *f, const char *text, size_t len, const char *param,
		    struct odm_api_error *e)
{
	struct od_text_spans users = { 0 };
	int32_t *ids = NULL;
	size_t n = 0;
	struct od_err err;
	int rc = od_text_spans_add(&users, 0, len);

	if (rc != OD_OK)
		return odm_no_memory(e);
	rc = od_tokenizer_encode_mixed(f->t, text, len, &users, f->controls, &ids, &n, &err);
	od_text_spans_fini(&users);
	if (rc != OD_OK)
		return odm_api_fail(e, rc == OD_ERR_NOMEM ? 503 : 400, param, rc, "%s: %s", param, err.msg);
	rc = add_ids(p, ids, n, e);
	free(ids);
	return rc;
}

/* The tokens that the tokenizer puts before every text. */
static int add_begin(struct odm_fim_prompt *p, const struct odm_fim *f, struct odm_api_error *e)
{
	int32_t *ids;
	size_t n;
	struct od_err err;
	int rc = od_tokenizer_encode(f->t, "", 0, OD_ENCODE_ADD_SPECIAL, &ids, &n, &err);

	if (rc != OD_OK)
		return odm_no_memory(e);
	rc = add_ids(p, ids, n, e);
	free(ids);
	return rc;
}

/* A file begins with its name where the model has a token for that, else with an empty line. */
static int add_file_begin(struct odm_fim_prompt *p, const struct odm_fim *f, const char *name, const char *param,
			  struct odm_api_error *e)
{
	int rc = add_id(p, f->file, e);

	if (rc == OD_OK && f->file >= 0)
		rc = add_text(p, f, name, strlen(name), param, e);
	return rc == OD_OK ? add_text(p, f, f->file >= 0 ? "\n" : "\n\n", f->file >= 0 ? 1 : 2, param, e) : rc;
}

static int add_file(struct odm_fim_prompt *p, const struct odm_fim *f, const json_t *file, size_t i,
		    struct odm_api_error *e)
{
	const json_t *text = json_object_get(file, "text"), *name = json_object_get(file, "filename");
	const bool named = name != NULL && !json_is_null(name);
	char param[48];
	int rc;

	snprintf(param, sizeof(param), "input_extra[%zu].text", i);
	if (!json_is_string(text))
		return odm_api_fail(e, 400, param, OD_ERR_FORMAT, "%s: expected a string", param);
	if (named && (!json_is_string(name) || strlen(json_string_value(name)) != json_string_length(name))) {
		snprintf(param, sizeof(param), "input_extra[%zu].filename", i);
		return odm_api_fail(e, 400, param, OD_ERR_FORMAT, "%s: expected a string without NULs", param);
	}
	rc = add_file_begin(p, f, named ? json_string_value(name) : "tmp", param, e);
	return rc == OD_OK ? add_text(p, f, json_string_value(text), json_string_length(text), param, e) : rc;
}

/* The other files of a project, and the begin of the one with the gap. */
static int add_extra(struct odm_fim_prompt *p, const struct odm_fim *f, const json_t *extra, struct odm_api_error *e)
{
	static const char project[] = "myproject\n", file[] = "filename", param[] = "input_extra";
	const size_t n = json_array_size(extra);
	int rc = OD_OK;

	if (n > 0)
		rc = add_id(p, f->repo, e);
	if (rc == OD_OK && n > 0 && f->repo >= 0)
		rc = add_text(p, f, project, sizeof(project) - 1, param, e);
	for (size_t i = 0; rc == OD_OK && i < n; i++)
		rc = add_file(p, f, json_array_get(extra, i), i, e);
	return rc == OD_OK && n > 0 ? add_file_begin(p, f, file, param, e) : rc;
}

static int add_prefix(struct odm_fim_prompt *p, const struct odm_fim *f, const struct odm_fim_parts *parts,
		      struct odm_api_error *e)
{
	int rc = add_id(p, f->prefix, e);

	p->begin = p->n;
	if (rc == OD_OK && parts->prefix != NULL)
		rc = add_text(p, f, parts->prefix, parts->prefix_len, "prompt", e);
	else if (rc == OD_OK)
		rc = add_ids(p, parts->prefix_ids, parts->n_prefix_ids, e);
	p->end = p->n;
	return rc;
}

static int add_suffix(struct odm_fim_prompt *p, const struct odm_fim *f, const struct odm_fim_parts *parts,
		      struct odm_api_error *e)
{
	const int rc = add_id(p, f->suffix, e);

	return rc == OD_OK ? add_text(p, f, parts->suffix, parts->suffix_len, "suffix", e) : rc;
}

int odm_fim_make(struct odm_fim_prompt *out, const struct odm_fim *f, const struct odm_fim_parts *parts,
		 struct odm_api_error *e)
{
	const bool suffix_first = f->middle < 0;
	int rc;

	*out = (struct odm_fim_prompt){ 0 };
	rc = add_begin(out, f, e);
	if (rc == OD_OK)
		rc = add_extra(out, f, parts->extra, e);
	if (rc == OD_OK && suffix_first)
		rc = add_suffix(out, f, parts, e);
	if (rc == OD_OK)
		rc = add_prefix(out, f, parts, e);
	if (rc == OD_OK && !suffix_first)
		rc = add_suffix(out, f, parts, e);
	if (rc == OD_OK)
		rc = add_id(out, f->middle, e);
	if (rc != OD_OK)
		odm_fim_prompt_fini(out);
	return rc;
}

void odm_fim_prompt_fini(struct odm_fim_prompt *p)
{
	free(p->ids);
	*p = (struct odm_fim_prompt){ 0 };
}
