#include "common/pack/import/source.h"

#include "common/base/file.h"
#include "common/base/json.h"
#include "common/model/generation_config.h"
#include "common/pack/gguf/gguf_map.h"
#include "common/pack/pack_layout.h"
#include "common/text/tokenizer.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool ends_with(const char *name, const char *end)
{
	const size_t len = strlen(name), n = strlen(end);

	return len > n && strcmp(name + len - n, end) == 0;
}

static void shape_text(const uint64_t *shape, uint32_t n, char *buf, size_t size)
{
	size_t len = (size_t)snprintf(buf, size, "[");

	for (uint32_t i = 0; i < n && len < size; i++)
		len += (size_t)snprintf(buf + len, size - len, "%s%" PRIu64, i > 0 ? ", " : "", shape[i]);
	if (len < size)
		snprintf(buf + len, size - len, "]");
}

/* A matrix, or a vector, with all that is published beside it. */
struct source_tensors {
	struct od_source s;
	const struct od_tensor *shape; /* shape of packed weights once unpacked; NULL: none */
};

static const struct od_tensor *beside(const struct od_checkpoint *c, const char *name, const char *end)
{
	char buf[OD_NAME_BYTES];

	snprintf(buf, sizeof(buf), "%s%s", name, end);
	return od_checkpoint_find(c, buf);
}

static const char *file_of(const struct od_checkpoint *c, const struct od_tensor *t)
{
	return od_checkpoint_file(c, t->file)->name;
}

static bool is_type(const struct od_tensor *t, const char *name)
{
	return strcmp(t->dtype_name, name) == 0;
}

static int check_dims(const struct od_checkpoint *c, const struct od_tensor *t, const uint64_t *want, uint32_t n_dims,
		      struct od_err *err)
{
	char expected[96], found[256];

	if (t->n_dims == n_dims && memcmp(t->shape, want, n_dims * sizeof(*want)) == 0)
		return OD_OK;
	shape_text(want, n_dims, expected, sizeof(expected));
	shape_text(t->shape, t->n_dims, found, sizeof(found));
	return od_fail(err, OD_ERR_SHAPE, "%s: tensor %s: expected shape %s (config.json), found %s", file_of(c, t),
		       t->name, expected, found);
}

/* n_in 0: a vector. */
static int check_shape(const struct od_checkpoint *c, const struct od_tensor *t, uint64_t n_out, uint64_t n_in,
		       struct od_err *err)
{
	const uint64_t want[2] = { n_out, n_in };

	return check_dims(c, t, want, n_in > 0 ? 2 : 1, err);
}

/* A vector that is published as [channels][1][taps]. */
static int check_conv(const struct od_checkpoint *c, const struct od_tensor *t, uint64_t n_out, uint32_t taps,
		      struct od_err *err)
{
	const uint64_t want[3] = { n_out / taps, 1, taps };

	return check_dims(c, t, want, 3, err);
}

/* Several weights in each element: words of offset integers, or bytes of two E2M1. */
static int look_packed(const struct od_checkpoint *c, const struct od_tensor *t, uint64_t n_out, uint64_t n_in,
		       enum od_dtype *dtype, struct od_err *err)
{
	const bool words = is_type(t, "I32"), wide = words && t->n_dims == 2 && t->shape[1] == n_in / 4;
	const uint64_t whole = words ? 8 : 2; /* others would leave a part of an element unused */

	*dtype = wide ? OD_U8B128 : words ? OD_U4B8 : OD_F4_E2M1;
	if (!words && !is_type(t, "U8"))
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "%s: tensor %s: expected dtype I32 (4 or 8 bits) or U8 (FP4), found %s", file_of(c, t),
			       t->name, t->dtype_name);
	if (n_in % whole != 0)
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "%s: tensor %s: rows of %" PRIu64 " packed weights: expected a multiple "
			       "of %" PRIu64,
			       file_of(c, t), t->name, n_in, whole);
	return check_shape(c, t, n_out, wide ? n_in / 4 : n_in / whole, err);
}

/* The power of two from least on of which n have n_blocks; 0: one for all. */
static bool block_of(uint64_t n, uint64_t n_blocks, uint32_t least, uint32_t *block)
{
	*block = 0;
	if (n_blocks == 1)
		return true;
	for (uint32_t b = least; b != 0 && b < n; b <<= 1)
		if ((n + b - 1) / b == n_blocks) {
			*block = b;
			return true;
		}
	return false;
}

/* One for all as [], [1] or [1, 1]; one a row as [n_out] or [n_out, 1]; else in blocks. */
static int look_blocks(const struct od_checkpoint *c, const struct od_tensor *t, uint64_t n_out, uint64_t n_in,
		       struct od_mat_type *type, struct od_err *err)
{
	const uint64_t rows = t->n_dims > 0 ? t->shape[0] : 1, cols = t->n_dims > 1 ? t->shape[1] : 1;
	const bool list_ok = t->n_dims != 1 || rows == 1 || rows == n_out;
	char found[256];

