/* The table of counters, sums and differences worked out by hand, PONGs of honest and other peers, and
 * docs/COUNTERS.md. */
#include "common/base/counters.h"
#include "common/net/wire.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void the_table_is_whole(void **state)
{
	(void)state;
	for (int i = 0; i < OD_N_COUNTERS; i++) {
		const struct od_counter_info *t = &od_counter_info[i];

		assert_non_null(t->name);
		assert_true(t->unit[0] != '\0' && t->meaning[0] != '\0' && t->of != 0);
		for (const char *c = t->name; *c != '\0'; c++)
			assert_true(islower((unsigned char)*c) || *c == '_');
		/* A name says its unit. */
		assert_int_equal(strcmp(t->unit, "ns") == 0, strcmp(t->name + strlen(t->name) - 2, "_s") == 0);
		assert_int_equal(strcmp(t->unit, "bytes") == 0, strstr(t->name, "_bytes") != NULL);
		assert_int_equal(od_counter_find(t->name), i); /* so it is the only one of its name */
	}
	assert_int_equal(od_counter_find(""), -1);
	assert_int_equal(od_counter_find("load"), -1);
}

static void sums_and_differences(void **state)
{
	uint64_t sum[OD_N_COUNTERS] = { [OD_C_LOADS] = 5, [OD_C_SLOTS] = 2, [OD_C_PEAK_RSS_BYTES] = 70 };
	const uint64_t before[OD_N_COUNTERS] = {
		[OD_C_LOADS] = 7, [OD_C_READS] = 9, [OD_C_SLOTS] = 8, [OD_C_PEAK_RSS_BYTES] = 60
	};
	const uint64_t now[OD_N_COUNTERS] = {
		[OD_C_LOADS] = 10, [OD_C_READS] = 4, [OD_C_SLOTS] = 3, [OD_C_PEAK_RSS_BYTES] = 50
	};
	uint64_t since[OD_N_COUNTERS];

	(void)state;
	od_counters_since(since, now, before);
	assert_int_equal(since[OD_C_LOADS], 3);
	assert_int_equal(since[OD_C_READS], 4); /* its process has started again */
	assert_int_equal(since[OD_C_SLOTS], 3);
	assert_int_equal(since[OD_C_PEAK_RSS_BYTES], 50);
	assert_int_equal(since[OD_C_TOKENS], 0);
	od_counters_add(sum, since);
	assert_int_equal(sum[OD_C_LOADS], 8);
	assert_int_equal(sum[OD_C_READS], 4);
	assert_int_equal(sum[OD_C_SLOTS], 3);
	assert_int_equal(sum[OD_C_PEAK_RSS_BYTES], 70);
}

static void text_and_fields(void **state)
{
	const uint64_t c[OD_N_COUNTERS] = { [OD_C_SHADOW_STEPS] = 12,
					    [OD_C_SHADOW_ASKED] = UINT64_MAX,
					    [OD_C_LOADS] = 7,
					    [OD_C_READ_NS] = 1500000000 };
	json_t *o = json_object();
	char text[100], cut[20];

	(void)state;
	assert_string_equal(od_counters_text(c, OD_OF_SHADOW, text, sizeof(text)),
			    "shadow_steps 12, shadow_asked 18446744073709551615");
	assert_string_equal(od_counters_text(c, OD_OF_WORKER, text, sizeof(text)), "loads 7, read_s 1.500");
	assert_string_equal(od_counters_text(c, OD_OF_SHADOW, cut, sizeof(cut)), "shadow_steps 12, sh");
	assert_string_equal(od_counters_text(c, 0, text, sizeof(text)), "");
	od_counters_json(c, OD_OF_WORKER, o);
	assert_int_equal(json_object_size(o), 18);
	assert_int_equal(json_integer_value(json_object_get(o, "loads")), 7);
	assert_true(json_real_value(json_object_get(o, "read_s")) == 1.5);
	assert_null(json_object_get(o, "shadow_steps"));
	json_decref(o);
}

/* ---- PONG ---- */

/* As it comes out of a header that was packed and unpacked. */
static Od__Pong *through_the_wire(Od__Pong *p)
{
	size_t len = od__pong__get_packed_size(p);
	uint8_t *bytes = malloc(len);
	Od__Pong *back;

	assert_int_equal(od__pong__pack(p, bytes), len);
	back = od__pong__unpack(NULL, len, bytes);
	assert_non_null(back);
	free(bytes);
	return back;
}

