/* tok_internal.h - shared declarations of the tokenizer's files; only for common/text.
 *
 * Encoding: split at added tokens -> normalise -> split at normalised added tokens -> pre-tokenise -> BPE ->
 * template. Everything that a tokenizer.json names has become plain arrays of steps at load time; sequences are
 * flattened.
 * Thread: the structs of the loaded file are immutable; buffers belong to one call. */
#ifndef OD_TEXT_TOK_INTERNAL_H
#define OD_TEXT_TOK_INTERNAL_H

#include <jansson.h>

#include "common/text/tok_scan.h"
#include "common/text/tokenizer.h"

#define TOK_MAX_FILE_BYTES (256u << 20)
#define TOK_MAX_TEXT_BYTES ((size_t)256 << 20)
#define TOK_MAX_IDS (1u << 24) /* far above any vocabulary; bounds the table of a sparse file */
#define TOK_MAX_TOKEN_BYTES 65536u /* bytes of one vocabulary entry */
#define TOK_MAX_ADDED_BYTES 1024u /* bounds the matcher's work per position */
#define TOK_MAX_CONTENT_BYTES 1024u /* bytes that one step puts in for a character */
#define TOK_MAX_SHOWN_BYTES ((size_t)4 << 20) /* bytes that decoders make of one token, or of a run of bytes */
#define TOK_MAX_TEMPLATE_IDS 4096u /* in front of a text, and behind it */
#define TOK_MAX_STEPS 64u /* normalisers, pre-tokenisers, decoders each */
#define TOK_MAX_DEPTH 8 /* nesting of Sequences */

/* ---- bytes, characters, pieces (tok_text.c) ---- */

/* All bytes zero is an empty one. Adding more than max_bytes is OD_ERR_RANGE; 0: no limit. */
struct tok_buf {
	char *data;
	size_t len, cap, max_bytes;
};
OD_MUST_CHECK int tok_buf_add(struct tok_buf *b, const void *data, size_t len);
OD_MUST_CHECK int tok_buf_reserve(struct tok_buf *b, size_t more);
void tok_buf_fini(struct tok_buf *b);
/* Upper bound of the bytes that a tokenizer's steps may make of a text of len bytes. A file of a few lines can name
 * steps of which each makes 1024 bytes of one; no real one grows a text 64 times (NFKD, the most, 11 times, a byte
 * alphabet twice). */
size_t tok_max_grown(size_t len);

/* Room for at least one more element of each_bytes behind the first n; may move *v (a pointer to any type). */
OD_MUST_CHECK int tok_grow(void *v, size_t n, size_t *cap, size_t each_bytes);

/* The character at s (valid UTF-8, len >= 1): its bytes, and *cp. */
size_t tok_char(const char *s, size_t len, int32_t *cp);
/* True when valid; else *bad is the offset of the first wrong byte. */
bool tok_utf8_valid(const char *s, size_t len, size_t *bad);
bool tok_is_space(int32_t cp); /* Unicode White_Space */
bool tok_is_word(int32_t cp); /* \w of Unicode TR18: Alphabetic, M, Nd, Pc, Join_Control */
bool tok_is_numeric(int32_t cp);
bool tok_is_punctuation(int32_t cp);
bool tok_is_mark(int32_t cp);
bool tok_is_inert(int32_t cp); /* no normalisation changes or passes it */
int32_t tok_tolower(int32_t cp);

/* Consecutive spans that cover a text; which of them match something. */
struct tok_span {
	size_t begin, end;
	bool match;
};
struct tok_spans {
	struct tok_span *v;
	size_t n, cap;
};
OD_MUST_CHECK int tok_spans_add(struct tok_spans *s, size_t begin, size_t end, bool match);

/* A text cut in pieces. A piece with an id is an added token and stays as it is. */
struct tok_piece {
	size_t at, len;
	int32_t id; /* -1: text */
	bool first; /* begins where the original text begins (Metaspace "first") */
};
struct tok_pieces {
	struct tok_buf text;
	struct tok_piece *v;
	size_t n, cap;
};
OD_MUST_CHECK int tok_pieces_add(struct tok_pieces *p, const char *s, size_t len, int32_t id, bool first);
void tok_pieces_clear(struct tok_pieces *p);
void tok_pieces_fini(struct tok_pieces *p);

/* Follows users' bytes through a step that makes one text of another. */
struct tok_trace {
	const char *from; /* a byte for each of the text: 1 if it is a user's */
	struct tok_buf to; /* marks in the same way what was made */
};
/* All that out has more than t->to came of the text's [begin, end). t NULL: nothing to do. */
OD_MUST_CHECK int tok_trace_made(struct tok_trace *t, const struct tok_buf *out, size_t begin, size_t end);
/* [begin, end) was copied. */
OD_MUST_CHECK int tok_trace_kept(struct tok_trace *t, size_t begin, size_t end);

