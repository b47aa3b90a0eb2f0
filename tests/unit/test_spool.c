/* A spool filled from a tiny pack by hand: in order, with gaps, with wrong bytes, and again after an interruption. */
#include "common/pack/spool/spool.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/file.h"
#include "common/pack/load/expert_load.h"
#include "common/pack/pack_verify.h"
#include "common/pack/write/pack_write.h"
#include "common/pack/write/share_write.h"
#include "tests/unit/device_util.h"
#include "tests/unit/tiny_files.h"

static struct tiny_files tiny;
static char dir[128];
static int experts_fd; /* the pack's */

static int setup(void **state)
{
	char path[200];
	uint64_t size;
	struct od_err err;

	(void)state;
	tiny_files_make(&tiny);
	const struct od_pack_job job = { .checkpoint = tiny.checkpoint, .pack = tiny.pack, .n_threads = 1 };

	if (od_pack_write(&job, &err) != OD_OK)
		return -1;
	snprintf(path, sizeof(path), "%s/experts.bin", tiny.pack);
	return od_file_open(path, &experts_fd, &size, &err);
}

static int teardown(void **state)
{
	(void)state;
	close(experts_fd);
	tiny_files_free(&tiny);
	return 0;
}

static const char *in_dir(const char *name)
{
	static char path[300];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return path;
}

/* A new folder for each test. */
static int fresh(void **state)
{
	static int n;

	(void)state;
	snprintf(dir, sizeof(dir), "%s/spool%d", tiny.root, n++);
	return 0;
}

static char *read_pack_file(const char *name, size_t *len)
{
	char path[200], *text;
	struct od_err err;

	snprintf(path, sizeof(path), "%s/%s", tiny.pack, name);
	assert_int_equal(od_file_read(path, 1 << 24, &text, len, &err), OD_OK);
	return text;
}

static void put_small(struct od_spool *s)
{
	struct od_err err;
	size_t len;
	char *text = read_pack_file(OD_SUMS_NAME, &len);

	assert_int_equal(od_spool_put_sums(s, text, len, &err), OD_OK);
	free(text);
	for (size_t i = 0; od_small_files[i].name != NULL; i++) {
		if (!od_spool_lacks_small(s, i))
			continue;
		text = read_pack_file(od_small_files[i].name, &len);
		text[len / 2] ^= 1;
		assert_int_equal(od_spool_put_small(s, i, text, len, &err), OD_ERR_CORRUPT);
		assert_true(od_spool_lacks_small(s, i));
		text[len / 2] ^= 1;
		assert_int_equal(od_spool_put_small(s, i, text, len, &err), OD_OK);
		assert_false(od_spool_lacks_small(s, i));
		free(text);
	}
	assert_true(od_spool_small_whole(s));
}

static void put_headers(struct od_spool *s)
{
	const size_t len = od_spool_header_bytes(s);
	uint8_t *buf = malloc(len);
	struct od_err err;

	for (size_t i = 0; i < od_spool_n_experts(s); i++) {
		if (!od_spool_lacks_header(s, i))
			continue;
		assert_int_equal(od_file_pread(experts_fd, buf, len, od_spool_header_offset(s, i), "", &err), OD_OK);
		buf[len - 1] ^= 1;
		assert_int_equal(od_spool_put_header(s, i, buf, &err), OD_ERR_CORRUPT);
		assert_true(od_spool_lacks_header(s, i));
		buf[len - 1] ^= 1;
		if (i > 0) /* another expert's */
			assert_int_equal(od_spool_put_header(s, i - 1, buf, &err), OD_ERR_CORRUPT);
		assert_int_equal(od_spool_put_header(s, i, buf, &err), OD_OK);
		assert_false(od_spool_lacks_header(s, i));
	}
	free(buf);
}

/* Ready for experts. */
static struct od_spool *begin(struct od_pack **pack)
{
	struct od_spool *s;
	struct od_err err;

	assert_int_equal(od_spool_open(&s, dir, &err), OD_OK);
	put_small(s);
	assert_int_equal(od_spool_open_model(s, &err), OD_OK);
	put_headers(s);
	assert_int_equal(od_spool_open_pack(s, pack, &err), OD_OK);
	return s;
}

static int put_chunk(struct od_spool *s, const struct od_pack *p, uint32_t m, uint32_t e, uint32_t c, bool spoil)
{
	const struct od_chunk *k = od_spool_chunk(od_pack_expert(p, m, e), c);
	uint8_t *buf = malloc(k->stored_bytes);
	struct od_err err;
	int rc;

	assert_int_equal(od_file_pread(experts_fd, buf, k->stored_bytes, k->offset, "", &err), OD_OK);
	buf[k->stored_bytes / 2] ^= spoil;
	rc = od_spool_put_chunk(s, m, e, c, buf, 0, &err);
	free(buf);
	return rc;
}

