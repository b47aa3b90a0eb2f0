/* members_internal.h - the table of members, for members.c (the loop thread's) and members_look.c (any thread's).
 * Thread: the loop thread's, but for what stands under the lock. */
#ifndef ODM_MEMBERS_INTERNAL_H
#define ODM_MEMBERS_INTERNAL_H

#include <pthread.h>

#include "main-node/cluster/members.h"

struct od_uv_socket;

enum member_state {
	M_CLOSED,     /* no socket; opens at retry_ns, as soon as the name has an address */
	M_CONNECTING, /* socket there, HELLO not yet accepted by it */
	M_GREETED,    /* HELLO is on its way */
	M_READY,      /* WELCOME is here; others see it from its first PONG on */
};

struct member {
	struct odm_members *ms;
	struct od_host host;
	uint32_t id;
	enum member_state state;
	struct od_uv_socket *socket;
	uint64_t session, last_session, ping;
	uint64_t since_ns, retry_ns;
	char address[100]; /* numeric, once it is known */
	uv_getaddrinfo_t lookup;
	bool looking_up;
	_Atomic unsigned strikes; /* distrusted so often since it served; the engine thread forgives */
	uint64_t exile_ns; /* until then it is connected and not used, unless it is another process by then; 0: it may be used */
	uint32_t pid;	   /* of its last WELCOME */
	char host_name[64];
	struct od_liveness live;
	bool told; /* the log knows that it cannot be reached */
	/* Under the lock: what other threads may see. */
	struct odm_member pub;
	struct odm_member_stats stats;
	uint64_t counted[OD_N_COUNTERS]; /* while it was in this cluster, all its sessions */
	uint64_t at_ask[OD_N_COUNTERS];	 /* the same when it answered the last odm_members_ask; until then: was asked */
	uint64_t asked, answered; /* PINGs of this session: whose answer is waited for; of the newest answer */
	uint8_t *holds;	  /* of a worker with a spool: a bit for each expert */
	uint8_t *cached;  /* of a worker with a cache: a byte for each, as PONG has them */
	char why[256];	  /* why it is not here */
	int refused_code; /* of the last REFUSE; 0: none */
	bool distrusted;
	bool retired;	  /* no longer in the hosts file */
};

struct odm_members {
	struct odm_members_opts o;
	uv_loop_t *loop;
	uv_timer_t timer;
	unsigned tick;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	_Atomic uint64_t epoch; /* changes under the lock */
	uint64_t left[OD_N_COUNTERS]; /* counted by those that others have taken the place of */
	bool asked; /* odm_members_ask was here, and odm_members_counters was not since */
	size_t holds_bytes, cached_bytes; /* of each member's */
	uint32_t n, n_listed;
	struct member *member[OD_MAX_HOSTS]; /* by id */
	struct member *listed[OD_MAX_HOSTS]; /* those in the hosts file, in its order */
	bool stopping;
};

const char *odm_member_name(const struct member *m, char *buf, size_t size); /* "worker 10.0.0.2:5701" */

#endif
