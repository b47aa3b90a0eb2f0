/* Executes instructions. */
#include <string.h>

#include "common/compute/dtype.h"
#include "tests/gpu/ptx/ptx_block.h"

#define NEVER UINT32_MAX

/* ---- Types: as_ of a lane in a register, of_ in expressions of ptx_ops.h, PUT_ to a register ---- */

typedef ptx_u32 as_pred, as_u16, as_s16, as_u32;
typedef int32_t as_s32 __attribute__((may_alias));
typedef ptx_u64 as_u64;
typedef int64_t as_s64 __attribute__((may_alias));
typedef float as_f32 __attribute__((may_alias));
typedef double as_f64 __attribute__((may_alias));
typedef uint32_t of_pred, of_u32;
typedef uint16_t of_u16;
typedef int16_t of_s16;
typedef int32_t of_s32;
typedef uint64_t of_u64;
typedef int64_t of_s64;
typedef float of_f32;
typedef double of_f64;
#define PUT_pred(x) ((x) ? 1u : 0u)
#define PUT_u16(x) ((uint16_t)(x))
#define PUT_u32(x) ((uint32_t)(x))
#define PUT_s32(x) (x)
#define PUT_u64(x) (x)
#define PUT_f32(x) (x)
#define PUT_f64(x) (x)

/* ---- Expressions of ptx_ops.h ---- */

static inline float canonical(float v)
{
	return od_bits_f32(v != v ? 0x7fffffffu : od_f32_bits(v));
}

static inline double canonical64(double v)
{
	const uint64_t u = 0xfff8000000000000u;
	double nan;

	memcpy(&nan, &u, sizeof(nan));
	return v != v ? nan : v;
}

/* min and max: a number rather than a NaN, and -0 is less than 0. */
static inline float least(float a, float b)
{
	if (a != a)
		return canonical(b);
	if (b != b)
		return a;
	return a == b ? od_bits_f32(od_f32_bits(a) | od_f32_bits(b)) : a < b ? a : b;
}

static inline float greatest(float a, float b)
{
	if (a != a)
		return canonical(b);
	if (b != b)
		return a;
	return a == b ? od_bits_f32(od_f32_bits(a) & od_f32_bits(b)) : a > b ? a : b;
}

/* prmt: four of eight bytes, or their signs. */
static inline uint32_t permuted(uint32_t a, uint32_t b, uint32_t selector)
{
	const uint64_t all = (uint64_t)b << 32 | a;
	uint32_t v = 0;

	for (unsigned i = 0; i < 4; i++) {
		const uint32_t s = selector >> 4 * i, byte = (uint32_t)(all >> 8 * (s & 7)) & 255;

		v |= ((s & 8) != 0 ? (byte & 128) != 0 ? 255u : 0u : byte) << 8 * i;
	}
	return v;
}

/* dp4a of signed bytes. */
static inline uint32_t four_products(uint32_t a, uint32_t b, uint32_t sum)
{
	for (unsigned i = 0; i < 4; i++)
		sum += (uint32_t)((int)(int8_t)(a >> 8 * i) * (int8_t)(b >> 8 * i));
	return sum;
}

/* bfi: b with the low n bits of a at a place. */
static inline uint64_t inserted(uint64_t a, uint64_t b, uint32_t at, uint32_t n, unsigned width)
{
	uint64_t mask;

	at &= 255;
	n &= 255;
	if (at >= width)
		return b;
	if (n > width - at)
		n = width - at;
	mask = (n == 64 ? ~0ull : (1ull << n) - 1) << at;
	return (b & ~mask) | (a << at & mask);
}

/* lop3: bit 4 * (bit of a) + 2 * (bit of b) + (bit of c) of the table. */
static inline uint32_t by_table(uint32_t a, uint32_t b, uint32_t c, uint32_t table)
{
	uint32_t v = 0;

	for (unsigned i = 0; i < 8; i++)
		if ((table >> i & 1) != 0)
			v |= ((i & 4) != 0 ? a : ~a) & ((i & 2) != 0 ? b : ~b) & ((i & 1) != 0 ? c : ~c);
	return v;
}

/* ---- Strands ---- */

