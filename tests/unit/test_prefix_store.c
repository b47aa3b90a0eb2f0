/* The prefix cache's files: a file that has a byte changed, is cut or is of something else is refused; the folder gives
 * back what was saved, and nothing else. So it is with pages, and with snapshots of fixed state. The clock is virtual
 * and stands still unless a test moves it, so that a slow machine gives up no read and no write. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/compute/device_internal.h"
#include "main-node/engine/prefix/prefix_store.h"
#include "tests/unit/config_util.h"
#include "tests/unit/state_util.h"
#include "tests/unit/sum_mixer.h"
#include "tests/unit/temp_dir.h"

#define PAGES 6u
#define CTX (PAGES * OD_KV_PAGE)
#define LAYERS 2u
#define HEAD_DIM 3u
/* By hand: keys and values of 3 floats, 64 positions, 2 layers. */
#define ROWS_BYTES (2u * 2u * 64u * 3u * 4u)
#define FILE_BYTES(page) (144u + ((page) + 1u) * 64u * 4u + ROWS_BYTES + 32u)
/* By hand: a state of 5 floats, up to the next 64 bytes. */
#define STATE_BYTES 64u
#define STATE_FILE_BYTES(page) (144u + ((page) + 1u) * 64u * 4u + STATE_BYTES + 32u)
#define SNAPSHOTS 4u
#define NONE ODM_NO_SNAPSHOT
#define HANG_S 600 /* only trips on hangs */

static struct od_config cfg, other_cfg, fixed_cfg;
static bool fixed; /* the model has a layer with fixed state more */
static struct od_device *device;
static int32_t text[CTX];

static int set_up(void **state)
{
	struct uniform u = { .n_layers = LAYERS, .heads = 1, .kv_heads = 1, .head_dim = HEAD_DIM, .ctx = CTX };
	struct od_layer_spec sum;
	struct od_err err = { 0 };

	cfg = uniform_config(u);
	fixed_cfg = cfg;
	sum = fixed_cfg.kind[0];
	sum.mixer = &sum_mixer;
	sum.mix = (struct od_mixer){ .k_dim = 5, .norm_eps = 1e-5f, .rope = UINT32_MAX };
	must(od_config_add_layer(&fixed_cfg, &sum, &err), &err);
	u.n_layers++;
	other_cfg = uniform_config(u);
	device = device_new(OD_CPU_SCALAR, 1);
	for (uint32_t i = 0; i < CTX; i++)
		text[i] = (int32_t)(i * i % 1000);
	return temp_dir_make(state);
}

static int tear_down(void **state)
{
	od_device_free(device);
	return temp_dir_remove(state);
}

static struct odm_prefix_kind kind_of(uint8_t model)
{
	return (struct odm_prefix_kind){ .fingerprint = { model },
					 .profile = OD_PROFILE_F32,
					 .kernel_class = "fma16",
					 .config = fixed ? &fixed_cfg : &cfg };
}

/* ---- The file ---- */

static uint8_t *make_file(const struct odm_prefix_id *id, struct odm_prefix_key *key, uint32_t page)
{
	uint8_t *file = malloc(odm_prefix_file_bytes(id, page));

	assert_non_null(file);
	odm_prefix_key_begin(key, id, false);
	for (uint32_t i = 0; i <= page; i++)
		odm_prefix_key_next(key, text + i * OD_KV_PAGE);
	for (size_t i = 0; i < id->rows_bytes; i++)
		odm_prefix_file_rows(file, page)[i] = (uint8_t)(i * 7 + page);
	odm_prefix_file_seal(file, id, key, text, page);
	return file;
}

static void try_every_byte(enum odm_prefix_what what)
{
	const struct odm_prefix_kind kind = kind_of(1);
	const bool is_state = what == ODM_PREFIX_STATE;
	struct odm_prefix_id id;
	struct odm_prefix_key key;
	struct od_err err;
	uint8_t *file;

	odm_prefix_id_init(&id, &kind, what);
	assert_int_equal(id.rows_bytes, is_state ? STATE_BYTES : ROWS_BYTES);
	for (uint32_t page = 0; page < 2; page++) {
		const size_t len = is_state ? STATE_FILE_BYTES(page) : FILE_BYTES(page);

		assert_int_equal(odm_prefix_file_bytes(&id, page), len);
		file = make_file(&id, &key, page);
		assert_int_equal(odm_prefix_file_check(file, len, &id, &key, text, page, &err), OD_OK);
		for (size_t i = 0; i < len; i++) {
			file[i] ^= (uint8_t)(1u << i % 8);
			assert_int_not_equal(odm_prefix_file_check(file, len, &id, &key, text, page, &err), OD_OK);
			assert_true(strlen(err.msg) > 0);
			file[i] ^= (uint8_t)(1u << i % 8);
		}
		for (size_t n = 0; n < len; n++)
			assert_int_not_equal(odm_prefix_file_check(file, n, &id, &key, text, page, &err), OD_OK);
		assert_int_not_equal(odm_prefix_file_check(file, len, &id, &key, text, 1 - page, &err), OD_OK);
		text[5]++; /* it is a page of another text */
		assert_int_not_equal(odm_prefix_file_check(file, len, &id, &key, text, page, &err), OD_OK);
		text[5]--;
		assert_int_equal(odm_prefix_file_check(file, len, &id, &key, text, page, &err), OD_OK);
		free(file);
	}
}

