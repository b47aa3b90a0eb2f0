#include "deploy/hub/hub_name.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define FORM "expected hf://ORGANISATION/NAME[@REVISION][:QUANT]"

bool odp_is_address(const char *text)
{
	return strncmp(text, "hf://", 5) == 0 || strncmp(text, "https://", 8) == 0 || strncmp(text, "http://", 7) == 0;
}

static bool is_word(const char *s, size_t n, const char *more)
{
	for (size_t i = 0; i < n; i++)
		if (!isalnum((unsigned char)s[i]) && strchr(more, s[i]) == NULL)
			return false;
	return n > 0 && s[0] != '.' && s[0] != '-';
}

/* Copies a part of the name. False: it is empty, too long, or has other characters. */
static bool take(char *out, size_t size, const char *from, size_t n, const char *more)
{
	if (n >= size || !is_word(from, n, more))
		return false;
	memcpy(out, from, n);
	out[n] = '\0';
	return true;
}

int odp_hub_name_parse(struct odp_hub_name *out, const char *text, struct od_err *err)
{
	const char *org = text + strlen("hf://"), *colon = strchr(org, ':');
	const char *end = colon != NULL ? colon : org + strlen(org), *at = memchr(org, '@', (size_t)(end - org));
	const char *name_end = at != NULL ? at : end, *slash = memchr(org, '/', (size_t)(name_end - org));

	memset(out, 0, sizeof(*out));
	if (slash == NULL || !take(out->org, sizeof(out->org), org, (size_t)(slash - org), "._-") ||
	    !take(out->name, sizeof(out->name), slash + 1, (size_t)(name_end - slash - 1), "._-"))
		return od_fail(err, OD_ERR_ARG, "%s: " FORM ", for example hf://Qwen/Qwen3-30B-A3B", text);
	snprintf(out->revision, sizeof(out->revision), "main");
	if (at != NULL && (!take(out->revision, sizeof(out->revision), at + 1, (size_t)(end - at - 1), "._-+/") ||
			   strstr(out->revision, "..") != NULL))
		return od_fail(err, OD_ERR_ARG, "%s: " FORM "; REVISION is a branch, a tag or a commit", text);
	if (colon != NULL && !take(out->quant, sizeof(out->quant), colon + 1, strlen(colon + 1), "._-+"))
		return od_fail(err, OD_ERR_ARG,
			       "%s: " FORM "; QUANT is as in the names of its GGUF files: Q4_K_M, Q8_0", text);
	return OD_OK;
}

bool odp_is_safe_path(const char *path, size_t len)
{
	size_t begin = 0;

	if (strlen(path) != len || len == 0)
		return false;
	for (size_t i = 0; i <= len; i++) {
		const unsigned char c = (unsigned char)path[i];

		if (i < len && (c < ' ' || c == 0x7f || c == '\\'))
			return false;
		if (i < len && c != '/')
			continue;
		if (i == begin || (i - begin == 1 && path[begin] == '.') ||
		    (i - begin == 2 && path[begin] == '.' && path[begin + 1] == '.'))
			return false;
		begin = i + 1;
	}
	return true;
}

void odp_local_name(const char *path, char *out, size_t size)
{
	const char *slash = strrchr(path, '/');

	snprintf(out, size, "%s", slash != NULL ? slash + 1 : path);
	for (char *c = out; *c != '\0'; c++)
		if ((!isalnum((unsigned char)*c) && strchr("._-+", *c) == NULL) || (unsigned char)*c > 127)
			*c = '_';
	if (out[0] == '.' || out[0] == '-')
		out[0] = '_';
}

void odp_url_append(char *url, size_t size, const char *text, bool slash)
{
	size_t len = strlen(url);

	for (; *text != '\0' && len + 4 <= size; text++) {
		const unsigned char c = (unsigned char)*text;

		if ((c < 128 && isalnum(c)) || strchr("._-~", c) != NULL || (slash && c == '/')) {
			url[len++] = (char)c;
			url[len] = '\0';
		} else {
			len += (size_t)snprintf(url + len, size - len, "%%%02X", c);
		}
	}
}

static int digit(char c)
{
	return isdigit((unsigned char)c)  ? c - '0' :
	       isxdigit((unsigned char)c) ? tolower((unsigned char)c) - 'a' + 10 :
					    -1;
}

void odp_url_file_name(const char *url, char *out, size_t size)
{
	const size_t n = strcspn(url, "?#");
	size_t begin = n, len = 0;
	char name[256];

	while (begin > 0 && url[begin - 1] != '/')
		begin--;
	for (size_t i = begin; i < n && len + 1 < sizeof(name); i++) {
		int c = (unsigned char)url[i];

		if (c == '%' && i + 2 < n && digit(url[i + 1]) >= 0 && digit(url[i + 2]) >= 0) {
			c = digit(url[i + 1]) * 16 + digit(url[i + 2]);
			i += 2;
		}
		name[len++] = c == '/' || c == '\0' ? '_' : (char)c;
	}
	name[len] = '\0';
	odp_local_name(name, out, size);
}

void odp_url_shown(const char *url, char *out, size_t size)
{
	const size_t scheme_len = strcspn(url, ":/?#");
	const char *host = strncmp(url + scheme_len, "://", 3) == 0 ? url + scheme_len + 3 : url, *from = host;
	const size_t host_len = strcspn(host, "/?#");

	for (size_t i = 0; i < host_len; i++)
		if (host[i] == '@')
			from = host + i + 1;
	snprintf(out, size, "%.*s%.*s", (int)(host - url), url, (int)strcspn(from, "?#"), from);
	for (char *c = out; *c != '\0'; c++)
		*c = *c > ' ' && *c <= '~' ? *c : '?';
}
