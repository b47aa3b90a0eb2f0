/* Any GGUF file, changed from those that llama.cpp's converter made of each architecture: its headers, and the
 * config.json that is made of them, are refused with a reason, or the family's parser refuses it or understands it, and
 * a second reading gives the same bytes.
 * Input: "GGUF" and the rest of a file; or the number of a file in FILES, then three bytes for each change: where (two
 * bytes, modulo the header's length) and the new byte. */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/strbuf.h"
#include "common/model/config.h"
#include "common/model/family.h"
#include "common/pack/gguf/gguf_config.h"
#include "tests/fuzz/fuzz.h"

#define MAX_HEADER (1u << 16)
#define FILE_BYTES (1ll << 28) /* a hole after the header */

/* Read where run.sh stands. */
static const char *const files[] = {
	"mixtral",  "qwen2_moe", "qwen3_moe",	"qwen3_moe_lists",  "qwen3_next",  "qwen3_5_moe",
	"olmoe",    "phimoe",	 "deepseek_v2", "deepseek_v2-lite", "deepseek_v3", "deepseek_v2_older",
	"glm4_moe", "gpt_oss",	 "gemma4",	"minimax_m2",	    "mmproj",	   "gpt_oss_pattern",
};
#define N_FILES (sizeof(files) / sizeof(files[0]))

static uint8_t original[N_FILES][MAX_HEADER];
static size_t length[N_FILES];
static char path[64];
static int fd = -1;

static void start(void)
{
	if (fd >= 0)
		return;
	for (size_t i = 0; i < N_FILES; i++) {
		FILE *f;

		snprintf(path, sizeof(path), "tests/golden/gguf/%s.gguf", files[i]);
		f = fopen(path, "rb");
		check(f != NULL);
		length[i] = fread(original[i], 1, MAX_HEADER, f);
		check(length[i] > 64 && length[i] < MAX_HEADER);
		fclose(f);
	}
	fd = memfd_create("gguf", MFD_CLOEXEC);
	check(fd >= 0);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
}

/* The text of the configuration, the caller's; NULL: refused. */
static char *read_file(void)
{
	static struct od_config c;
	struct od_strbuf b = { 0 };
	struct od_err err = { 0 };
	struct od_gguf *g;
	json_t *o = NULL;
	char *text = NULL;

	if (od_gguf_open(&g, path, &err) != OD_OK) {
		check(g == NULL && err.msg[0] != '\0');
		return NULL;
	}
	if (od_gguf_config(g, &o, &err) != OD_OK) {
		check(o == NULL && strstr(err.msg, path) != NULL);
	} else {
		text = json_dumps(o, JSON_COMPACT);
		check(text != NULL);
		if (od_config_parse(&c, o, path, &err) != OD_OK)
			check(err.msg[0] != '\0');
		else
			check(od_config_canonical(&c, &b, &err) == OD_OK);
	}
	od_strbuf_fini(&b);
	json_decref(o);
	od_gguf_close(g);
	return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t bytes[MAX_HEADER];
	size_t len = size < MAX_HEADER ? size : MAX_HEADER;
	char *first, *second;

	start();
	if (size == 0)
		return 0;
	if (size >= 4 && memcmp(data, "GGUF", 4) == 0) {
		memcpy(bytes, data, len);
	} else {
		const size_t i = data[0] % N_FILES;

		len = length[i];
		memcpy(bytes, original[i], len);
		for (size_t at = 1; at + 3 <= size; at += 3)
			bytes[(data[at] | (size_t)data[at + 1] << 8) % len] = data[at + 2];
	}
	check(ftruncate(fd, 0) == 0 && pwrite(fd, bytes, len, 0) == (ssize_t)len && ftruncate(fd, FILE_BYTES) == 0);
	first = read_file();
	second = read_file();
	check((first == NULL) == (second == NULL) && (first == NULL || strcmp(first, second) == 0));
	free(first);
	free(second);
	return 0;
}