static void test_every_byte_counts(void **state)
{
	(void)state;
	try_every_byte(ODM_PREFIX_PAGE);
	fixed = true;
	try_every_byte(ODM_PREFIX_STATE);
	fixed = false;
}

/* A file of rows is none of a snapshot, even of the same page, and the other way round. */
static void test_rows_are_no_state(void **state)
{
	struct odm_prefix_kind kind;
	struct odm_prefix_id rows, snapshot;
	struct odm_prefix_key key;
	struct od_err err;
	uint8_t *file;

	(void)state;
	fixed = true;
	kind = kind_of(1);
	odm_prefix_id_init(&rows, &kind, ODM_PREFIX_PAGE);
	odm_prefix_id_init(&snapshot, &kind, ODM_PREFIX_STATE);
	snapshot.rows_bytes = rows.rows_bytes; /* as if they were of one size */
	file = make_file(&rows, &key, 0);
	assert_int_equal(odm_prefix_file_look(file, ODM_PREFIX_HEADER_BYTES, &snapshot), ODM_PREFIX_UNKNOWN);
	assert_int_equal(odm_prefix_file_check(file, odm_prefix_file_bytes(&rows, 0), &snapshot, &key, text, 0, &err),
			 OD_ERR_FORMAT);
	free(file);
	fixed = false;
}

/* All that rows depend on makes another id, another key, and a file that is foreign. */
static void test_kinds_differ(void **state)
{
	struct odm_prefix_kind kind[6];
	struct odm_prefix_id id[6];
	struct odm_prefix_key key[6], again;
	struct od_err err;

	(void)state;
	for (size_t i = 0; i < 6; i++)
		kind[i] = kind_of(1);
	kind[1].fingerprint[31] = 1;
	kind[2].profile = OD_PROFILE_BF16;
	kind[3].kernel_class = "bf16dot";
	kind[4].mixed = true;
	kind[5].config = &other_cfg;
	for (size_t i = 0; i < 6; i++) {
		odm_prefix_id_init(&id[i], &kind[i], ODM_PREFIX_PAGE);
		odm_prefix_key_begin(&key[i], &id[i], false);
	}
	for (size_t i = 0; i < 6; i++) {
		uint8_t *file = make_file(&id[i], &again, 0);

		for (size_t j = 0; j < 6; j++) {
			assert_int_equal(memcmp(&key[i], &key[j], sizeof(key[i])) == 0, i == j);
			assert_int_equal(odm_prefix_file_look(file, ODM_PREFIX_HEADER_BYTES, &id[j]),
					 i == j ? ODM_PREFIX_OURS : ODM_PREFIX_OTHER);
			assert_int_equal(odm_prefix_file_check(file, odm_prefix_file_bytes(&id[i], 0), &id[j], &again,
							       text, 0, &err) == OD_OK,
					 i == j);
		}
		assert_int_equal(odm_prefix_file_look(file, ODM_PREFIX_HEADER_BYTES - 1, &id[i]), ODM_PREFIX_UNKNOWN);
		file[0] ^= 1;
		assert_int_equal(odm_prefix_file_look(file, ODM_PREFIX_HEADER_BYTES, &id[i]), ODM_PREFIX_UNKNOWN);
		free(file);
	}
	odm_prefix_key_next(&key[0], text);
	again = key[0];
	odm_prefix_key_next(&key[0], text);
	assert_memory_not_equal(&again, &key[0], sizeof(again)); /* equal tokens later in a text are another page */
}

/* ---- The clock ---- */

static atomic_uint_least64_t clock_ns = 1000 * OD_NS_PER_S;

int __real_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t);
int __wrap_clock_gettime(clockid_t id, struct timespec *t)
{
	const uint64_t now = atomic_load(&clock_ns);

	if (id != CLOCK_MONOTONIC) /* when files were used */
		return __real_clock_gettime(id, t);
	*t = (struct timespec){ .tv_sec = (time_t)(now / OD_NS_PER_S), .tv_nsec = (long)(now % OD_NS_PER_S) };
	return 0;
}

/* ---- A disk that does not answer ---- */

static atomic_bool hangs; /* reading */
static atomic_bool read_hangs; /* a read has begun, and hangs */
static atomic_bool writing_hangs;
#define STEP_NS (100 * OD_NS_PER_MS) /* time that passes while a read hangs, from one question to the next */

int __real_od_file_pread(int fd, void *buf, size_t len, uint64_t offset, const char *name, struct od_err *err);
int __wrap_od_file_pread(int fd, void *buf, size_t len, uint64_t offset, const char *name, struct od_err *err);
int __wrap_od_file_pread(int fd, void *buf, size_t len, uint64_t offset, const char *name, struct od_err *err)
{
	while (atomic_load(&hangs)) {
		atomic_store(&read_hangs, true);
		usleep(1000);
	}
	return __real_od_file_pread(fd, buf, len, offset, name, err);
}

int __real_od_file_write_private(const char *path, const void *buf, size_t len, struct od_err *err);
int __wrap_od_file_write_private(const char *path, const void *buf, size_t len, struct od_err *err);
int __wrap_od_file_write_private(const char *path, const void *buf, size_t len, struct od_err *err)
{
	while (atomic_load(&writing_hangs))
		usleep(1000);
	return __real_od_file_write_private(path, buf, len, err);
}