	if (t->n_dims <= 2 && list_ok && block_of(n_out, rows, 1, &type->block_rows) &&
	    block_of(n_in, cols, OD_SCALE_BLOCK_MIN, &type->block_cols))
		return OD_OK;
	shape_text(t->shape, t->n_dims, found, sizeof(found));
	return od_fail(
		err, OD_ERR_SHAPE,
		"%s: tensor %s: found shape %s: scales of a %" PRIu64 " x %" PRIu64 " matrix are expected to "
		"be one, one a row, or one for blocks whose sides are powers of two, at least %u weights of a row",
		file_of(c, t), t->name, found, n_out, n_in, OD_SCALE_BLOCK_MIN);
}

/* Are such scales ever beside such weights? A byte beside integers might mean anything. */
static bool is_published(const struct od_mat_type *t)
{
	const bool fp8 = t->dtype == OD_F8_E4M3 || t->dtype == OD_F8_E5M2, fp4 = t->dtype == OD_F4_E2M1;

	if (t->scale == OD_F8_E8M0)
		return fp8 || fp4;
	return t->scale == OD_F8_E4M3 ? fp4 : t->scale != 0;
}

static int look_divisor(const struct od_checkpoint *c, const struct source_tensors *p, const char *name,
			struct od_err *err)
{
	const struct od_tensor *t = p->s.divisor;

	if ((t != NULL) != (p->s.type.scale == OD_F8_E4M3))
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "checkpoint %s: tensor %s: expected a %s_global_scale beside F8_E4M3 scales, "
			       "and only there",
			       od_checkpoint_dir(c), p->s.scales->name, name);
	if (t != NULL && (!is_type(t, "F32") || t->bytes != sizeof(float)))
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: tensor %s: expected one F32", file_of(c, t), t->name);
	return OD_OK;
}

static int look_scales(const struct od_checkpoint *c, struct source_tensors *p, const char *name, uint64_t n_out,
		       uint64_t n_in, struct od_err *err)
{
	const struct od_tensor *inverse = beside(c, name, "_scale_inv"), *t = beside(c, name, "_scale");
	struct od_mat_type *type = &p->s.type;
	int rc;

	if (t != NULL && inverse != NULL)
		return od_fail(err, OD_ERR_FORMAT, "%s: tensor %s: there is a %s too; expected one of them",
			       file_of(c, t), t->name, inverse->name);
	t = t != NULL ? t : inverse; /* both multiply: the name says what the writer had divided by */
	p->s.scales = t;
	p->s.divisor = beside(c, name, "_global_scale");
	if (t == NULL) {
		if (p->s.divisor == NULL && od_mat_type_ok(type, n_in))
			return OD_OK;
		if (type->dtype == 0)
			return od_fail(err, OD_ERR_UNSUPPORTED,
				       "%s: tensor %s: expected dtype BF16, F16, F32, F8_E4M3, F8_E5M2 or I8, "
				       "found %s",
				       file_of(c, p->s.weights), p->s.weights->name, p->s.weights->dtype_name);
		return od_fail(err, OD_ERR_MISSING,
			       "%s: tensor %s: %s weights need scales: expected a %s_scale or %s_scale_inv",
			       file_of(c, p->s.weights), p->s.weights->name, p->s.weights->dtype_name, name, name);
	}
	type->scale = is_type(t, "U8") ? OD_F8_E8M0 : t->dtype;
	rc = look_blocks(c, t, n_out, n_in, type, err);
	if (rc == OD_OK && !(is_published(type) && od_mat_type_ok(type, n_in)))
		rc = od_fail(
			err, OD_ERR_UNSUPPORTED,
			"%s: tensor %s: %s scales of %s weights are not known here: expected F32, BF16 "
			"or F16 beside weights of 8 or 4 bits, F8_E8M0 or U8 beside FP8 and FP4, F8_E4M3 beside FP4",
			file_of(c, t), t->name, t->dtype_name, p->s.weights->dtype_name);
	return rc == OD_OK ? look_divisor(c, p, name, err) : rc;
}

/* name: of the plain matrix; what belongs to it, or is it in another format, has a longer one. taps: of a convolution,
 * else 0. */
static int look(const struct od_checkpoint *c, const char *name, uint64_t n_out, uint64_t n_in, uint32_t taps,
		struct source_tensors *p, struct od_err *err)
{
	const struct od_tensor *plain = od_checkpoint_find(c, name), *packed = beside(c, name, "_packed");
	int rc;

	*p = (struct source_tensors){ .s.weights = plain != NULL ? plain : packed, .shape = beside(c, name, "_shape") };
	if (p->s.weights == NULL)
		return od_fail(err, OD_ERR_MISSING, "checkpoint %s: tensor %s is missing", od_checkpoint_dir(c), name);
	if (plain != NULL && packed != NULL)
		return od_fail(err, OD_ERR_FORMAT, "%s: tensor %s: there is a %s too; expected one of them",
			       file_of(c, plain), plain->name, packed->name);
	if (plain != NULL) {
		p->s.type.dtype = plain->dtype;
		rc = taps > 0 ? check_conv(c, plain, n_out, taps, err) : check_shape(c, plain, n_out, n_in, err);
	} else {
		rc = look_packed(c, packed, n_out, n_in, &p->s.type.dtype, err);
	}
	return rc == OD_OK ? look_scales(c, p, name, n_out, n_in, err) : rc;
}

