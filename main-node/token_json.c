#include "main-node/token_json.h"

void odm_token_json(void *arg, const struct odm_token *t)
{
	json_t *o = json_object(), *top = json_array();

	for (size_t i = 0; i < t->n_top; i++) {
		json_t *pair = json_array();

		json_array_append_new(pair, json_integer(t->top[i].token));
		json_array_append_new(pair, json_real(t->top[i].logprob));
		json_array_append_new(top, pair);
	}
	json_object_set_new(o, "token", json_integer(t->token));
	json_object_set_new(o, "position", json_integer(t->position));
	json_object_set_new(o, "logprob", t->has_logprob ? json_real(t->logprob) : json_null());
	json_object_set_new(o, "top", top);
	json_array_append_new(arg, o);
}
