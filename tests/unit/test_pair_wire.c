/* Messages of a pairing: what is read, and what is refused of what strangers send. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/pair/pair_wire.h"

static uint8_t key[32] = { 1 }, salt[16], bytes[OD_PAIR_MAX_BYTES];

static Od__Pair__Message *answer(void)
{
	static Od__Pair__Message m;
	static Od__Pair__Answer a;

	od__pair__message__init(&m);
	od__pair__answer__init(&a);
	a.salt = (ProtobufCBinaryData){ sizeof(salt), salt };
	a.port = 5703;
	a.host_name = "main";
	m.body_case = OD__PAIR__MESSAGE__BODY_ANSWER;
	m.answer = &a;
	return &m;
}

static Od__Pair__Message *join(void)
{
	static Od__Pair__Message m;
	static Od__Pair__Join j;

	od__pair__message__init(&m);
	od__pair__join__init(&j);
	j.role = "worker";
	j.port = 5701;
	j.key = (ProtobufCBinaryData){ sizeof(key), key };
	m.body_case = OD__PAIR__MESSAGE__BODY_JOIN;
	m.join = &j;
	return &m;
}

static Od__Pair__Message *member(void)
{
	static Od__Pair__Message m;
	static Od__Pair__Member b;

	od__pair__message__init(&m);
	od__pair__member__init(&b);
	b.key = (ProtobufCBinaryData){ sizeof(key), key };
	m.body_case = OD__PAIR__MESSAGE__BODY_MEMBER;
	m.member = &b;
	return &m;
}

static int read_back(Od__Pair__Message *m)
{
	Od__Pair__Message *out;
	struct od_err err;
	const size_t len = od_pair_pack(m, bytes);
	int rc;

	assert_true(len > 0);
	rc = od_pair_unpack(&out, bytes, len, &err);
	assert_true((rc == OD_OK) == (out != NULL));
	od_pair_free(out);
	return rc;
}

static void fields(void **state)
{
	static uint8_t none[33];
	Od__Pair__Message *m;

	(void)state;
	assert_int_equal(read_back(answer()), OD_OK);
	assert_int_equal(read_back(join()), OD_OK);
	assert_int_equal(read_back(member()), OD_OK);
	m = answer(), m->answer->salt.len = 15;
	assert_int_equal(read_back(m), OD_ERR_PROTOCOL);
	m = answer(), m->answer->salt.len = 0;
	assert_int_equal(read_back(m), OD_ERR_PROTOCOL);
	m = answer(), m->answer->port = 0;
	assert_int_equal(read_back(m), OD_ERR_PROTOCOL);
	m = answer(), m->answer->port = 65536;
	assert_int_equal(read_back(m), OD_ERR_PROTOCOL);
	m = join(), m->join->role = "main";
	assert_int_equal(read_back(m), OD_ERR_PROTOCOL);
	m = join(), m->join->role = "";
	assert_int_equal(read_back(m), OD_ERR_PROTOCOL);
	m = join(), m->join->port = 0;
	assert_int_equal(read_back(m), OD_ERR_PROTOCOL);
	m = join(), m->join->stage = 3;
	assert_int_equal(read_back(m), OD_ERR_PROTOCOL);
	m = join(), m->join->stage = -1;
	assert_int_equal(read_back(m), OD_ERR_PROTOCOL);
	m = join(), m->join->key.len = 31;
	assert_int_equal(read_back(m), OD_ERR_PROTOCOL);
	m = join(), m->join->key = (ProtobufCBinaryData){ 32, none };
	assert_int_equal(read_back(m), OD_ERR_PROTOCOL);
	m = member(), m->member->key = (ProtobufCBinaryData){ 33, none };
	assert_int_equal(read_back(m), OD_ERR_PROTOCOL);
	m = member(), m->member->change = 4;
	assert_int_equal(read_back(m), OD_ERR_PROTOCOL);
	m = member(), m->body_case = OD__PAIR__MESSAGE__BODY__NOT_SET;
	assert_int_equal(read_back(m), OD_ERR_PROTOCOL);
}

static void strangers(void **state)
{
	static uint8_t large[OD_PAIR_MAX_BYTES + 100];
	Od__Pair__Message *out, *m;
	struct od_err err;
	size_t len;

	(void)state;
	assert_int_equal(od_pair_unpack(&out, bytes, 0, &err), OD_ERR_PROTOCOL);
	assert_int_equal(od_pair_unpack(&out, large, sizeof(large), &err), OD_ERR_PROTOCOL);
	m = answer();
	len = od_pair_pack(m, bytes);
	bytes[1] ^= 1; /* the magic number, behind its tag */
	assert_int_equal(od_pair_unpack(&out, bytes, len, &err), OD_ERR_PROTOCOL);
	bytes[1] ^= 1;
	assert_int_equal(bytes[6], OD_PAIR_VERSION);
	bytes[6] = 9;
	assert_int_equal(od_pair_unpack(&out, bytes, len, &err), OD_ERR_MISMATCH);
	assert_non_null(strstr(err.msg, "version 9 of pairing"));
	bytes[6] = OD_PAIR_VERSION;
	assert_int_equal(od_pair_unpack(&out, bytes, len, &err), OD_OK);
	od_pair_free(out);
	for (size_t cut = 0; cut < len; cut++) {
		if (od_pair_unpack(&out, bytes, cut, &err) == OD_OK)
			od_pair_free(out);
	}
	memset(large, 'x', sizeof(large) - 1);
	m->answer->host_name = (char *)large;
	assert_int_equal(od_pair_pack(m, bytes), 0);
}

static void names(void **state)
{
	char name[OD_PAIR_NAME];

	(void)state;
	od_pair_plain_name("box-1.lan", name);
	assert_string_equal(name, "box-1.lan");
	od_pair_plain_name("a b#c\nworker 10.0.0.9", name);
	assert_string_equal(name, "a-b-c-worker-10.0.0.9");
	od_pair_plain_name("0123456789012345678901234567890123456789012345678901234567890123456789", name);
	assert_int_equal(strlen(name), OD_PAIR_NAME - 1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fields),
		cmocka_unit_test(strangers),
		cmocka_unit_test(names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
