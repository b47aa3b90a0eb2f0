libod_SRCS += $(addprefix common/pair/,pair_client.c pair_join.c pair_keys.c pair_search.c pair_service.c pair_wire.c pair_words.c)

# The words, as a table of C.
$(B)/gen/pair_words.inc: common/pair/words.txt
	@mkdir -p $(@D)
	@sed '/^#/d; s/.*/"&",/' $< >$@
$(B)/obj/common/pair/pair_words.o: $(B)/gen/pair_words.inc
