/* key_files.h - writes this node's pair of keys, node.key and node.pub, and says beforehand whether the folder of keys
 * can be written at all.
 *
 * Thread: main(), before others exist (it looks users up). Owner: the caller. */
#ifndef OD_NET_KEY_FILES_H
#define OD_NET_KEY_FILES_H

#include "common/net/keys.h"

#define OD_SERVICE_USER "od-moe" /* whom the services run as */

struct od_key_files {
	char secret[PATH_MAX], public[PATH_MAX];
	char name[256]; /* the node's */
};

/* In the folder of keys ($OD_KEYS, else /etc/od-moe), with this machine's name. */
OD_MUST_CHECK int od_key_files_usual(struct od_key_files *f, struct od_err *err);
/* In a folder that is made if it does not exist. */
OD_MUST_CHECK int od_key_files_in(struct od_key_files *f, const char *dir, struct od_err *err);

/* Never over a file, and if one cannot be written, neither is there. In /etc/od-moe root gives them to OD_SERVICE_USER,
 * if there is that user. */
OD_MUST_CHECK int od_key_files_write(const struct od_key_files *f, const struct od_key_pair *pair, struct od_err *err);

/* This node's pair in the folder of keys; *is_new: there is none, and this one was made and is not written yet. */
OD_MUST_CHECK int od_key_files_load(struct od_key_pair *out, bool *is_new, struct od_err *err);
/* Writes it, if it is new; else lets OD_SERVICE_USER have the file, as od_key_files_write does. */
OD_MUST_CHECK int od_key_files_keep(const struct od_key_pair *pair, bool is_new, struct od_err *err);

/* Whether files can be written in the folder of keys; it need not exist. OD_ERR_IO says what to do. */
OD_MUST_CHECK int od_key_files_check(struct od_err *err);

#endif
