#include "main-node/terminal/chat_commands.h"

#include "common/base/log.h"
#include "main-node/terminal/chat_answer.h"
#include "main-node/terminal/chat_settings.h"
#include "main-node/terminal/plain_text.h"

#include <stdlib.h>
#include <string.h>

#define RETRY_TEMPERATURE 0.8

static int show_help(struct odm_chat_session *s, const char *args, struct od_err *err);

static int clear(struct odm_chat_session *s, const char *args, struct od_err *err)
{
	(void)args;
	(void)err;
	odm_conversation_clear(&s->conversation);
	json_decref(s->unanswered);
	s->unanswered = NULL;
	odm_screen_note(s->screen, "A new conversation.");
	return OD_OK;
}

static int set_system(struct odm_chat_session *s, const char *args, struct od_err *err)
{
	const bool none = strcmp(args, "\"\"") == 0;
	struct od_strbuf plain = { 0 };
	const json_t *system = s->conversation.system;

	if (args[0] != '\0')
		return odm_conversation_set_system(&s->conversation, args, none ? 0 : strlen(args), err);
	odm_plain_text(&plain, system != NULL ? json_string_value(system) : "", json_string_length(system));
	odm_screen_note(s->screen, "%s",
			system == NULL ? "There is no system prompt." :
			plain.failed   ? "" :
					 plain.text);
	od_strbuf_fini(&plain);
	return OD_OK;
}

/* For another answer where it would be the same: a greedy one is sampled, and a seed goes on. Says so. */
static void retry_settings(struct odm_chat_session *s)
{
	const json_t *temperature = json_object_get(s->settings, "temperature"),
		     *seed = json_object_get(s->settings, "seed");
	const bool greedy = temperature != NULL ? json_real_value(temperature) <= 0 : s->greedy;

	if (greedy) {
		json_object_set_new(s->retry, "temperature", json_real(RETRY_TEMPERATURE));
		odm_screen_note(s->screen, "With temperature %g: a greedy answer would be the same.",
				RETRY_TEMPERATURE);
	}
	if (seed != NULL) {
		s->n_retries++;
		json_object_set_new(s->retry, "seed", json_integer(json_integer_value(seed) + s->n_retries));
		odm_screen_note(s->screen, "With seed %lld.", (long long)(json_integer_value(seed) + s->n_retries));
	}
}

static int retry(struct odm_chat_session *s, const char *args, struct od_err *err)
{
	json_t *before = json_incref(odm_conversation_last_answer(&s->conversation));
	json_t *question =
		s->unanswered != NULL ? json_incref(s->unanswered) : odm_conversation_take_last(&s->conversation);

	(void)args;
	if (question == NULL) {
		json_decref(before);
		return od_fail(err, OD_ERR_MISSING, "there is no question yet");
	}
	retry_settings(s);
	odm_chat_answer(s, json_string_value(question), json_string_length(question));
	if (s->unanswered == NULL && json_object_size(s->retry) == 0 &&
	    json_equal(before, odm_conversation_last_answer(&s->conversation))) {
		s->greedy = true;
		odm_screen_note(s->screen,
				"The same answer: the model answers greedily. The next /retry takes temperature %g.",
				RETRY_TEMPERATURE);
	}
	json_object_clear(s->retry);
	json_decref(question);
	json_decref(before);
	return OD_OK;
}

static int save_as(struct odm_chat_session *s, const char *args, bool replace, struct od_err *err)
{
	int rc = args[0] != '\0' ? odm_conversation_save(&s->conversation, args, replace, err) :
				   od_fail(err, OD_ERR_ARG, "expected the name of a file");

	if (rc == OD_OK)
		odm_screen_note(s->screen, "%zu messages saved.", json_array_size(s->conversation.messages));
	return rc;
}

static int save(struct odm_chat_session *s, const char *args, struct od_err *err)
{
	return save_as(s, args, false, err);
}

static int replace(struct odm_chat_session *s, const char *args, struct od_err *err)
{
	return save_as(s, args, true, err);
}

static int load(struct odm_chat_session *s, const char *args, struct od_err *err)
{
	int rc = args[0] != '\0' ? odm_conversation_load(&s->conversation, args, err) :
				   od_fail(err, OD_ERR_ARG, "expected the name of a file");

	if (rc != OD_OK)
		return rc;
	json_decref(s->unanswered);
	s->unanswered = NULL;
	odm_screen_note(s->screen, "%zu messages loaded%s.", json_array_size(s->conversation.messages),
			s->conversation.system != NULL ? ", and a system prompt" : "");
	return OD_OK;
}