/* ---- The folder ---- */

struct prefix_store_world {
	struct od_state_pool *pool;
	struct od_seq_state *from, *to;
	struct odm_prefix_store *store;
};

static char value(uint32_t layer, uint32_t stream, uint32_t position, size_t i)
{
	return (char)(1 + layer * 31 + stream * 17 + position * 5 + i * 3);
}

/* is_there: else its rows are zeros. */
static void fill(struct od_seq_state *s, bool is_there)
{
	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t stream = 0; stream < 2; stream++)
			for (uint32_t p = 0; p < CTX; p++) {
				char row[HEAD_DIM * sizeof(float)];

				for (size_t i = 0; i < sizeof(row); i++)
					row[i] = is_there ? value(l, stream, p, i) : 0;
				put_rows(device, s, l, stream, p, 1, row);
			}
}

/* Pages [begin, end) are there, the others are not. */
static void assert_rows(const struct od_seq_state *s, uint32_t begin, uint32_t end)
{
	for (uint32_t l = 0; l < LAYERS; l++)
		for (uint32_t stream = 0; stream < 2; stream++)
			for (uint32_t p = 0; p < CTX; p++) {
				const bool there = p / OD_KV_PAGE >= begin && p / OD_KV_PAGE < end;
				char row[HEAD_DIM * sizeof(float)];

				get_rows(device, s, l, stream, p, 1, row);
				for (size_t i = 0; i < sizeof(row); i++)
					assert_int_equal(row[i], there ? value(l, stream, p, i) : 0);
			}
}

static int try_open(struct prefix_store_world *w, const char *dir, uint8_t model, uint64_t limit, struct od_err *err)
{
	const struct odm_prefix_store_opts o = {
		.dir = dir, .kind = kind_of(model), .pool = w->pool, .device = device, .limit_bytes = limit
	};

	return odm_prefix_store_open(&w->store, &o, err);
}

static void open_world(struct prefix_store_world *w, const char *dir, uint8_t model, uint64_t limit)
{
	struct od_err err = { 0 };

	*w = (struct prefix_store_world){ 0 };
	/* Where memory is committed, pages that are lent lie otherwise. */
	must((od_device_commits(device) ? od_state_pool_new_lent : od_state_pool_new)(
		     &w->pool, device, fixed ? &fixed_cfg : &cfg, OD_PROFILE_F32, CTX, 2, 2 * PAGES, &err),
	     &err);
	w->from = open_seq(w->pool);
	w->to = open_seq(w->pool);
	fill(w->from, true);
	if (fixed)
		must(od_state_pool_set_snapshots(w->pool, device, SNAPSHOTS, &err), &err);
	fill(w->to, false);
	must(try_open(w, dir, model, limit, &err), &err);
}

static void close_world(struct prefix_store_world *w)
{
	odm_prefix_store_close(w->store);
	od_seq_state_free(w->from);
	od_seq_state_free(w->to);
	od_state_pool_free(w->pool);
}

static void save(struct prefix_store_world *w, uint32_t n_pages)
{
	odm_prefix_store_save(w->store, false, text, n_pages, od_seq_state_pages(w->from), NULL);
}

/* Returns the end of what came of pages [begin, n). */
static uint32_t restore(struct prefix_store_world *w, uint32_t begin, uint32_t n)
{
	const uint32_t found = odm_prefix_store_find(w->store, false, text, begin, n);
	struct odm_prefix_read *r;
	uint32_t end;
	bool has_state;

	if (found == begin)
		return begin;
	r = odm_prefix_store_read(w->store, false, text, begin, found, od_seq_state_pages(w->to), NONE);
	assert_non_null(r);
	while (odm_prefix_read_goes_on(r, &end, &has_state)) {
		odm_prefix_store_wait(w->store); /* by the virtual clock it has ended at once */
		usleep(500);
		if (atomic_load(&hangs) && atomic_load(&read_hangs))
			atomic_fetch_add(&clock_ns, STEP_NS);
	}
	odm_prefix_read_close(r);
	assert_false(has_state);
	return end;
}

static size_t put_hex(char path[PATH_MAX], size_t at, const uint8_t *bytes, size_t n)
{
	static const char hex[] = "0123456789abcdef";

	for (size_t i = 0; i < n; i++) {
		path[at++] = hex[bytes[i] >> 4];
		path[at++] = hex[bytes[i] & 15];
	}
	return at;
}

/* suffix NULL: the model's folder. */
static void path_of(char path[PATH_MAX], const char *dir, uint8_t model, uint32_t page, const char *suffix)
{
	const struct odm_prefix_kind kind = kind_of(model);
	struct odm_prefix_id id;
	struct odm_prefix_key key;
	size_t n;

	odm_prefix_id_init(&id, &kind, ODM_PREFIX_PAGE);
	odm_prefix_key_begin(&key, &id, false);
	n = (size_t)snprintf(path, PATH_MAX, "%s/kv-", dir);
	n = put_hex(path, n, key.bytes, 8);
	if (suffix == NULL) {
		path[n] = '\0';
		return;
	}
	path[n++] = '/';
	for (uint32_t i = 0; i <= page; i++)
		odm_prefix_key_next(&key, text + i * OD_KV_PAGE);
	n = put_hex(path, n, key.bytes, sizeof(key.bytes));
	snprintf(path + n, PATH_MAX - n, "%s", suffix);
}

