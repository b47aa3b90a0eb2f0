/* For od-main-sum, an od-main whose layers keep fixed state (sum_pack.h): on from the start. */
#include "tests/unit/sum_pack.h"

__attribute__((constructor)) static void turn_on(void)
{
	sum_pack_on = true;
}
