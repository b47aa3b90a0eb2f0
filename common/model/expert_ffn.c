#include "common/model/expert_ffn.h"

#include "common/base/mem.h"

#define MIN_PIECE_ELEMENTS 4096u /* some microseconds of exp, well above handing it to another thread */

struct silu_job {
	const struct od_backend *be;
	float *gate;
	const float *up;
	size_t n;
};

/* One of the two halves of the scratch, padded as vector loads like it. */
static uint64_t half_bytes(const struct od_config *cfg, size_t n_rows)
{
	uint64_t n;

	if (!od_mul(n_rows, cfg->intermediate * sizeof(float), &n) || n > UINT64_MAX / 4)
		return UINT64_MAX / 2;
	return od_round_up(n + OD_PAD_BYTES, 64);
}

size_t od_expert_ffn_scratch_bytes(const struct od_config *cfg, size_t n_rows)
{
	return (size_t)(2 * half_bytes(cfg, n_rows));
}

static void silu_rows(void *arg, size_t begin, size_t end, unsigned thread)
{
	const struct silu_job *j = arg;

	(void)thread;
	for (size_t r = begin; r < end; r++)
		j->be->silu_mul(j->gate + r * j->n, j->up + r * j->n, j->n);
}

void od_expert_ffn(const struct od_backend *be, struct od_pool *pool, enum od_profile profile,
		   const struct od_config *cfg, const struct od_expert *w, const float *x, size_t n_rows, float *y,
		   void *scratch)
{
	float *gate = scratch, *up = (float *)((char *)scratch + half_bytes(cfg, n_rows));
	struct silu_job job = { .be = be, .gate = gate, .up = up, .n = cfg->intermediate };

	od_matmul(be, pool, &w->mat[OD_MAT_GATE], x, gate, n_rows);
	od_matmul(be, pool, &w->mat[OD_MAT_UP], x, up, n_rows);
	od_pool_for(pool, n_rows, 1 + MIN_PIECE_ELEMENTS / cfg->intermediate, silu_rows, &job);
	od_matmul(be, pool, &w->mat[OD_MAT_DOWN], gate, y, n_rows);
	/* What a worker would send: the same in resident mode, so that tokens do not depend on the cluster. */
	if (profile == OD_PROFILE_BF16)
		be->round_bf16(y, n_rows * cfg->hidden);
}
