/* od-chat: a conversation with a running server. This file has the command line, the locale, and where the history
 * is. */
#include "common/base/args.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/version.h"
#include "main-node/terminal/chat_complete.h"
#include "main-node/terminal/chat_session.h"
#include "main-node/terminal/chat_settings.h"
#include "main-node/terminal/interrupt.h"

#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define EXIT_USAGE 2
#define MAX_KEY_FILE_BYTES (1u << 20)

struct options {
	const char *url, *key_file, *ca_file, *system;
	const char *setting[ODM_N_CHAT_SETTINGS]; /* as given; NULL: not */
	bool verbose, help, version;
};

static int parse_options(struct options *o, int argc, char **argv, struct od_err *err)
{
	struct od_arg table[9 + ODM_N_CHAT_SETTINGS] = {
		{ "url", OD_ARG_STRING, &o->url, "URL", "the server (default: http://127.0.0.1:8080)", 0, 0, NULL },
		{ "api-key-file", OD_ARG_STRING, &o->key_file, "FILE", "its first line is sent as the API key", 0, 0,
		  NULL },
		{ "cacert", OD_ARG_STRING, &o->ca_file, "FILE",
		  "certificates (PEM) to trust instead of the system's, for https", 0, 0, NULL },
		{ "system", OD_ARG_STRING, &o->system, "TEXT", "the system prompt", 0, 0, NULL },
		{ "verbose", OD_ARG_FLAG, &o->verbose, NULL, "print all figures after an answer, not just one line", 0,
		  0, NULL },
		{ .kind = OD_ARG_TITLE, .help = "Sampling (default: as the server does)" },
	};
	char names[ODM_N_CHAT_SETTINGS][32];
	size_t n = 6, n_positional;
	int rc;

	for (size_t i = 0; i < ODM_N_CHAT_SETTINGS; i++) {
		const struct odm_chat_setting *s = &odm_chat_settings[i];

		snprintf(names[i], sizeof(names[i]), "%s", s->name);
		for (char *c = names[i]; (c = strchr(c, '_')) != NULL;)
			*c = '-';
		table[n++] = (struct od_arg){ names[i], OD_ARG_STRING, &o->setting[i], s->whole ? "N" : "X", s->help, 0,
					      0,	NULL };
	}
	table[n++] = (struct od_arg){ .kind = OD_ARG_TITLE, .help = "Other" };
	table[n++] = (struct od_arg){ "help", OD_ARG_FLAG, &o->help, NULL, "print this text", 0, 0, NULL };
	table[n++] = (struct od_arg){ "version", OD_ARG_FLAG, &o->version, NULL, "print the version", 0, 0, NULL };
	rc = od_args_parse(table, n, argc, argv, NULL, 0, &n_positional, err);
	if (rc == OD_OK && o->help) {
		printf("Usage: od-chat [--url http://127.0.0.1:8080]\n"
		       "Talks to a server (od-main serve, or another one with OpenAI's /v1/chat/completions). On a terminal,\n"
		       "/help lists what can be typed. Without one each line of stdin is a message, and only answers are\n"
		       "printed.\n");
		od_args_help(stdout, table, n);
	}
	return rc;
}

/* Editing needs to know which bytes are a character, so LC_CTYPE is UTF-8's. LC_NUMERIC stays: JSON's numbers have
 * points. */
