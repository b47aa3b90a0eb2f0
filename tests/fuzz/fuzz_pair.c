/* Any bytes as a message of a pairing, and any text as its words; what is accepted keeps to what the headers say. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/pair/pair_wire.h"
#include "common/pair/pair_words.h"
#include "tests/fuzz/fuzz.h"

static void message(const uint8_t *data, size_t size)
{
	uint8_t again[OD_PAIR_MAX_BYTES];
	char name[OD_PAIR_NAME];
	struct od_err err = { 0 };
	Od__Pair__Message *m;

	if (od_pair_unpack(&m, data, size, &err) != OD_OK) {
		check(m == NULL && err.msg[0] != '\0');
		return;
	}
	check(size <= OD_PAIR_MAX_BYTES && m->magic == OD_PAIR_MAGIC && m->version == OD_PAIR_VERSION);
	if (m->body_case == OD__PAIR__MESSAGE__BODY_JOIN) {
		check(m->join->key.len == 32 && m->join->port > 0 && m->join->port < 65536);
		od_pair_plain_name(m->join->host_name, name);
		check(strpbrk(name, " #\r\n\t") == NULL && strlen(name) < OD_PAIR_NAME);
	}
	if (m->body_case == OD__PAIR__MESSAGE__BODY_ANSWER)
		check(m->answer->salt.len == 16 && m->answer->port > 0 && m->answer->port < 65536);
	if (m->body_case == OD__PAIR__MESSAGE__BODY_MEMBER)
		check(m->member->key.len == 32 && m->member->change <= OD__PAIR__MEMBER__CHANGE__NEW_ADDRESS);
	check(od_pair_pack(m, again) <= OD_PAIR_MAX_BYTES);
	od_pair_free(m);
}

/* Split at NULs, as arguments of a command line. */
static void words(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1), *args[8], out[OD_PAIR_TEXT], again[OD_PAIR_TEXT], *whole[] = { out };
	struct od_err err = { 0 };
	const char *rest;
	size_t n = 0;

	check(text != NULL);
	memcpy(text, data, size);
	text[size] = '\0';
	for (size_t at = 0; at <= size && n < 8; at += strlen(text + at) + 1)
		args[n++] = text + at;
	if (od_pair_words_read(out, &rest, args, n, &err) == OD_OK) {
		check(od_pair_words_read(again, &rest, whole, 1, &err) == OD_OK && strcmp(out, again) == 0);
		check(strlen(out) < OD_PAIR_TEXT && rest == NULL);
	} else {
		check(out[0] == '\0' && err.code == OD_ERR_ARG);
	}
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size > 0 && data[0] % 4 == 0)
		words(data + 1, size - 1);
	else if (size > 0)
		message(data + 1, size - 1);
	return 0;
}
