/* The text of a kernel to instructions. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/ptx/ptx_modules.h"
#include "tests/gpu/ptx/ptx_text.h"

#define MOST_NAMES 256u
#define NOT_YET UINT32_MAX

struct name { /* one register, or `count` that are numbered */
	char text[32];
	bool numbered;
	uint32_t count, at; /* at: in a warp's registers */
	unsigned width; /* bytes of its type; 0: a predicate */
};

struct label {
	char text[48];
	uint32_t at; /* in the code, or NOT_YET */
};

struct parser {
	struct ptx_kernel *k;
	struct ptx_text text;
	uint32_t source, code_room;
	struct name name[MOST_NAMES]; /* names in the open blocks, the innermost last */
	uint32_t n_names;
	struct label *label;
	uint32_t n_labels, label_room;
	uint32_t n_constants, constants_room;
	char param[PTX_TOKEN_BYTES];
};

/* ---- Registers and constants ---- */

static unsigned width_of(const struct parser *s, const char *type) /* with or without a dot */
{
	type += *type == '.';
	if (strcmp(type, "pred") == 0)
		return 0;
	switch (*type == 0 ? 0 : strtoul(type + 1, NULL, 10)) {
	case 8: return 1;
	case 16: return 2;
	case 32: return 4;
	case 64: return 8;
	default: ptx_bad_text(&s->text, "type %s is not known", type);
	}
}

/* All of up to 32 bits have the same size, so predicates and 16 bits are computed as 32 are. */
static size_t lanes_bytes(unsigned width)
{
	return PTX_LANES * (width == 8 ? 8u : 4u);
}

/* .reg .b32 %r<17>; or .reg .pred p; */
static void declare(struct parser *s)
{
	struct name n = { .count = 1 };

	ptx_take(&s->text);
	n.width = width_of(s, s->text.token);
	ptx_take(&s->text);
	if (strlen(s->text.token) >= sizeof(n.text) || s->n_names == MOST_NAMES)
		ptx_bad_text(&s->text, "too many .reg, or the name %s is too long", s->text.token);
	memcpy(n.text, s->text.token, strlen(s->text.token));
	if (ptx_accept(&s->text, '<')) {
		n.numbered = true;
		n.count = (uint32_t)ptx_next_number(&s->text);
		ptx_expect(&s->text, ">");
	}
	ptx_expect(&s->text, ";");
	n.at = (uint32_t)s->k->register_bytes;
	s->k->register_bytes += n.count * lanes_bytes(n.width);
	s->name[s->n_names++] = n;
}

static const struct name *find_register(const struct parser *s, const char *text, uint32_t *index)
{
	for (uint32_t i = s->n_names; i-- > 0;) {
		const struct name *n = &s->name[i];
		const size_t length = strlen(n->text);

		*index = 0;
		if (!n->numbered && strcmp(text, n->text) == 0)
			return n;
		if (n->numbered && strncmp(text, n->text, length) == 0 && isdigit((unsigned char)text[length])) {
			*index = (uint32_t)strtoul(text + length, NULL, 10);
			if (*index < n->count)
				return n;
		}
	}
	return NULL;
}

static ptx_operand constant_at(uint32_t i)
{
	return ~(ptx_operand)(i * lanes_bytes(8));
}

/* Each has room for 64 bits a lane: 64-bit values once, others twice. */
static ptx_operand constant(struct parser *s, uint64_t v, unsigned width)
{
	const size_t bytes = lanes_bytes(8);
	struct ptx_kernel *k = s->k;
	unsigned char one[PTX_LANES * 8];

	v = width == 0 ? v & 1 : width == 2 ? (uint16_t)v : width == 4 ? (uint32_t)v : v;
	if (width != 8)
		v |= v << 32;
	for (unsigned lane = 0; lane < PTX_LANES; lane++)
		memcpy(one + 8 * lane, &v, 8);
	for (uint32_t i = PTX_N_SPECIAL; i < s->n_constants; i++)
		if (memcmp(k->constants + i * bytes, one, bytes) == 0)
			return constant_at(i);
	k->constants = ptx_room(k->constants, s->n_constants, &s->constants_room, bytes);
	memcpy(k->constants + s->n_constants * bytes, one, bytes);
	return constant_at(s->n_constants++);
}