static void set_locale(void)
{
	if (setlocale(LC_CTYPE, "") == NULL || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
		setlocale(LC_CTYPE, "C.UTF-8");
}

/* $XDG_STATE_HOME/od-moe/chat_history, else ~/.local/state/od-moe/chat_history. False: no place for it. */
static bool history_path(char path[PATH_MAX])
{
	const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
	char dir[PATH_MAX];
	struct od_err err;
	int n;

	if (state != NULL && state[0] == '/') /* XDG: another path is ignored */
		n = snprintf(dir, sizeof(dir), "%s/od-moe", state);
	else if (home != NULL && home[0] == '/')
		n = snprintf(dir, sizeof(dir), "%s/.local/state/od-moe", home);
	else
		return false;
	if (n < 0 || (size_t)n >= sizeof(dir))
		return false;
	if (od_mkdir_p(dir, &err) == OD_OK && od_path(path, PATH_MAX, dir, "chat_history", &err) == OD_OK)
		return true;
	od_log(OD_LOG_WARN, "%s; the history is not kept", err.msg);
	return false;
}

/* The first line that is neither empty nor a comment, as od-main serve reads such a file. *key: malloc'd. */
static int read_key(const char *path, char **key, struct od_err *err)
{
	char *text, *line, *rest;
	size_t len;
	int rc = od_file_read_text(path, MAX_KEY_FILE_BYTES, &text, &len, err);

	*key = NULL;
	if (rc != OD_OK)
		return rc;
	for (line = strtok_r(text, "\r\n", &rest); line != NULL; line = strtok_r(NULL, "\r\n", &rest)) {
		size_t n;

		line += strspn(line, " \t");
		n = strcspn(line, " \t");
		if (n == 0 || line[0] == '#')
			continue;
		*key = strndup(line, n);
		break;
	}
	sodium_memzero(text, len);
	free(text);
	if (*key == NULL)
		return od_fail(err, OD_ERR_FORMAT, "%s: expected an API key a line, found none", path);
	return OD_OK;
}

static int open_session(struct odm_chat_session *s, const struct options *o, const char *key, const char *history,
			struct od_err *err)
{
	int rc = odm_conversation_init(&s->conversation, err);

	s->settings = json_object();
	s->retry = json_object();
	s->verbose = o->verbose;
	for (size_t i = 0; rc == OD_OK && i < ODM_N_CHAT_SETTINGS; i++) {
		if (o->setting[i] != NULL)
			rc = odm_chat_set(s->settings, odm_chat_settings[i].name, o->setting[i], err);
	}
	if (rc == OD_OK && o->system != NULL)
		rc = odm_conversation_set_system(&s->conversation, o->system, strlen(o->system), err);
	if (rc == OD_OK)
		rc = odm_chat_client_new(&s->client, o->url, key, o->ca_file, err);
	if (rc == OD_OK && s->screen->terminal) /* else Ctrl-C ends the program, as it ends the rest of a pipe */
		rc = odm_interrupt_catch(err);
	if (rc == OD_OK)
		rc = odm_line_input_open(&s->input, s->screen->terminal ? s->screen->out : NULL, history,
					 odm_chat_completions, err);
	return rc;
}

static int chat(const struct options *o, bool *any_failed, struct od_err *err)
{
	char history[PATH_MAX], *key = NULL;
	struct odm_screen screen;
	struct odm_chat_session s = { .screen = &screen };
	int rc = o->key_file != NULL ? read_key(o->key_file, &key, err) : OD_OK;

	odm_screen_init(&screen);
	if (rc == OD_OK)
		rc = open_session(&s, o, key, screen.terminal && history_path(history) ? history : NULL, err);
	if (rc == OD_OK)
		rc = odm_chat_session_run(&s, err);
	*any_failed = s.any_failed && !screen.terminal;
	odm_line_input_close(s.input);
	odm_chat_client_free(s.client);
	odm_chat_session_fini(&s);
	if (key != NULL)
		sodium_memzero(key, strlen(key));
	free(key);
	return rc;
}

int main(int argc, char **argv)
{
	struct options o = { .url = "http://127.0.0.1:8080" };
	struct od_err err = { 0 };
	bool any_failed = false;
	int rc;

	od_log_init("od-chat", OD_LOG_INFO);
	rc = parse_options(&o, argc, argv, &err);
	if (rc == OD_OK && o.help)
		return 0;
	if (rc == OD_OK && o.version) {
		printf("od-chat %s\n", OD_VERSION);
		return 0;
	}
	if (rc != OD_OK) {
		od_log(OD_LOG_ERROR, "%s", err.msg);
		return EXIT_USAGE;
	}
	set_locale();
	signal(SIGPIPE, SIG_IGN);
	rc = chat(&o, &any_failed, &err);
	if (rc == OD_OK)
		return any_failed ? 1 : 0;
	od_log(OD_LOG_ERROR, "%s", err.msg);
	return rc == OD_ERR_ARG ? EXIT_USAGE : 1;
}