/* ---- regular expressions (tok_regex.c) ---- */

/* An Oniguruma pattern (Ruby syntax, as the reference uses it), or literal text, compiled by PCRE2. */
struct tok_regex;
OD_MUST_CHECK int tok_regex_new(struct tok_regex **out, const char *pattern, size_t len, bool literal,
				const char *where, struct od_err *err);
void tok_regex_free(struct tok_regex *re); /* NULL ok */
/* out is overwritten: matches and what lies between them. */
OD_MUST_CHECK int tok_regex_spans(const struct tok_regex *re, const char *text, size_t len, struct tok_spans *out,
				  struct od_err *err);
/* obj's field key, a string to insert, copied. *out is malloc'd, NULL unless OD_OK. */
OD_MUST_CHECK int tok_content_parse(char **out, size_t *len, const json_t *obj, const char *key, const char *where,
				    struct od_err *err);
/* {"String": "..."} or {"Regex": "..."} of obj's field "pattern". *literal is borrowed, NULL for a regex. */
OD_MUST_CHECK int tok_regex_parse(struct tok_regex **out, const char **literal, size_t *literal_len, const json_t *obj,
				  const char *where, struct od_err *err);
/* text with every match replaced, appended to out. trace: NULL ok. */
OD_MUST_CHECK int tok_regex_replace(const struct tok_regex *re, const char *content, size_t content_len,
				    const char *text, size_t len, struct tok_buf *out, struct tok_trace *trace,
				    struct od_err *err);

/* ---- vocabulary and merges (tok_bpe.c) ---- */

enum tok_entry_flags { TOK_PRESENT = 1, TOK_IN_MODEL = 2, TOK_ADDED = 4, TOK_SPECIAL = 8 };
struct tok_entry {
	uint32_t at, len; /* in tok_vocab.bytes */
	uint32_t shown_at, shown_len; /* text that decoding sees: differs for added tokens that are normalised */
	uint8_t flags; /* 0: a hole in the numbering */
};
struct tok_vocab {
	struct tok_buf bytes;
	struct tok_entry *entry; /* [n], by id */
	uint32_t n; /* highest id + 1 */
	uint32_t n_present;
	uint32_t *slot; /* [n_slots], id + 1, 0: free */
	uint32_t n_slots;
};
OD_MUST_CHECK int tok_vocab_init(struct tok_vocab *v, uint32_t n, uint32_t n_present, struct od_err *err);
/* The id must be free and below n; the text must be new. */
OD_MUST_CHECK int tok_vocab_add(struct tok_vocab *v, const char *s, size_t len, uint32_t id, uint8_t flags);
int32_t tok_vocab_find(const struct tok_vocab *v, const char *s, size_t len); /* -1: none */
void tok_vocab_fini(struct tok_vocab *v);

struct tok_merge {
	uint64_t pair; /* left << 32 | right, UINT64_MAX: free */
	uint32_t rank;
	int32_t merged;
};
struct tok_bpe {
	struct tok_merge *merge; /* open addressing */
	uint32_t n_slots;
	int32_t unk; /* -1: none */
	int32_t byte_id[256]; /* ids of "<0x00>"...; -1: none */
	int32_t raw_id[256]; /* ids of bytes in the byte alphabet; -1: none */
	/* Where no merge ever joins, a long text may be cut into words: before a U+2581 or a newline, by the last byte
	 * in front of it, and behind a newline, by the next byte. */
	bool may_cut;
	bool joins_mark[256], joins_line[256], line_joins[256];
	bool joins_stand_ins; /* some merge takes the unknown token or one of a byte */
	bool byte_fallback, fuse_unk, ignore_merges;
	char *prefix, *suffix; /* in front of continuing subwords, behind words' ends; NULL: none */
	size_t prefix_len, suffix_len;
};
void tok_bpe_init(struct tok_bpe *b);
/* Room for n merges of tok_bpe_add_merge. */
OD_MUST_CHECK int tok_bpe_init_merges(struct tok_bpe *b, uint32_t n);
/* left and right, which are in the model, become `merged`; the last of equal pairs counts. */
void tok_bpe_add_merge(struct od_tokenizer *t, int32_t left, int32_t right, uint32_t rank, int32_t merged);
/* After vocabulary, merges and options. */
void tok_bpe_finish(struct od_tokenizer *t);

/* ---- files that list ranks instead of merges (tok_ranked.c, tok_sentencepiece.c, tok_tiktoken.c) ---- */