/* Names that are no registers of this kernel. */
static ptx_operand special(struct parser *s, unsigned width)
{
	static const struct {
		const char *text;
		unsigned width;
		enum ptx_special which;
	} known[] = {
		{ "%ctaid.x", 4, PTX_CTAID_X },		  { "%ctaid.y", 4, PTX_CTAID_Y },
		{ "%ctaid.z", 4, PTX_CTAID_Z },		  { "%ntid.x", 4, PTX_NTID_X },
		{ "%nctaid.x", 4, PTX_NCTAID_X },	  { "gpu_shared_bytes", 4, PTX_SHARED_32 },
		{ "gpu_shared_bytes", 8, PTX_SHARED_64 },
	};
	const struct ptx_module *m = s->k->module;
	const char *t = s->text.token;

	if (width == 4 && strcmp(t, "%tid.x") == 0)
		return 0;
	if (width == 8 && strcmp(t, s->param) == 0)
		return constant_at(PTX_ARGS);
	for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (width == known[i].width && strcmp(t, known[i].text) == 0 && (t[0] == '%' || m->has_shared))
			return constant_at(known[i].which);
	for (unsigned i = 0; width == 8 && i < m->n_constants; i++)
		if (strcmp(t, m->constant[i].name) == 0)
			return constant(s, (uintptr_t)m->constant[i].bytes, 8);
	ptx_bad_text(&s->text, "operand %s of %u bytes is not known", t, width);
}

static bool is_number(const struct parser *s)
{
	return isdigit((unsigned char)s->text.token[0]) || s->text.token[0] == '-';
}

/* The token as an operand of a type that has `width` bytes. */
static ptx_operand operand(struct parser *s, unsigned width)
{
	const struct name *n;
	uint32_t index;

	if (is_number(s))
		return constant(s, ptx_number(&s->text), width);
	n = find_register(s, s->text.token, &index);
	if (n == NULL)
		return special(s, width);
	if (n->width != width)
		ptx_bad_text(&s->text, "%s has not %u bits", s->text.token, 8 * width);
	return (ptx_operand)(n->at + index * lanes_bytes(n->width));
}

static ptx_operand next_operand(struct parser *s, unsigned width)
{
	ptx_take(&s->text);
	return operand(s, width);
}

static ptx_operand operand_after_comma(struct parser *s, unsigned width)
{
	ptx_expect(&s->text, ",");
	return next_operand(s, width);
}

/* A register that is written. */
static ptx_operand next_result(struct parser *s, unsigned width)
{
	const ptx_operand o = next_operand(s, width);

	if (o <= 0) /* 0: tid.x */
		ptx_bad_text(&s->text, "%s cannot be written", s->text.token);
	return o;
}

/* The token as a register of any width; st may have a number. */
static ptx_operand any_register(struct parser *s, bool or_number, unsigned *width)
{
	const struct name *n;
	uint32_t index;

	*width = 8;
	if (or_number && is_number(s))
		return constant(s, ptx_number(&s->text), 8);
	n = find_register(s, s->text.token, &index);
	if (n == NULL || n->width == 0)
		ptx_bad_text(&s->text, "%s is not a register", s->text.token);
	*width = n->width;
	return (ptx_operand)(n->at + index * lanes_bytes(n->width));
}

/* [base+offset]; the base is a register or something that has an address. */
static void address(struct parser *s, struct ptx_insn *i)
{
	const struct name *n;
	uint32_t index;

	ptx_expect(&s->text, "[");
	ptx_take(&s->text);
	n = find_register(s, s->text.token, &index);
	i->narrow = n != NULL ? n->width == 4 : i->space == PTX_SHARED;
	if (i->narrow && i->space != PTX_SHARED)
		ptx_bad_text(&s->text, "the address %s has 32 bits", s->text.token);
	i->a = operand(s, i->narrow ? 4 : 8);
	i->offset = ptx_accept(&s->text, '+') ? (int64_t)ptx_next_number(&s->text) : 0;
	ptx_expect(&s->text, "]");
}