static void a_pong_brings_every_counter(void **state)
{
	uint64_t c[OD_N_COUNTERS], back[OD_N_COUNTERS];
	Od__Pong pong = OD__PONG__INIT, *got;
	struct od_pong_counters list;

	(void)state;
	for (uint64_t i = 0; i < OD_N_COUNTERS; i++)
		c[i] = i % 5 == 3 ? 0 : UINT64_MAX / (i + 1);
	memset(back, 0xff, sizeof(back));
	od_pong_put(&pong, &list, c);
	got = through_the_wire(&pong);
	od_pong_get(got, back);
	assert_memory_equal(back, c, sizeof(c));
	for (size_t i = 0; i < got->n_counters; i++)
		assert_true(got->counters[i]->value != 0);
	od__pong__free_unpacked(got, NULL);
}

/* Other names, none, the same twice, and more than there can be. */
static void other_peers_are_understood(void **state)
{
	static char name[1000][12];
	static Od__Counter entry[1000], *list[1000];
	Od__Pong pong = OD__PONG__INIT, *got;
	uint64_t c[OD_N_COUNTERS], none[OD_N_COUNTERS] = { 0 };

	(void)state;
	memset(c, 0xff, sizeof(c));
	od_pong_get(&pong, c); /* sent by an old daemon */
	assert_memory_equal(c, none, sizeof(c));
	for (unsigned i = 0; i < 1000; i++) {
		od__counter__init(&entry[i]);
		snprintf(name[i], sizeof(name[i]), "newer_%u", i);
		entry[i].name = name[i];
		entry[i].value = i;
		list[i] = &entry[i];
	}
	entry[0].name = (char *)protobuf_c_empty_string; /* left out, as is its value */
	entry[0].value = 0;
	entry[1].name = entry[254].name = "loads";
	entry[255].name = "reads";
	entry[256].name = "finishes";
	pong.counters = list;
	pong.n_counters = 1000;
	got = through_the_wire(&pong);
	od_pong_get(got, c);
	none[OD_C_LOADS] = 254;
	none[OD_C_READS] = 255;
	assert_memory_equal(c, none, sizeof(c)); /* the 257th is not looked at */
	od__pong__free_unpacked(got, NULL);
}

/* ---- docs/COUNTERS.md ---- */

static void row(char *to, size_t size, const struct od_counter_info *t)
{
	static const char *const kinds[] = { "counter", "gauge", "peak" };
	const bool time = strcmp(t->unit, "ns") == 0;

	snprintf(to, size, "| `%s` | %s | %s | %s%s%s | %s |\n", t->name, time ? "s" : t->unit, kinds[t->kind],
		 t->of & OD_OF_REQUEST ? "request " : "", t->of & OD_OF_WORKER ? "worker " : "",
		 t->of & OD_OF_SHADOW ? "shadow " : "", t->meaning);
	for (char *p; (p = strstr(to, "  |")) != NULL;) /* behind the owners */
		memmove(p, p + 1, strlen(p));
}

static void the_docs_have_the_same_rows(void **state)
{
	FILE *f = fopen("docs/COUNTERS.md", "r");
	char line[600], want[600];
	int i = 0;

	(void)state;
	assert_non_null(f); /* tests run in the repository's root */
	while (fgets(line, sizeof(line), f) != NULL && strcmp(line, "## Derived\n") != 0) {
		if (strncmp(line, "| `", 3) != 0)
			continue;
		assert_true(i < OD_N_COUNTERS);
		row(want, sizeof(want), &od_counter_info[i++]);
		assert_string_equal(line, want);
	}
	fclose(f);
	assert_int_equal(i, OD_N_COUNTERS);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_table_is_whole),
		cmocka_unit_test(sums_and_differences),
		cmocka_unit_test(text_and_fields),
		cmocka_unit_test(a_pong_brings_every_counter),
		cmocka_unit_test(other_peers_are_understood),
		cmocka_unit_test(the_docs_have_the_same_rows),
	};
	char text[600];

	for (int i = 0; argc > 1 && strcmp(argv[1], "--rows") == 0 && i < OD_N_COUNTERS; i++) { /* for the docs */
		row(text, sizeof(text), &od_counter_info[i]);
		fputs(text, stdout);
	}
	return argc > 1 ? 0 : cmocka_run_group_tests(tests, NULL, NULL);
}
