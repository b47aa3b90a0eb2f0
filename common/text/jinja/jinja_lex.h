/* jinja_lex.h - cuts a template into tokens, whitespace control included; only for common/text/jinja.
 *
 * Thread: as the job. Owner: the job. */
#ifndef OD_TEXT_JINJA_LEX_H
#define OD_TEXT_JINJA_LEX_H

#include "common/text/jinja/jinja_value.h"

enum jinja_token_type {
	T_END, /* the template ends */
	T_DATA,
	T_VARIABLE_BEGIN,
	T_VARIABLE_END,
	T_BLOCK_BEGIN,
	T_BLOCK_END,
	T_NAME,
	T_STRING,
	T_INT,
	T_FLOAT,
	/* operators */
	T_ADD,
	T_SUB,
	T_MUL,
	T_DIV,
	T_FLOORDIV,
	T_MOD,
	T_POW,
	T_TILDE,
	T_EQ,
	T_NE,
	T_LT,
	T_LE,
	T_GT,
	T_GE,
	T_ASSIGN,
	T_DOT,
	T_COLON,
	T_COMMA,
	T_SEMICOLON,
	T_PIPE,
	T_LPAREN,
	T_RPAREN,
	T_LBRACKET,
	T_RBRACKET,
	T_LBRACE,
	T_RBRACE,
};

struct jinja_token {
	enum jinja_token_type type;
	uint32_t line;
	union {
		const struct jinja_str *s; /* T_DATA, T_NAME, T_STRING */
		int64_t i;
		double f;
	};
};

/* The last token is T_END. text: valid UTF-8, lives as long as the job. */
struct jinja_token *jinja_lex(struct jinja_job *j, const char *text, size_t len);
const char *jinja_token_name(enum jinja_token_type type); /* "'+'", "a name" */

#endif