/* Lanes that parted from the strand in lockstep and wait to meet it again. */
struct ptx_execute_waiting {
	struct ptx_strand s[PTX_LANES];
	unsigned n;
	uint32_t first; /* the lowest pc of any, or NEVER */
};

struct ptx_execute_run {
	struct gpu_blocks *blk;
	struct ptx_warp *w;
	uint32_t mask, pc;
	struct ptx_execute_waiting q;
};

static void find_first(struct ptx_execute_waiting *q)
{
	q->first = NEVER;
	for (unsigned i = 0; i < q->n; i++)
		if (q->s[i].pc < q->first)
			q->first = q->s[i].pc;
}

static void add_waiting(struct ptx_execute_waiting *q, struct ptx_strand s)
{
	q->s[q->n++] = s;
	find_first(q);
}

/* All lanes that wait at q->first. */
static uint32_t take_first(struct ptx_execute_waiting *q)
{
	uint32_t mask = 0;

	for (unsigned i = 0; i < q->n;) {
		if (q->s[i].pc == q->first) {
			mask |= q->s[i].mask;
			q->s[i] = q->s[--q->n];
		} else {
			i++;
		}
	}
	find_first(q);
	return mask;
}

/* The strand has come to where lanes wait, or went by: those that are furthest behind go first, so that all meet. */
static void meet_waiting(struct ptx_execute_run *r)
{
	const uint32_t first = r->q.first, taken = take_first(&r->q);

	if (r->pc == first) {
		r->mask |= taken;
		return;
	}
	add_waiting(&r->q, (struct ptx_strand){ r->blk->warp_now, r->mask, r->pc });
	r->mask = taken;
	r->pc = first;
}

/* The strand has stopped. false: no lanes wait for it. */
static bool next_waiting(struct ptx_execute_run *r)
{
	if (r->q.n == 0)
		return false;
	r->pc = r->q.first;
	r->mask = take_first(&r->q);
	return true;
}

/* Some lanes jump and others do not: some go on, and the rest wait for them, or are a strand of their own. */
static void branch(struct ptx_execute_run *r, uint32_t target, uint32_t taken)
{
	struct gpu_blocks *blk = r->blk;
	const bool jump = blk->lockstep ? target < r->pc : ptx_one_in(blk, 2);
	const struct ptx_strand other = { blk->warp_now, jump ? r->mask & ~taken : taken, jump ? r->pc : target };

	if (blk->lockstep)
		add_waiting(&r->q, other);
	else
		ptx_push(blk, other);
	r->mask &= ~other.mask;
	if (jump)
		r->pc = target;
}

static uint32_t guarded(const struct ptx_execute_run *r, const struct ptx_insn *i)
{
	const as_pred *p = (const as_pred *)(const void *)ptx_source(r->blk, r->w, i->guard);
	uint32_t on = 0;

	for (unsigned lane = 0; lane < PTX_LANES; lane++)
		on |= (p[lane] & 1) << lane;
	return r->mask & (i->negated ? ~on : on);
}

#define TO(t) as_##t *to = (as_##t *)(void *)(r->w->registers + i->d)
#define FROM(x, t) const as_##t *from_##x = (const as_##t *)(const void *)ptx_source(r->blk, r->w, i->x)
#define VALUE(x, t) const of_##t x = (of_##t)from_##x[lane]
/* Lanes do not depend on each other, so the compiler may compute them side by side. */
#if defined(__clang__)
#define LANES_APART _Pragma("clang loop vectorize(assume_safety)")
#else
#define LANES_APART _Pragma("GCC ivdep")
#endif
#define LANES(...) \
	if (on == PTX_ALL) { \
		LANES_APART for (unsigned lane = 0; lane < PTX_LANES; lane++) \
		{ \
			__VA_ARGS__ \
		} \
	} else { \
		for (uint32_t m = on; m != 0; m &= m - 1) { \
			const unsigned lane = ptx_first(m); \
			__VA_ARGS__ \
		} \
	}

static void logic(const struct ptx_execute_run *r, const struct ptx_insn *i, uint32_t on)
{
	const uint32_t table = (uint32_t)i->offset;
	TO(u32);
	FROM(a, u32);
	FROM(b, u32);
	FROM(c, u32);

	if (table == 0xe4) { /* gpu_choose_bits */
		LANES(to[lane] = (from_a[lane] & from_c[lane]) | (from_b[lane] & ~from_c[lane]);)
	} else {
		LANES(to[lane] = by_table(from_a[lane], from_b[lane], from_c[lane], table);)
	}
}

