#include "main-node/chat/chat_forks.h"

#include <stdlib.h>
#include <string.h>

#define OTHER "\x7f" /* no text of a conversation begins with it */

struct forks {
	const struct odm_chat_template *template;
	const json_t *vars;
	const char *text;
	size_t len, *fork, n;
};

static bool has_role(const json_t *message, const char *role)
{
	const char *is = json_string_value(json_object_get(message, "role"));

	return is != NULL && strcmp(is, role) == 0;
}

static json_t *says(const char *role, const char *text, size_t len)
{
	return json_pack("{s:s, s:s%}", "role", role, "content", text, len);
}

/* The first n messages: a new reference. */
static json_t *first_messages(const json_t *messages, size_t n)
{
	json_t *first = json_array();

	for (size_t i = 0; i < n; i++)
		json_array_append(first, json_array_get(messages, i));
	return first;
}

static size_t common_bytes(const char *a, size_t a_len, const char *b, size_t b_len)
{
	const size_t most = a_len < b_len ? a_len : b_len;
	size_t n = 0;

	while (n < most && a[n] == b[n])
		n++;
	while (n > 0 && n < a_len && ((unsigned char)a[n] & 0xc0) == 0x80) /* between two characters */
		n--;
	return n;
}

/* Where the conversation of these messages, which it takes, parts from the prompt. tools: NULL: the prompt's; taken. */
static void add_fork(struct forks *f, json_t *messages, json_t *tools)
{
	json_t *vars = json_copy((json_t *)(uintptr_t)f->vars);
	struct od_err err;
	char *text = NULL;
	size_t len, at = 0, i = f->n;

	if (tools != NULL)
		json_object_set_new(vars, "tools", tools);
	if (json_object_set_new(vars, "messages", messages) == 0 &&
	    odm_chat_template_prompt(f->template, vars, NULL, &text, &len, &err) == OD_OK)
		at = common_bytes(f->text, f->len, text, len);
	free(text);
	json_decref(vars);
	for (size_t k = 0; k < f->n; k++)
		if (f->fork[k] == at)
			return;
	if (at == 0)
		return;
	for (; i > 0 && f->fork[i - 1] > at; i--)
		f->fork[i] = f->fork[i - 1];
	f->fork[i] = at;
	f->n++;
}

/* The user's message without its last part. NULL: it has one part only. */
static json_t *without_last_part(const json_t *message)
{
	const json_t *content = json_object_get(message, "content"), *at = json_object_get(message, ODM_LAST_PART);
	const size_t n = json_array_size(content), len = json_string_length(content);
	json_t *part, *text;

	if (n >= 2) {
		json_t *copy = json_pack("{s:s, s:o}", "role", "user", "content", first_messages(content, n - 1));

		part = json_pack("{s:s, s:s}", "type", "text", "text", OTHER);
		json_array_append_new(json_object_get(copy, "content"), part);
		return copy;
	}
	if (!json_is_string(content) || !json_is_integer(at) || json_integer_value(at) <= 0 ||
	    (size_t)json_integer_value(at) >= len)
		return NULL;
	part = says("user", json_string_value(content), (size_t)json_integer_value(at));
	text = json_object_get(part, "content");
	if (text == NULL) { /* it would end within a character */
		json_decref(part);
		return NULL;
	}
	text = json_sprintf("%s" OTHER, json_string_value(text));
	json_object_set_new(part, "content", text);
	return part;
}

/* Forks before the assistant's first message: behind the system's texts, and behind all but the user's last text. */
static void add_begins(struct forks *f, const json_t *messages)
{
	size_t n_system = 0, n, n_all = json_array_size(messages);
	json_t *begin, *last;

	while (n_system < n_all && (has_role(json_array_get(messages, n_system), "system") ||
				    has_role(json_array_get(messages, n_system), "developer")))
		n_system++;
	begin = first_messages(messages, n_system);
	json_array_append_new(begin, says("user", OTHER, 1));
	if (json_array_size(json_object_get(f->vars, "tools")) > 0)
		add_fork(f, json_incref(begin),
			 json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{}}}}]", "type", "function", "function", "name",
				   OTHER, "description", OTHER, "parameters", "type", "object", "properties"));
	add_fork(f, begin, NULL);
	for (n = n_system; n < n_all && has_role(json_array_get(messages, n), "user");)
		n++;
	if (n == n_system)
		return;
	last = without_last_part(json_array_get(messages, n - 1));
	if (last == NULL && n >= n_system + 2)
		last = says("user", OTHER, 1);
	if (last == NULL)
		return;
	begin = first_messages(messages, n - 1);
	json_array_append_new(begin, last);
	add_fork(f, begin, NULL);
}

size_t odm_chat_forks(const struct odm_chat_template *t, const json_t *vars, const char *text, size_t len,
		      size_t fork[ODM_CHAT_FORKS])
{
	struct forks f = { .template = t, .vars = vars, .text = text, .len = len, .fork = fork };
	const json_t *messages = json_object_get(vars, "messages");
	const size_t n = json_array_size(messages);
	json_t *next;

	if (n == 0)
		return 0;
	add_begins(&f, messages);
	if (has_role(json_array_get(messages, n - 1), "assistant"))
		return f.n;
	next = first_messages(messages, n);
	json_array_append_new(next, says("assistant", OTHER, 1));
	json_array_append_new(next, says("user", OTHER, 1));
	add_fork(&f, next, NULL);
	return f.n;
}