static uint32_t taps_of(const struct od_config *cfg, enum od_role role, uint32_t layer)
{
	return role == OD_ROLE_DELTA_CONV ? od_config_layer(cfg, layer)->mix.conv : 0;
}

static struct od_source look_again(const struct od_checkpoint *c, const char *name, uint64_t n_out, uint64_t n_in,
				   uint32_t taps)
{
	struct source_tensors p;

	(void)!look(c, name, n_out, n_in, taps, &p, NULL); /* it was there when it was checked */
	p.s.row_step = n_in > 0 ? n_in : 1;
	p.s.column_step = p.s.scales_step = 1;
	return p.s;
}

/* Names as they are in the checkpoint. */
static void dense_name(const struct od_config *cfg, enum od_role role, uint32_t layer, char name[OD_NAME_BYTES])
{
	char text_only[OD_NAME_BYTES];

	od_dense_source_name(cfg, role, layer, text_only);
	od_source_name(cfg, text_only, name);
}

static void expert_name(const struct od_config *cfg, uint32_t m, uint32_t expert, enum od_expert_mat mat,
			char name[OD_NAME_BYTES])
{
	char text_only[OD_NAME_BYTES];

	od_expert_source_name(cfg, m, expert, mat, text_only);
	od_source_name(cfg, text_only, name);
}

/* A matrix, or a bias, of all the layer's experts. */
struct stacked {
	char name[OD_NAME_BYTES];
	struct od_stack at;
	const struct od_tensor *weights, *scales; /* weights NULL: the experts are published one by one */
	bool blocks; /* MXFP4: [n_experts][rows][n_in / 32][16] bytes and [n_experts][rows][n_in / 32] scales */
};

#define MX_BLOCK 32u /* weights */

static struct stacked find_stacked(const struct od_checkpoint *c, const struct od_config *cfg, uint32_t m,
				   enum od_expert_mat mat)
{
	char text_only[OD_NAME_BYTES];
	struct stacked s = { .name = "" };

	if (!od_expert_stacked_name(cfg, m, mat, text_only, &s.at))
		return s;
	od_source_name(cfg, text_only, s.name);
	s.weights = od_checkpoint_find(c, s.name);
	s.blocks = cfg->family->mxfp4 && s.weights == NULL && !od_expert_is_bias(mat);
	if (s.blocks) {
		s.weights = beside(c, s.name, "_blocks");
		s.scales = beside(c, s.name, "_scales");
	}
	return s;
}

/* Powers of two say how large blocks are, as everywhere. */
static struct od_mat_type mx_type(uint64_t n_out, uint64_t n_in)
{
	struct od_mat_type t = { .dtype = OD_F4_E2M1, .scale = OD_F8_E8M0 };

	(void)block_of(n_out, n_out, 1, &t.block_rows);
	(void)block_of(n_in, n_in / MX_BLOCK, OD_SCALE_BLOCK_MIN, &t.block_cols);
	return t;
}

static struct od_source of_stack(const struct od_config *cfg, const struct stacked *s, uint32_t expert,
				 enum od_expert_mat mat)
{
	const uint64_t first = expert * s->at.rows + s->at.first;
	const bool transposed = cfg->family->transposed && !s->blocks && !od_expert_is_bias(mat);
	struct od_source out = {
		.weights = s->weights, .scales = s->scales, .column_step = 1, .scales_step = s->at.step
	};
	uint64_t n_out, n_in;

	od_expert_mat_shape(cfg, mat, &n_out, &n_in);
	out.type = s->blocks ? mx_type(n_out, n_in) : (struct od_mat_type){ .dtype = s->weights->dtype };
	out.first_scales = first;
	out.first_element = transposed ? expert * s->at.rows * n_in + s->at.first : first * n_in;
	out.row_step = transposed ? s->at.step : s->at.step * n_in;
	out.column_step = transposed ? s->at.rows : 1;
	return out;
}

/* ---- GGUF files ---- */

static struct od_source of_place(const struct od_checkpoint *c, const struct od_gguf_place *p, uint64_t n_in,
				 uint64_t first_row)
{
	return (struct od_source){ .type = p->type,
				   .weights = od_checkpoint_tensor(
					   c, (size_t)(p->tensor - od_gguf_tensor(od_checkpoint_gguf(c), 0))),
				   .first_element = first_row * n_in,
				   .row_step = n_in,
				   .column_step = 1,
				   .scales_step = 1,
				   .form = p->form,
				   .run = p->run };
}

