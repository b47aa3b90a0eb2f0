#include "common/net/store_wire.h"

#include <string.h>

int od_store_address(struct od_host *out, const char *text, const char *what, struct od_err *err)
{
	int rc;

	if (strncmp(text, "tcp://", 6) == 0)
		text += 6;
	rc = od_host_parse(out, text, OD_DEFAULT_STORE_PORT, err);
	return rc == OD_OK ? rc : od_fail_within(err, "%s", what);
}
