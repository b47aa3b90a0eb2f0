/* shadow_process.h - for the tests of od-shadow: a pack with every shadow, and programs of ours as child processes. */
#ifndef OD_TESTS_SHADOW_PROCESS_H
#define OD_TESTS_SHADOW_PROCESS_H

#include <sys/types.h>

#include "common/pack/shadow/shadow_load.h"
#include "common/predict/prediction.h"
#include "tests/unit/wire_client.h"

#define MAX_LAYERS 16u /* limit of the pack's model */
#define MAX_K 4u

/* From make_pack on. */
extern char pack_dir[96];
extern struct od_pack *pack;
extern const struct od_config *cfg;

extern const struct od_shadow_choice bf16, int8;
extern enum od_cpu shadow_cpu; /* kernels of the shadows that are started; auto at first */
extern const char *shadow_layer_ms; /* their --layer-time; "0" at first */

/* args[0]: the program's name. *ready: what it writes to descriptor 3; *errors: its stderr; NULL: unread. */
pid_t start(const char *const *args, int *ready, int *errors);
int finish(pid_t pid); /* its status, 128 + n after signal n */
void read_all(int fd, char *text, size_t size); /* closes fd */

/* c->act does not count: the shadow chooses. */
pid_t start_limited(const struct od_shadow_choice *c, const char *departure, const char *limit, uint16_t *port);
pid_t start_shadow(const struct od_shadow_choice *c, const char *departure, uint16_t *port);
void stop_shadow(pid_t pid);

/* Set-up of the group. */
int make_pack(void **state);
int remove_pack(void **state);

#endif
