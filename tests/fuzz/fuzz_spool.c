/* A store that lies, all the way to the disk: a worker fills a spool from it, and whatever it sends, the spool's folder
 * holds nothing but the spool's files, and no expert counts as whole that is not, to the bit, the store's own. Input:
 * what is done to each answer in turn. A byte says what: 0 nothing, 1 a bit of it is flipped (two bytes say where), 2
 * it is filled with a byte, 3 an error code, 4 the life of the connection ends, 5 a small file is changed before it is
 * summed up (two bytes where, one what), so that SHA256SUMS agrees with it; 6 as the first byte: the store has a GGUF
 * file; 7 a chunk's checksum is another one. */
#include <dirent.h>
#include <ftw.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sodium.h>

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/pack/checksum.h"
#include "common/pack/manifest.h"
#include "common/pack/write/pack_write.h"
#include "tests/fuzz/fuzz.h"
#include "tests/unit/tiny_files.h"
#include "worker-node/pull/spool_begin.h"

#define N_FILES (OD_STORE_EXPERTS + 1)

static struct tiny_files tiny;
/* Files of the store's pack, by number; then those that it has of a GGUF file. */
static char *originals[2][N_FILES], **original = originals[0];
static size_t lengths[2][N_FILES], *length = lengths[0];
static char spool_dir[160];

static const uint8_t *input;
static size_t left;
static char *served[N_FILES]; /* files as this store serves them */

static uint8_t next(void)
{
	if (left == 0)
		return 0;
	left--;
	return *input++;
}

/* ---- a store client without a store (instead of worker-node/pull/store_client.c) ---- */

struct odw_store {
	struct odw_store_info info;
	uint64_t life;
	unsigned n;
	struct {
		uint64_t tag, offset;
		uint32_t file, bytes;
	} open[OD_STORE_MAX_OPEN];
	uint8_t *answer;
};

void odw_store_tick(struct odw_store *s)
{
	(void)s;
}

bool odw_store_ready(const struct odw_store *s)
{
	(void)s;
	return true;
}

const struct odw_store_info *odw_store_info(const struct odw_store *s)
{
	return &s->info;
}

uint64_t odw_store_life(const struct odw_store *s)
{
	return s->life;
}

const char *odw_store_name(const struct odw_store *s)
{
	(void)s;
	return "fuzz";
}

void odw_store_wait(struct odw_store *s, int wake_fd, int timeout_ms)
{
	(void)s;
	(void)wake_fd;
	(void)timeout_ms;
}

int odw_store_fetch(struct odw_store *s, uint32_t file, uint64_t offset, uint32_t bytes, uint64_t tag)
{
	if (s->n == OD_STORE_MAX_OPEN)
		return OD_ERR_BUSY;
	s->open[s->n].tag = tag;
	s->open[s->n].offset = offset;
	s->open[s->n].file = file;
	s->open[s->n++].bytes = bytes;
	return OD_OK;
}

static void spoil(struct odw_store *s, struct odw_fetched *f, uint32_t bytes)
{
	uint32_t at;

	switch (next() % 8) {
	case 1:
		at = next() | (uint32_t)next() << 8;
		s->answer[at % bytes] ^= (uint8_t)(1 << at % 8);
		break;
	case 2: memset(s->answer, next(), bytes); break;
	case 3:
		f->code = -1 - next() % 16;
		snprintf(f->reason, sizeof(f->reason), "no");
		break;
	case 7: f->xxh3 ^= 1ull << next() % 64; break;
	default: break;
	}
}

