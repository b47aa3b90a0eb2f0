/* pair_wire.h - the messages of a pairing (proto/pair.proto): packed, and read with checks of all fields.
 *
 * Thread: any. Owner: od_pair_unpack's caller frees the message. */
#ifndef OD_PAIR_WIRE_H
#define OD_PAIR_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "proto/pair.pb-c.h"

#define OD_PAIR_MAGIC 0x6f647072u
#define OD_PAIR_VERSION 1
#define OD_PAIR_PORT 5703 /* UDP: questions; TCP: the pairing socket */
#define OD_PAIR_MAX_BYTES 512 /* a message's */
#define OD_PAIR_NAME 65 /* a host name, cut, with a NUL */
#define OD_PAIR_REASON 384

/* Fills magic and version. 0: it does not fit. */
size_t od_pair_pack(Od__Pair__Message *m, uint8_t bytes[OD_PAIR_MAX_BYTES]);

/* *out is NULL unless OD_OK: then a body is there, and its fields have valid lengths and ranges. OD_ERR_MISMATCH: a
 * message of another version; OD_ERR_PROTOCOL: it is none of pairing. */
OD_MUST_CHECK int od_pair_unpack(Od__Pair__Message **out, const uint8_t *bytes, size_t len, struct od_err *err);
void od_pair_free(Od__Pair__Message *m); /* NULL ok */

/* name [OD_PAIR_NAME]: this machine's. */
void od_pair_own_name(char *name);
/* A peer's name as a word of a text file: letters, digits, dots, hyphens; others become hyphens. */
void od_pair_plain_name(const char *from, char name[OD_PAIR_NAME]);

#endif
