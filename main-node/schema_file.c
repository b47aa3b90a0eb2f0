#include "main-node/schema_file.h"

#include "common/base/json.h"
#include "common/grammar/json_schema.h"

#define MAX_SCHEMA_BYTES ((size_t)1 << 20)

static int make_grammar(const struct odm_schema *s, struct od_grammar **g, struct od_err *err)
{
	int rc = od_grammar_new(g, err);

	if (rc == OD_OK)
		rc = od_json_schema_compile(*g, s->value, err);
	if (rc != OD_OK) {
		od_grammar_free(*g);
		*g = NULL;
	}
	return rc;
}

int odm_schema_read(struct odm_schema *s, const char *path, struct od_err *err)
{
	struct od_grammar *g;
	int rc;

	*s = (struct odm_schema){ 0 };
	rc = od_json_load(path, MAX_SCHEMA_BYTES, &s->value, err);
	if (rc != OD_OK)
		return od_fail_within(err, "--json-schema");
	rc = make_grammar(s, &g, err);
	od_grammar_free(g);
	return rc == OD_OK ? rc : od_fail_within(err, "--json-schema %s", path);
}

int odm_schema_open(struct odm_schema *s, const struct od_tokenizer *t, uint32_t n_tokens, struct od_err *err)
{
	struct od_controls *controls;
	struct od_grammar *g;
	int rc;

	if (t == NULL)
		return od_fail(err, OD_ERR_UNSUPPORTED, "--json-schema: the model has no tokenizer");
	rc = od_controls_new(&controls, t, err);
	if (rc == OD_OK)
		rc = od_vocab_new(&s->vocab, t, controls, n_tokens, err);
	od_controls_free(controls);
	if (rc == OD_OK)
		rc = make_grammar(s, &g, err);
	return rc == OD_OK ? od_constraint_new(&s->constraint, g, s->vocab, err) : rc;
}

void odm_schema_fini(struct odm_schema *s)
{
	od_constraint_unref(s->constraint);
	od_vocab_free(s->vocab);
	json_decref(s->value);
	*s = (struct odm_schema){ 0 };
}
