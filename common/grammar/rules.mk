libod_SRCS += $(addprefix common/grammar/,automaton.c chars.c constraint.c grammar.c re.c regex.c runs.c vocab.c)
