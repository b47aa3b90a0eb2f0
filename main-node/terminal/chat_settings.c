#include "main-node/terminal/chat_settings.h"

#include "common/base/args.h"
#include "common/base/strbuf.h"

#include <string.h>

const struct odm_chat_setting odm_chat_settings[ODM_N_CHAT_SETTINGS] = {
	{ "temperature", false, 0, 1000, "0: greedy" },
	{ "top_p", false, 0, 1, "the best tokens that make up this probability; 1: all" },
	{ "top_k", true, 0, UINT32_MAX, "so many of the best tokens; 0: all" },
	{ "min_p", false, 0, 1, "least probability, as a part of the best token's; 0: all" },
	{ "seed", true, 0, (double)(1ull << 53), "the same seed gives the same answer" },
	{ "max_tokens", true, 1, 1e9, "end an answer after so many tokens" },
};

static bool same_name(const char *a, const char *b)
{
	for (; *a != '\0' && (*a == '-' ? '_' : *a) == *b; a++)
		b++;
	return *a == *b;
}

static int unknown(const char *name, struct od_err *err)
{
	struct od_strbuf names = { 0 };

	for (size_t i = 0; i < ODM_N_CHAT_SETTINGS; i++)
		od_strbuf_printf(&names, "%s%s", i > 0 ? ", " : "", odm_chat_settings[i].name);
	od_fail(err, OD_ERR_ARG, "expected one of %s; found \"%.100s\"", names.failed ? "" : names.text, name);
	od_strbuf_fini(&names);
	return OD_ERR_ARG;
}

int odm_chat_set(json_t *values, const char *name, const char *value, struct od_err *err)
{
	const struct odm_chat_setting *s = odm_chat_settings;
	uint64_t whole = 0;
	double real = 0;
	int rc;

	while (s < odm_chat_settings + ODM_N_CHAT_SETTINGS && !same_name(name, s->name))
		s++;
	if (s == odm_chat_settings + ODM_N_CHAT_SETTINGS)
		return unknown(name, err);
	if (strcmp(value, "default") == 0) {
		json_object_del(values, s->name);
		return OD_OK;
	}
	if (s->whole)
		rc = od_parse_u64(value, (uint64_t)s->min, (uint64_t)s->max, &whole, err);
	else
		rc = od_parse_real(value, s->min, s->max, &real, err);
	if (rc != OD_OK)
		return od_fail_within(err, "%s", s->name);
	rc = json_object_set_new(values, s->name, s->whole ? json_integer((json_int_t)whole) : json_real(real));
	return rc == 0 ? OD_OK : od_fail(err, OD_ERR_NOMEM, "no memory for settings");
}
