#include "main-node/terminal/conversation.h"

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/text/utf8_text.h"

#include <stdlib.h>
#include <string.h>

#define MAX_FILE_BYTES (64u << 20)

static int no_memory(struct od_err *err)
{
	return od_fail(err, OD_ERR_NOMEM, "no memory for the conversation");
}

int odm_conversation_init(struct odm_conversation *c, struct od_err *err)
{
	*c = (struct odm_conversation){ .messages = json_array() };
	return c->messages != NULL ? OD_OK : no_memory(err);
}

void odm_conversation_fini(struct odm_conversation *c)
{
	json_decref(c->messages);
	json_decref(c->system);
	*c = (struct odm_conversation){ 0 };
}

void odm_conversation_clear(struct odm_conversation *c)
{
	json_array_clear(c->messages);
}

int odm_conversation_set_system(struct odm_conversation *c, const char *text, size_t len, struct od_err *err)
{
	json_t *system = len > 0 ? odm_json_text(text, len) : NULL;

	if (len > 0 && system == NULL)
		return no_memory(err);
	json_decref(c->system);
	c->system = system;
	return OD_OK;
}

/* Takes content. */
static json_t *message(const char *role, json_t *content)
{
	return json_pack("{s:s, s:o}", "role", role, "content", content);
}

/* With the system prompt. */
static json_t *all_messages(const struct odm_conversation *c)
{
	json_t *all = json_array();

	if (c->system != NULL && json_array_append_new(all, message("system", json_incref(c->system))) != 0) {
		json_decref(all);
		return NULL;
	}
	if (json_array_extend(all, c->messages) == 0)
		return all;
	json_decref(all);
	return NULL;
}

json_t *odm_conversation_ask(const struct odm_conversation *c, const char *question, size_t len)
{
	json_t *all = all_messages(c);

	if (json_array_append_new(all, message("user", odm_json_text(question, len))) == 0)
		return all;
	json_decref(all);
	return NULL;
}

int odm_conversation_add(struct odm_conversation *c, const char *question, size_t question_len, const char *answer,
			 size_t answer_len, struct od_err *err)
{
	json_t *turn = json_array();
	int rc = OD_OK;

	if (json_array_append_new(turn, message("user", odm_json_text(question, question_len))) != 0 ||
	    json_array_append_new(turn, message("assistant", odm_json_text(answer, answer_len))) != 0 ||
	    json_array_extend(c->messages, turn) != 0)
		rc = no_memory(err);
	json_decref(turn);
	return rc;
}

static const char *role_of(const json_t *m)
{
	const char *role = json_string_value(json_object_get(m, "role"));

	return role != NULL ? role : "";
}

json_t *odm_conversation_take_last(struct odm_conversation *c)
{
	json_t *question = NULL;
	size_t n = json_array_size(c->messages), from = n;

	while (from > 0 && strcmp(role_of(json_array_get(c->messages, from - 1)), "user") != 0)
		from--;
	if (from == 0)
		return NULL;
	from--;
	question = json_incref(json_object_get(json_array_get(c->messages, from), "content"));
	while (n > from)
		json_array_remove(c->messages, --n);
	return question;
}

json_t *odm_conversation_last_answer(const struct odm_conversation *c)
{
	const size_t n = json_array_size(c->messages);
	json_t *last = n > 0 ? json_array_get(c->messages, n - 1) : NULL;

	return strcmp(role_of(last), "assistant") == 0 ? json_object_get(last, "content") : NULL;
}

/* ---- Files ---- */

static int check_messages(const json_t *messages, const char *path, struct od_err *err)
{
	const json_t *m;
	size_t i;

	if (!json_is_array(messages))
		return od_fail(err, OD_ERR_FORMAT,
			       "%s: expected a JSON array of messages, or an object with \"messages\"", path);
	json_array_foreach(messages, i, m)
	{
		const char *role = role_of(m);
		const bool system = i == 0 && strcmp(role, "system") == 0;

		if (!system && strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0)
			return od_fail(err, OD_ERR_FORMAT,
				       "%s: message %zu: expected the role user or assistant (the first: "
				       "also system)",
				       path, i);
		if (!json_is_string(json_object_get(m, "content")))
			return od_fail(err, OD_ERR_FORMAT, "%s: message %zu: expected \"content\", a string", path, i);
	}
	return OD_OK;
}

/* *out: an array, checked. */
static int read_messages(const char *path, json_t **out, struct od_err *err)
{
	json_t *root, *messages;
	json_error_t why;
	char *text;
	size_t len;
	int rc = od_file_read_text(path, MAX_FILE_BYTES, &text, &len, err);

	*out = NULL;
	if (rc != OD_OK)
		return rc;
	root = od_json_decode(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
	if (root == NULL)
		rc = od_json_refuse(text, len, &why, path, err);
	free(text);
	if (rc != OD_OK)
		return rc;
	messages = json_is_object(root) ? json_object_get(root, "messages") : root;
	rc = check_messages(messages, path, err);
	if (rc == OD_OK)
		*out = json_incref(messages);
	json_decref(root);
	return rc;
}

int odm_conversation_load(struct odm_conversation *c, const char *path, struct od_err *err)
{
	json_t *messages, *system = NULL;
	int rc = read_messages(path, &messages, err);

	if (rc != OD_OK)
		return rc;
	if (strcmp(role_of(json_array_get(messages, 0)), "system") == 0) {
		system = json_incref(json_object_get(json_array_get(messages, 0), "content"));
		json_array_remove(messages, 0);
	}
	odm_conversation_fini(c);
	*c = (struct odm_conversation){ messages, system };
	return OD_OK;
}

int odm_conversation_save(const struct odm_conversation *c, const char *path, bool replace, struct od_err *err)
{
	json_t *all = all_messages(c), *there = NULL;
	char *text = all != NULL ? json_dumps(all, JSON_INDENT(2)) : NULL;
	int rc = OD_OK;

	json_decref(all);
	if (text == NULL)
		return no_memory(err);
	if (!replace && od_file_there(path)) {
		rc = od_fail(err, OD_ERR_ARG, "%s exists; /save! writes over a saved conversation", path);
	} else if (od_file_there(path)) {
		rc = read_messages(path, &there, err);
		json_decref(there);
		if (rc != OD_OK)
			od_fail(err, rc,
				"%s exists and is no conversation, so it is not overwritten; name another file", path);
	}
	if (rc == OD_OK)
		rc = od_file_write_private(path, text, strlen(text), err);
	free(text);
	return rc;
}
