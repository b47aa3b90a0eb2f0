#include "main-node/node/host_keys.h"

#include "common/net/endpoint.h"

#include <stdio.h>
#include <string.h>

bool odm_hosts_need_keys(const struct od_hosts *hosts, const char *path, char *why, size_t size)
{
	for (size_t i = 0; i < hosts->n; i++) {
		const struct od_host *h = &hosts->host[i];

		if (!h->has_key && od_is_loopback(h->host))
			continue;
		snprintf(why, size, "%s line %u: host %s %s", path, h->line, h->host,
			 h->has_key ? "has a key" : "is not a loopback address");
		return true;
	}
	return false;
}

static int fill(struct od_host *h, const struct od_keys *keys, struct od_err *err)
{
	const uint8_t *key;
	int rc = od_keys_of_host(keys, h->host, h->port, &key, err);

	if (rc != OD_OK)
		return rc;
	if (key != NULL) {
		memcpy(h->key, key, OD_KEY_BYTES);
		h->has_key = true;
	} else if (!od_is_loopback(h->host)) {
		return od_fail(err, OD_ERR_ARG,
			       "host %s has no key: write key=PUBLICKEY behind it, with the key in its node.pub",
			       h->host);
	}
	return OD_OK;
}

int odm_host_keys(struct od_hosts *hosts, const struct od_keys *keys, const char *path, struct od_err *err)
{
	for (size_t i = 0; i < hosts->n; i++) {
		struct od_host *h = &hosts->host[i];
		int rc = OD_OK;

		if (h->has_key && keys == NULL)
			rc = od_fail(err, OD_ERR_ARG,
				     "host %s has a key, and --insecure uses none: leave out one of them", h->host);
		else if (!h->has_key && keys != NULL)
			rc = fill(h, keys, err);
		if (rc != OD_OK)
			return od_fail_within(err, "%s line %u", path, h->line);
	}
	return OD_OK;
}
