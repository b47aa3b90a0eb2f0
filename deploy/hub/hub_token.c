#include "deploy/hub/hub_token.h"

#include "common/base/file.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES 4096
#define ENDPOINT "https://huggingface.co"

/* Cuts white space from both ends; NULL where nothing is left. Takes text. */
static char *trimmed(char *text)
{
	size_t begin = 0, len;

	while (isspace((unsigned char)text[begin]))
		begin++;
	len = strlen(text + begin);
	memmove(text, text + begin, len + 1);
	while (len > 0 && isspace((unsigned char)text[len - 1]))
		text[--len] = '\0';
	if (len > 0)
		return text;
	free(text);
	return NULL;
}

/* The file of the token, by the first variable that is set. False: there is none. */
static bool find_file(char path[PATH_MAX])
{
	static const struct {
		const char *variable, *below;
	} places[] = {
		{ "HF_TOKEN_PATH", "" },
		{ "HF_HOME", "/token" },
		{ "XDG_CACHE_HOME", "/huggingface/token" },
		{ "HOME", "/.cache/huggingface/token" },
	};

	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		const char *value = getenv(places[i].variable);

		if (value != NULL && value[0] != '\0')
			return snprintf(path, PATH_MAX, "%s%s", value, places[i].below) < PATH_MAX;
	}
	return false;
}

int odp_hub_token(char **token, struct od_err *err)
{
	const char *given = getenv("HF_TOKEN");
	char path[PATH_MAX], *text;
	size_t len;
	int rc;

	*token = NULL;
	if (given != NULL && given[0] != '\0') {
		text = strdup(given);
		if (text == NULL)
			return od_fail(err, OD_ERR_NOMEM, "no memory for a token");
	} else {
		if (!find_file(path) || !od_file_there(path))
			return OD_OK;
		rc = od_file_read(path, MAX_BYTES, &text, &len, err);
		if (rc != OD_OK)
			return od_fail_within(err, "the token of the hub");
	}
	*token = trimmed(text);
	return OD_OK;
}

int odp_hub_endpoint(char **endpoint, struct od_err *err)
{
	const char *given = getenv("HF_ENDPOINT");
	size_t len;

	*endpoint = strdup(given != NULL && given[0] != '\0' ? given : ENDPOINT);
	if (*endpoint == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for an address");
	for (len = strlen(*endpoint); len > 0 && (*endpoint)[len - 1] == '/';)
		(*endpoint)[--len] = '\0';
	return OD_OK;
}
