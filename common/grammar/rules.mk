libod_SRCS += $(addprefix common/grammar/,automaton.c chars.c constraint.c gbnf.c grammar.c json_schema.c json_schema_number.c json_schema_shape.c json_schema_string.c re.c regex.c runs.c vocab.c)
