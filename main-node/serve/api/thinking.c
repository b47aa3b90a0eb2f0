#include "main-node/serve/api/thinking.h"

#include "main-node/serve/http/json_fields.h"

#include <string.h>

/* Efforts, from the least to the most. */
static const char *const efforts[] = { "none", "minimal", "low", "medium", "high", "xhigh", "max" };
#define N_EFFORTS (sizeof(efforts) / sizeof(efforts[0]))
#define LOW 2 /* index of one of the three efforts that GPT-OSS knows: low, medium, high */
#define HIGH 4

/* Borrowed. */
struct thinking_fields {
	const char *effort;
	int64_t budget;
	const json_t *enable_thinking, *thinking, *think, *enabled, *kwargs;
};

#define MAX_BUDGET 1e9

#define AT(field) offsetof(struct thinking_fields, field)

static const struct odm_field reasoning[] = {
	{ "effort", ODM_FIELD_STRING, AT(effort), 0, 0, NULL },
	{ "enabled", ODM_FIELD_JSON, AT(enabled), 0, 0, NULL },
	{ "max_tokens", ODM_FIELD_INT, AT(budget), -1, MAX_BUDGET, NULL },
	{ 0 },
};

static const struct odm_field fields[] = {
	{ "reasoning", ODM_FIELD_OBJECT, 0, 0, 0, reasoning },
	{ "reasoning_effort", ODM_FIELD_STRING, AT(effort), 0, 0, NULL },
	{ "thinking_budget", ODM_FIELD_INT, AT(budget), -1, MAX_BUDGET, NULL },
	{ "enable_thinking", ODM_FIELD_JSON, AT(enable_thinking), 0, 0, NULL },
	{ "thinking", ODM_FIELD_JSON, AT(thinking), 0, 0, NULL },
	{ "think", ODM_FIELD_JSON, AT(think), 0, 0, NULL },
	{ "chat_template_kwargs", ODM_FIELD_JSON, AT(kwargs), 0, 0, NULL },
	{ 0 },
};

static size_t number_of(const char *effort)
{
	size_t i = 0;

	while (i < N_EFFORTS && strcmp(efforts[i], effort) != 0)
		i++;
	return i;
}

static int refuse(const char *name, const json_t *v, const char *expected, struct odm_api_error *e)
{
	char found[64];

	return odm_api_fail(e, 400, name, OD_ERR_FORMAT, "%s: expected %s, found %s", name, expected,
			    odm_json_describe(v, found, sizeof(found)));
}

/* If a request has several of these fields, the first counts; so they are read from the last to the first. */
static int read_bool(struct odm_thinking *t, const char *name, const json_t *v, struct odm_api_error *e)
{
	if (v == NULL)
		return OD_OK;
	if (!json_is_boolean(v))
		return refuse(name, v, "true or false", e);
	t->wish = json_is_true(v) ? ODM_THINK_ALWAYS : ODM_THINK_NOT;
	return OD_OK;
}

/* Ollama's: true, false, or an effort. */
static int read_think(struct odm_thinking *t, const json_t *v, struct odm_api_error *e)
{
	if (!json_is_string(v))
		return read_bool(t, "think", v, e);
	if (t->effort == NULL)
		t->effort = json_string_value(v);
	return OD_OK;
}

/* Anthropic's: {"type": ...}; true or false, too. */
static int read_thinking(struct odm_thinking *t, const json_t *v, struct odm_api_error *e)
{
	static const struct {
		const char *type;
		enum odm_thinking_wish wish;
	} types[] = { { "disabled", ODM_THINK_NOT },
		      { "enabled", ODM_THINK_ALWAYS },
		      { "adaptive", ODM_THINK_ADAPTIVE },
		      { "auto", ODM_THINK_ADAPTIVE },
		      { "between_tools", ODM_THINK_ALWAYS } };
	const json_t *type = json_object_get(v, "type");

	if (!json_is_object(v))
		return v == NULL || json_is_boolean(v) ? read_bool(t, "thinking", v, e) :
							 refuse("thinking", v, "an object, true or false", e);
	if (!json_is_string(type))
		return refuse("thinking.type", type, "a string", e);
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (strcmp(types[i].type, json_string_value(type)) == 0) {
			t->wish = types[i].wish;
			return OD_OK;
		}
	return odm_api_fail(
		e, 400, "thinking.type", OD_ERR_UNSUPPORTED,
		"thinking.type: expected \"enabled\", \"disabled\", \"adaptive\" or \"between_tools\", found \"%.40s\", which is not "
		"supported here",
		json_string_value(type));
}

