#include "main-node/chat/answer_print.h"

#include "common/text/utf8_text.h"

struct gathered {
	struct od_strbuf content, reasoning, arguments; /* arguments belong to the last call */
	json_t *calls;
	bool failed;
};

static json_t *string_of(const struct od_strbuf *b)
{
	return odm_json_text(od_strbuf_text(b), b->len);
}

static void add_content(void *arg, const char *text, size_t len)
{
	od_strbuf_append(&((struct gathered *)arg)->content, text, len);
}

static void add_reasoning(void *arg, const char *text, size_t len)
{
	od_strbuf_append(&((struct gathered *)arg)->reasoning, text, len);
}

static void add_call(void *arg, const char *name, const char *id)
{
	struct gathered *g = arg;
	json_t *o = json_pack("{s:s, s:s, s:s*}", "name", name, "arguments", "", "id", id);

	g->failed = o == NULL || json_array_append_new(g->calls, o) != 0 || g->failed;
}

static void add_arguments(void *arg, const char *text, size_t len)
{
	od_strbuf_append(&((struct gathered *)arg)->arguments, text, len);
}

static void end_call(void *arg, bool complete)
{
	struct gathered *g = arg;
	json_t *o = json_array_get(g->calls, json_array_size(g->calls) - 1);

	(void)complete;
	g->failed =
		g->arguments.failed || json_object_set_new(o, "arguments", string_of(&g->arguments)) != 0 || g->failed;
	od_strbuf_fini(&g->arguments);
}

static int gather(struct gathered *g, const struct odm_answer_opts *opts, const char *text, size_t len, size_t piece,
		  struct od_err *err)
{
	const struct odm_answer_sink sink = { g, add_content, add_reasoning, add_call, add_arguments, end_call };
	struct odm_answer *a;
	int rc = odm_answer_new(&a, opts, &sink, err);

	for (size_t at = 0; rc == OD_OK && at < len;) {
		const size_t n = piece > 0 && piece < len - at ? piece : len - at;

		rc = odm_answer_push(a, text + at, n);
		at += n;
	}
	if (rc == OD_OK)
		rc = odm_answer_finish(a);
	odm_answer_free(a);
	return rc;
}

int odm_answer_object(json_t **out, const struct odm_answer_opts *opts, const char *text, size_t len, size_t piece,
		      struct od_err *err)
{
	struct gathered g = { .calls = json_array() };
	int rc = gather(&g, opts, text, len, piece, err);

	*out = NULL;
	if (rc == OD_OK && !g.failed && !g.content.failed && !g.reasoning.failed)
		*out = json_pack("{s:o, s:o, s:O}", "content", string_of(&g.content), "reasoning",
				 string_of(&g.reasoning), "tool_calls", g.calls);
	od_strbuf_fini(&g.arguments);
	od_strbuf_fini(&g.content);
	od_strbuf_fini(&g.reasoning);
	json_decref(g.calls);
	return *out != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "no memory for an answer");
}
