/* The ids in our prompts file come from Hugging Face tokenizers; random ids are checked against the published first
 * numbers of splitmix64. Files to refuse are written here. */
#include "tests/bench/live/bench_prompts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define PROMPTS "tests/bench/prompts.jsonl"
#define TOKENIZER "deploy/models/talebook/tokenizer.json"

static char path[] = "/tmp/od-prompts-XXXXXX";

static int make_file(void **state)
{
	int fd = mkstemp(path);

	(void)state;
	return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
	(void)state;
	return unlink(path);
}

static void write_bytes(const char *text, size_t len)
{
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	assert_int_equal(fwrite(text, 1, len, f), len);
	fclose(f);
}

static void load(struct od_prompts *p, const char *text, size_t limit)
{
	struct od_err err = { 0 };

	write_bytes(text, strlen(text));
	if (od_prompts_load(p, path, limit, &err) != OD_OK)
		fail_msg("%s", err.msg);
}

static void refuse(const char *text, int code, const char *words)
{
	struct od_err err = { 0 };
	struct od_prompts p;

	write_bytes(text, strlen(text));
	assert_int_equal(od_prompts_load(&p, path, 0, &err), code);
	if (strstr(err.msg, words) == NULL)
		fail_msg("expected \"%s\" in: %s", words, err.msg);
	od_prompts_fini(&p);
}

static void our_file_is_what_its_note_says(void **state)
{
	struct od_prompts p;

	(void)state;
	assert_int_equal(od_prompts_load(&p, PROMPTS, 0, NULL), OD_OK);
	assert_int_equal(p.n, 100);
	for (size_t i = 0; i < p.n; i++) {
		assert_int_equal(p.prompt[i].n_ids, i % 2 == 0 ? 16 : 128);
		assert_int_equal(p.prompt[i].ids[0], 1);
		for (size_t j = 0; j < i; j++)
			assert_string_not_equal(p.prompt[i].text, p.prompt[j].text);
	}
	assert_string_equal(p.prompt[0].name, "p16-00");
	assert_string_equal(p.prompt[0].text, "He was very much admired indeed. \"He is as beautiful as a");
	od_prompts_fini(&p);
}

static void text_is_encoded_to_the_same_ids(void **state)
{
	struct od_prompts file, made;
	struct od_tokenizer *t;

	(void)state;
	assert_int_equal(od_tokenizer_load(&t, TOKENIZER, NULL), OD_OK);
	assert_int_equal(od_prompts_load(&file, PROMPTS, 0, NULL), OD_OK);
	assert_int_equal(od_prompts_load(&made, PROMPTS, 0, NULL), OD_OK);
	for (size_t i = 0; i < made.n; i++)
		made.prompt[i].ids[0] = made.prompt[i].n_ids = 0; /* so that the file's cannot be what is compared */
	assert_int_equal(od_prompts_encode(&made, t, NULL), OD_OK);
	for (size_t i = 0; i < file.n; i++) {
		assert_int_equal(made.prompt[i].n_ids, file.prompt[i].n_ids);
		assert_memory_equal(made.prompt[i].ids, file.prompt[i].ids, file.prompt[i].n_ids * sizeof(int32_t));
	}
	od_prompts_fini(&file);
	od_prompts_fini(&made);
	od_tokenizer_free(t);
}

static void fields_may_be_missing(void **state)
{
	struct od_prompts p;

	(void)state;
	load(&p, "{\"ids\": [5, 0, 2147483647], \"tokens\": 3}\n \t\r\n{\"text\": \"a\\u0000b\", \"name\": \"x\"}", 0);
	assert_int_equal(p.n, 2);
	assert_string_equal(p.prompt[0].name, "prompt 1");
	assert_null(p.prompt[0].text);
	assert_int_equal(p.prompt[0].n_ids, 3);
	assert_int_equal(p.prompt[0].ids[2], INT32_MAX);
	assert_string_equal(p.prompt[1].name, "x");
	assert_int_equal(p.prompt[1].text_len, 3);
	assert_memory_equal(p.prompt[1].text, "a\0b", 4);
	assert_null(p.prompt[1].ids);
	od_prompts_fini(&p);
}

static void limit_takes_the_first(void **state)
{
	struct od_prompts p;

	(void)state;
	load(&p, "{\"ids\": [1]}\n{\"ids\": [2]}\nnot read", 2);
	assert_int_equal(p.n, 2);
	assert_int_equal(p.prompt[1].ids[0], 2);
	od_prompts_fini(&p);
}

