/* pair_service.h - turns the systemd service of a program on after a pairing, by systemctl.
 *
 * Thread: main(). Owner: nothing is kept. */
#ifndef OD_PAIR_SERVICE_H
#define OD_PAIR_SERVICE_H

#include <stdbool.h>

#include "common/base/status.h"

/* Whether systemctl is there and knows the unit ("od-worker"), before anything is done. */
OD_MUST_CHECK int od_pair_service_check(const char *unit, struct od_err *err);
bool od_pair_service_runs(const char *unit); /* false, too, if there is no systemctl */

/* enable: also after a reboot; how: "start", "restart" or "reload". Does not wait for the service. */
OD_MUST_CHECK int od_pair_service_turn_on(const char *unit, bool enable, const char *how, struct od_err *err);

#endif