/* chat_template_kwargs may name a variable that this template does not know; the wish counts for the variable that it
 * does know. */
static void read_kwargs(struct odm_thinking *t, const json_t *kwargs)
{
	static const char *const names[] = { "thinking", "enable_thinking" };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (json_is_boolean(json_object_get(kwargs, names[i])))
			t->wish = json_is_true(json_object_get(kwargs, names[i])) ? ODM_THINK_ALWAYS : ODM_THINK_NOT;
}

int odm_thinking_read(struct odm_thinking *t, const json_t *request, struct odm_api_error *e)
{
	struct thinking_fields a = { .budget = -1 };
	int rc = odm_fields_read(fields, request, &a, e);

	*t = (struct odm_thinking){ .effort = a.effort };
	if (rc == OD_OK && json_is_string(a.think))
		rc = read_think(t, a.think, e);
	if (rc == OD_OK && a.budget == 0) /* the only one that is kept */
		t->wish = ODM_THINK_NOT;
	if (rc == OD_OK && t->effort != NULL && number_of(t->effort) < LOW)
		t->wish = ODM_THINK_NOT;
	if (rc == OD_OK)
		rc = read_bool(t, "reasoning.enabled", a.enabled, e);
	if (rc == OD_OK)
		rc = read_think(t, a.think, e);
	if (rc == OD_OK)
		rc = read_thinking(t, a.thinking, e);
	if (rc == OD_OK)
		rc = read_bool(t, "enable_thinking", a.enable_thinking, e);
	if (rc == OD_OK)
		read_kwargs(t, a.kwargs);
	return rc;
}

static bool set_new(json_t *vars, const char *name, json_t *v)
{
	if (json_object_get(vars, name) == NULL)
		return json_object_set_new(vars, name, v) == 0;
	json_decref(v);
	return true;
}

static const char *effort_of(const struct odm_thinking *t, bool harmony)
{
	const char *effort = t->effort != NULL ? t->effort : t->wish == ODM_THINK_NOT ? efforts[0] : NULL;
	const size_t n = effort != NULL ? number_of(effort) : N_EFFORTS;

	if (!harmony || n == N_EFFORTS)
		return effort;
	return efforts[n < LOW ? LOW : n > HIGH ? HIGH : n];
}

bool odm_thinking_set(json_t *vars, const struct odm_thinking *t, bool harmony)
{
	const char *effort = effort_of(t, harmony);
	bool good = true;

	if (t->wish != ODM_THINK_AS_EVER) {
		const bool on = t->wish != ODM_THINK_NOT;

		good = set_new(vars, "enable_thinking", json_boolean(on)) &&
		       set_new(vars, "thinking", json_boolean(on));
		/* MiniMax-M3's. */
		good = set_new(vars, "thinking_mode",
			       json_string(!on				 ? "disabled" :
					   t->wish == ODM_THINK_ADAPTIVE ? "adaptive" :
									   "enabled")) &&
		       good;
	}
	if (effort != NULL)
		good = set_new(vars, "reasoning_effort", json_string(effort)) && good;
	return good;
}

/* Returns the i-th neighbour of n: n + 1, n - 1, n + 2, n - 2, ... */
bool odm_thinking_set_near(json_t *vars, const struct odm_thinking *t, size_t i)
{
	const char *effort = effort_of(t, false), *now = json_string_value(json_object_get(vars, "reasoning_effort"));
	const size_t n = effort != NULL ? number_of(effort) : N_EFFORTS;
	size_t found = 0;

	if (n == N_EFFORTS || now == NULL)
		return false;
	for (size_t step = 1; step < N_EFFORTS; step++) {
		if (n + step < N_EFFORTS && found++ == i)
			return json_object_set_new(vars, "reasoning_effort", json_string(efforts[n + step])) == 0;
		if (n >= step && found++ == i)
			return json_object_set_new(vars, "reasoning_effort", json_string(efforts[n - step])) == 0;
	}
	return false;
}
