LIBOD_SRCS += $(addprefix common/text/,stopper.c tok_added.c tok_bpe.c tok_decode.c tok_normalize.c tok_pretokenize.c \
	tok_regex.c tok_text.c tokenizer.c)