/* ---- Loads and stores ---- */

/* One of the words between the dots of ld or st. */
static void modifier(struct parser *s, struct ptx_insn *i, const char *word, bool is_last)
{
	static const struct {
		const char *text;
		enum ptx_space space;
	} spaces[] = {
		{ "global", PTX_GLOBAL }, { "shared", PTX_SHARED }, { "param", PTX_PARAM }, { "const", PTX_CONST }
	};
	const bool loads = i->op == PTX_LD;

	for (size_t j = 0; j < sizeof(spaces) / sizeof(spaces[0]); j++)
		if (strcmp(word, spaces[j].text) == 0 && (loads || j < 2)) {
			i->space = (uint8_t)spaces[j].space;
			return;
		}
	if (strcmp(word, "v2") == 0 || strcmp(word, "v4") == 0)
		i->n = (uint8_t)(word[1] - '0');
	else if (loads && strcmp(word, "nc") == 0)
		i->constant = true;
	else if (strcmp(word, "volatile") == 0 || (loads && strcmp(word, "cs") == 0))
		return; /* they do not change what is read or written */
	else if (is_last && (strchr("ubf", word[0]) != NULL || strcmp(word, "s32") == 0))
		i->bytes = (uint8_t)width_of(s, word);
	else if (is_last && loads && strcmp(word, "s8") == 0)
		i->bytes = i->has_sign = 1;
	else
		ptx_bad_text(&s->text, "ld or st: .%s is not known", word);
}

/* %r1 or {%r1, %r2} */
static void registers(struct parser *s, struct ptx_insn *i)
{
	if (i->n > 1)
		ptx_expect(&s->text, "{");
	for (unsigned j = 0; j < i->n; j++) {
		unsigned width;

		if (j > 0)
			ptx_expect(&s->text, ",");
		ptx_take(&s->text);
		i->v[j] = any_register(s, i->op == PTX_ST, &width);
		if (j > 0 && (width == 8) != i->wide)
			ptx_bad_text(&s->text, "registers of one size expected");
		if (width < i->bytes)
			ptx_bad_text(&s->text, "%s is too small", s->text.token);
		i->wide = width == 8;
	}
	if (i->n > 1)
		ptx_expect(&s->text, "}");
}

/* opcode: ld.global.v2.u32 and the like. */
static void load_or_store(struct parser *s, struct ptx_insn *i, const char *opcode)
{
	char words[PTX_TOKEN_BYTES], *word = words, *end;

	i->op = opcode[0] == 'l' ? PTX_LD : PTX_ST;
	i->n = 1;
	snprintf(words, sizeof(words), "%s", opcode + sizeof("ld.") - 1);
	do {
		end = strchr(word, '.');
		if (end != NULL)
			*end = 0;
		modifier(s, i, word, end == NULL);
		word = end != NULL ? end + 1 : NULL;
	} while (word != NULL);
	if (i->bytes == 0)
		ptx_bad_text(&s->text, "%s has no type", opcode);
	if (i->op == PTX_ST) {
		address(s, i);
		ptx_expect(&s->text, ",");
		registers(s, i);
	} else {
		registers(s, i);
		ptx_expect(&s->text, ",");
		address(s, i);
	}
}

/* ---- Arithmetic ---- */

struct ptx_parse_shape {
	const char *text, *d, *source[4];
	enum ptx_op op;
};

static struct ptx_parse_shape shapes[] = {
/* sorted when they are first used */
#define ALU1(id, text, d, a, x) { text, #d, { #a }, id },
#define ALU2(id, text, d, a, b, x) { text, #d, { #a, #b }, id },
#define ALU3(id, text, d, a, b, c, x) { text, #d, { #a, #b, #c }, id },
#define ALU4(id, text, d, a, b, c, f, x) { text, #d, { #a, #b, #c, #f }, id },
#include "tests/gpu/ptx/ptx_ops.h"
};
#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

static int compare_shapes(const void *x, const void *y)
{
	return strcmp(((const struct ptx_parse_shape *)x)->text, ((const struct ptx_parse_shape *)y)->text);
}