static void put_expert(struct od_spool *s, const struct od_pack *p, uint32_t m, uint32_t e)
{
	for (uint32_t c = 0; c < od_spool_n_chunks(od_pack_expert(p, m, e)); c++) {
		assert_false(od_spool_has_chunk(s, m, e, c));
		assert_int_equal(put_chunk(s, p, m, e, c, true), OD_ERR_CORRUPT);
		assert_false(od_spool_has_chunk(s, m, e, c));
		assert_int_equal(put_chunk(s, p, m, e, c, false), OD_OK);
		assert_true(od_spool_has_chunk(s, m, e, c));
	}
	od_spool_mark(s, m, e, true);
}

static int load(const struct od_pack *p, uint32_t m, uint32_t e)
{
	struct od_inflater *inf;
	struct od_err err;
	struct od_device *device = device_new(OD_CPU_AUTO, 1);
	struct od_buf *slot = buf_new(device, od_pack_slot_bytes(p, OD_FORM_PLAIN));
	const struct od_expert_mem mem = od_pack_slot_mem(p, OD_FORM_PLAIN, od_buf_ref(slot, 0));
	int rc = od_inflater_new(&inf, p, device, OD_FORM_PLAIN, &err);

	for (uint32_t i = 0; rc == OD_OK && i < od_pack_expert(p, m, e)->n_shards; i++)
		rc = od_inflater_load(inf, m, e, i, &mem, NULL, &err);
	od_inflater_free(inf);
	od_buf_free(slot);
	od_device_free(device);
	return rc;
}

static void what_is_there_can_be_used(void **state)
{
	const struct od_share share = { 3, 1, 1 };
	struct od_pack *p, *again;
	struct od_spool *s = begin(&p);
	struct od_err err;

	(void)state;
	assert_true(od_pack_is_spool(p));
	assert_int_equal(load(p, 1, 2), OD_ERR_MISSING);
	assert_false(od_spool_has_data(s, 1, 2));
	put_expert(s, p, 1, 2);
	assert_true(od_spool_has_data(s, 1, 2));
	assert_int_equal(load(p, 1, 2), OD_OK);
	assert_int_equal(load(p, 1, 1), OD_ERR_MISSING);
	assert_int_equal(od_spool_save(s, &share, &err), OD_OK);
	od_spool_close(s);
	od_pack_close(p);

	assert_int_equal(od_pack_open(&again, dir, &err), OD_ERR_UNSUPPORTED);
	assert_int_equal(od_pack_open_some(&again, dir, &err), OD_OK);
	for (uint32_t m = 0; m < TINY_LAYERS; m++) {
		for (uint32_t e = 0; e < TINY_EXPERTS; e++)
			assert_int_equal(od_pack_has_expert(again, m, e), m == 1 && e == 2);
	}
	od_pack_close(again);
	s = begin(&p); /* nothing is asked for twice: put_headers would have failed */
	assert_int_equal(od_spool_share(s).worker, 1);
	assert_true(od_pack_has_expert(p, 1, 2));
	od_spool_drop(s, 1, 2);
	assert_false(od_pack_has_expert(p, 1, 2));
	assert_false(od_spool_has_data(s, 1, 2));
	assert_int_equal(load(p, 1, 2), OD_ERR_MISSING);
	od_spool_close(s);
	od_pack_close(p);
}

static void a_complete_pack_has_all(void **state)
{
	struct od_err err;
	struct od_pack *p;

	(void)state;
	assert_int_equal(od_pack_open_some(&p, tiny.pack, &err), OD_OK);
	assert_false(od_pack_is_spool(p));
	assert_true(od_pack_has_expert(p, 0, 0));
	assert_int_equal(load(p, 1, 2), OD_OK);
	od_pack_close(p);
}

static void a_lost_state_makes_all_unknown(void **state)
{
	const struct od_share share = { 3, 1, 1 };
	struct od_pack *p;
	struct od_spool *s = begin(&p);
	struct od_err err;

	(void)state;
	put_expert(s, p, 0, 1);
	assert_int_equal(od_spool_save(s, &share, &err), OD_OK);
	od_spool_close(s);
	od_pack_close(p);
	tiny_write(dir, "spool.state", "od-moe spool 1\n", 15);
	assert_int_equal(od_pack_open_some(&p, dir, &err), OD_ERR_CORRUPT);
	s = begin(&p);
	assert_false(od_pack_has_expert(p, 0, 1));
	assert_true(od_spool_has_chunk(s, 0, 1, 0)); /* it is still there */
	od_spool_close(s);
	od_pack_close(p);
	/* A file of another length is not what the state is about. */
	assert_int_equal(truncate(in_dir("experts.bin"), 4096), 0);
	s = begin(&p);
	assert_false(od_spool_has_chunk(s, 0, 1, 0));
	od_spool_close(s);
	od_pack_close(p);
}

