/* ptx_code.h - kernels in PTX, the assembly language that nvcc makes of them, in a form that ptx_blocks.c can run.
 *
 * Only the PTX that nvcc makes of this project's kernels is known. Anything else ends the process with a message that
 * names it.
 * Thread: any, for ptx_find(). A kernel does not change once it is found.
 * Owner:  kernels belong to ptx_modules.c and stay until the process ends. */
#ifndef OD_TESTS_PTX_CODE_H
#define OD_TESTS_PTX_CODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTX_LANES 32u

/* Where the 32 lanes of an operand are: an offset in bytes in the warp's registers, or, if negative, ~offset in the
 * kernel's constants. */
typedef int32_t ptx_operand;

enum ptx_space { PTX_GENERIC, PTX_GLOBAL, PTX_SHARED, PTX_PARAM, PTX_CONST };

/* From PTX_BRA on they may have a guard. */
enum ptx_op {
	PTX_RET,
	PTX_CP_ASYNC,
	PTX_COMMIT,
	PTX_WAIT,
	PTX_BAR,
	PTX_BAR_WARP,
	PTX_SHFL_BFLY,
	PTX_SHFL_IDX,
	PTX_SHFL_UP,
	PTX_VOTE,
	PTX_FENCE,
	PTX_GRID_WAIT,
	PTX_PREFETCH,
	PTX_BRA,
	PTX_LD,
	PTX_ST,
	PTX_CVTA_SHARED,
	PTX_LOP3,
#define ALU1(id, text, d, a, e) id,
#define ALU2(id, text, d, a, b, e) id,
#define ALU3(id, text, d, a, b, c, e) id,
#define ALU4(id, text, d, a, b, c, f, e) id,
#include "tests/gpu/ptx/ptx_ops.h"
};

struct ptx_insn {
	uint16_t op;
	uint8_t space; /* enum ptx_space */
	uint8_t bytes, n; /* ld, st: bytes of an element, elements; cp.async: bytes */
	bool wide; /* ld, st: the registers have 64 bits, else 32 */
	bool narrow; /* the address register has 32 bits */
	bool has_guard, negated;
	bool has_sign; /* ld of an s8: the register gets copies of its sign */
	bool constant; /* ld.nc: the kernel must not write what it reads */
	ptx_operand guard, d, a, b, c, e;
	ptx_operand v[4]; /* ld, st */
	ptx_operand valid; /* shfl: the predicate that it sets */
	int64_t offset; /* address: added; lop3: the table; wait_group: groups that may be under way */
	uint32_t target; /* bra: an index in the code */
	uint32_t line; /* in the PTX file */
	uint32_t source; /* by .loc: number of the file << 20 | line */
};

/* Values that a launch or a block gives, the same in all lanes. They are the first constants of every kernel, 256 bytes
 * each. */
enum ptx_special {
	PTX_CTAID_X,
	PTX_CTAID_Y,
	PTX_CTAID_Z,
	PTX_NTID_X,
	PTX_NCTAID_X,
	PTX_SHARED_32,
	PTX_SHARED_64,
	PTX_ARGS,
	PTX_N_SPECIAL
};

struct ptx_module;

struct ptx_kernel {
	char *name; /* as in kernels.h */
	const struct ptx_module *module;
	const char *begin, *end; /* its text in the module's, parsed when the kernel is first used */
	uint32_t begin_line;
	struct ptx_insn *code;
	uint32_t n_code;
	size_t register_bytes; /* bytes of a warp's registers; the first register is tid.x */
	unsigned char *constants;
	size_t constant_bytes;
	size_t args_bytes;
	unsigned n_threads; /* threads of a block (.maxntid) */
	bool waits; /* for the kernel before it (griddepcontrol) */
	struct ptx_kernel *next;
};

/* The first call reads the files in the folder $OD_PTX. NULL: none of them has the kernel. */
struct ptx_kernel *ptx_find(const char *name);

/* The PTX file, and the source file of an instruction's .loc, for messages. */
const char *ptx_file(const struct ptx_kernel *k);
const char *ptx_source_file(const struct ptx_kernel *k, uint32_t source);
static inline uint32_t ptx_source_line(uint32_t source)
{
	return source & 0xfffff;
}

#endif
