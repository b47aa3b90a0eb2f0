#include "common/base/log.h"
#include "common/net/endpoint.h"
#include "common/net/store_wire.h"
#include "main-node/node/host_keys.h"
#include "main-node/engine/engine_internal.h"

#include <stdio.h>

/* Which of main's links leaves this machine, or has a key; false: none. */
static bool needs_keys(const struct odm_engine *e, char *why, size_t size, struct od_err *err)
{
	struct od_host store;

	if (odm_hosts_need_keys(&e->hosts, e->opts.hosts_path, why, size))
		return true;
	if (e->opts.serve_store == NULL ||
	    od_store_address(&store, e->opts.serve_store, "--serve-store", err) != OD_OK || od_is_loopback(store.host))
		return false; /* a bad address is refused when the store opens */
	snprintf(why, size, "--serve-store %s is not a loopback address", e->opts.serve_store);
	return true;
}

int odm_engine_open_keys(struct odm_engine *e, struct od_err *err)
{
	const bool hosts = e->opts.mode == ODM_WORKERS;
	char why[600];
	bool far;
	int rc = hosts ? od_hosts_load(&e->hosts, e->opts.hosts_path, err) : OD_OK;

	if (rc != OD_OK)
		return rc;
	far = needs_keys(e, why, sizeof(why), err);
	rc = od_keys_open(&e->keys, &e->opts.keys, far ? why : NULL, false, err);
	return rc == OD_OK && hosts ? odm_host_keys(&e->hosts, e->keys, e->opts.hosts_path, err) : rc;
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

int odm_engine_rekey(void *arg, struct od_hosts *hosts, struct od_err *err)
{
	struct odm_engine *e = arg;
	char why[600];
	int rc;

	if (e->keys == NULL && !e->opts.keys.insecure &&
	    odm_hosts_need_keys(hosts, e->opts.hosts_path, why, sizeof(why)))
		return od_fail(err, OD_ERR_ARG,
			       "%s, so its link needs keys, and od-main was started without: restart it", why);
	rc = e->keys != NULL ? reload_peers(e->keys, err) : OD_OK;
	if (rc == OD_OK)
		rc = odm_host_keys(hosts, e->keys, e->opts.hosts_path, err);
	if (rc == OD_OK && e->keys != NULL && e->store != NULL)
		rc = odm_store_admit(e->store, e->keys, hosts, err);
	return rc;
}

int odm_engine_reload_peers(struct odm_engine *e, struct od_err *err)
{
	struct od_hosts none = { 0 };
	int rc = odm_engine_rekey(e, &none, err);

	if (rc != OD_OK)
		return od_fail_within(err, "the keys are unchanged");
	if (e->keys != NULL && e->keys->peers_path[0] != '\0')
		od_log(OD_LOG_INFO, "%s read again: %zu keys", e->keys->peers_path, e->keys->peers.n);
	else
		od_log(OD_LOG_INFO,
		       "SIGHUP: nothing to read again, because there is neither a hosts file nor a peers file");
	return OD_OK;
}
