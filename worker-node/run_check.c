#include "worker-node/run_check.h"

#include "common/base/mem.h"

#include <inttypes.h>

/* Set of experts. */
struct expert_set {
	uint64_t word[OD_MAX_EXPERTS / 64];
};

static int check_expert(struct expert_set *seen, uint32_t expert, const struct odw_run_limits *limits,
			struct od_err *err)
{
	uint64_t bit = 1ull << (expert % 64);

	if (expert >= limits->n_experts)
		return od_fail(err, OD_ERR_RANGE, "expert: expected less than %u, found %u", limits->n_experts, expert);
	if (seen->word[expert / 64] & bit)
		return od_fail(err, OD_ERR_RANGE, "expert %u: expected once, found twice", expert);
	seen->word[expert / 64] |= bit;
	return OD_OK;
}

static int check_layer(uint32_t m, const struct odw_run_limits *limits, struct od_err *err)
{
	if (m >= limits->n_moe)
		return od_fail(err, OD_ERR_RANGE, "MoE layer: expected less than %u, found %u", limits->n_moe, m);
	return OD_OK;
}

uint32_t odw_max_rows(uint32_t hidden, enum od_profile profile)
{
	return od_max_run_rows(odw_row_bytes(hidden, profile));
}

static int check_frame(const Od__Run *run, const struct odw_run_limits *limits, size_t n_frames, size_t frame_bytes,
		       struct od_err *err)
{
	uint64_t expected;

	if (run->n_rows == 0 || run->n_rows > limits->max_rows)
		return od_fail(err, OD_ERR_SHAPE, "rows: expected 1 to %u, found %u", limits->max_rows, run->n_rows);
	if (!od_mul(run->n_rows, odw_row_bytes(limits->hidden, limits->profile), &expected) || n_frames != 1 ||
	    frame_bytes != expected)
		return od_fail(err, OD_ERR_SHAPE,
			       "%u rows of profile %s: expected 1 frame of %" PRIu64 " bytes, found %zu of %zu",
			       run->n_rows, od_profile_names[limits->profile - 1], expected, n_frames, frame_bytes);
	return OD_OK;
}

static int check_rows(const Od__RunExpert *x, uint32_t n_rows, struct od_err *err)
{
	/* No more than there are, so that a RESULT is never larger than its RUN. */
	if (x->n_rows == 0 || x->n_rows > n_rows)
		return od_fail(err, OD_ERR_SHAPE, "expert %u: expected 1 to %u rows, found %zu", x->expert, n_rows,
			       x->n_rows);
	for (size_t i = 0; i < x->n_rows; i++) {
		if (x->rows[i] >= n_rows)
			return od_fail(err, OD_ERR_RANGE, "expert %u, row %zu: expected less than %u, found %u",
				       x->expert, i, n_rows, x->rows[i]);
	}
	return OD_OK;
}

int odw_check_run(const Od__Run *run, const struct odw_run_limits *limits, size_t n_frames, size_t frame_bytes,
		  struct od_err *err)
{
	struct expert_set seen = { 0 };
	int rc = check_layer(run->m, limits, err);

	if (rc == OD_OK)
		rc = check_frame(run, limits, n_frames, frame_bytes, err);
	if (rc == OD_OK && run->n_experts == 0)
		rc = od_fail(err, OD_ERR_SHAPE, "experts: expected at least 1, found none");
	for (size_t i = 0; rc == OD_OK && i < run->n_experts; i++) {
		rc = check_expert(&seen, run->experts[i]->expert, limits, err);
		if (rc == OD_OK)
			rc = check_rows(run->experts[i], run->n_rows, err);
	}
	return rc;
}

int odw_check_want(const Od__Want *want, const struct odw_run_limits *limits, struct od_err *err)
{
	struct expert_set seen = { 0 };
	int rc = check_layer(want->m, limits, err);

	for (size_t i = 0; rc == OD_OK && i < want->n_experts; i++)
		rc = check_expert(&seen, want->experts[i], limits, err);
	return rc;
}

int odw_check_close(const Od__Close *close, const struct odw_run_limits *limits, struct od_err *err)
{
	return check_layer(close->m, limits, err);
}
