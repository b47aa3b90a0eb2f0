#include "common/pack/sums.h"

#include "common/base/file.h"
#include "common/text/tokenizer.h"

#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE_BYTES (64u * 1024)
#define SMALL_MAX_BYTES (256u << 20) /* longest small file: no reader takes more */
#define LINE_MAX_BYTES 128u
#define SUMS_MAX_BYTES 4096u

const struct od_small_file od_small_files[] = {
	{ "chat_template.jinja", false, "chat_template.jinja", 7 },
	{ "chat_template.json", false, "chat_template.json", 8 },
	{ "chat_template_tool_use.jinja", false, "additional_chat_templates/tool_use.jinja", 12 },
	{ "config.json", true, "config.json", 2 },
	{ "generation_config.json", false, "generation_config.json", 3 },
	{ "model.json", true, NULL, 4 },
	{ "special_tokens_map.json", false, "special_tokens_map.json", 11 },
	{ "tiktoken.model", false, "tiktoken.model", 9 },
	{ "tokenizer.json", false, "tokenizer.json", 5 },
	{ "tokenizer.model", false, "tokenizer.model", 10 },
	{ "tokenizer_config.json", false, "tokenizer_config.json", 6 },
	{ NULL, false, NULL, 0 },
};

bool od_small_file_wanted(const struct od_small_file *f, const char *checkpoint)
{
	const char *tokenizer;

	if (!od_tokenizer_is_name(f->source))
		return true;
	tokenizer = od_tokenizer_name(checkpoint);
	return tokenizer != NULL && strcmp(f->source, tokenizer) == 0;
}

void od_hex(const uint8_t *bytes, size_t n, char *hex)
{
	static const char digit[] = "0123456789abcdef";

	for (size_t i = 0; i < n; i++) {
		hex[2 * i] = digit[bytes[i] >> 4];
		hex[2 * i + 1] = digit[bytes[i] & 15];
	}
	hex[2 * n] = '\0';
}

static int digit_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool od_unhex(const char *hex, uint8_t *bytes, size_t n)
{
	if (strlen(hex) != 2 * n)
		return false;
	for (size_t i = 0; i < n; i++) {
		int high = digit_value(hex[2 * i]), low = digit_value(hex[2 * i + 1]);

		if (high < 0 || low < 0)
			return false;
		bytes[i] = (uint8_t)(high << 4 | low);
	}
	return true;
}

int od_sha256_file(const char *path, uint8_t sha256[32], struct od_err *err)
{
	crypto_hash_sha256_state state;
	uint64_t size, at = 0;
	uint8_t *buf;
	int fd, rc;

	memset(sha256, 0, 32);
	rc = od_file_open(path, &fd, &size, err);
	if (rc != OD_OK)
		return rc;
	if (size > SMALL_MAX_BYTES) { /* a sparse one of terabytes would be hashed for hours */
		close(fd);
		return od_fail(err, OD_ERR_FORMAT, "%s has %llu bytes, more than the %u expected at most", path,
			       (unsigned long long)size, SMALL_MAX_BYTES);
	}
	buf = malloc(PIECE_BYTES);
	if (buf == NULL)
		rc = od_fail(err, OD_ERR_NOMEM, "%s: no memory", path);
	crypto_hash_sha256_init(&state);
	while (rc == OD_OK && at < size) {
		size_t n = size - at < PIECE_BYTES ? (size_t)(size - at) : PIECE_BYTES;

		rc = od_file_pread(fd, buf, n, at, path, err);
		crypto_hash_sha256_update(&state, buf, rc == OD_OK ? n : 0);
		at += n;
	}
	crypto_hash_sha256_final(&state, sha256);
	free(buf);
	close(fd);
	return rc;
}