static void path_of_page(char path[PATH_MAX], const char *dir, uint8_t model, uint32_t page)
{
	path_of(path, dir, model, page, ".kv");
}

static bool there(const char *dir, uint8_t model, uint32_t page)
{
	char path[PATH_MAX];

	path_of_page(path, dir, model, page);
	return access(path, F_OK) == 0;
}

static void test_comes_back(void **state)
{
	const char *dir = temp_path("back");
	char path[PATH_MAX];
	struct prefix_store_world w;
	struct stat st;

	(void)state;
	open_world(&w, dir, 1, 1 << 20);
	save(&w, 3);
	save(&w, 5);
	close_world(&w); /* writes what waits */
	assert_int_equal(stat(dir, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(there(dir, 1, i), i < 5);
	path_of_page(path, dir, 1, 4);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(st.st_size, FILE_BYTES(4));

	open_world(&w, dir, 1, 1 << 20);
	assert_int_equal(restore(&w, 0, 4), 4);
	assert_rows(w.to, 0, 4);
	close_world(&w);
	open_world(&w, dir, 1, 1 << 20);
	assert_int_equal(restore(&w, 2, PAGES), 5);
	assert_rows(w.to, 2, 5);
	text[3 * OD_KV_PAGE]++; /* another text from the fourth page on */
	assert_int_equal(restore(&w, 0, PAGES), 3);
	text[3 * OD_KV_PAGE]--;
	close_world(&w);
}

/* A device that refuses the n-th copy from now on; another thread's wait takes the error. */
static const struct od_device_ops *real;
static _Atomic int until_refused;

static void refuse(struct od_device *d)
{
	if (atomic_fetch_sub(&until_refused, 1) == 1)
		atomic_fetch_add(&d->load_errors, 1);
}

static void refused_put(struct od_device *d, enum od_queue q, struct od_ref to, const void *from, size_t n)
{
	refuse(d);
	real->put(d, q, to, from, n);
}

static void refused_get(struct od_device *d, enum od_queue q, void *to, struct od_ref from, size_t n)
{
	refuse(d);
	real->get(d, q, to, from, n);
}

/* A page has four copies. */
static void test_refused_copies(void **state)
{
	const char *dir = temp_path("refused");
	struct od_device_ops refusing;
	struct prefix_store_world w;

	(void)state;
	real = device->ops;
	refusing = *real;
	refusing.put = refused_put;
	refusing.get = refused_get;
	open_world(&w, dir, 1, 1 << 20);
	device->ops = &refusing;
	until_refused = 7;
	save(&w, 3);
	close_world(&w);
	device->ops = real;
	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(there(dir, 1, i), i < 1);

	open_world(&w, dir, 1, 1 << 20);
	save(&w, 3);
	close_world(&w);
	open_world(&w, dir, 1, 1 << 20);
	device->ops = &refusing;
	until_refused = 10;
	assert_int_equal(restore(&w, 0, 3), 2);
	assert_int_equal(restore(&w, 2, 3), 3);
	device->ops = real;
	assert_rows(w.to, 0, 3);
	close_world(&w);
}

static void spoil(const char *path, off_t at)
{
	const int fd = open(path, O_RDWR);
	char c;

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &c, 1, at), 1);
	c ^= 4;
	assert_int_equal(pwrite(fd, &c, 1, at), 1);
	close(fd);
}

/* Damage anywhere ends the reading before it, and the file goes; it is written again. */
static void test_damage(void **state)
{
	static const off_t at[] = { 110, 120, 150, 500, FILE_BYTES(2) - 40, FILE_BYTES(2) - 1 };
	const char *dir = temp_path("damage");
	char path[PATH_MAX];
	struct prefix_store_world w;

	(void)state;
	path_of_page(path, dir, 1, 2);
	for (size_t i = 0; i < 2 + sizeof(at) / sizeof(at[0]); i++) {
		open_world(&w, dir, 1, 1 << 20);
		save(&w, 4);
		close_world(&w);
		assert_true(there(dir, 1, 2));
		open_world(&w, dir, 1, 1 << 20);
		if (i < 6)
			spoil(path, at[i]);
		else
			assert_int_equal(truncate(path, i == 6 ? 0 : FILE_BYTES(2) - 1), 0);
		assert_int_equal(restore(&w, 0, 4), 2);
		assert_rows(w.to, 0, 2);
		assert_false(there(dir, 1, 2));
		assert_int_equal(restore(&w, 0, 4), 2); /* and nothing tries again */
		close_world(&w);
	}
}

/* A file that is ours by its name alone is not read, and is replaced. */
static void test_only_the_name(void **state)
{
	const char *dir = temp_path("name");
	char path[PATH_MAX];
	struct prefix_store_world w;

	(void)state;
	open_world(&w, dir, 1, 1 << 20);
	save(&w, 3);
	close_world(&w);
	path_of_page(path, dir, 1, 1);
	spoil(path, 2);
	open_world(&w, dir, 1, 1 << 20);
	assert_int_equal(restore(&w, 0, 3), 1);
	save(&w, 3);
	close_world(&w);
	open_world(&w, dir, 1, 1 << 20);
	assert_int_equal(restore(&w, 0, 3), 3);
	assert_rows(w.to, 0, 3);
	close_world(&w);
}