struct od_source od_source_dense(const struct od_checkpoint *c, const struct od_config *cfg, enum od_role role,
				 uint32_t layer)
{
	const struct od_gguf *g = od_checkpoint_gguf(c);
	struct od_gguf_place place;
	char name[OD_NAME_BYTES];
	uint64_t n_out, n_in;

	od_role_shape(cfg, role, layer, &n_out, &n_in);
	if (g != NULL) {
		(void)!od_gguf_dense(g, cfg, role, layer, &place, NULL); /* it was there when it was checked */
		n_in = n_in > 0 ? n_in : 1;
		return of_place(c, &place, n_in, place.offset / od_mat_row_bytes(&place.type, n_in));
	}
	dense_name(cfg, role, layer, name);
	return look_again(c, name, n_out, n_in, taps_of(cfg, role, layer));
}

struct od_source od_source_expert(const struct od_checkpoint *c, const struct od_config *cfg, uint32_t m,
				  uint32_t expert, enum od_expert_mat mat)
{
	const struct od_gguf *g = od_checkpoint_gguf(c);
	struct od_gguf_place place;
	char name[OD_NAME_BYTES];
	uint64_t n_out, n_in;
	struct stacked s;

	od_expert_mat_shape(cfg, mat, &n_out, &n_in);
	if (g != NULL) {
		(void)!od_gguf_experts(g, cfg, m, mat, &place, NULL); /* as above */
		if (place.apart)
			(void)!od_gguf_expert_apart(g, cfg, m, mat, expert, &place, NULL);
		return of_place(c, &place, n_in, place.first_row + expert * place.step);
	}
	s = find_stacked(c, cfg, m, mat);
	if (s.weights != NULL)
		return of_stack(cfg, &s, expert, mat);
	expert_name(cfg, m, expert, mat, name);
	return look_again(c, name, n_out, od_expert_is_bias(mat) ? 0 : n_in, 0);
}

/* ---- reading ---- */

#define PIECE_BYTES (8u << 20)

