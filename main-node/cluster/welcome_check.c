#include "main-node/cluster/welcome_check.h"

#include <inttypes.h>
#include <string.h>

#define MAX_SLOTS 1024

static int check_numbers(const Od__Welcome *w, enum od_node_kind role, uint32_t n_layers, struct od_err *err)
{
	const uint32_t end = w->end_layer != 0 ? w->end_layer : n_layers;

	if (w->session == 0 || w->data_port == 0 || w->data_port > UINT16_MAX)
		return od_fail(err, OD_ERR_PROTOCOL, "its WELCOME is malformed (session %" PRIu64 ", data port %u)",
			       w->session, w->data_port);
	if (role == OD_NODE_WORKER && w->slots > MAX_SLOTS)
		return od_fail(err, OD_ERR_PROTOCOL, "its WELCOME is malformed (slots: expected at most %d, found %u)",
			       MAX_SLOTS, w->slots);
	if (role == OD_NODE_SHADOW && (w->first_layer >= end || end > n_layers))
		return od_fail(err, OD_ERR_PROTOCOL,
			       "its WELCOME is malformed (layers: expected some of [0, %u), found [%u, %u))", n_layers,
			       w->first_layer, end);
	return OD_OK;
}

int odm_check_welcome(const Od__Welcome *w, enum od_node_kind role, const struct odm_cluster_opts *o,
		      struct od_err *err)
{
	char found[40];
	const int rc = check_numbers(w, role, o->config->n_layers, err);

	if (rc != OD_OK)
		return rc;
	if (strcmp(w->role, od_node_names[role]) != 0)
		return od_fail(err, OD_ERR_MISMATCH,
			       "role: expected %s, found \"%s\"; correct its line in the hosts file",
			       od_node_names[role], od_peer_text(w->role, found, sizeof(found)));
	/* A shadow of another class changes predictions, but no token. Empty: the class that HELLO asked for. */
	if (role == OD_NODE_WORKER && !o->mixed && w->kernel_class[0] != '\0' &&
	    strcmp(w->kernel_class, o->kernel_class) != 0)
		return od_fail(
			err, OD_ERR_MISMATCH,
			"kernel_class: expected %s, found %s: results would differ in their last bits; choose "
			"kernels of one class with --cpu, of od-main or there, or allow it with od-main's --mixed",
			o->kernel_class, od_peer_text(w->kernel_class, found, sizeof(found)));
	return OD_OK;
}