bool odw_store_next(struct odw_store *s, struct odw_fetched *f)
{
	uint32_t bytes, file;
	uint64_t offset;

	if (s->n == 0)
		return false;
	s->n--;
	*f = (struct odw_fetched){ .tag = s->open[s->n].tag };
	bytes = s->open[s->n].bytes;
	file = s->open[s->n].file;
	offset = s->open[s->n].offset;
	free(s->answer);
	s->answer = calloc(1, bytes);
	check(s->answer != NULL && file < N_FILES);
	if (offset < length[file]) {
		size_t n = bytes < length[file] - offset ? bytes : length[file] - (size_t)offset;

		memcpy(s->answer, served[file] + offset, n);
	}
	if (original == originals[1] && file == OD_STORE_EXPERTS)
		f->xxh3 = XXH3_64bits(s->answer, bytes);
	spoil(s, f, bytes);
	f->bytes = s->answer;
	if (left > 0 && *input == 4) {
		next();
		s->life++;
		s->n = 0;
		return false;
	}
	return true;
}

/* ---- the pack that it should be ---- */

static void read_original(uint32_t number, const char *name)
{
	char path[256];
	struct od_err err;

	check(od_path(path, sizeof(path), tiny.pack, name, &err) == OD_OK);
	if (od_file_read(path, 1 << 26, &original[number], &length[number], NULL) != OD_OK)
		length[number] = 0;
}