/* n rows of `each` bytes, which begin stride bytes apart. */
static int read_apart(const struct od_checkpoint *c, const struct od_tensor *t, uint64_t begin, uint64_t stride,
		      uint64_t each, uint64_t n, uint8_t *to, struct od_err *err)
{
	const uint64_t step = PIECE_BYTES / stride > 0 ? PIECE_BYTES / stride : 1;
	uint8_t *buf;
	int rc = OD_OK;

	if (stride == each || n == 0)
		return od_checkpoint_read(c, t, begin, to, n * each, err);
	buf = malloc((step < n ? step : n) * stride);
	if (buf == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory to read tensor %s", t->name);
	for (uint64_t row = 0; rc == OD_OK && row < n; row += step) {
		const uint64_t k = step < n - row ? step : n - row;

		rc = od_checkpoint_read(c, t, begin + row * stride, buf, (k - 1) * stride + each, err);
		if (rc == OD_OK)
			for (uint64_t i = 0; i < k; i++)
				memcpy(to + (row + i) * each, buf + i * stride, each);
	}
	free(buf);
	return rc;
}

/* Rows of a dense tensor of a GGUF file, in the checkpoint's order. */
static int read_runs(const struct od_checkpoint *c, const struct od_source *s, uint64_t each, uint64_t row, uint64_t n,
		     uint8_t *to, struct od_err *err)
{
	const uint64_t begin = od_mat_row_bytes(&s->type, s->first_element);
	int rc = OD_OK;

	for (uint64_t i = 0; rc == OD_OK && i < n; i++)
		rc = od_checkpoint_read(c, s->weights, begin + od_dense_row(s->form, s->run, row + i) * each,
					to + i * each, (size_t)each, err);
	return rc;
}

#define TURN_ROWS 32u /* so that what is written stays in the cache */

/* from [n_cols][across], of which every row_step-th element counts, to columns [0, n_cols) of to [n_rows][n_in]. */
static void turn(const uint8_t *from, uint64_t across, uint64_t row_step, uint64_t n_cols, uint8_t *to, uint64_t n_rows,
		 uint64_t n_in, size_t each)
{
	for (uint64_t first = 0; first < n_rows; first += TURN_ROWS) {
		const uint64_t end = first + TURN_ROWS < n_rows ? first + TURN_ROWS : n_rows;

		for (uint64_t i = 0; i < n_cols; i++)
			for (uint64_t r = first; r < end; r++) {
				const uint8_t *a = from + (i * across + r * row_step) * each;
				uint8_t *b = to + (r * n_in + i) * each;

				if (each == sizeof(uint16_t))
					memcpy(b, a, sizeof(uint16_t));
				else
					memcpy(b, a, each);
			}
	}
}

static int read_turned(const struct od_checkpoint *c, const struct od_source *s, uint64_t n_in, uint64_t row,
		       uint64_t n, uint8_t *to, struct od_err *err)
{
	const size_t each = od_dtype_bytes(s->type.dtype);
	const uint64_t across = s->column_step, first = s->first_element + row * s->row_step,
		       span = (n - 1) * s->row_step + 1;
	const uint64_t step = PIECE_BYTES / (across * each) > 0 ? PIECE_BYTES / (across * each) : 1;
	uint8_t *buf = malloc((step < n_in ? step : n_in) * across * each);
	int rc = OD_OK;

	if (buf == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory to read tensor %s", s->weights->name);
	for (uint64_t i = 0; rc == OD_OK && i < n_in; i += step) {
		const uint64_t k = step < n_in - i ? step : n_in - i;

		rc = od_checkpoint_read(c, s->weights, (first + i * across) * each, buf,
					((k - 1) * across + span) * each, err);
		if (rc == OD_OK)
			turn(buf, across, s->row_step, k, to + i * each, n, n_in, each);
	}
	free(buf);
	return rc;
}

int od_source_read(const struct od_checkpoint *c, const struct od_source *s, uint64_t n_in, uint64_t row, uint64_t n,
		   void *buf, struct od_err *err)
{
	const uint64_t each = od_mat_row_bytes(&s->type, n_in), stride = od_mat_row_bytes(&s->type, s->row_step);

	if (s->run > 0)
		return read_runs(c, s, each, row, n, buf, err);
	if (s->column_step != 1 && n > 0)
		return read_turned(c, s, n_in, row, n, buf, err);
	return read_apart(c, s->weights, od_mat_row_bytes(&s->type, s->first_element) + row * stride, stride, each, n,
			  buf, err);
}

int od_source_read_scales(const struct od_checkpoint *c, const struct od_source *s, uint64_t n_in, uint64_t row,
			  uint64_t n, void *buf, struct od_err *err)
{
	const uint64_t each = od_mat_scale_row_bytes(&s->type, n_in);

	return read_apart(c, s->scales, (s->first_scales + row * s->scales_step) * each, s->scales_step * each, each, n,
			  buf, err);
}

/* ---- checking ---- */

/* The shape after unpacking is known already; a packer that disagrees padded the weights. */
static int check_unpacked(const struct od_checkpoint *c, const struct od_tensor *t, uint64_t n_out, uint64_t n_in,
			  struct od_err *err)
{
	const bool wide = is_type(t, "I64");
	int64_t v64[2] = { 0, 0 };
	int32_t v32[2] = { 0, 0 };
	int rc;

	if (t->n_dims != 1 || t->shape[0] != 2 || !(wide || is_type(t, "I32")))
		return od_fail(err, OD_ERR_FORMAT, "%s: tensor %s: expected two I64 or I32", file_of(c, t), t->name);
	rc = od_checkpoint_read(c, t, 0, wide ? (void *)v64 : (void *)v32, t->bytes, err);
	if (!wide)
		for (int i = 0; i < 2; i++)
			v64[i] = v32[i];
	if (rc == OD_OK && (v64[0] != (int64_t)n_out || v64[1] != (int64_t)n_in))
		rc = od_fail(err, OD_ERR_SHAPE,
			     "%s: tensor %s: expected [%" PRIu64 ", %" PRIu64 "] (config.json), found [%" PRId64
			     ", %" PRId64 "]",
			     file_of(c, t), t->name, n_out, n_in, v64[0], v64[1]);
	return rc;
}

/* FP8 may come without scales, but not from who says that there are some, or scales the rows that it meets. */
static int check_unscaled(const struct od_checkpoint *c, const struct od_config *cfg, const struct od_tensor *t,
			  const char *name, struct od_err *err)
{
	char module[OD_NAME_BYTES];
	size_t len = strlen(name);

	snprintf(module, sizeof(module), "%.*s", (int)(ends_with(name, ".weight") ? len - strlen(".weight") : len),
		 name);
	if ((t->dtype != OD_F8_E4M3 && t->dtype != OD_F8_E5M2) ||
	    (!cfg->scaled && beside(c, module, ".input_scale") == NULL &&
	     beside(c, module, ".input_global_scale") == NULL))
		return OD_OK;
	return od_fail(err, OD_ERR_MISSING,
		       "%s: tensor %s: %s weights of a model with scales: expected a %s_scale or %s_scale_inv",
		       file_of(c, t), t->name, t->dtype_name, name, name);
}

static uint64_t blocks(uint64_t n, uint32_t block)
{
	return block == 0 ? 1 : (n - 1) / block + 1;
}

/* Scales of the size that config.json gives. */
static int check_block_size(const struct od_checkpoint *c, const struct od_config *cfg, const struct od_source *s,
			    uint64_t n_out, uint64_t n_in, struct od_err *err)
{
	const uint32_t *size = cfg->scale_block;
	char found[256];

	if (size[0] == 0 || size[1] == 0 ||
	    (blocks(n_out, s->type.block_rows) == blocks(n_out, size[0]) &&
	     blocks(n_in, s->type.block_cols) == blocks(n_in, size[1])))
		return OD_OK;
	shape_text(s->scales->shape, s->scales->n_dims, found, sizeof(found));
	return od_fail(err, OD_ERR_SHAPE,
		       "%s: tensor %s: expected shape [%" PRIu64 ", %" PRIu64 "] (config.json's weight_block_size), "
		       "found %s",
		       file_of(c, s->scales), s->scales->name, blocks(n_out, size[0]), blocks(n_in, size[1]), found);
}

static void mark(const struct od_checkpoint *c, bool *used, const struct od_tensor *t)
{
	if (t != NULL)
		used[t - od_checkpoint_tensor(c, 0)] = true;
}

/* Marks what belongs to the tensor as used. role: OD_N_ROLES for an expert's matrix. */
static int check_tensor(const struct od_checkpoint *c, const struct od_config *cfg, bool *used, const char *name,
			uint64_t n_out, uint64_t n_in, enum od_role role, uint32_t taps, struct od_err *err)
{
	char text[OD_MAT_TYPE_CHARS];
	struct source_tensors p;
	int rc = look(c, name, n_out, n_in, taps, &p, err);

	if (rc == OD_OK && role != OD_N_ROLES && !od_dense_type_ok(role, &p.s.type, n_in))
		rc = od_fail(
			err, OD_ERR_UNSUPPORTED,
			"%s: tensor %s: expected dtype BF16, F16 or F32 in a norm, a bias or an embedding, found %s",
			file_of(c, p.s.weights), p.s.weights->name, od_mat_type_text(&p.s.type, text));
	if (rc == OD_OK)
		rc = p.s.scales == NULL ? check_unscaled(c, cfg, p.s.weights, name, err) :
					  check_block_size(c, cfg, &p.s, n_out, n_in, err);
	if (rc != OD_OK)
		return rc;
	mark(c, used, p.s.weights);
	mark(c, used, p.s.scales);
	mark(c, used, p.s.divisor);
	mark(c, used, p.shape);
	return p.shape != NULL ? check_unpacked(c, p.shape, n_out, n_in, err) : OD_OK;
}

static int check_dense(const struct od_checkpoint *c, const struct od_config *cfg, bool *used, uint32_t layer,
		       struct od_err *err)
{
	int rc = OD_OK;

	for (int i = 0; rc == OD_OK && i < OD_N_ROLES; i++) {
		enum od_role role = (enum od_role)i;
		char name[OD_NAME_BYTES];
		uint64_t n_out, n_in;

		od_role_shape(cfg, role, layer, &n_out, &n_in);
		if (n_out == 0 || (layer > 0 && !od_role_per_layer(role)))
			continue;
		dense_name(cfg, role, layer, name);
		rc = check_tensor(c, cfg, used, name, n_out, n_in, role, taps_of(cfg, role, layer), err);
	}
	return rc;
}

static int check_blocks(const struct od_checkpoint *c, const struct od_config *cfg, const struct stacked *s,
			uint64_t n_in, struct od_err *err)
{
	const uint64_t blocks[] = { cfg->n_experts, s->at.rows, n_in / MX_BLOCK, MX_BLOCK / 2 };
	int rc;

	if (n_in % MX_BLOCK != 0)
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "%s: tensor %s: rows of %" PRIu64 " weights: expected a multiple of %u",
			       file_of(c, s->weights), s->weights->name, n_in, MX_BLOCK);
	if (s->scales == NULL)
		return od_fail(err, OD_ERR_MISSING, "checkpoint %s: tensor %s_scales is missing", od_checkpoint_dir(c),
			       s->name);
	rc = check_dims(c, s->weights, blocks, 4, err);
	if (rc == OD_OK)
		rc = check_dims(c, s->scales, blocks, 3, err);
	for (int i = 0; rc == OD_OK && i < 2; i++) {
		const struct od_tensor *t = i == 0 ? s->weights : s->scales;

		if (!is_type(t, "U8"))
			rc = od_fail(err, OD_ERR_UNSUPPORTED, "%s: tensor %s: expected dtype U8 (MXFP4), found %s",
				     file_of(c, t), t->name, t->dtype_name);
	}
	return rc;
}

/* A matrix, or a bias, of all experts of a layer in one tensor. */
static int check_stacked(const struct od_checkpoint *c, const struct od_config *cfg, bool *used,
			 const struct stacked *s, enum od_expert_mat mat, struct od_err *err)
{
	const struct od_tensor *t = s->weights;
	uint64_t n_out, n_in;
	int rc;

	od_expert_mat_shape(cfg, mat, &n_out, &n_in);
	if (s->blocks) {
		rc = check_blocks(c, cfg, s, n_in, err);
	} else {
		const bool turned = cfg->family->transposed;
		const uint64_t want[] = { cfg->n_experts, turned && !od_expert_is_bias(mat) ? n_in : s->at.rows,
					  turned ? s->at.rows : n_in };

		rc = check_dims(c, t, want, od_expert_is_bias(mat) ? 2 : 3, err);
		if (rc == OD_OK && !od_bias_type_ok(&(struct od_mat_type){ .dtype = t->dtype }))
			rc = od_fail(err, OD_ERR_UNSUPPORTED,
				     "%s: tensor %s: expected dtype BF16, F16 or F32 in a tensor of several "
				     "matrices, found %s",
				     file_of(c, t), t->name, t->dtype_name);
	}
	mark(c, used, s->weights);
	mark(c, used, s->scales);
	return rc;
}

/* A matrix of an expert in a tensor of its own. */
static int check_expert(const struct od_checkpoint *c, const struct od_config *cfg, bool *used, uint32_t m,
			uint32_t expert, enum od_expert_mat mat, struct od_err *err)
{
	char name[OD_NAME_BYTES];
	uint64_t n_out, n_in;

	expert_name(cfg, m, expert, mat, name);
	od_expert_mat_shape(cfg, mat, &n_out, &n_in);
	if (od_expert_is_bias(mat))
		return check_tensor(c, cfg, used, name, n_out, 0, OD_ROLE_Q_BIAS, 0, err); /* the rules are the same */
	return check_tensor(c, cfg, used, name, n_out, n_in, OD_N_ROLES, 0, err);
}

static bool is_alone(const struct od_checkpoint *c, const struct od_config *cfg, uint32_t m, enum od_expert_mat mat)
{
	char name[OD_NAME_BYTES];

	expert_name(cfg, m, 0, mat, name);
	return od_checkpoint_find(c, name) != NULL || beside(c, name, "_packed") != NULL;
}

static int check_experts(const struct od_checkpoint *c, const struct od_config *cfg, bool *used, uint32_t m,
			 struct od_err *err)
{
	int rc = OD_OK;

	for (int i = 0; rc == OD_OK && i < od_expert_tensors(cfg); i++) {
		const enum od_expert_mat mat = (enum od_expert_mat)i;
		const struct stacked s = find_stacked(c, cfg, m, mat);

		if (s.weights != NULL)
			rc = check_stacked(c, cfg, used, &s, mat, err);
		else if (s.at.rows > 0 && !is_alone(c, cfg, m, mat))
			rc = od_fail(err, OD_ERR_MISSING, "checkpoint %s: tensor %s is missing", od_checkpoint_dir(c),
				     s.name);
		for (uint32_t e = 0; s.weights == NULL && rc == OD_OK && e < cfg->n_experts; e++)
			rc = check_expert(c, cfg, used, m, e, mat, err);
	}
	return rc;
}

static int is_copy(const struct od_checkpoint *c, const struct od_tensor *a, const struct od_tensor *b, bool *same,
		   struct od_err *err)
{
	const size_t step = b->bytes < PIECE_BYTES ? b->bytes : PIECE_BYTES;
	uint8_t *buf;
	int rc = OD_OK;

	*same = a->bytes == b->bytes && strcmp(a->dtype_name, b->dtype_name) == 0;
	if (!*same)
		return OD_OK;
	buf = malloc(2 * step);
	if (buf == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory to read tensor %s", a->name);
	for (uint64_t at = 0; rc == OD_OK && *same && at < a->bytes; at += step) {
		const size_t n = a->bytes - at < step ? a->bytes - at : step;

		rc = od_checkpoint_read(c, a, at, buf, n, err);
		if (rc == OD_OK)
			rc = od_checkpoint_read(c, b, at, buf + step, n, err);
		*same = rc == OD_OK && memcmp(buf, buf + step, n) == 0;
	}
	free(buf);
	return rc;
}

/* Some publish a copy of the embedding as a tied head; it is not read. With other values it is a head of its own,
 * whatever config.json says: transformers does not tie it. */
static int check_tied_head(const struct od_checkpoint *c, const struct od_config *cfg, bool *used, struct od_err *err)
{
	const struct od_tensor *head, *embed;
	char name[OD_NAME_BYTES];
	bool same;
	int rc;

	dense_name(cfg, OD_ROLE_HEAD, 0, name);
	head = od_checkpoint_find(c, name);
	if (!cfg->tied_head || head == NULL)
		return OD_OK;
	dense_name(cfg, OD_ROLE_EMBED, 0, name);
	embed = od_checkpoint_find(c, name); /* is there: it has been checked */
	rc = is_copy(c, head, embed, &same, err);
	if (rc == OD_OK && !same)
		rc = od_fail(err, OD_ERR_FORMAT,
			     "%s: tensor %s: expected a copy of %s, because \"tie_word_embeddings\" is true, found "
			     "other values: if it is the model's head, set the field to false",
			     file_of(c, head), head->name, name);
	mark(c, used, head);
	return rc;
}

/* Names of what other ways of publishing few bits have and the ones above have not. */
static const char *unknown_way(const char *name)
{
	static const struct {
		const char *end, *what;
	} way[] = {
		{ ".qweight", "weights as GPTQ and AWQ pack them" },
		{ ".qzeros", "zero points of GPTQ or AWQ" },
		{ ".scales", "scales of GPTQ or AWQ" },
		{ ".weight_zero_point", "zero points, so asymmetric weights" },
		{ ".weight_g_idx", "groups that are not neighbours (activation order)" },
		{ ".g_idx", "groups of GPTQ" },
		{ ".weight_scale_2", "weights of 4 bits as NVIDIA's Model Optimizer packs them" },
		{ ".weight.absmax", "weights as bitsandbytes packs them" },
		{ ".SCB", "weights as bitsandbytes packs them" },
	};

	for (size_t i = 0; i < sizeof(way) / sizeof(way[0]); i++)
		if (ends_with(name, way[i].end))
			return way[i].what;
	return NULL;
}

/* Before anything else is found wrong: it would be called a missing weight. */
static int refuse_unknown_ways(const struct od_checkpoint *c, struct od_err *err)
{
	for (size_t i = 0; i < od_checkpoint_n_tensors(c); i++) {
		const struct od_tensor *t = od_checkpoint_tensor(c, i);
		const char *what = unknown_way(t->name);

		if (what != NULL)
			return od_fail(
				err, OD_ERR_UNSUPPORTED,
				"%s: tensor %.256s: %s are not supported: expected symmetric weights as "
				"compressed-tensors writes them, or FP8; use such a publication of the model, or the BF16 one",
				file_of(c, t), t->name, what);
	}
	return OD_OK;
}

/* Scales of activations and of KV caches of 8 bits: here neither has so few. */
static bool of_activations(const char *name)
{
	static const char *const end[] = { ".input_scale",	".input_global_scale",
					   ".input_zero_point", ".activation_scale",
					   ".output_scale",	".q_scale",
					   ".k_scale",		".v_scale",
					   ".kv_scale" };

	for (size_t i = 0; i < sizeof(end) / sizeof(end[0]); i++)
		if (ends_with(name, end[i]))
			return true;
	return false;
}

/* A tensor that we would not use may well be one that changes the results. */
static int check_unknown(const struct od_checkpoint *c, const struct od_config *cfg, const bool *used,
			 struct od_err *err)
{
	const struct od_tensor *first = NULL;
	size_t n = 0;

	for (size_t i = 0; i < od_checkpoint_n_tensors(c); i++) {
		const struct od_tensor *t = od_checkpoint_tensor(c, i);

		if (used[i] || t->bytes == 0 || od_source_ignorable(cfg, t->name) || of_activations(t->name))
			continue; /* no bytes: transformers writes such shared experts where there are none */
		first = first != NULL ? first : t;
		n++;
	}
	if (n == 0)
		return OD_OK;
	return od_fail(err, OD_ERR_FORMAT,
		       "%s: tensor %.256s is not one of a %s model with this config.json (%zu such "
		       "tensors)",
		       od_checkpoint_file(c, first->file)->name, first->name, cfg->family->name, n);
}

int od_source_check(const struct od_checkpoint *c, const struct od_config *cfg, struct od_err *err)
{
	bool *used;
	int rc;

	if (od_checkpoint_gguf(c) != NULL)
		return od_gguf_check(od_checkpoint_gguf(c), cfg, err);
	used = calloc(od_checkpoint_n_tensors(c), sizeof(*used));
	if (used == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory to check %zu tensors", od_checkpoint_n_tensors(c));
	rc = refuse_unknown_ways(c, err);
	for (uint32_t layer = 0; rc == OD_OK && layer < cfg->n_layers; layer++)
		rc = check_dense(c, cfg, used, layer, err);
	for (uint32_t m = 0; rc == OD_OK && m < cfg->n_moe; m++)
		rc = check_experts(c, cfg, used, m, err);
	if (rc == OD_OK)
		rc = check_tied_head(c, cfg, used, err);
	if (rc == OD_OK)
		rc = check_unknown(c, cfg, used, err);
	free(used);
	return rc;
}

/* Types only, of the fields that od-main reads: what values it can sample with is its own affair, and without
 * do_sample it looks at none but the penalty. */
static int check_generation(const struct od_config *cfg, const char *path, struct od_err *err)
{
	static const char *const number[] = { "temperature", "top_p", "top_k", "min_p", "repetition_penalty" };
	struct od_config with_eos = *cfg;
	struct od_logit_bias *suppressed = NULL;
	json_t *root;
	bool sample;
	size_t n;
	double v;
	int rc = od_json_load(path, OD_GENERATION_MAX_BYTES, &root, err);

	if (rc == OD_OK)
		rc = od_json_bool_or(root, "do_sample", false, &sample, path, err);
	for (size_t i = 0; rc == OD_OK && i < sizeof(number) / sizeof(number[0]); i++)
		rc = od_json_f64_or(root, number[i], -HUGE_VAL, HUGE_VAL, 0, &v, path, err);
	if (rc == OD_OK)
		rc = od_config_add_eos(&with_eos, root, path, err);
	if (rc == OD_OK)
		rc = od_generation_suppressed(&suppressed, &n, root, cfg->vocab, path, err);
	if (rc == OD_OK)
		od_generation_warn(root, path);
	free(suppressed);
	json_decref(root);
	return rc;
}

int od_source_check_extras(const struct od_checkpoint *c, const struct od_config *cfg, struct od_err *err)
{
	const char *name = od_tokenizer_name(od_checkpoint_folder(c));
	struct od_tokenizer *tokenizer = NULL;
	char path[PATH_MAX];
	int rc = od_path(path, sizeof(path), od_checkpoint_folder(c), "generation_config.json", err);

	if (rc == OD_OK && od_file_there(path))
		rc = check_generation(cfg, path, err);
	if (rc == OD_OK && name != NULL)
		rc = od_path(path, sizeof(path), od_checkpoint_folder(c), name, err);
	if (rc == OD_OK && name != NULL)
		rc = od_tokenizer_load(&tokenizer, path, err);
	od_tokenizer_free(tokenizer);
	return rc;
}
