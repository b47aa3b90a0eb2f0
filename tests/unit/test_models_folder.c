/* The folders of models: which model a name is, and which is used where none is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/base/file.h"
#include "common/pack/models_folder.h"
#include "tests/unit/temp_dir.h"

static void make_file(const char *name, const char *text)
{
	char path[PATH_MAX], dir[PATH_MAX];
	struct od_err err = { 0 };

	snprintf(path, sizeof(path), "%s/%s", temp_dir, name);
	snprintf(dir, sizeof(dir), "%.*s", (int)(strrchr(path, '/') - path), path);
	assert_int_equal(od_mkdir_p(dir, &err), OD_OK);
	assert_int_equal(od_file_write_atomic(path, text, strlen(text), &err), OD_OK);
}

static int fresh(void **state)
{
	struct od_err err;

	(void)state;
	unsetenv("OD_PACK");
	setenv("OD_MODELS", temp_path("models"), 1);
	return od_remove_tree(temp_path("models"), &err);
}

static void expect_found(const char *given, const char *below)
{
	char found[PATH_MAX];
	struct od_err err = { 0 };

	if (od_models_find(found, given, &err) != OD_OK)
		fail_msg("%s: %s", given != NULL ? given : "nothing", err.msg);
	assert_string_equal(found, below[0] == '=' ? below + 1 : temp_path(below));
}

static void expect_refused(const char *given, int rc, const char *says)
{
	char found[PATH_MAX];
	struct od_err err = { 0 };

	assert_int_equal(od_models_find(found, given, &err), rc);
	if (strstr(err.msg, says) == NULL)
		fail_msg("\"%s\" is not in \"%s\"", says, err.msg);
	assert_string_equal(found, "");
}

static void test_names_and_paths(void **state)
{
	(void)state;
	make_file("models/a/model.json", "{}");
	make_file("models/b-Q8_0.gguf", "GGUF");
	make_file("models/c/c-00002-of-00002.gguf", "GGUF");
	make_file("models/c/c-00001-of-00002.gguf", "GGUF");
	make_file("models/d.part/x", "");
	make_file("models/e.partial/model.json", "{}");
	make_file("models/.f.gguf", "GGUF");
	make_file("models/notes.txt", "x");
	expect_found("a", "models/a");
	expect_found("b-Q8_0", "models/b-Q8_0.gguf");
	expect_found("b-Q8_0.gguf", "models/b-Q8_0.gguf");
	expect_found("c", "models/c/c-00001-of-00002.gguf");
	for (const char *const *name =
		     (const char *const[]){ "d", "d.part", "e", ".f", "notes.txt", "b", "a.gguf", NULL };
	     *name != NULL; name++) {
		char same[64];

		snprintf(same, sizeof(same), "=%s", *name);
		expect_found(*name, same);
	}
	expect_found("./a", "=./a");
	expect_found("x/a", "=x/a");
	expect_found("tests", "=tests"); /* a folder that is here comes first */
	expect_refused(NULL, OD_ERR_ARG, "there are 3 models: a, b-Q8_0, c; say which: --pack NAME");
	setenv("OD_PACK", "c", 1);
	expect_found(NULL, "models/c/c-00001-of-00002.gguf");
	expect_found("", "models/c/c-00001-of-00002.gguf");
	expect_found("a", "models/a");
	setenv("OD_PACK", "/else/where", 1);
	expect_found(NULL, "=/else/where");
}

static void test_the_only_one(void **state)
{
	(void)state;
	if (access("/var/lib/od-moe/pack", F_OK) == 0)
		skip(); /* it would be found */
	expect_refused(NULL, OD_ERR_MISSING, "od-pack hf://ORGANISATION/NAME");
	make_file("models/d.part/x", "");
	expect_refused(NULL, OD_ERR_MISSING, "no model");
	make_file("models/b.gguf", "GGUF");
	expect_found(NULL, "models/b.gguf");
}

static void test_a_list(void **state)
{
	struct od_models m;
	struct od_err err = { 0 };

	(void)state;
	make_file("models/a/model.json", "{}");
	make_file("models/a/dense.bin", "12345");
	make_file("models/b.part/x", "123");
	make_file("models/z.gguf", "GGUF");
	make_file("models/\033[2J.gguf", "GGUF");
	make_file("models/\xff.gguf", "GGUF");
	assert_int_equal(od_models_set_source(temp_path("models"), "a", "hf://o/a 1\033[2J", &err), OD_OK);
	assert_int_equal(od_models_list(&m, &err), OD_OK);
	assert_int_equal(m.n, 3);
	assert_string_equal(m.entry[0].name, "a");
	assert_int_equal(m.entry[0].bytes, 7);
	assert_string_equal(m.entry[0].source, "hf://o/a 1?[2J");
	assert_int_equal(m.entry[0].form, OD_MODELS_PACK);
	assert_int_equal(m.entry[1].form, OD_MODELS_UNFINISHED);
	assert_string_equal(m.entry[1].name, "b");
	assert_int_equal(m.entry[2].form, OD_MODELS_GGUF);
	assert_null(m.entry[2].source);
	od_models_fini(&m);
}

static void test_the_user_s_folder(void **state)
{
	char home[PATH_MAX];
	struct od_err err = { 0 };
	struct od_models m;

	(void)state;
	assert_int_equal(od_models_home(home, &err), OD_OK);
	assert_string_equal(home, temp_path("models"));
	unsetenv("OD_MODELS");
	setenv("XDG_DATA_HOME", temp_path("models"), 1);
	make_file("models/od-moe/models/mine.gguf", "GGUF");
	expect_found("mine", "models/od-moe/models/mine.gguf");
	unsetenv("XDG_DATA_HOME");
	setenv("HOME", temp_path("models"), 1);
	make_file("models/.local/share/od-moe/models/home.gguf", "GGUF");
	expect_found("home", "models/.local/share/od-moe/models/home.gguf");
	unsetenv("HOME");
	assert_int_equal(od_models_list(&m, &err), OD_OK);
	od_models_fini(&m);
}

static void test_removing(void **state)
{
	char path[PATH_MAX];
	struct od_err err = { 0 };

	(void)state;
	make_file("models/a/model.json", "{}");
	make_file("models/a.part/x", "{}");
	make_file("models/b.part/x", "{}");
	make_file("models/b.partial/x", "{}");
	make_file("models/.removed-a/rest", "x");
	assert_int_equal(od_models_remove("c", path, &err), OD_ERR_MISSING);
	assert_int_equal(od_models_remove("a/../a", path, &err), OD_ERR_ARG);
	assert_int_equal(od_models_remove("a", path, &err), OD_OK);
	assert_string_equal(path, temp_path("models/a"));
	assert_true(access(temp_path("models/a"), F_OK) != 0 && access(temp_path("models/.removed-a"), F_OK) != 0);
	assert_int_equal(access(temp_path("models/a.part"), F_OK), 0); /* its download is another thing */
	assert_int_equal(od_models_remove("a", path, &err), OD_OK);
	assert_true(access(temp_path("models/a.part"), F_OK) != 0);
	assert_int_equal(od_models_remove("b", path, &err), OD_OK);
	assert_true(access(temp_path("models/b.part"), F_OK) != 0 && access(temp_path("models/b.partial"), F_OK) != 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(test_names_and_paths, fresh),
		cmocka_unit_test_setup(test_the_only_one, fresh),
		cmocka_unit_test_setup(test_a_list, fresh),
		cmocka_unit_test_setup(test_removing, fresh),
		cmocka_unit_test_setup(test_the_user_s_folder, fresh),
	};

	return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