static void a_model_without_tokenizer_needs_ids(void **state)
{
	struct od_err err = { 0 };
	struct od_prompts p;

	(void)state;
	load(&p, "{\"ids\": [7, 8], \"text\": \"a\"}", 0);
	assert_int_equal(od_prompts_encode(&p, NULL, NULL), OD_OK);
	assert_int_equal(p.prompt[0].n_ids, 2);
	od_prompts_fini(&p);
	load(&p, "{\"ids\": [7], \"name\": \"\"}\n{\"text\": \"a\", \"name\": \"only text\"}", 0);
	assert_string_equal(p.prompt[0].name, "prompt 1"); /* messages need a name */
	assert_int_equal(od_prompts_encode(&p, NULL, &err), OD_ERR_UNSUPPORTED);
	assert_non_null(strstr(err.msg, "only text"));
	od_prompts_fini(&p);
}

static void prompts_are_put_together(void **state)
{
	static const int32_t with_bos[2][4] = { { 1, 5, 6, 7 }, { 1, 8, 1, 9 } }, without[] = { 1, 5, 6, 7, 8 };
	struct od_prompts p;
	struct od_err err;

	(void)state;
	load(&p, "{\"ids\": [1, 5, 6]}\n{\"ids\": [1, 7, 8, 1, 9]}\n{\"ids\": [1, 3]}", 0);
	assert_int_equal(od_prompts_join(&p, 4, 1, &err), OD_OK);
	assert_int_equal(p.n, 2); /* the last one has two ids */
	for (size_t i = 0; i < p.n; i++) {
		assert_int_equal(p.prompt[i].n_ids, 4);
		assert_memory_equal(p.prompt[i].ids, with_bos[i], sizeof(with_bos[i]));
	}
	assert_int_equal(od_prompts_join(&p, 8, 1, &err), OD_ERR_RANGE); /* 1 and six others */
	od_prompts_fini(&p);
	load(&p, "{\"ids\": [1, 5, 6]}\n{\"ids\": [7, 8]}", 0);
	assert_int_equal(od_prompts_join(&p, 5, -1, &err), OD_OK);
	assert_int_equal(p.n, 1);
	assert_memory_equal(p.prompt[0].ids, without, sizeof(without));
	od_prompts_fini(&p);
}

static void bad_files_are_refused(void **state)
{
	struct od_prompts p;

	(void)state;
	refuse("", OD_ERR_FORMAT, "found no prompt");
	refuse("\n \n", OD_ERR_FORMAT, "found no prompt");
	refuse("{\"ids\": [1]}\n{\"ids\": [1}", OD_ERR_FORMAT, ":2: not valid JSON");
	refuse("[1]", OD_ERR_FORMAT, "expected a JSON object");
	refuse("{\"name\": \"x\"}", OD_ERR_MISSING, "expected \"text\" or \"ids\"");
	refuse("\n{\"ids\": [1, -1]}", OD_ERR_FORMAT, ":2: field \"ids\"");
	refuse("{\"ids\": [2147483648]}", OD_ERR_FORMAT, "index 0");
	refuse("{\"ids\": [1, \"2\"]}", OD_ERR_FORMAT, "index 1");
	refuse("{\"ids\": 1}", OD_ERR_FORMAT, "expected an array");
	refuse("{\"text\": 1}", OD_ERR_FORMAT, "field \"text\"");
	refuse("{\"text\": \"a\", \"name\": []}", OD_ERR_FORMAT, "field \"name\"");
	refuse("{\"ids\": [1, 2], \"tokens\": 3}", OD_ERR_FORMAT, "the number of \"ids\", 2, found 3");
	assert_int_equal(od_prompts_load(&p, "/nowhere/prompts", 0, NULL), OD_ERR_MISSING);
	od_prompts_fini(&p);
}

static void random_prompts_are_splitmix(void **state)
{
	/* Seed 1234567 draws 6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431. */
	static const int32_t first[] = { 1, 1053, 30612 }, second[] = { 1, 28408, 6779 };
	struct od_prompts p;

	(void)state;
	assert_int_equal(od_prompts_random(&p, 2, 3, 32003, 1, 1234567, NULL), OD_OK);
	assert_int_equal(p.n, 2);
	assert_int_equal(p.prompt[0].n_ids, 3);
	assert_memory_equal(p.prompt[0].ids, first, sizeof(first));
	assert_memory_equal(p.prompt[1].ids, second, sizeof(second));
	od_prompts_fini(&p);
	assert_int_equal(od_prompts_random(&p, 1, 1, 32003, -1, 1234567, NULL), OD_OK);
	assert_int_equal(p.prompt[0].ids[0], 1053);
	od_prompts_fini(&p);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(our_file_is_what_its_note_says),
		cmocka_unit_test(text_is_encoded_to_the_same_ids),
		cmocka_unit_test(fields_may_be_missing),
		cmocka_unit_test(limit_takes_the_first),
		cmocka_unit_test(a_model_without_tokenizer_needs_ids),
		cmocka_unit_test(prompts_are_put_together),
		cmocka_unit_test(bad_files_are_refused),
		cmocka_unit_test(random_prompts_are_splitmix),
	};

	return cmocka_run_group_tests(tests, make_file, remove_file);
}
