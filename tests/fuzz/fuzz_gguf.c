/* Any GGUF file, changed from headers of all architectures: it is refused with a reason, within a small multiple of its
 * size of memory, or all that is in it can be loaded.
 * Input: gguf_mix.h's; or "GGUF" and the rest of a file. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/compute/cpu/cpu_device.h"
#include "common/pack/gguf/gguf_config.h"
#include "common/pack/gguf/gguf_folder.h"
#include "common/pack/gguf/gguf_map.h"
#include "common/pack/load/dense_load.h"
#include "common/pack/load/expert_load.h"
#include "common/model/config.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/gguf_bytes.h"
#include "tests/fuzz/gguf_mix.h"

#define TIMES 16 /* memory for a byte of the file, to open and check it */
#define MEMORY_BYTES ((size_t)1 << 20) /* more, for buffers and messages */

static struct gguf_mix *mix;
static struct od_device *device;
static char cache[64];

static void remove_cache(void)
{
	rmdir(cache);
}

static void start(void)
{
	if (mix != NULL)
		return;
	mix = gguf_mix_new("model_");
	check(od_device_cpu_new(&device, OD_CPU_AUTO, 1, "fuzz", NULL) == OD_OK);
	snprintf(cache, sizeof(cache), "%s/od-fuzz.XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
	check(mkdtemp(cache) != NULL && setenv("CACHE_DIRECTORY", cache, 1) == 0);
	atexit(remove_cache);
}

/* The folders of the cache, none of which the next file has. */
static void empty_cache(void)
{
	char path[96], folder[512];
	struct dirent *e;
	DIR *d;

	snprintf(path, sizeof(path), "%s/gguf", cache);
	d = opendir(path);
	while (d != NULL && (e = readdir(d)) != NULL) {
		snprintf(folder, sizeof(folder), "%s/%s", path, e->d_name);
		if (e->d_name[0] != '.')
			od_gguf_folder_remove(folder);
	}
	if (d != NULL)
		closedir(d);
	rmdir(path);
}

static void load_all(const struct od_pack *p)
{
	const struct od_config *cfg = od_pack_config(p);
	struct od_inflater *inf;
	struct od_dense_store *dense;
	struct od_err err = { 0 };
	struct od_buf *slot;
	struct od_expert_mem mem;

	check(od_buf_new(&slot, device, od_pack_slot_bytes(p, OD_FORM_PLAIN), "a fuzzer", NULL) == OD_OK);
	check(od_inflater_new(&inf, p, device, OD_FORM_PLAIN, NULL) == OD_OK);
	mem = od_pack_slot_mem(p, OD_FORM_PLAIN, od_buf_ref(slot, 0));
	for (uint32_t i = 0; i < cfg->n_moe * cfg->n_experts; i++) {
		const uint32_t m = i / cfg->n_experts, expert = i % cfg->n_experts;

		for (uint32_t s = 0; s < od_pack_expert(p, m, expert)->n_shards; s++)
			check(od_inflater_load(inf, m, expert, s, &mem, NULL, &err) == OD_OK);
	}
	od_inflater_free(inf);
	od_buf_free(slot);
	for (enum od_dense_choice c = OD_DENSE_ALL; c <= OD_DENSE_WITHOUT_TABLES; c++)
		if (od_dense_load(&dense, p, device, c, &err) == OD_OK)
			od_dense_free(dense);
		else
			check(err.msg[0] != '\0');
}

/* Whether the header is good, with its limit of memory. */
static bool opens(const char *path, size_t file_bytes)
{
	static struct od_config cfg;
	struct od_gguf *g;
	struct od_err err = { 0 };
	json_t *config = NULL;
	int rc;

	gguf_bytes_begin(file_bytes * TIMES + MEMORY_BYTES);
	rc = od_gguf_open(&g, path, &err);
	if (rc != OD_OK)
		check(g == NULL);
	if (rc == OD_OK) {
		rc = od_gguf_config(g, &config, &err);
		check((rc == OD_OK) == (config != NULL));
	}
	if (rc == OD_OK)
		rc = od_config_parse(&cfg, config, path, &err);
	if (rc == OD_OK)
		rc = od_gguf_check(g, &cfg, &err);
	if (rc != OD_OK)
		check(err.msg[0] != '\0' && rc != OD_ERR_NOMEM && err.code == rc);
	json_decref(config);
	od_gguf_close(g);
	gguf_bytes_end();
	return rc == OD_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *made = NULL;
	size_t len = size, file_bytes = size;
	struct od_err err = { 0 };
	struct od_pack *p;
	const char *path;

	start();
	if (size < 4 || memcmp(data, "GGUF", 4) != 0) {
		made = gguf_mix_make(mix, &data, &size, &len, &file_bytes);
		data = made;
	}
	path = gguf_bytes_file(data, len, file_bytes);
	if (opens(path, file_bytes)) {
		if (od_pack_open(&p, path, &err) == OD_OK)
			load_all(p);
		else
			check(p == NULL && err.msg[0] != '\0');
		od_pack_close(p);
		empty_cache();
	}
	free(made);
	return 0;
}
