/* node_keys.h - the hosts of main's cluster, and the keys of its links to them and of those that pull from its store.
 *
 * Thread: main's while it opens; then odm_node_keys_read_again on the cluster's loop thread, or odm_node_keys_reload on
 * any one thread where there is no hosts file. Owner: the main node. */
#ifndef ODM_NODE_KEYS_H
#define ODM_NODE_KEYS_H

#include "common/net/hosts.h"
#include "common/net/keys.h"
#include "main-node/store/store_server.h"

struct odm_node_keys {
	const char *hosts_path; /* NULL: there is no hosts file */
	const char *serve_store; /* as in odm_main_opts */
	struct od_keys_args args;
	struct od_hosts hosts;
	struct od_keys *keys; /* NULL: none; its peers are the loop thread's once the cluster runs */
	struct odm_store *store; /* borrowed, is told who may pull; NULL: none */
};

/* Reads the hosts file, if there is one, and the keys that links to other machines need. *k has its first three
 * fields. */
OD_MUST_CHECK int odm_node_keys_open(struct odm_node_keys *k, struct od_err *err);
void odm_node_keys_fini(struct odm_node_keys *k);
/* For odm_cluster_opts.rekey; arg: the keys. */
OD_MUST_CHECK int odm_node_keys_read_again(void *arg, struct od_hosts *hosts, struct od_err *err);
/* The peers file alone. Logs that. */
OD_MUST_CHECK int odm_node_keys_reload(struct odm_node_keys *k, struct od_err *err);

#endif