/* Two models use one folder, at once too, and leave each other's files, and what is not a cache's. */
static void test_models_beside_each_other(void **state)
{
	const char *dir = temp_path("models");
	char own[PATH_MAX], odd[PATH_MAX], tmp[PATH_MAX + 8];
	struct prefix_store_world w, other;
	struct od_err err;

	(void)state;
	open_world(&w, dir, 1, 1 << 20);
	save(&w, 2);
	close_world(&w);
	snprintf(own, sizeof(own), "%s/notes.txt", dir);
	path_of_page(odd, dir, 1, 3); /* a name as ours, but not the bytes */
	path_of_page(tmp, dir, 1, 1);
	snprintf(tmp + strlen(tmp), 8, ".tmp");
	assert_int_equal(od_file_write_atomic(own, "mine", 4, &err), OD_OK);
	assert_int_equal(od_file_write_atomic(odd, "odd", 3, &err), OD_OK);
	assert_int_equal(od_file_write_atomic(tmp, "half", 4, &err), OD_OK);
	open_world(&w, dir, 1, 1 << 20);
	open_world(&other, dir, 2, 1 << 20);
	assert_int_equal(restore(&other, 0, 2), 0);
	save(&other, 1);
	assert_int_equal(restore(&w, 0, 2), 2);
	close_world(&other);
	close_world(&w);
	assert_true(there(dir, 1, 0) && there(dir, 1, 1) && there(dir, 2, 0));
	assert_int_equal(access(own, F_OK), 0);
	assert_int_equal(access(odd, F_OK), 0);
	assert_int_not_equal(access(tmp, F_OK), 0);
}

static int open_folder(struct odm_prefix_folder *f, const char *dir, uint8_t model, uint64_t limit, struct od_err *err)
{
	const struct odm_prefix_kind kind = kind_of(model);

	*f = (struct odm_prefix_folder){ 0 };
	*err = (struct od_err){ 0 };
	return odm_prefix_folder_init(f, dir, limit, &kind, err);
}

/* A model's folder is one process's; the message names it and the folder. A lock ends with its descriptor, so with a
 * killed process. */
static void test_one_at_a_time(void **state)
{
	const char *dir = temp_path("locked");
	char model[PATH_MAX], pid[48];
	struct odm_prefix_folder a, b;
	struct od_err err;

	(void)state;
	must(open_folder(&a, dir, 1, 1 << 20, &err), &err);
	assert_int_equal(open_folder(&b, dir, 1, 1 << 20, &err), OD_ERR_BUSY);
	odm_prefix_folder_fini(&b);
	path_of(model, dir, 1, 0, NULL);
	snprintf(pid, sizeof(pid), "(process %d)", (int)getpid());
	assert_non_null(strstr(err.msg, pid));
	assert_non_null(strstr(err.msg, model));
	must(open_folder(&b, dir, 2, 1 << 20, &err), &err);
	odm_prefix_folder_fini(&b);
	/* the one that failed took nothing along */
	assert_int_equal(open_folder(&b, dir, 1, 1 << 20, &err), OD_ERR_BUSY);
	odm_prefix_folder_fini(&b);
	odm_prefix_folder_fini(&a);
	must(open_folder(&b, dir, 1, 1 << 20, &err), &err);
	odm_prefix_folder_fini(&b);
}

static void set_time(const char *dir, uint8_t model, time_t used)
{
	const struct timespec at[2] = { { .tv_sec = used }, { .tv_sec = used } };
	char path[PATH_MAX];

	path_of(path, dir, model, 0, NULL);
	snprintf(path + strlen(path), 8, "/lock");
	assert_int_equal(utimensat(AT_FDCWD, path, at, 0), 0);
}

/* Files of other models take no more than the limit; the least recently used one goes, unless it is in use. */
static void test_idle_models_go(void **state)
{
	const char *dir = temp_path("idle");
	struct prefix_store_world w;
	struct odm_prefix_folder busy, f;
	struct od_err err;

	(void)state;
	for (uint8_t model = 1; model <= 4; model++) {
		open_world(&w, dir, model, 1 << 20);
		save(&w, 1);
		close_world(&w);
		set_time(dir, model, 1000 - model); /* 4 was used least recently */
	}
	must(open_folder(&busy, dir, 4, 1 << 20, &err), &err);
	set_time(dir, 4, 1);
	must(open_folder(&f, dir, 5, 2 * FILE_BYTES(0), &err), &err); /* the others may have as much */
	assert_true(there(dir, 1, 0) && there(dir, 2, 0) && there(dir, 4, 0));
	assert_false(there(dir, 3, 0));
	odm_prefix_folder_fini(&f);
	odm_prefix_folder_fini(&busy);
	must(open_folder(&f, dir, 5, 2 * FILE_BYTES(0), &err), &err);
	assert_int_equal(there(dir, 1, 0) + there(dir, 2, 0) + there(dir, 4, 0), 2);
	odm_prefix_folder_fini(&f);
}