#define TOK_NO_RANK UINT32_MAX
/* rank: of tokens 0 to n - 1, TOK_NO_RANK if merging neither makes nor takes it. Two tokens may become a third if their
 * texts together are its text; the lowest rank first. Finishes the BPE. */
OD_MUST_CHECK int tok_ranked_merges(struct od_tokenizer *t, const uint32_t *rank, uint32_t n, const char *where,
				    struct od_err *err);

/* tokenizer_config.json's added_tokens_decoder, in order of ids; fields and content are borrowed. Free *out even on
 * failure. */
struct tok_listed {
	uint32_t id;
	const char *content;
	const json_t *fields;
};
OD_MUST_CHECK int tok_listed_parse(struct tok_listed **out, size_t *n, const json_t *config, const char *where,
				   struct od_err *err);
const struct tok_listed *tok_listed_find(const struct tok_listed *list, size_t n, uint32_t id); /* NULL: none */
/* Appends what tokenizer.json has in added_tokens. fields NULL: a special token. */
OD_MUST_CHECK int tok_listed_add(json_t *added, uint32_t id, const char *content, size_t len, const json_t *fields);

OD_MUST_CHECK int tok_sentencepiece_parse(struct od_tokenizer *t, const char *data, size_t len, const json_t *config,
					  const char *where, struct od_err *err);
OD_MUST_CHECK int tok_tiktoken_parse(struct od_tokenizer *t, const char *data, size_t len, const json_t *config,
				     const char *where, struct od_err *err);
/* Reads all but the model of a tokenizer.json; t has its model. */
OD_MUST_CHECK int tok_pipeline_parse(struct od_tokenizer *t, const json_t *root, const char *where, struct od_err *err);

struct tok_ids {
	int32_t *v;
	size_t n, cap;
};
OD_MUST_CHECK int tok_ids_add(struct tok_ids *ids, int32_t id);

struct tok_bpe_scratch; /* buffers of one encoding call, which may give max_ids */
struct tok_bpe_scratch *tok_bpe_scratch_new(size_t max_ids);
void tok_bpe_scratch_free(struct tok_bpe_scratch *s);

/* The vocabulary gets room for the added tokens too. */
OD_MUST_CHECK int tok_model_parse(struct od_tokenizer *t, const json_t *root, const char *where, struct od_err *err);
/* A word's ids. It is of bytes that are not in the byte alphabet yet if t->pres.raw. */
OD_MUST_CHECK int tok_model_word(const struct od_tokenizer *t, struct tok_bpe_scratch *scratch, const char *word,
				 size_t len, struct tok_ids *ids, struct od_err *err);
void tok_bpe_fini(struct tok_bpe *b);

/* ---- words that were seen before (tok_words.c) ---- */

struct tok_words; /* lives as long as one encoding call */
/* controls: tokens that no word becomes; NULL: none. */
struct tok_words *tok_words_new(const struct od_tokenizer *t, const struct od_controls *controls, size_t max_ids);
void tok_words_free(struct tok_words *w); /* NULL ok */
/* As tok_model_word. left: bytes that may be read from word on. */
OD_MUST_CHECK int tok_words_add(struct tok_words *w, const char *word, size_t len, size_t left, struct tok_ids *ids,
				struct od_err *err);

/* ---- control tokens and users' text (tok_controls.c) ---- */

/* As tok_model_word, but no control token comes of a word that contains its text: that is cut behind its first
 * character. */
OD_MUST_CHECK int tok_controls_word(const struct od_controls *c, struct tok_bpe_scratch *scratch, const char *word,
				    size_t len, struct tok_ids *ids, struct od_err *err);
/* Whether a control token is searched for in normalised text. */
bool tok_controls_in_normalized(const struct od_controls *c);

/* Where users' bytes are in a text that is read from its begin to its end. */
struct tok_users {
	const struct od_text_span *v;
	size_t n;
	const struct od_controls *controls;
	size_t next; /* the first span that ends behind what was asked last */
};

/* ---- added tokens (tok_added.c) ---- */

struct tok_added {
	char *content; /* text to search for; normalised if it is searched for in normalised text */
	size_t len;
	size_t core_begin, core_end; /* content without white space at its ends, or all of it */
	int32_t id;
	uint32_t order; /* the reference's: special ones first, then as in the file */
	bool single_word, lstrip, rstrip, special, normalized;
};
/* Sorted by content, so that narrowing a range byte by byte walks it like a trie. */
struct tok_matcher {
	struct tok_added *v;
	uint32_t n;
	uint32_t first[257]; /* entries that begin with byte b: [first[b], first[b + 1]) */
};
/* Needs the vocabulary and the normaliser. */
OD_MUST_CHECK int tok_added_parse(struct od_tokenizer *t, const json_t *root, const char *where, struct od_err *err);
/* Tokens of the vocabulary that are found in normalised text, themselves not normalised. */
OD_MUST_CHECK int tok_added_as_they_are(struct od_tokenizer *t, const struct tok_ids *ids);
/* Appends the pieces of text to out. users: control tokens keep off these; NULL: there are none. */
OD_MUST_CHECK int tok_added_split(const struct tok_matcher *m, bool parse_special, struct tok_users *users,
				  const char *text, size_t len, bool first, struct tok_pieces *out);