static void to_generic(const struct ptx_execute_run *r, const struct ptx_insn *i, uint32_t on)
{
	const uint64_t start = (uintptr_t)r->blk->shared;
	TO(u64);
	FROM(a, u64);

	LANES(to[lane] = from_a[lane] + start;)
}

/* false: the strand has stopped. */
static bool step(struct ptx_execute_run *r)
{
	struct gpu_blocks *blk = r->blk;
	const struct ptx_insn *i = &blk->code[r->pc];
	const uint32_t on = i->has_guard ? guarded(r, i) : r->mask; /* lanes that do it */

	blk->pc_now = r->pc++;
	switch ((int)i->op) {
#define ALU1(id, text, d, ta, x) \
	case id: { \
		TO(d); \
		FROM(a, ta); \
		LANES(VALUE(a, ta); to[lane] = PUT_##d(x);) return true; \
	}
#define ALU2(id, text, d, ta, tb, x) \
	case id: { \
		TO(d); \
		FROM(a, ta); \
		FROM(b, tb); \
		LANES(VALUE(a, ta); VALUE(b, tb); to[lane] = PUT_##d(x);) return true; \
	}
#define ALU3(id, text, d, ta, tb, tc, x) \
	case id: { \
		TO(d); \
		FROM(a, ta); \
		FROM(b, tb); \
		FROM(c, tc); \
		LANES(VALUE(a, ta); VALUE(b, tb); VALUE(c, tc); to[lane] = PUT_##d(x);) return true; \
	}
#define ALU4(id, text, d, ta, tb, tc, te, x) \
	case id: { \
		TO(d); \
		FROM(a, ta); \
		FROM(b, tb); \
		FROM(c, tc); \
		FROM(e, te); \
		LANES(VALUE(a, ta); VALUE(b, tb); VALUE(c, tc); const of_##te d4 = from_e[lane]; \
		      to[lane] = PUT_##d(x);) \
		return true; \
	}
#include "tests/gpu/ptx/ptx_ops.h"
	case PTX_LOP3: logic(r, i, on); return true;
	case PTX_CVTA_SHARED: to_generic(r, i, on); return true;
	case PTX_LD: ptx_load(blk, i, on); return true;
	case PTX_ST: ptx_store(blk, i, on); return true;
	case PTX_PREFETCH: ptx_prefetch(blk, i, on); return true;
	case PTX_CP_ASYNC: ptx_begin_copies(blk, i, on); return true;
	case PTX_COMMIT: LANES(r->w->group[lane]++;) return true;
	case PTX_WAIT: ptx_wait_copies(blk, i, on); return true;
	case PTX_FENCE: return true; /* threads' writes are there at once */
	case PTX_GRID_WAIT: r->w->waited |= on; return true;
	case PTX_BRA:
		if (on == r->mask)
			r->pc = i->target;
		else if (on != 0)
			branch(r, i->target, on);
		return true;
	case PTX_BAR_WARP:
	case PTX_SHFL_BFLY:
	case PTX_SHFL_IDX:
	case PTX_SHFL_UP:
	case PTX_VOTE: return ptx_meet(blk, i, on);
	case PTX_BAR: ptx_barrier(blk, on); return false;
	case PTX_RET: ptx_end(blk, on); return false;
	default: ptx_fail(blk, ptx_first(r->mask), "instruction %u is not known", i->op);
	}
}

void ptx_run_strand(struct gpu_blocks *blk, struct ptx_strand s)
{
	struct ptx_execute_run r = {
		.blk = blk, .w = &blk->warp[s.warp], .mask = s.mask, .pc = s.pc, .q = { .first = NEVER }
	};

	blk->warp_now = s.warp;
	if (ptx_one_in(blk, 8))
		ptx_do_some_copies(blk);
	do {
		if (__builtin_expect(r.pc >= r.q.first, 0))
			meet_waiting(&r);
	} while (step(&r) || next_waiting(&r));
}
