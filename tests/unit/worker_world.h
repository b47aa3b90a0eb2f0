/* worker_world.h - od-worker as a child process of a test, spoken to as main would; what its experts must compute, by
 * double arithmetic over the checkpoint's own bytes. */
#ifndef OD_TESTS_WORKER_WORLD_H
#define OD_TESTS_WORKER_WORLD_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>
#include <time.h>

#include "common/compute/backend.h"
#include "tests/unit/wire_client.h"

#define CHECKPOINT "deploy/models/talebook"
#define LAYERS 12
#define EXPERTS 8
#define HIDDEN 256
#define INTER 256
#define WEIGHTS (HIDDEN * INTER) /* weights of a matrix of an expert */
#define MAX_ROWS 300
#define F32 OD_PROFILE_F32
#define BF16 OD_PROFILE_BF16

extern char tmp[], worker_pack_dir[128], bin[128]; /* from make_worker_pack on */
extern const struct timespec a_while;

/* ---- The child ---- */

struct worker {
	pid_t pid;
	pthread_t pinger;
	pthread_mutex_t lock; /* guards control and session */
	atomic_bool closing;
	char log[160];
	void *context, *control, *data;
	uint16_t port, data_port;
	uint64_t session, request;
	uint32_t slots;
	enum od_profile profile;
	bool slow; /* the data socket reads nothing ahead */
	/* The RESULT that is being read. */
	struct od_msg result;
	size_t next; /* index of the next of its experts */
	size_t row; /* index of the next row of its frame */
	size_t n_results; /* RESULTs that have come */
};

pid_t start_worker(const char *const *argv, const char *log, int send_fd);
int wait_status(pid_t pid);
const char *read_log(const char *path);
/* extra: more arguments, ends with NULL. */
void open_worker(struct worker *w, const char *pack, const char *const *extra);
/* A clean end: status 0, and nothing that a sanitizer would say. */
void close_worker(struct worker *w);

/* ---- What main says ---- */

void put(struct worker *w, void *socket, Od__Header *h, const void *frame, size_t len);
/* The answer to HELLO; od_msg_fini it. */
void greet(struct worker *w, uint32_t profile, const char *kernel_class, bool mixed, uint32_t max_rows,
	   struct od_msg *answer);
void begin_worker_session(struct worker *w, enum od_profile profile);
void end_worker_session(struct worker *w);
/* open_worker and begin_worker_session. */
void open_session(struct worker *w, enum od_profile profile, const char *const *extra);
struct pong {
	uint64_t progress;
	bool busy;
	uint64_t c[OD_N_COUNTERS];
};
struct pong ping(struct worker *w);
void want(struct worker *w, uint64_t step, uint32_t m, uint32_t version, uint32_t expert);
void want_all(struct worker *w, uint64_t step, uint32_t m, uint32_t version, const uint32_t *experts, size_t n);

/* A RUN: experts and their rows; rows' values follow from seed. */
struct request {
	Od__Run run;
	Od__RunExpert expert[EXPERTS];
	Od__RunExpert *list[EXPERTS];
	uint32_t rows[EXPERTS][MAX_ROWS + 1];
	uint32_t seed;
};

void init_request(struct request *q, uint64_t step, uint32_t m, uint32_t n_rows, uint32_t seed);
/* n rows, every stride-th from first on, around the end. */
void add_expert(struct request *q, uint32_t expert, uint32_t first, uint32_t stride, uint32_t n, bool last);
void send_request(struct worker *w, struct request *q);
/* One expert of a RESULT; stays until the next one is asked for. */
struct answer {
	const Od__Header *header;
	const Od__Result *result;
	const Od__ExpertResult *x;
	const char *rows; /* [x->rows][HIDDEN]; NULL: none */
};

/* The next expert of the RESULT, or the first one of the next RESULT. */
struct answer get_answer(struct worker *w);
/* get_answer for this request: returns the index of its expert. */
size_t get_result(struct worker *w, const struct request *q, struct answer *a);
float output_value(const struct worker *w, const char *rows, size_t i);
void check_output(const struct worker *w, const struct request *q, const Od__RunExpert *x, const struct answer *a);
void get_good_results(struct worker *w, struct request *q);

/* ---- Set-up of the group ---- */

int make_worker_pack(void **state);
int remove_worker_pack(void **state);

#endif