/* A GGUF file with the same model: only model.json and experts.bin differ. */
static void make_gguf(void)
{
	static const char fingerprint[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
	const struct od_layer_types one = { { { .dtype = OD_Q8_0 }, { .dtype = OD_BF16 }, { .dtype = OD_F16 } } };
	const struct od_layer_types layer[TINY_LAYERS] = { one, one };
	const uint32_t model = 4; /* its number */
	struct od_manifest m;
	struct od_config cfg;
	struct od_err err;
	char path[256];

	for (uint32_t i = 0; i < N_FILES; i++) {
		originals[1][i] = originals[0][i];
		lengths[1][i] = lengths[0][i];
	}
	check(od_path(path, sizeof(path), tiny.pack, "config.json", &err) == OD_OK);
	check(od_config_load(&cfg, path, &err) == OD_OK);
	check(od_path(path, sizeof(path), tiny.pack, "gguf.json", &err) == OD_OK);
	check(od_manifest_write_share(fingerprint, layer, &cfg, path, &err) == OD_OK);
	check(od_file_read(path, 1 << 20, &originals[1][model], &lengths[1][model], &err) == OD_OK);
	check(od_manifest_read(&m, &cfg, path, &err) == OD_OK);
	lengths[1][OD_STORE_EXPERTS] = (size_t)m.experts_bytes;
	originals[1][OD_STORE_EXPERTS] = malloc((size_t)m.experts_bytes);
	for (size_t i = 0; i < m.experts_bytes; i++)
		originals[1][OD_STORE_EXPERTS][i] = (char)(i * 7 >> 3);
	od_manifest_fini(&m);
}

static void begin(void)
{
	struct od_err err;

	check(sodium_init() >= 0);
	od_log_init("fuzz", OD_LOG_ERROR);
	tiny_files_make(&tiny);
	const struct od_pack_job job = { .checkpoint = tiny.checkpoint, .pack = tiny.pack, .n_threads = 1 };

	check(od_pack_write(&job, &err) == OD_OK);
	read_original(OD_STORE_SUMS, OD_SUMS_NAME);
	for (uint32_t i = 0; od_small_files[i].name != NULL; i++)
		read_original(od_small_files[i].number, od_small_files[i].name);
	read_original(OD_STORE_EXPERTS, "experts.bin");
	make_gguf();
	/* In memory, where there is such a place: every file is synced. */
	snprintf(spool_dir, sizeof(spool_dir), "%s/od-fuzz-spool-%d",
		 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp", (int)getpid());
	tiny_files_free(&tiny);
}

/* Copies of the files, changed as the input says, with sums that agree. */
static void make_served(struct odw_store *s)
{
	char *at;

	for (uint32_t i = 0; i < N_FILES; i++) {
		served[i] = length[i] > 0 ? malloc(length[i]) : NULL;
		if (length[i] > 0)
			memcpy(served[i], original[i], length[i]);
		s->info.bytes[i] = length[i];
	}
	while (left > 0 && *input == 5) {
		uint32_t file, where;

		next();
		file = 2 + next() % 5;
		where = next() | (uint32_t)next() << 8;
		if (length[file] > 0)
			served[file][where % length[file]] = (char)next();
	}
	at = served[OD_STORE_SUMS];
	for (uint32_t i = 0; od_small_files[i].name != NULL; i++) {
		uint8_t sum[32];
		char hex[65];

		if (length[od_small_files[i].number] == 0)
			continue;
		crypto_hash_sha256(sum, (uint8_t *)served[od_small_files[i].number], length[od_small_files[i].number]);
		od_hex(sum, 32, hex);
		memcpy(at, hex, 64);
		at += 64 + 2 + strlen(od_small_files[i].name) + 1;
	}
	crypto_hash_sha256(s->info.sums_sha256, (uint8_t *)served[OD_STORE_SUMS], length[OD_STORE_SUMS]);
}

/* ---- the spool ---- */

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st;
	(void)kind;
	(void)at;
	return remove(path);
}

static void check_folder(void)
{
	DIR *d = opendir(spool_dir);
	struct dirent *e;

	check(d != NULL);
	while ((e = readdir(d)) != NULL) {
		bool good = e->d_name[0] == '.' || strcmp(e->d_name, OD_SUMS_NAME) == 0 ||
			    strcmp(e->d_name, "experts.bin") == 0 || strcmp(e->d_name, "spool.state") == 0;

		for (const struct od_small_file *f = od_small_files; f->name != NULL; f++)
			good = good || strcmp(e->d_name, f->name) == 0;
		check(good);
	}
	closedir(d);
}

/* Every chunk as the store sends it, spoiled or not; what was taken is what the header promised. */
static void fill(struct od_spool *spool, const struct od_pack *p, struct odw_store *s)
{
	const struct od_config *cfg = od_pack_config(p);

	for (uint32_t i = 0; i < cfg->n_moe * cfg->n_experts && left > 0; i++) {
		const uint32_t m = i / cfg->n_experts, e = i % cfg->n_experts;
		const struct od_pack_expert *x = od_pack_expert(p, m, e);

		for (uint32_t c = 0; c < od_spool_n_chunks(x); c++) {
			const struct od_chunk *k = od_spool_chunk(x, c);
			struct odw_fetched f;
			struct od_err err;

			check(k->stored_bytes <= OD_STORE_PIECE_BYTES);
			if (original == originals[1] &&
			    !od_within(k->offset, k->stored_bytes, length[OD_STORE_EXPERTS]))
				continue; /* model.json was changed */
			if (k->stored_bytes == 0)
				continue;
			check(od_within(k->offset, k->stored_bytes, length[OD_STORE_EXPERTS]));
			s->n = 0;
			check(odw_store_fetch(s, OD_STORE_EXPERTS, k->offset, k->stored_bytes, 0) == OD_OK);
			if (!odw_store_next(s, &f) || f.code != OD_OK)
				continue;
			if (od_spool_put_chunk(spool, m, e, c, f.bytes, f.xxh3, &err) == OD_OK) {
				check(memcmp(f.bytes, original[OD_STORE_EXPERTS] + k->offset, k->stored_bytes) == 0);
				check(od_spool_has_chunk(spool, m, e, c));
			}
		}
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct odw_store *store = calloc(1, sizeof(*store));
	struct od_pack *pack = NULL;
	struct od_spool *spool;
	struct od_err err;

	if (original[OD_STORE_SUMS] == NULL)
		begin();
	input = data;
	left = size;
	original = originals[left > 0 && *input == 6];
	length = lengths[original == originals[1]];
	make_served(store);
	check(od_spool_open(&spool, spool_dir, &err) == OD_OK);
	if (odw_spool_begin(spool, store, &pack, &err) == OD_OK)
		fill(spool, pack, store);
	od_pack_close(pack);
	od_spool_close(spool);
	check_folder();
	check(nftw(spool_dir, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0);
	for (uint32_t i = 0; i < N_FILES; i++)
		free(served[i]);
	free(store->answer);
	free(store);
	return 0;
}
