/* main_node.h - od-main as a node: its model and engine, the expert service of its mode (this process, processes that
 * it starts, or a cluster), the store that workers pull from, and the keys of its links.
 *
 * Thread: the engine thread, which opens and closes it, unless a function says otherwise. Owner: odm_main_node_open's
 * caller. */
#ifndef ODM_MAIN_NODE_H
#define ODM_MAIN_NODE_H

#include "main-node/node/main_opts.h"

struct odm_main_node;

OD_MUST_CHECK int odm_main_node_open(struct odm_main_node **out, const struct odm_main_opts *opts, struct od_err *err);
/* Not OD_OK: the trace could not be written (logged). NULL ok. */
int odm_main_node_close(struct odm_main_node *n);

struct odm_engine *odm_main_node_engine(const struct odm_main_node *n); /* NULL of NULL */
/* Without a hosts file, which is read again with the peers (SIGHUP): reads the peers file for the store. Logs that. Any
 * thread, one at a time. */
OD_MUST_CHECK int odm_main_node_reload_peers(struct odm_main_node *n, struct od_err *err);
/* Any thread: of the pack, by --serve-store. */
uint64_t odm_main_node_served_bytes(const struct odm_main_node *n);

#endif