static const struct ptx_parse_shape *find_shape(const char *opcode)
{
	static bool sorted;
	const struct ptx_parse_shape key = { .text = opcode };

	if (!sorted)
		qsort(shapes, N_SHAPES, sizeof(shapes[0]), compare_shapes);
	sorted = true;
	return bsearch(&key, shapes, N_SHAPES, sizeof(shapes[0]), compare_shapes);
}

static void compute(struct parser *s, struct ptx_insn *i, const struct ptx_parse_shape *f)
{
	ptx_operand *const to[] = { &i->a, &i->b, &i->c, &i->e };

	i->op = (uint16_t)f->op;
	i->d = next_result(s, width_of(s, f->d));
	for (unsigned j = 0; j < 4 && f->source[j] != NULL; j++)
		*to[j] = operand_after_comma(s, width_of(s, f->source[j]));
}

/* ---- Other instructions ---- */

static uint32_t label(struct parser *s, const char *text)
{
	struct label *l;

	for (uint32_t i = 0; i < s->n_labels; i++)
		if (strcmp(s->label[i].text, text) == 0)
			return i;
	s->label = ptx_room(s->label, s->n_labels, &s->label_room, sizeof(s->label[0]));
	l = &s->label[s->n_labels];
	*l = (struct label){ .at = NOT_YET };
	if (strlen(text) >= sizeof(l->text))
		ptx_bad_text(&s->text, "the label %s is too long", text);
	memcpy(l->text, text, strlen(text));
	return s->n_labels++;
}

static void set_label(struct parser *s)
{
	const uint32_t l = label(s, s->text.token);

	if (s->label[l].at != NOT_YET)
		ptx_bad_text(&s->text, "the label %s is there twice", s->text.token);
	s->label[l].at = s->k->n_code;
}

static void nothing(struct parser *s, struct ptx_insn *i)
{
	(void)s;
	(void)i;
}

static void branch(struct parser *s, struct ptx_insn *i)
{
	ptx_take(&s->text);
	i->target = label(s, s->text.token);
}

static void barrier(struct parser *s, struct ptx_insn *i)
{
	(void)i;
	if (ptx_next_number(&s->text) != 0)
		ptx_bad_text(&s->text, "a barrier other than 0");
}

static void members(struct parser *s, struct ptx_insn *i)
{
	i->e = next_operand(s, 4);
}

static void shuffle(struct parser *s, struct ptx_insn *i)
{
	i->d = next_result(s, 4);
	ptx_expect(&s->text, "|");
	i->valid = next_result(s, 0);
	i->a = operand_after_comma(s, 4);
	i->b = operand_after_comma(s, 4);
	i->c = operand_after_comma(s, 4);
	i->e = operand_after_comma(s, 4);
}

static void vote(struct parser *s, struct ptx_insn *i)
{
	i->d = next_result(s, 4);
	i->a = operand_after_comma(s, 0);
	i->e = operand_after_comma(s, 4);
}

static void copy(struct parser *s, struct ptx_insn *i)
{
	ptx_expect(&s->text, "[");
	i->d = next_operand(s, 4);
	ptx_expect(&s->text, "]");
	ptx_expect(&s->text, ",");
	i->space = PTX_GLOBAL;
	address(s, i);
	ptx_expect(&s->text, ",");
	i->bytes = (uint8_t)ptx_next_number(&s->text);
	if (i->bytes != 4 && i->bytes != 8 && i->bytes != 16)
		ptx_bad_text(&s->text, "a copy of %u bytes", i->bytes);
}

static void copy_16(struct parser *s, struct ptx_insn *i) /* past the first cache, which knows no other size */
{
	copy(s, i);
	if (i->bytes != 16)
		ptx_bad_text(&s->text, "a copy of %u bytes with .cg", i->bytes);
}

static void groups(struct parser *s, struct ptx_insn *i)
{
	i->offset = (int64_t)ptx_next_number(&s->text);
}

static void grid_wait(struct parser *s, struct ptx_insn *i)
{
	(void)i;
	s->k->waits = true;
}