/* Files as they lay before models had folders: this model's move to its folder, another one's go. */
static void test_old_layout(void **state)
{
	const char *dir = temp_path("old");
	char from[PATH_MAX], to[PATH_MAX];
	struct prefix_store_world w;

	(void)state;
	for (uint8_t model = 1; model <= 2; model++) {
		open_world(&w, dir, model, 1 << 20);
		save(&w, 2);
		close_world(&w);
	}
	for (uint8_t model = 1; model <= 2; model++) {
		for (uint32_t page = 0; page < 2; page++) {
			path_of_page(from, dir, model, page);
			snprintf(to, sizeof(to), "%s/%s", dir, strrchr(from, '/') + 1);
			assert_int_equal(rename(from, to), 0);
		}
	}
	open_world(&w, dir, 1, 1 << 20);
	assert_int_equal(restore(&w, 0, 2), 2);
	close_world(&w);
	assert_true(there(dir, 1, 0) && there(dir, 1, 1));
	assert_int_not_equal(access(to, F_OK), 0);
}

/* Room for three pages: what was not used goes, the end of a text first. */
static void test_limit(void **state)
{
	const char *dir = temp_path("limit");
	struct prefix_store_world w;

	(void)state;
	open_world(&w, dir, 1, 3 * FILE_BYTES(3));
	save(&w, 3);
	close_world(&w);
	open_world(&w, dir, 1, 3 * FILE_BYTES(3));
	text[0]++;
	save(&w, 1);
	close_world(&w);
	assert_true(there(dir, 1, 0));
	text[0]--;
	assert_true(there(dir, 1, 0));
	assert_false(there(dir, 1, 2));
}

/* When the folder cannot be looked at, nothing is written, and its files still count. */
static void test_limit_without_descriptors(void **state)
{
	const struct odm_prefix_kind kind = kind_of(1);
	const char *dir = temp_path("descriptors");
	struct odm_prefix_folder f = { 0 };
	struct rlimit all, none;
	struct od_err err = { 0 };

	(void)state;
	must(odm_prefix_folder_init(&f, dir, 3 * FILE_BYTES(0), &kind, &err), &err);
	f.all_bytes = 3 * FILE_BYTES(0);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &all), 0);
	none = all;
	none.rlim_cur = 0;
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	assert_int_not_equal(odm_prefix_folder_make_room(&f, FILE_BYTES(0), &err), OD_OK);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &all), 0);
	assert_int_equal(f.all_bytes, 3 * FILE_BYTES(0));
	must(odm_prefix_folder_make_room(&f, FILE_BYTES(0), &err), &err);
	assert_int_equal(f.all_bytes, 0); /* there were none */
	odm_prefix_folder_fini(&f);
}

/* Pages that the pool needs for something else meanwhile are not written, nor those behind them. */
static void test_forgotten(void **state)
{
	const char *dir = temp_path("forgotten");
	struct prefix_store_world w;

	(void)state;
	open_world(&w, dir, 1, 1 << 20);
	atomic_store(&writing_hangs, true);
	text[0]++;
	save(&w, 1); /* keeps the writer busy */
	save(&w, 4);
	odm_prefix_store_forget(w.store, ODM_PREFIX_PAGE, od_seq_state_pages(w.from)[2]);
	atomic_store(&writing_hangs, false);
	close_world(&w);
	assert_true(there(dir, 1, 0) && there(dir, 1, 1));
	assert_false(there(dir, 1, 2) || there(dir, 1, 3));
	text[0]--;
}

/* A read that is given up at any moment writes nothing after that. */
static void test_given_up(void **state)
{
	const char *dir = temp_path("given-up");
	struct prefix_store_world w;

	(void)state;
	open_world(&w, dir, 1, 1 << 20);
	save(&w, PAGES);
	close_world(&w);
	open_world(&w, dir, 1, 1 << 20);
	for (int i = 0; i < 50; i++) {
		struct odm_prefix_read *a =
			odm_prefix_store_read(w.store, false, text, 0, PAGES, od_seq_state_pages(w.to), NONE);
		struct odm_prefix_read *b =
			odm_prefix_store_read(w.store, false, text, 1, PAGES, od_seq_state_pages(w.to), NONE);

		if (i % 2 > 0)
			odm_prefix_store_wait(w.store);
		odm_prefix_read_close(i % 3 > 0 ? a : b);
		odm_prefix_read_close(i % 3 > 0 ? b : a);
		for (uint32_t l = 0; l < LAYERS; l++)
			for (uint32_t p = 0; p < CTX; p++) {
				const char zero[HEAD_DIM * sizeof(float)] = { 0 };

				put_rows(device, w.to, l, 0, p, 1, zero);
				put_rows(device, w.to, l, 1, p, 1, zero);
			}
		assert_rows(w.to, 0, 0);
	}
	close_world(&w);
}

/* With long RoPE rows of long texts are others, of the same tokens. */
static void test_long_texts(void **state)
{
	const char *dir = temp_path("long");
	struct prefix_store_world w;

	(void)state;
	open_world(&w, dir, 1, 1 << 20);
	save(&w, 2);
	odm_prefix_store_save(w.store, true, text, 3, od_seq_state_pages(w.from), NULL);
	close_world(&w);
	open_world(&w, dir, 1, 1 << 20);
	assert_int_equal(odm_prefix_store_find(w.store, false, text, 0, PAGES), 2);
	assert_int_equal(odm_prefix_store_find(w.store, true, text, 0, PAGES), 3);
	close_world(&w);
}