static void folders_of_others_are_refused(void **state)
{
	struct od_spool *s, *second;
	struct od_err err;
	struct od_pack *p;

	(void)state;
	assert_int_equal(od_spool_open(&s, tiny.pack, &err), OD_ERR_ARG);
	assert_non_null(strstr(err.msg, "--pack"));
	assert_int_equal(od_spool_open(&s, tiny.root, &err), OD_ERR_ARG);
	assert_null(s);
	s = begin(&p);
	assert_int_equal(od_spool_open(&second, dir, &err), OD_ERR_BUSY);
	od_spool_close(s);
	od_pack_close(p);
	/* Files that an interrupted beginning left are not taken for a stranger's. */
	fresh(NULL);
	assert_int_equal(mkdir(dir, 0755), 0);
	tiny_write(dir, "SHA256SUMS.tmp", "x", 1);
	assert_int_equal(od_spool_open(&s, dir, &err), OD_OK);
	od_spool_close(s);
	assert_int_equal(mkdir(in_dir("lost+found"), 0755), 0); /* a file system of its own */
	assert_int_equal(od_spool_open(&s, dir, &err), OD_OK);
	od_spool_close(s);
	tiny_write(dir, "letter.txt", "x", 1);
	assert_int_equal(od_spool_open(&s, dir, &err), OD_ERR_ARG);
}

static void sums_of_another_pack(void **state)
{
	struct od_spool *s;
	struct od_err err;
	size_t len;
	char *text = read_pack_file(OD_SUMS_NAME, &len);
	uint8_t identity[32];

	(void)state;
	assert_int_equal(od_spool_open(&s, dir, &err), OD_OK);
	assert_false(od_spool_identity(s, identity));
	assert_int_equal(od_spool_put_sums(s, text, len - 1, &err), OD_ERR_FORMAT);
	assert_int_equal(od_spool_put_sums(s, "", 0, &err), OD_ERR_FORMAT);
	memcpy(text + 66, "../x", 4); /* no name of a small file */
	assert_int_equal(od_spool_put_sums(s, text, len, &err), OD_ERR_FORMAT);
	free(text);
	text = read_pack_file(OD_SUMS_NAME, &len);
	assert_int_equal(od_spool_put_sums(s, text, len, &err), OD_OK);
	assert_true(od_spool_identity(s, identity));
	text[0] = text[0] == '0' ? '1' : '0';
	assert_int_equal(od_spool_put_sums(s, text, len, &err), OD_ERR_MISMATCH);
	free(text);
	od_spool_close(s);
}

static void a_share_is_written_and_gone_on_with(void **state)
{
	const struct od_share_job job = { .pack = tiny.pack, .dir = dir, .share = "1/2", .group_size = 1 };
	const struct od_verify_job verify = { .pack = dir, .n_threads = 1 };
	struct od_spool *s;
	struct od_pack *p;
	struct od_err err;
	uint32_t n;

	(void)state;
	assert_int_equal(od_share_write(&job, &n, &err), OD_OK);
	assert_int_equal(n, 5); /* layer 0: three; layer 1: experts 0 and 2 */
	assert_int_equal(od_pack_verify(&verify, &err), OD_OK);
	s = begin(&p);
	for (uint32_t e = 0; e < 3; e++) {
		assert_true(od_pack_has_expert(p, 0, e));
		assert_int_equal(od_pack_has_expert(p, 1, e), e != 1);
	}
	od_spool_drop(s, 0, 0);
	od_spool_mark(s, 1, 0, false);
	assert_int_equal(od_spool_save(s, &(struct od_share){ 2, 0, 2 }, &err), OD_OK);
	od_spool_close(s);
	od_pack_close(p);
	assert_int_equal(od_share_write(&job, &n, &err), OD_OK);
	assert_int_equal(n, 5);
	assert_int_equal(od_pack_verify(&verify, &err), OD_OK);
}

/* Experts that the state calls whole are checked again: writing a share once more repairs it. */
static void a_damaged_share_is_written_again(void **state)
{
	const struct od_share_job job = { .pack = tiny.pack, .share = "1/1", .dir = dir };
	const struct od_verify_job verify = { .pack = dir, .n_threads = 1 };
	struct od_pack *p;
	struct od_err err;
	uint64_t at;
	uint32_t n;
	int fd;

	(void)state;
	assert_int_equal(od_share_write(&job, &n, &err), OD_OK);
	assert_int_equal(od_pack_open_some(&p, dir, &err), OD_OK);
	at = od_pack_expert(p, 1, 1)->shard[0].sm.offset;
	od_pack_close(p);
	fd = open(in_dir("experts.bin"), O_WRONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, "damage", 6, (off_t)at), 6);
	close(fd);
	assert_int_equal(od_pack_verify(&verify, &err), OD_ERR_CORRUPT);
	assert_int_equal(od_share_write(&job, &n, &err), OD_OK);
	assert_int_equal(od_pack_verify(&verify, &err), OD_OK);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(what_is_there_can_be_used, fresh),
		cmocka_unit_test_setup(a_complete_pack_has_all, fresh),
		cmocka_unit_test_setup(a_lost_state_makes_all_unknown, fresh),
		cmocka_unit_test_setup(folders_of_others_are_refused, fresh),
		cmocka_unit_test_setup(sums_of_another_pack, fresh),
		cmocka_unit_test_setup(a_share_is_written_and_gone_on_with, fresh),
		cmocka_unit_test_setup(a_damaged_share_is_written_again, fresh),
	};

	return cmocka_run_group_tests_name("spool", tests, setup, teardown);
}
