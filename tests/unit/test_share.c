/* Whose share an expert is: what a worker holds is all that main can ask it for, by main's own rules. */
#include "common/pack/share.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "main-node/cluster/placement.h"

#define LAYERS 7
#define EXPERTS 9

/* First choices. Decode: any expert of a layer may go to any worker of the layer's group. Prefill: e to e mod N. */
static void it_is_what_main_may_ask_for(void **state)
{
	(void)state;
	for (uint32_t n = 1; n < 14; n++) {
		for (uint32_t asked = 0; asked < 5; asked++) {
			struct odm_groups g = odm_groups_make(n, asked, 2, LAYERS);

			g.still = true;
			for (uint32_t w = 0; w < n; w++) {
				const struct od_share s = { n, w, od_share_groups(n, asked, 2) };

				assert_true(od_share_good(&s));
				for (uint32_t m = 0; m < LAYERS; m++) {
					for (uint16_t e = 0; e < EXPERTS; e++) {
						uint32_t group = odm_group_of_layer(&g, 3, m);
						bool decode = false, prefill = e % n == w;

						for (uint32_t i = 0; i < odm_group_size(&g, group); i++)
							decode = decode || odm_group_worker(&g, group, i) == w;
						assert_int_equal(od_share_of(&s, m, e), decode	? OD_SHARE_LAYER :
											prefill ? OD_SHARE_PREFILL :
												  OD_SHARE_NONE);
					}
				}
			}
		}
	}
}

static void what_cannot_be_is_not_good(void **state)
{
	static const struct od_share bad[] = { { 0, 0, 0 }, { 0, 0, 1 }, { 3, 3, 1 }, { 3, 0, 0 }, { 3, 0, 4 } };

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_false(od_share_good(&bad[i]));
}

static void text(void **state)
{
	static const char *const bad[] = { "",
					   "/",
					   "1",
					   "1/",
					   "/2",
					   "0/2",
					   "3/2",
					   "1/0",
					   "1/1025",
					   "a/b",
					   "1/2/3",
					   "-1/2",
					   "00000000000000000000000000000001/2" };
	struct od_share s;
	struct od_err err;

	(void)state;
	assert_int_equal(od_share_parse(&s, "2/8", 0, 2, &err), OD_OK);
	assert_memory_equal(&s, (&(struct od_share){ 8, 1, 4 }), sizeof(s));
	assert_int_equal(od_share_parse(&s, "8/8", 3, 2, &err), OD_OK);
	assert_memory_equal(&s, (&(struct od_share){ 8, 7, 2 }), sizeof(s));
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(od_share_parse(&s, bad[i], 0, 2, &err), OD_ERR_ARG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_is_what_main_may_ask_for),
		cmocka_unit_test(what_cannot_be_is_not_good),
		cmocka_unit_test(text),
	};

	return cmocka_run_group_tests_name("share", tests, NULL, NULL);
}
