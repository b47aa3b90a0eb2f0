#include "main-node/node/node_keys.h"

#include "common/base/log.h"
#include "common/net/endpoint.h"
#include "common/net/store_wire.h"
#include "main-node/node/host_keys.h"

#include <stdio.h>

/* Finds a link of main that leaves this machine, or has a key; false: none. */
static bool needs_keys(const struct odm_node_keys *k, char *why, size_t size, struct od_err *err)
{
	struct od_host store;

	if (odm_hosts_need_keys(&k->hosts, k->hosts_path, why, size))
		return true;
	if (k->serve_store == NULL || od_store_address(&store, k->serve_store, "--serve-store", err) != OD_OK ||
	    od_is_loopback(store.host))
		return false; /* a bad address is refused when the store opens */
	snprintf(why, size, "--serve-store %s is not a loopback address", k->serve_store);
	return true;
}

int odm_node_keys_open(struct odm_node_keys *k, struct od_err *err)
{
	const bool hosts = k->hosts_path != NULL;
	char why[600];
	bool far;
	int rc = hosts ? od_hosts_load(&k->hosts, k->hosts_path, err) : OD_OK;

	if (rc != OD_OK)
		return rc;
	far = needs_keys(k, why, sizeof(why), err);
	rc = od_keys_open(&k->keys, &k->args, far ? why : NULL, false, err);
	return rc == OD_OK && hosts ? odm_host_keys(&k->hosts, k->keys, k->hosts_path, err) : rc;
}

void odm_node_keys_fini(struct odm_node_keys *k)
{
	od_hosts_fini(&k->hosts);
	od_keys_free(k->keys);
}

/* The peers file may be new, too. */
static int reload_peers(struct od_keys *k, struct od_err *err)
{
	struct od_peers fresh;
	int rc = k->peers_path[0] != '\0' ? od_peers_load(&fresh, k->peers_path, err) : OD_OK;

	if (rc != OD_OK || k->peers_path[0] == '\0')
		return rc;
	od_peers_fini(&k->peers);
	k->peers = fresh;
	return OD_OK;
}

int odm_node_keys_read_again(void *arg, struct od_hosts *hosts, struct od_err *err)
{
	struct odm_node_keys *k = arg;
	char why[600];
	int rc;

	if (k->keys == NULL && !k->args.insecure && odm_hosts_need_keys(hosts, k->hosts_path, why, sizeof(why)))
		return od_fail(err, OD_ERR_ARG,
			       "%s, so its link needs keys, and od-main was started without: restart it", why);
	rc = k->keys != NULL ? reload_peers(k->keys, err) : OD_OK;
	if (rc == OD_OK)
		rc = odm_host_keys(hosts, k->keys, k->hosts_path, err);
	if (rc == OD_OK && k->keys != NULL && k->store != NULL)
		rc = odm_store_admit(k->store, k->keys, hosts, err);
	return rc;
}

int odm_node_keys_reload(struct odm_node_keys *k, struct od_err *err)
{
	struct od_hosts none = { 0 };
	int rc = odm_node_keys_read_again(k, &none, err);

	if (rc != OD_OK)
		return od_fail_within(err, "the keys are unchanged");
	if (k->keys != NULL && k->keys->peers_path[0] != '\0')
		od_log(OD_LOG_INFO, "%s read again: %zu keys", k->keys->peers_path, k->keys->peers.n);
	else
		od_log(OD_LOG_INFO,
		       "SIGHUP: nothing to read again, because there is neither a hosts file nor a peers file");
	return OD_OK;
}