static void address_of_shared(struct parser *s, struct ptx_insn *i)
{
	i->d = next_result(s, 8);
	i->a = operand_after_comma(s, 8);
}

static void logic(struct parser *s, struct ptx_insn *i)
{
	i->d = next_result(s, 4);
	i->a = operand_after_comma(s, 4);
	i->b = operand_after_comma(s, 4);
	i->c = operand_after_comma(s, 4);
	ptx_expect(&s->text, ",");
	i->offset = (int64_t)ptx_next_number(&s->text);
}

static void other(struct parser *s, struct ptx_insn *i, const char *opcode)
{
	static const struct {
		const char *text;
		enum ptx_op op;
		void (*operands)(struct parser *s, struct ptx_insn *i);
	} known[] = {
		{ "bra", PTX_BRA, branch },
		{ "bra.uni", PTX_BRA, branch },
		{ "ret", PTX_RET, nothing },
		{ "bar.sync", PTX_BAR, barrier },
		{ "bar.warp.sync", PTX_BAR_WARP, members },
		{ "shfl.sync.bfly.b32", PTX_SHFL_BFLY, shuffle },
		{ "shfl.sync.idx.b32", PTX_SHFL_IDX, shuffle },
		{ "shfl.sync.up.b32", PTX_SHFL_UP, shuffle },
		{ "vote.sync.ballot.b32", PTX_VOTE, vote },
		{ "cp.async.cg.shared.global.L2::128B", PTX_CP_ASYNC, copy_16 },
		{ "cp.async.ca.shared.global.L2::128B", PTX_CP_ASYNC, copy },
		{ "cp.async.commit_group", PTX_COMMIT, nothing },
		{ "cp.async.wait_group", PTX_WAIT, groups },
		{ "membar.sys", PTX_FENCE, nothing },
		{ "griddepcontrol.wait", PTX_GRID_WAIT, grid_wait },
		/* the next kernel waits before it does anything */
		{ "griddepcontrol.launch_dependents", PTX_FENCE, nothing },
		{ "prefetch.global.L2", PTX_PREFETCH, address },
		{ "cvta.shared.u64", PTX_CVTA_SHARED, address_of_shared },
		{ "lop3.b32", PTX_LOP3, logic },
	};

	for (size_t j = 0; j < sizeof(known) / sizeof(known[0]); j++)
		if (strcmp(opcode, known[j].text) == 0) {
			i->op = (uint16_t)known[j].op;
			known[j].operands(s, i);
			return;
		}
	ptx_bad_text(&s->text, "instruction %s is not known", opcode);
}

/* ---- Functions ---- */

static struct ptx_insn *add(struct parser *s)
{
	struct ptx_kernel *k = s->k;

	k->code = ptx_room(k->code, k->n_code, &s->code_room, sizeof(k->code[0]));
	k->code[k->n_code] = (struct ptx_insn){ .line = s->text.line, .source = s->source };
	return &k->code[k->n_code++];
}

/* The token is its first. */
static void instruction(struct parser *s)
{
	struct ptx_insn *i = add(s);
	char opcode[PTX_TOKEN_BYTES];
	const struct ptx_parse_shape *f;

	if (ptx_is(&s->text, "@")) {
		i->has_guard = true;
		i->negated = ptx_accept(&s->text, '!');
		i->guard = next_operand(s, 0);
		ptx_take(&s->text);
	}
	memcpy(opcode, s->text.token, sizeof(opcode));
	f = find_shape(opcode);
	if (f != NULL)
		compute(s, i, f);
	else if (ptx_starts(opcode, "ld.") || ptx_starts(opcode, "st."))
		load_or_store(s, i, opcode);
	else
		other(s, i, opcode);
	ptx_expect(&s->text, ";");
	if (i->has_guard && i->op < PTX_BRA)
		ptx_bad_text(&s->text, "%s with a guard is not known", opcode);
}

/* .loc file line column[, function_name ..., inlined_at ...] */
static void locate(struct parser *s)
{
	const uint32_t file = (uint32_t)ptx_next_number(&s->text);

	s->source = file << 20 | ptx_source_line((uint32_t)ptx_next_number(&s->text));
	ptx_skip_line(&s->text);
}

