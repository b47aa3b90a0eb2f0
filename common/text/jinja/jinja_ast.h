/* jinja_ast.h - a parsed template; only for common/text/jinja.
 *
 * Thread: immutable once it is parsed. Owner: the template's arena. */
#ifndef OD_TEXT_JINJA_AST_H
#define OD_TEXT_JINJA_AST_H

#include "common/text/jinja/jinja.h"
#include "common/text/jinja/jinja_calls.h"
#include "common/text/jinja/jinja_lex.h"

/* Expressions first, then statements. */
enum jinja_node_kind {
	N_CONST,
	N_NAME, /* also as target of an assignment */
	N_LIST,
	N_TUPLE, /* also as target */
	N_DICT,
	N_NOT,
	N_NEGATE,
	N_PLUS,
	N_BINARY,
	N_AND,
	N_OR,
	N_CONCAT,
	N_COMPARE,
	N_CHOICE, /* a if b else c */
	N_ATTRIBUTE,
	N_ITEM,
	N_SLICE,
	N_CALL,
	N_FILTER,
	N_TEST,
	N_MEMBER, /* NAME.ATTRIBUTE as target: of a namespace */
	/* statements */
	N_TEXT,
	N_OUTPUT,
	N_FOR,
	N_IF,
	N_SET,
	N_SET_BLOCK,
	N_MACRO,
	N_CALL_BLOCK,
	N_FILTER_BLOCK,
	N_WITH,
	N_SCOPE, /* {% generation %} */
	N_BREAK,
	N_CONTINUE,
};

enum jinja_compare_op { C_EQ, C_NE, C_LT, C_LE, C_GT, C_GE, C_IN, C_NOT_IN };

struct jinja_node;

struct jinja_nodes {
	struct jinja_node **v;
	size_t n, cap;
};

struct jinja_arguments {
	struct jinja_nodes pos;
	struct jinja_value *keyword; /* strings */
	struct jinja_nodes value; /* the keywords' values */
	struct jinja_node *more_pos, *more_kw; /* *x, **x; or NULL */
};

struct jinja_signature {
	const struct jinja_str *name; /* NULL: of a call block */
	uint32_t *param; /* ids of names */
	size_t n_params;
	struct jinja_nodes fallback; /* defaults; they belong to the last parameters */
	struct jinja_nodes body;
	bool takes_caller, takes_kwargs, takes_varargs; /* because the body reads such a name */
};

struct jinja_node {
	enum jinja_node_kind kind;
	uint32_t line;
	union {
		struct jinja_value constant;
		uint32_t name; /* N_NAME: id */
		struct jinja_nodes items; /* N_LIST, N_TUPLE, N_CONCAT, N_OUTPUT, N_SCOPE */
		struct {
			struct jinja_nodes keys, values;
		} dict;
		struct {
			enum jinja_token_type op; /* N_BINARY */
			struct jinja_node *a, *b; /* b NULL with one operand */
		} op;
		struct {
			struct jinja_node *first;
			struct jinja_nodes rest;
			enum jinja_compare_op *ops; /* before each of rest */
		} compare;
		struct {
			struct jinja_node *test, *yes, *no; /* no: may be NULL */
		} choice;
		struct {
			struct jinja_node *of;
			const struct jinja_str *name;
		} attribute;
		struct {
			struct jinja_node *of, *index;
		} item;
		struct {
			struct jinja_node *begin, *end, *step; /* any may be NULL */
		} slice;
		struct {
			struct jinja_node *callee;
			struct jinja_arguments args;
		} call;
		struct {
			struct jinja_node *of; /* N_FILTER: NULL takes the text of the block */
			const struct jinja_function *function; /* NULL: there is none of this name */
			const struct jinja_str *name;
			struct jinja_arguments args;
		} apply; /* N_FILTER, N_TEST */
		struct {
			uint32_t name;
			const struct jinja_str *attribute;
		} member;
		const struct jinja_str *text;
		struct {
			struct jinja_node *target, *iterable, *test; /* test: may be NULL */
			struct jinja_nodes body, otherwise;
			bool recursive;
		} loop;
		struct {
			struct jinja_node *test;
			struct jinja_nodes yes, no;
		} branch;
		struct {
			struct jinja_node *target, *value; /* N_SET_BLOCK: value is its filter, or NULL */
			struct jinja_nodes body;
		} set;
		struct {
			uint32_t name;
			struct jinja_signature signature;
			struct jinja_node *call; /* N_CALL_BLOCK */
		} macro;
		struct {
			struct jinja_node *filter;
			struct jinja_nodes body;
		} filter_block;
		struct {
			struct jinja_nodes targets, values, body;
		} with;
	};
};

/* Names that programs give a meaning; their ids are these in every template. */
enum jinja_known_name { JINJA_NAME_LOOP, JINJA_NAME_CALLER, JINJA_NAME_KWARGS, JINJA_NAME_VARARGS, JINJA_N_KNOWN };

struct od_jinja {
	struct jinja_job job; /* owns all of this */
	struct jinja_value *names; /* by id: strings */
	size_t n_names, cap_names;
	struct jinja_nodes body;
};

#endif