/* Calls back with each entry that stands anywhere in text, as often as it does. */
void tok_added_find(const struct tok_matcher *m, const char *text, size_t len,
		    void (*found)(void *arg, const struct tok_added *a), void *arg);
void tok_matcher_fini(struct tok_matcher *m);

/* ---- normalisers (tok_normalize.c) ---- */

struct tok_norm;
struct tok_norms {
	struct tok_norm *v;
	size_t n;
	bool prepend_first; /* NORM_PREPEND only where the original text begins */
};
OD_MUST_CHECK int tok_norms_parse(struct tok_norms *out, const json_t *obj, const char *where, struct od_err *err);
/* text to out (overwritten, at most tok_max_grown). first: it begins where the original text begins. *dropped: its
 * first character has gone without a successor. users: a byte for each of the text, 1 if it is a user's, then of out;
 * NULL: not wanted. */
OD_MUST_CHECK int tok_norms_run(const struct tok_norms *n, const char *text, size_t len, bool first,
				struct tok_buf *out, struct tok_buf *users, bool *dropped, struct od_err *err);
void tok_norms_fini(struct tok_norms *n);

/* ---- pre-tokenisers (tok_pretokenize.c) ---- */

struct tok_pre;
struct tok_pres {
	struct tok_pre *v;
	size_t n;
	bool raw; /* the last step, which only writes bytes in the byte alphabet, is left to the BPE */
	bool slices; /* before all steps long texts are cut as Kimi's published code does (tok_slices.c) */
};
OD_MUST_CHECK int tok_slices_cut(struct tok_pieces *pieces);
OD_MUST_CHECK int tok_pres_parse(struct tok_pres *out, const json_t *obj, const char *where, struct od_err *err);
/* The last step's kind if tok_scan_next does it; the caller then cuts the pieces by it. */
enum tok_scan_kind tok_pres_scan(const struct tok_pres *p);
/* All other steps. The text has the limit of pieces->text. */
OD_MUST_CHECK int tok_pres_run(const struct tok_pres *p, struct tok_pieces *pieces, struct od_err *err);
void tok_pres_fini(struct tok_pres *p);

/* How byte b looks in a byte-level vocabulary (code point), and back (-1: not one of them). */
int32_t tok_byte_to_char(uint8_t b);
int tok_char_to_byte(int32_t cp);

/* Metaspace's fields, the same for pre-tokeniser and decoder. */
enum tok_prepend { TOK_PREPEND_ALWAYS, TOK_PREPEND_FIRST, TOK_PREPEND_NEVER };
OD_MUST_CHECK int tok_metaspace_parse(const json_t *obj, char rep[4], size_t *rep_len, enum tok_prepend *scheme,
				      bool *split, const char *where, struct od_err *err);

/* ---- decoders (tok_decode.c) ---- */

struct tok_dec;
struct tok_decs {
	struct tok_dec *v;
	size_t n;
};
OD_MUST_CHECK int tok_decs_parse(struct tok_decs *out, const json_t *obj, const char *where, struct od_err *err);
void tok_decs_fini(struct tok_decs *d);

/* ---- all of it ---- */

struct od_tokenizer {
	struct tok_vocab vocab;
	struct tok_bpe bpe;
	struct tok_matcher raw, normalized; /* added tokens looked for before and after normalisation */
	struct tok_norms norms;
	struct tok_pres pres;
	struct tok_decs decs;
	struct tok_ids before, after; /* the template's */
};

/* Walks a component: null, one object, or a Sequence (list_key names its array), and calls each for the
 * leaves. what: "normalizer" and so on, for messages. */
typedef int tok_component_fn(void *arg, const char *type, const json_t *obj, const char *where, struct od_err *err);
OD_MUST_CHECK int tok_walk(const json_t *obj, const char *what, const char *list_key, const char *where,
			   tok_component_fn *each, void *arg, struct od_err *err);
/* OD_ERR_UNSUPPORTED with the component's name and what there is instead. */
int tok_unsupported(struct od_err *err, const char *where, const char *what, const char *type, const char *supported);

#endif