static void show_settings(struct odm_chat_session *s)
{
	for (size_t i = 0; i < ODM_N_CHAT_SETTINGS; i++) {
		const struct odm_chat_setting *t = &odm_chat_settings[i];
		const json_t *v = json_object_get(s->settings, t->name);
		char value[32] = "default";

		if (json_is_integer(v))
			snprintf(value, sizeof(value), "%lld", (long long)json_integer_value(v));
		else if (v != NULL)
			snprintf(value, sizeof(value), "%g", json_real_value(v));
		odm_screen_note(s->screen, "  %-11s %-8s %s", t->name, value, t->help);
	}
}

static int set(struct odm_chat_session *s, const char *args, struct od_err *err)
{
	const size_t len = strcspn(args, " \t");
	const char *value = args + len + strspn(args + len, " \t");
	char name[64];

	if (args[0] == '\0') {
		show_settings(s);
		return OD_OK;
	}
	if (value[0] == '\0')
		return od_fail(err, OD_ERR_ARG,
			       "expected name and value, as in /set temperature 0.7; /set alone lists them");
	snprintf(name, sizeof(name), "%.*s", (int)(len < sizeof(name) ? len : sizeof(name) - 1), args);
	return odm_chat_set(s->settings, name, value, err);
}

static int end(struct odm_chat_session *s, const char *args, struct od_err *err)
{
	(void)args;
	(void)err;
	s->ended = true;
	return OD_OK;
}

static const struct command {
	const char *name, *args, *what;
	int (*run)(struct odm_chat_session *s, const char *args, struct od_err *err); /* args: "" when there are none */
} commands[] = {
	{ "/help", "", "print this text", show_help },
	{ "/clear", "", "begin a new conversation; the system prompt stays", clear },
	{ "/system", "TEXT", "set the system prompt; \"\": none; without TEXT print it", set_system },
	{ "/retry", "", "ask the last question again, for another answer", retry },
	{ "/set", "NAME VALUE", "set sampling; VALUE default: the server's; alone: list", set },
	{ "/save", "FILE", "write the conversation as JSON, to a new file", save },
	{ "/save!", "FILE", "the same, over a saved conversation", replace },
	{ "/load", "FILE", "go on with a saved conversation", load },
	{ "/exit", "", "end, as Ctrl-D does", end },
};

const char *odm_chat_command_name(size_t i)
{
	return i < sizeof(commands) / sizeof(commands[0]) ? commands[i].name : NULL;
}

static int show_help(struct odm_chat_session *s, const char *args, struct od_err *err)
{
	(void)args;
	(void)err;
	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
		odm_screen_note(s->screen, "  %-7s %-10s  %s", commands[i].name, commands[i].args, commands[i].what);
	odm_screen_note(s->screen,
			"A line that ends with \\ goes on in the next; so do lines between \"\"\" and \"\"\".\n"
			"A message that begins with a slash needs a space before it. Ctrl-C stops an\n"
			"answer or clears the line, Ctrl-R searches the history, Tab completes\n"
			"commands and names of files, Ctrl-D ends.");
	return OD_OK;
}

static int run_command(struct odm_chat_session *s, char *line, size_t len, struct od_err *err)
{
	const struct command *c = commands, *past = commands + sizeof(commands) / sizeof(commands[0]);
	const size_t name_len = strcspn(line, " \t\n");
	const char *args;

	if (strlen(line) != len)
		return od_fail(err, OD_ERR_ARG, "a command has no NUL bytes");
	while (c < past && (strlen(c->name) != name_len || memcmp(c->name, line, name_len) != 0))
		c++;
	if (c == past)
		return od_fail(err, OD_ERR_ARG,
			       "unknown command \"%.*s\"; /help lists them, and a message that begins with a "
			       "slash needs a space before it",
			       (int)(name_len < 40 ? name_len : 40), line);
	while (len > name_len && strchr(" \t\n", line[len - 1]) != NULL)
		line[--len] = '\0';
	args = line + name_len + strspn(line + name_len, " \t\n");
	return c->run(s, args, err) == OD_OK ? OD_OK : od_fail_within(err, "%s", c->name);
}

void odm_chat_command_line(struct odm_chat_session *s, char *line, size_t len)
{
	struct od_err err = { 0 };

	if (run_command(s, line, len, &err) == OD_OK)
		return;
	od_log(OD_LOG_ERROR, "%s", err.msg);
	s->any_failed = true;
}
