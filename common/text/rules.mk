libod_SRCS += $(addprefix common/text/,breakers.c stopper.c text_spans.c tok_added.c tok_bpe.c tok_controls.c tok_decode.c \
	tok_normalize.c tok_pretokenize.c tok_ranked.c tok_regex.c tok_scan.c tok_sentencepiece.c tok_slices.c \
	tok_text.c tok_tiktoken.c tok_unicode.c tok_words.c tokenizer.c utf8_text.c)
libod_SRCS += $(addprefix common/text/jinja/,jinja_calls.c jinja_eval.c jinja_expr.c jinja_filters.c jinja_filters_seq.c \
	jinja_format.c jinja_from_json.c jinja_globals.c jinja_job.c jinja_lex.c jinja_loop.c jinja_methods.c jinja_ops.c \
	jinja_parse.c jinja_parse_expr.c jinja_show.c jinja_strings.c jinja_tests.c jinja_unicode.c jinja_value.c)
