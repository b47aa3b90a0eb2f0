#include "common/pair/pair_wire.h"

#include "common/net/hosts.h"
#include "common/pair/pair_keys.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

size_t od_pair_pack(Od__Pair__Message *m, uint8_t bytes[OD_PAIR_MAX_BYTES])
{
	m->magic = OD_PAIR_MAGIC;
	m->version = OD_PAIR_VERSION;
	if (od__pair__message__get_packed_size(m) > OD_PAIR_MAX_BYTES)
		return 0;
	return od__pair__message__pack(m, bytes);
}

static bool is_key(const ProtobufCBinaryData *key)
{
	static const uint8_t none[OD_KEY_BYTES];

	return key->len == OD_KEY_BYTES && memcmp(key->data, none, OD_KEY_BYTES) != 0;
}

static bool is_port(uint32_t port)
{
	return port > 0 && port <= UINT16_MAX;
}

static bool is_role(const char *role)
{
	return strcmp(role, od_node_names[OD_NODE_WORKER]) == 0 || strcmp(role, od_node_names[OD_NODE_SHADOW]) == 0;
}

static bool is_valid(const Od__Pair__Message *m)
{
	switch (m->body_case) {
	case OD__PAIR__MESSAGE__BODY_QUESTION: return true;
	case OD__PAIR__MESSAGE__BODY_ANSWER:
		return m->answer->salt.len == OD_PAIR_SALT_BYTES && is_port(m->answer->port);
	case OD__PAIR__MESSAGE__BODY_JOIN:
		return (unsigned)m->join->stage <= OD__PAIR__JOIN__STAGE__DONE && is_role(m->join->role) &&
		       is_port(m->join->port) && is_key(&m->join->key);
	case OD__PAIR__MESSAGE__BODY_MEMBER:
		return (unsigned)m->member->change <= OD__PAIR__MEMBER__CHANGE__NEW_ADDRESS && is_key(&m->member->key);
	case OD__PAIR__MESSAGE__BODY_REFUSAL: return true;
	case OD__PAIR__MESSAGE__BODY__NOT_SET:
	case _OD__PAIR__MESSAGE__BODY__CASE_IS_INT_SIZE: break;
	}
	return false;
}

int od_pair_unpack(Od__Pair__Message **out, const uint8_t *bytes, size_t len, struct od_err *err)
{
	Od__Pair__Message *m = len <= OD_PAIR_MAX_BYTES ? od__pair__message__unpack(NULL, len, bytes) : NULL;
	const uint32_t version = m != NULL ? m->version : 0;
	int rc = OD_OK;

	*out = NULL;
	if (m == NULL || m->magic != OD_PAIR_MAGIC)
		rc = od_fail(err, OD_ERR_PROTOCOL, "not a message of pairing");
	else if (version != OD_PAIR_VERSION)
		rc = od_fail(err, OD_ERR_MISMATCH,
			     "its od-moe has version %u of pairing, and this one %u: install the same od-moe on both",
			     version, OD_PAIR_VERSION);
	else if (!is_valid(m))
		rc = od_fail(err, OD_ERR_PROTOCOL, "a message of pairing has a field that is missing or out of range");
	if (rc != OD_OK) {
		od_pair_free(m);
		return rc;
	}
	*out = m;
	return OD_OK;
}

void od_pair_free(Od__Pair__Message *m)
{
	if (m != NULL)
		od__pair__message__free_unpacked(m, NULL);
}

void od_pair_plain_name(const char *from, char name[OD_PAIR_NAME])
{
	size_t n = 0;

	for (; from[n] != '\0' && n < OD_PAIR_NAME - 1; n++)
		name[n] = isalnum((unsigned char)from[n]) || from[n] == '.' ? from[n] : '-';
	name[n] = '\0';
}

void od_pair_own_name(char *name)
{
	char own[256];

	if (gethostname(own, sizeof(own) - 1) != 0)
		own[0] = '\0';
	own[sizeof(own) - 1] = '\0';
	od_pair_plain_name(own, name);
}