/* A read that gives nothing is over after two seconds. Until the disk has answered, nothing else is read, nor waited
 * for. */
static void test_hanging_disk(void **state)
{
	const char *dir = temp_path("hangs");
	struct prefix_store_world w;
	const uint64_t begin_ns = atomic_load(&clock_ns);

	(void)state;
	open_world(&w, dir, 1, 1 << 20);
	save(&w, 3);
	close_world(&w);
	open_world(&w, dir, 1, 1 << 20);
	atomic_store(&hangs, true);
	assert_int_equal(restore(&w, 0, 3), 0);
	assert_in_range(atomic_load(&clock_ns) - begin_ns, 2 * OD_NS_PER_S, 2 * OD_NS_PER_S + STEP_NS);
	/* As the disk still hangs and the clock stands still, each of these would wait for ever if it waited. */
	assert_int_equal(odm_prefix_store_find(w.store, false, text, 0, 3), 0);
	save(&w, 4);
	odm_prefix_store_forget(w.store, ODM_PREFIX_PAGE, od_seq_state_pages(w.from)[0]);
	atomic_store(&hangs, false);
	while (odm_prefix_store_find(w.store, false, text, 0, 3) == 0)
		usleep(500);
	assert_rows(w.to, 0, 0);
	assert_int_equal(restore(&w, 0, 3), 3);
	assert_rows(w.to, 0, 3);
	close_world(&w);
}

static void test_bad_folders(void **state)
{
	const char *dir = temp_path("open");
	struct prefix_store_world w;
	struct od_err err = { 0 };

	(void)state;
	open_world(&w, dir, 1, 1 << 20);
	odm_prefix_store_close(w.store);
	assert_int_equal(chmod(dir, 0750), 0);
	assert_int_equal(try_open(&w, dir, 1, 1 << 20, &err), OD_ERR_ARG);
	assert_null(w.store);
	assert_non_null(strstr(err.msg, "expected 700"));
	assert_int_not_equal(try_open(&w, "/dev/null/cache", 1, 1 << 20, &err), OD_OK);
	assert_null(w.store);
	close_world(&w);
}

/* ---- Snapshots ---- */

static const uint32_t snapshots_at[PAGES] = { NONE, 2, NONE, 0, NONE, NONE }; /* pages that have one */

static void open_fixed(struct prefix_store_world *w, const char *dir, uint64_t limit)
{
	char bytes[STATE_BYTES];

	fixed = true;
	open_world(w, dir, 1, limit);
	for (uint32_t i = 0; i < SNAPSHOTS; i++) {
		memset(bytes, (int)(40 + i), sizeof(bytes));
		put_at(device, od_state_pool_snapshot(w->pool, 0, i), bytes, sizeof(bytes));
	}
}

static void close_fixed(struct prefix_store_world *w)
{
	close_world(w);
	fixed = false;
}

static void save_fixed(struct prefix_store_world *w, uint32_t n_pages)
{
	odm_prefix_store_save(w->store, false, text, n_pages, od_seq_state_pages(w->from), snapshots_at);
}

static bool has_snapshot(const char *dir, uint32_t page)
{
	const bool was = fixed;
	char path[PATH_MAX];

	fixed = true;
	path_of(path, dir, 1, page, ".fs");
	fixed = was;
	return access(path, F_OK) == 0;
}

/* Reads pages [0, n) and their snapshot into snapshot 3. False: the snapshot did not come. */
static bool restore_fixed(struct prefix_store_world *w, uint32_t n, char expected)
{
	struct odm_prefix_read *r = odm_prefix_store_read(w->store, false, text, 0, n, od_seq_state_pages(w->to), 3);
	char bytes[STATE_BYTES];
	bool there = false;
	uint32_t end;

	assert_non_null(r);
	while (odm_prefix_read_goes_on(r, &end, &there)) {
		odm_prefix_store_wait(w->store);
		usleep(500);
	}
	odm_prefix_read_close(r);
	assert_int_equal(end, n);
	assert_rows(w->to, 0, n);
	get_at(device, bytes, od_state_pool_snapshot(w->pool, 0, 3), sizeof(bytes));
	for (size_t i = 0; i < sizeof(bytes); i++)
		assert_int_equal(bytes[i], there ? expected : 43);
	return there;
}

/* A text can go on only behind a page that has a snapshot. */
static void test_snapshots_come_back(void **state)
{
	const char *dir = temp_path("snapshots");
	char path[PATH_MAX];
	struct prefix_store_world w;
	struct stat st;

	(void)state;
	open_fixed(&w, dir, 1 << 20);
	save_fixed(&w, 5);
	close_fixed(&w);
	for (uint32_t i = 0; i < PAGES; i++)
		assert_int_equal(has_snapshot(dir, i), i == 1 || i == 3);
	fixed = true;
	path_of(path, dir, 1, 3, ".fs");
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(st.st_size, STATE_FILE_BYTES(3));
	for (int i = 0; i < 2; i++) {
		open_fixed(&w, dir, 1 << 20);
		assert_int_equal(odm_prefix_store_find(w.store, false, text, 0, PAGES), 4);
		assert_int_equal(odm_prefix_store_find(w.store, false, text, 0, 3), 2);
		assert_int_equal(odm_prefix_store_find(w.store, false, text, 1, 3), 2);
		assert_int_equal(odm_prefix_store_find(w.store, false, text, 2, 3), 2);
		assert_int_equal(odm_prefix_store_find(w.store, false, text, 0, 1), 0);
		assert_true(restore_fixed(&w, i == 0 ? 4 : 2, i == 0 ? 40 : 42));
		close_fixed(&w);
	}
}

