#include "main-node/terminal/chat_complete.h"

#include "main-node/terminal/chat_commands.h"
#include "main-node/terminal/chat_settings.h"

#include "common/base/file.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WORDS 1000

struct words {
	char **word; /* [n], NULL-terminated; NULL: none */
	size_t n;
};

/* Takes word if it begins as typed. */
static void add(struct words *w, char *word, const char *typed)
{
	char **grown;

	if (word == NULL || strncmp(word, typed, strlen(typed)) != 0 || w->n == MAX_WORDS) {
		free(word);
		return;
	}
	grown = realloc(w->word, (w->n + 2) * sizeof(*grown));
	if (grown == NULL) {
		free(word);
		return;
	}
	w->word = grown;
	w->word[w->n++] = word;
	w->word[w->n] = NULL;
}

static void add_commands(struct words *w, const char *typed)
{
	for (size_t i = 0; odm_chat_command_name(i) != NULL; i++)
		add(w, strdup(odm_chat_command_name(i)), typed);
}

static void add_settings(struct words *w, const char *typed)
{
	for (size_t i = 0; i < ODM_N_CHAT_SETTINGS; i++)
		add(w, strdup(odm_chat_settings[i].name), typed);
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* typed: a path whose last name is not whole. Folders end with a slash. */
static void add_files(struct words *w, const char *typed)
{
	const char *slash = strrchr(typed, '/'), *last = slash != NULL ? slash + 1 : typed;
	const size_t dir_len = (size_t)(last - typed);
	char dir[PATH_MAX] = "", *path;
	const struct dirent *entry;
	DIR *d;

	if (dir_len >= sizeof(dir))
		return;
	snprintf(dir, sizeof(dir), "%.*s", (int)dir_len, typed);
	d = opendir(dir_len > 0 ? dir : ".");
	while (d != NULL && (entry = readdir(d)) != NULL) {
		const bool hidden = entry->d_name[0] == '.';

		if (hidden && (last[0] != '.' || strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0))
			continue;
		if (asprintf(&path, "%s%s/", dir, entry->d_name) < 0)
			continue;
		if (!od_is_dir(path))
			path[strlen(path) - 1] = '\0';
		add(w, path, typed);
	}
	if (d != NULL)
		closedir(d);
	if (w->n > 0)
		qsort(w->word, w->n, sizeof(*w->word), by_text);
}

char **odm_chat_completions(const char *text, size_t *begin)
{
	static const char *const with_file[] = { "/save", "/save!", "/load" };
	const size_t len = strcspn(text, " \t"), args = len + strspn(text + len, " \t");
	struct words w = { 0 };

	*begin = 0;
	if (text[0] != '/')
		return NULL;
	if (text[len] == '\0') {
		add_commands(&w, text);
		return w.word;
	}
	*begin = args;
	if (len == strlen("/set") && strncmp(text, "/set", len) == 0 && strpbrk(text + args, " \t") == NULL)
		add_settings(&w, text + args);
	for (size_t i = 0; i < sizeof(with_file) / sizeof(with_file[0]); i++)
		if (strlen(with_file[i]) == len && strncmp(text, with_file[i], len) == 0)
			add_files(&w, text + args);
	return w.word;
}