static void pragma(struct parser *s)
{
	ptx_take(&s->text);
	if (!ptx_is(&s->text, "\"nounroll\"") && !ptx_starts(s->text.token, "\"used_bytes_mask"))
		ptx_bad_text(&s->text, "pragma %s is not known", s->text.token);
	ptx_expect(&s->text, ";");
}

/* Up to its }. Names of registers are known in the block that declares them. */
static void block(struct parser *s)
{
	const uint32_t n_names = s->n_names;

	for (;;) {
		ptx_take(&s->text);
		if (ptx_is(&s->text, "}"))
			break;
		if (ptx_is(&s->text, "{"))
			block(s);
		else if (ptx_is(&s->text, ".reg"))
			declare(s);
		else if (ptx_is(&s->text, ".loc"))
			locate(s);
		else if (ptx_is(&s->text, ".pragma"))
			pragma(s);
		else if (s->text.token[0] == '.')
			ptx_bad_text(&s->text, "directive %s is not known", s->text.token);
		else if (ptx_accept(&s->text, ':'))
			set_label(s);
		else
			instruction(s);
	}
	s->n_names = n_names;
}

/* (.param .align 8 .b8 name[40]) */
static void parameter(struct parser *s)
{
	ptx_expect(&s->text, "(");
	ptx_expect(&s->text, ".param");
	ptx_expect(&s->text, ".align");
	if (ptx_next_number(&s->text) > 16)
		ptx_bad_text(&s->text, "an alignment of more than 16 bytes");
	ptx_expect(&s->text, ".b8");
	ptx_take(&s->text);
	memcpy(s->param, s->text.token, sizeof(s->param));
	ptx_expect(&s->text, "[");
	s->k->args_bytes = (size_t)ptx_next_number(&s->text);
	ptx_expect(&s->text, "]");
	ptx_expect(&s->text, ")");
}

/* Up to the { of the function. */
static void bounds(struct parser *s)
{
	for (ptx_take(&s->text); !ptx_is(&s->text, "{"); ptx_take(&s->text)) {
		if (ptx_is(&s->text, ".maxntid")) {
			s->k->n_threads = (unsigned)ptx_next_number(&s->text);
			for (int i = 0; i < 2; i++) {
				ptx_expect(&s->text, ",");
				if (ptx_next_number(&s->text) != 1)
					ptx_bad_text(&s->text, "blocks have one dimension");
			}
		} else if (ptx_is(&s->text, ".minnctapersm")) {
			(void)ptx_next_number(&s->text);
		} else {
			ptx_bad_text(&s->text, "directive %s is not known", s->text.token);
		}
	}
}

static void resolve_labels(const struct parser *s)
{
	const struct ptx_kernel *k = s->k;

	for (uint32_t i = 0; i < k->n_code; i++) {
		if (k->code[i].op != PTX_BRA)
			continue;
		k->code[i].target = s->label[k->code[i].target].at;
		if (k->code[i].target >= k->n_code)
			ptx_bad_text(&s->text, "a label is missing, or behind the last instruction");
	}
	if (k->n_code == 0 || (k->code[k->n_code - 1].op != PTX_RET && k->code[k->n_code - 1].op != PTX_BRA))
		ptx_bad_text(&s->text, "the function does not end");
}

void ptx_parse(struct ptx_kernel *k)
{
	struct parser *s = ptx_zeros(1, sizeof(*s));

	s->k = k;
	s->text = (struct ptx_text){ .file = ptx_file(k), .p = k->begin, .end = k->end, .line = k->begin_line };
	k->register_bytes = lanes_bytes(4); /* tid.x */
	s->n_constants = s->constants_room = PTX_N_SPECIAL;
	k->constants = ptx_zeros(PTX_N_SPECIAL, lanes_bytes(8));
	parameter(s);
	bounds(s);
	block(s);
	k->constant_bytes = s->n_constants * lanes_bytes(8);
	resolve_labels(s);
	free(s->label);
	free(s);
}
