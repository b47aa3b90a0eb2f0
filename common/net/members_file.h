/* members_file.h - writes members of a cluster into the files that name them: main's hosts file, and the peers file of
 * a worker or shadow. The only writer of both in the project; people edit them, too (line_file.h).
 *
 * Thread: any. Owner: nothing is kept. */
#ifndef OD_NET_MEMBERS_FILE_H
#define OD_NET_MEMBERS_FILE_H

#include "common/net/hosts.h"

/* As the protocol of pairing has them. */
enum od_member_change {
	OD_MEMBER_SAME, /* it is there already: nothing was written */
	OD_MEMBER_ADDED,
	OD_MEMBER_NEW_KEY, /* its address had another key, or none */
	OD_MEMBER_NEW_ADDRESS, /* its key had another address */
};

/* Writes a host with a key; h->host is an address. A line with its role, its port and its key is its line, and keeps
 * the comment and the words of the machine (od_host_words); if a person has written a name there, not an address, that
 * stays. Else the line with its address and port is. remark: the comment of a new line. */
OD_MUST_CHECK int od_hosts_put(const char *path, const struct od_host *h, const char *remark,
			       enum od_member_change *change, struct od_err *err);

/* Writes words of a machine into its line; those that are 0 stay as they are, and so does all else of the line. h: as
 * it was read from this file; or, where it has no line of main, main, which gets one. */
OD_MUST_CHECK int od_hosts_set_words(const char *path, const struct od_host *h, const struct od_host_words *words,
				     struct od_err *err);

/* Writes main's key, with its address as the name. alone: refuse a file that has other keys. try: write nothing, only
 * say what would change. */
struct od_peers_put_opts {
	bool alone, try;
};
OD_MUST_CHECK int od_peers_put(const char *path, const uint8_t key[OD_KEY_BYTES], const char *address,
			       const struct od_peers_put_opts *opts, enum od_member_change *change, struct od_err *err);

#endif