static void test_damaged_snapshot(void **state)
{
	static const off_t at[] = { 110, 120, 150, STATE_FILE_BYTES(3) - 40, STATE_FILE_BYTES(3) - 1 };
	const char *dir = temp_path("bad-snapshot");
	char path[PATH_MAX];
	struct prefix_store_world w;

	(void)state;
	for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
		open_fixed(&w, dir, 1 << 20);
		save_fixed(&w, 4);
		close_fixed(&w);
		open_fixed(&w, dir, 1 << 20);
		path_of(path, dir, 1, 3, ".fs");
		spoil(path, at[i]);
		assert_false(restore_fixed(&w, 4, 40));
		assert_false(has_snapshot(dir, 3));
		assert_int_equal(odm_prefix_store_find(w.store, false, text, 0, 4), 2);
		close_fixed(&w);
	}
}

/* A snapshot that the pool needs for something else is not written; the pages are. */
static void test_forgotten_snapshot(void **state)
{
	const char *dir = temp_path("no-snapshot");
	struct prefix_store_world w;

	(void)state;
	open_fixed(&w, dir, 1 << 20);
	atomic_store(&writing_hangs, true);
	text[0]++;
	save_fixed(&w, 1); /* keeps the writer busy */
	text[0]--;
	save_fixed(&w, 5);
	odm_prefix_store_forget(w.store, ODM_PREFIX_STATE, 2);
	atomic_store(&writing_hangs, false);
	close_fixed(&w);
	assert_false(has_snapshot(dir, 1));
	assert_true(has_snapshot(dir, 3));
	fixed = true;
	assert_true(there(dir, 1, 4));
	fixed = false;
}

/* Snapshots that go at any moment, while the writer is at their text. Only SANITIZE=thread can see what is wrong
 * here. */
static void test_forgotten_meanwhile(void **state)
{
	const char *dir = temp_path("meanwhile");
	struct prefix_store_world w;

	(void)state;
	open_fixed(&w, dir, 1 << 20);
	for (uint32_t i = 0; i < 400; i++) { /* from the second time on all files are there, so the writer is quick */
		save_fixed(&w, 5);
		usleep(i % 40 * 10);
		odm_prefix_store_forget(w.store, ODM_PREFIX_STATE, 2);
		odm_prefix_store_forget(w.store, ODM_PREFIX_STATE, 0);
	}
	close_fixed(&w);
}

/* A text's snapshots go before its pages; another model's go at once. */
static void test_snapshots_go_first(void **state)
{
	const uint64_t all = 4 * (uint64_t)FILE_BYTES(3) + 2 * STATE_FILE_BYTES(3);
	const char *dir = temp_path("first");
	char path[PATH_MAX];
	struct prefix_store_world w;

	(void)state;
	open_fixed(&w, dir, all);
	save_fixed(&w, 4);
	close_fixed(&w);
	open_fixed(&w, dir, STATE_FILE_BYTES(3) + FILE_BYTES(0) + FILE_BYTES(1) + FILE_BYTES(2) + FILE_BYTES(3));
	assert_true(has_snapshot(dir, 1));
	assert_false(has_snapshot(dir, 3));
	for (uint32_t i = 0; i < 4; i++)
		assert_true(there(dir, 1, i));
	close_fixed(&w);
	fixed = true;
	path_of(path, dir, 1, 1, ".fs");
	assert_int_equal(access(path, F_OK), 0);
	/* it has as little business with another model's snapshots as with its pages */
	open_world(&w, dir, 2, 1 << 20);
	assert_int_equal(access(path, F_OK), 0);
	close_fixed(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_byte_counts),
		cmocka_unit_test(test_kinds_differ),
		cmocka_unit_test(test_rows_are_no_state),
		cmocka_unit_test(test_snapshots_come_back),
		cmocka_unit_test(test_damaged_snapshot),
		cmocka_unit_test(test_forgotten_snapshot),
		cmocka_unit_test(test_snapshots_go_first),
		cmocka_unit_test(test_forgotten_meanwhile),
		cmocka_unit_test(test_comes_back),
		cmocka_unit_test(test_damage),
		cmocka_unit_test(test_only_the_name),
		cmocka_unit_test(test_refused_copies),
		cmocka_unit_test(test_models_beside_each_other),
		cmocka_unit_test(test_one_at_a_time),
		cmocka_unit_test(test_idle_models_go),
		cmocka_unit_test(test_old_layout),
		cmocka_unit_test(test_limit),
		cmocka_unit_test(test_limit_without_descriptors),
		cmocka_unit_test(test_forgotten),
		cmocka_unit_test(test_given_up),
		cmocka_unit_test(test_long_texts),
		cmocka_unit_test(test_hanging_disk),
		cmocka_unit_test(test_bad_folders),
	};

	alarm(HANG_S);
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
