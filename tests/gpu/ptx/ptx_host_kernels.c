/* Functions that the kernels call which were compiled for the host. The plugin has these kernels for their launchers,
 * and never runs them. */
#include "tests/gpu/gpu_emulated_warps.h"

static _Noreturn void not_here(void)
{
	gpu_host_fail("a kernel was run that was compiled for the host");
}

#pragma GCC diagnostic ignored "-Wunused-parameter"
#define NOT_HERE(type, name, ...) \
	type name(__VA_ARGS__) \
	{ \
		not_here(); \
	}

NOT_HERE(void, gpu_sync, void)
NOT_HERE(void, gpu_sync_warp, void)
NOT_HERE(float, gpu_shuffle_xor, float v, unsigned mask)
NOT_HERE(uint32_t, gpu_shuffle_xor_u32, uint32_t v, unsigned mask)
NOT_HERE(float, gpu_shuffle_from, float v, unsigned lane)
NOT_HERE(uint32_t, gpu_add_up_u32, uint32_t v, unsigned by)
NOT_HERE(uint32_t, gpu_ballot, bool yes)
NOT_HERE(void, gpu_copy_16, uint32_t to, const void *from)
NOT_HERE(void, gpu_copy_4, uint32_t to, const void *from)
NOT_HERE(void, gpu_end_copies, void)
NOT_HERE(void, gpu_wait_copies, unsigned n)
