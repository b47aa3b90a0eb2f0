#include "tests/bench/live/recall_config.h"

#include "common/base/args.h"

#include <stdio.h>
#include <string.h>

/* "T1_KV16" to the letter. */
static bool read_align(const char *item, struct recall_align *a)
{
	char token[24];
	const char *kv = strstr(item, "_KV");
	uint64_t t, k;

	if (item[0] != 'T' || kv == NULL || (size_t)(kv - item) > sizeof(token))
		return false;
	snprintf(token, sizeof(token), "%.*s", (int)(kv - item - 1), item + 1);
	if (od_parse_u64(token, 0, RECALL_PERIOD_MAX, &t, NULL) != OD_OK ||
	    od_parse_u64(kv + 3, 0, RECALL_PERIOD_MAX, &k, NULL) != OD_OK)
		return false;
	*a = (struct recall_align){ (uint32_t)t, (uint32_t)k };
	return true;
}

int recall_parse_align(const char *option, const char *text, struct recall_align out[OD_LIST_MAX], size_t *n,
		       struct od_err *err)
{
	struct od_list list;
	int rc = od_list_split(&list, option, text, err);

	*n = 0;
	if (rc != OD_OK)
		return rc;
	for (size_t at = 0; at < list.n; at++) {
		const char *item = list.item[at];
		struct recall_align a;

		if (!read_align(item, &a))
			return od_fail(err, OD_ERR_ARG,
				       "--%s: found \"%s\"; expected T<i>_KV<j>, for example T1_KV4: the token "
				       "every i steps, KV every j steps, 0: never, at most %d",
				       option, item, RECALL_PERIOD_MAX);
		for (size_t k = 0; k < at; k++) {
			if (out[k].token == a.token && out[k].kv == a.kv)
				return od_fail(err, OD_ERR_ARG, "--%s: \"%s\" is listed twice", option, item);
		}
		out[at] = a;
	}
	*n = list.n;
	return OD_OK;
}

int recall_find(const struct recall_configs *c, const char *name)
{
	for (size_t i = 0; i < c->n; i++) {
		if (strcmp(c->config[i].name, name) == 0)
			return (int)i;
	}
	return -1;
}

int recall_find_shadow(const struct recall_configs *c, const char *group, struct recall_align align)
{
	char name[64];

	snprintf(name, sizeof(name), "%s T%u_KV%u", group, align.token, align.kv);
	return recall_find(c, name);
}

static int add(struct recall_configs *c, const struct recall_config *one, struct od_err *err)
{
	if (recall_find(c, one->name) >= 0)
		return OD_OK;
	if (c->n == RECALL_CONFIGS_MAX)
		return od_fail(err, OD_ERR_ARG,
			       "more than %d configurations: give fewer of --precision, --dense-precision or "
			       "--align at a time",
			       RECALL_CONFIGS_MAX);
	c->config[c->n++] = *one;
	return OD_OK;
}

int recall_add_shadow(struct recall_configs *c, const struct od_shadow_choice *choice, struct recall_align align,
		      struct od_err *err)
{
	struct recall_config one = { .choice = *choice, .align = align };
	char text[OD_SHADOW_CHOICE_CHARS];

	snprintf(one.group, sizeof(one.group), "%s", od_shadow_choice_text(choice, text));
	snprintf(one.name, sizeof(one.name), "%s T%u_KV%u", one.group, align.token, align.kv);
	return add(c, &one, err);
}

int recall_add_predictor(struct recall_configs *c, const char *kind, struct od_err *err)
{
	struct recall_config one = { .predictor = kind, .group = "rivals" };

	snprintf(one.name, sizeof(one.name), "%s", kind);
	return add(c, &one, err);
}
