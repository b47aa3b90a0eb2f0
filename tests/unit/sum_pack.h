/* sum_pack.h - for tests: main's view of a pack in which every second layer keeps fixed state (sum_mixer.h). No family
 * has such layers yet, and so no pack does. Routers and experts are those of the pack, so workers need not know.
 *
 * Programs link sum_pack.o with --wrap=od_pack_config, --wrap=od_dense_get and --wrap=od_dense_free.
 * Thread: the one that opens the engine. */
#ifndef OD_TESTS_SUM_PACK_H
#define OD_TESTS_SUM_PACK_H

#include <stdbool.h>

/* Set it before the engine is opened, and do not change it before it is closed. */
extern bool sum_pack_on;

#endif