/* The line that SHA256SUMS should hold for a file as it is now; empty when the file does not exist. */
static int sum_line(const char *dir, const struct od_small_file *f, char line[LINE_MAX_BYTES], struct od_err *err)
{
	char path[PATH_MAX], hex[OD_HEX_CHARS(32) + 1];
	uint8_t sum[32];
	int rc = od_path(path, sizeof(path), dir, f->name, err);

	line[0] = '\0';
	if (rc != OD_OK)
		return rc;
	if (!f->required && !od_file_there(path))
		return OD_OK;
	rc = od_sha256_file(path, sum, err);
	if (rc != OD_OK)
		return rc;
	od_hex(sum, sizeof(sum), hex);
	snprintf(line, LINE_MAX_BYTES, "%s  %s\n", hex, f->name);
	return OD_OK;
}

int od_sums_write(const char *dir, struct od_err *err)
{
	char path[PATH_MAX], line[LINE_MAX_BYTES], text[SUMS_MAX_BYTES] = "";
	size_t len = 0;
	int rc = od_path(path, sizeof(path), dir, OD_SUMS_NAME, err);

	for (const struct od_small_file *f = od_small_files; rc == OD_OK && f->name != NULL; f++) {
		rc = sum_line(dir, f, line, err);
		memcpy(text + len, line, strlen(line) + 1);
		len += strlen(line);
	}
	return rc == OD_OK ? od_file_write_atomic(path, text, len, err) : rc;
}

/* The next line as sum and name, for messages: it may hold anything, and messages go to terminals. */
static void split_line(const char *at, char sum[OD_HEX_CHARS(32) + 1], char *name, size_t size)
{
	size_t n = strcspn(at, "\n"), sum_len = n < OD_HEX_CHARS(32) ? n : OD_HEX_CHARS(32);
	size_t skip = n > OD_HEX_CHARS(32) + 2 ? OD_HEX_CHARS(32) + 2 : 0;

	snprintf(sum, OD_HEX_CHARS(32) + 1, "%.*s", (int)sum_len, at);
	snprintf(name, size, "%.*s", (int)(n - skip), at + skip);
	for (char *c = sum; *c != '\0'; c++)
		*c = *c >= ' ' && *c <= '~' ? *c : '?';
	for (char *c = name; *c != '\0'; c++)
		*c = *c >= ' ' && *c <= '~' ? *c : '?';
}

int od_sums_check(const char *dir, struct od_err *err)
{
	char path[PATH_MAX], line[LINE_MAX_BYTES], sum[OD_HEX_CHARS(32) + 1], name[64], *text;
	const char *at;
	size_t len;
	int rc = od_path(path, sizeof(path), dir, OD_SUMS_NAME, err);

	if (rc != OD_OK)
		return rc;
	rc = od_file_read(path, SUMS_MAX_BYTES, &text, &len, err);
	if (rc != OD_OK)
		return rc;
	at = text;
	for (const struct od_small_file *f = od_small_files; rc == OD_OK && f->name != NULL; f++) {
		rc = sum_line(dir, f, line, err);
		if (rc != OD_OK)
			break;
		split_line(at, sum, name, sizeof(name));
		if (line[0] == '\0' ? strcmp(name, f->name) != 0 : strncmp(at, line, strlen(line)) == 0) {
			at += strlen(line);
			continue;
		}
		if (line[0] == '\0')
			rc = od_fail(err, OD_ERR_MISSING, "%s/%s is missing (%s names it)", dir, f->name, OD_SUMS_NAME);
		else if (strcmp(name, f->name) == 0)
			rc = od_fail(err, OD_ERR_CORRUPT,
				     "%s/%s: SHA-256 differs from the one in %s: expected %s, "
				     "found %.64s",
				     dir, f->name, OD_SUMS_NAME, sum, line);
		else
			rc = od_fail(err, OD_ERR_FORMAT, "%s: expected a line for %s, found \"%s\"", path, f->name,
				     name);
	}
	if (rc == OD_OK && at != text + len) {
		split_line(at, sum, name, sizeof(name));
		rc = od_fail(err, OD_ERR_MISSING, "%s: names \"%s\", which is missing or not a file of a pack", path,
			     name);
	}
	free(text);
	return rc;
}
