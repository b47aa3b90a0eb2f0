/* members_internal.h - the table of members, for members.c (loop thread), members_look.c and members_machine.c (any
 * thread), and members_address.c, members_hosts.c, members_news.c and members_shadow.c (loop thread).
 *
 * Thread: the loop thread, except the fields under the lock. */
#ifndef ODM_MEMBERS_INTERNAL_H
#define ODM_MEMBERS_INTERNAL_H

#include <pthread.h>

#include "main-node/cluster/copy_check.h"
#include "main-node/cluster/link_cost.h"
#include "main-node/cluster/members.h"
#include "main-node/cluster/members_facts.h"
#include "main-node/cluster/name_lookup.h"

struct od_uv_socket;
struct odm_home_share;

#define ODM_RETRY_REFUSED_NS (5 * OD_NS_PER_S)
#define ODM_NO_CONNECTION "no connection; check that it runs, and its address and port"
#define MAX_DAMAGED 256 /* experts of a worker's pack; with more it is asked again */

enum member_state {
	M_CLOSED, /* no socket; opens at retry_ns, when the name has been resolved */
	M_CONNECTING, /* socket open, HELLO not yet accepted by ZeroMQ */
	M_GREETED, /* HELLO sent */
	M_READY, /* WELCOME received; in use from its first PONG on */
};

struct member {
	struct odm_members *ms;
	struct od_host host;
	uint32_t id;
	_Atomic enum member_state state; /* other threads read it */
	struct od_uv_socket *socket;
	void *watched, *handshake; /* the ZeroMQ socket, and its watch; NULL: none */
	uint64_t session, last_session, ping;
	uint64_t since_ns, retry_ns, looked_up_ns;
	uint64_t greeted_wall_ns; /* when HELLO left, by this machine's clock */
	struct odm_addresses addresses; /* once resolved; looked up again while it is not connected */
	uint32_t at; /* index of the address that is used or tried */
	struct round {
		uint32_t n_failed; /* addresses that were tried, since the first one or since the last that worked */
		int weight, code; /* `why` tells a failure of this weight and code */
	} round;
	struct odm_name_lookup *lookup; /* NULL: none is under way */
	_Atomic unsigned strikes; /* times distrusted since it last served well; reset by the engine thread */
	/* until then it is connected but not used, unless its process was restarted; 0: none; other threads read it */
	_Atomic uint64_t exile_ns;
	uint32_t pid; /* from its last WELCOME */
	/* It was refused for another copy of the model: it is used again when it has reported all that it has read. */
	bool differed;
	bool reported; /* it has done so in this session */
	struct od_liveness live;
	bool told; /* it was logged that it cannot be reached */
	bool silent; /* it takes connections and says nothing */
	enum { SAID_NOTHING, SAID_MISSING, SAID_LOST } said; /* logged last; SAID_NOTHING again when it is back */
	bool seen; /* it has been used */
	bool on_trial; /* it was distrusted: it is back when it has attached */
	uint64_t added_ns;
	bool told_passed[ODM_N_DEALS]; /* it was logged that it is not used, for prompts or at all */
	double told_ratio; /* the time it takes over the quickest worker's, as last logged */
	unsigned other_ratio; /* number of checks in a row that found another ratio */
	bool told_left_out; /* it was logged that this session misses messages */
	/* Under the lock, for other threads: */
	struct odm_member pub;
	struct odm_member_stats stats;
	uint64_t counted[OD_N_COUNTERS]; /* over all its sessions in this cluster */
	/* `counted` at its answer to the last odm_members_ask; until then, at the request */
	uint64_t at_ask[OD_N_COUNTERS];
	uint64_t asked, answered; /* PING numbers of this session: the one waited for; the newest answered one */
	struct odm_link_cost cost; /* a worker's, as the following ones */
	struct odm_worker_times times;
	uint32_t cache_experts; /* capacity of its cache, at most all experts */
	double home, homes_from; /* as in struct odm_deal_times */
	uint8_t *holds; /* a bit for each expert, as in PONG; set for a worker with a spool */
	uint8_t *cached; /* a byte per expert, as in PONG; set for a worker with a cache */
	uint32_t damaged
		[MAX_DAMAGED]; /* [pub.n_damaged]: m * n_experts + expert, in the order in which they were found */
	char host_name[64], precision[40]; /* from its last WELCOME; the precision is a shadow's */
	struct odm_told_facts told_facts; /* by its last WELCOME or REFUSE */
	char why[400]; /* why it is not connected */
	int refused_code; /* the last REFUSE's; 0: none */
	bool used; /* it could be sent work once */
	bool distrusted;
	bool retired; /* no longer in the hosts file */
	bool gone; /* its process has ended and is not started again (odm_cluster_opts.ended) */
};

struct odm_members {
	struct odm_members_opts o;
	uv_loop_t *loop;
	uv_timer_t timer;
	unsigned tick;
	uint64_t ticked_ns;
	struct odm_copy_check *copies; /* NULL: workers' packs have checksums of their own */
	uint64_t main_id; /* random, for HELLO: a daemon with two addresses knows main again */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	_Atomic uint64_t epoch; /* changes under the lock */
	uint64_t left[OD_N_COUNTERS]; /* counted by members that were replaced */
	bool starts, started; /* the start is to end; it has ended: missing hosts were named */
	bool asked; /* odm_members_ask was called, odm_members_counters not yet */
	size_t holds_bytes, cached_bytes; /* per member */
	uint8_t *held; /* [holds_bytes]: scratch, under the lock */
	bool had_shadow; /* the shadows have made up the model */
	char gap[200]; /* why they no longer do, as it was logged; "": they do */
	bool told_precisions; /* it was logged that the shadows' precisions differ */
	struct odm_layer_shape shape;
	struct odm_link_cost **weighed; /* [OD_MAX_HOSTS]: scratch of odm_members_weigh */
	struct odm_link_excess *excess; /* [OD_MAX_HOSTS]: scratch of odm_members_weigh */
	/* Under the lock: workers and their work. */
	double expert_weights, load_bytes; /* an expert's; the second is measured */
	bool uneven; /* workers are not alike: each has its own times */
	unsigned alike_checks; /* in a row that found them alike */
	struct odm_home_share *home; /* [OD_MAX_HOSTS]: scratch */
	uint32_t n, n_listed, next_probe; /* next_probe: the one from which on members are probed next */
	struct member *member[OD_MAX_HOSTS]; /* by id */
	struct member *listed[OD_MAX_HOSTS]; /* members in the hosts file, in its order */
	bool stopping;
};

const char *odm_member_name(const struct member *m, char *buf, size_t size); /* "worker 10.0.0.2:5701" */

/* ---- members.c, loop thread ---- */

/* Closes its socket. retry_after_ns: until a new one is opened. */
void odm_member_drop(struct member *m, uint64_t retry_after_ns, const char *why);
void odm_member_set_why(struct member *m, const char *why);
void odm_member_set_refused(struct member *m, int code);
/* A PING, with so much padding each way. */
void odm_member_ping(struct member *m, uint32_t padding);

void odm_member_send_place(struct member *m);

/* BYE, if it is in use. */
void odm_member_say_bye(struct member *m, const char *reason);

/* ---- members_facts.c, loop thread ---- */

uint64_t odm_wall_clock_ns(void);
/* Under the lock. */
void odm_member_note_welcome(struct member *m, const Od__Welcome *w);
void odm_member_note_refuse(struct member *m, const Od__Refuse *r);

/* ---- members_hosts.c, loop thread ---- */

/* Members are those of this file: adds new hosts, retires those that it has no more. */
OD_MUST_CHECK int odm_members_take_hosts(struct odm_members *ms, const struct od_hosts *hosts, struct od_err *err);
void odm_member_free(struct member *m); /* NULL ok */

/* ---- members_address.c, loop thread ---- */

const char *odm_member_address(const struct member *m); /* numeric; "": its name is not resolved */
/* Every tick: resolves its name, and while it is not connected, now and then again. */
void odm_member_follow_name(struct member *m, uint64_t now);
/* It has another address, and this one had its time since since_ns. */
bool odm_member_tries_another(const struct member *m, uint64_t now);
/* Drops it and goes on to the next address: at once, or after retry_ns when all have been tried; then code (OD_OK:
 * none) counts as a refusal. reached: a daemon, or something, is at this address. */
void odm_member_attempt_failed(struct member *m, bool reached, uint64_t retry_ns, int code, const char *why);
void odm_member_attempt_succeeded(struct member *m);
/* Two names of one address: the second would be refused for ever, for it is us that the daemon serves. */
bool odm_member_is_twin(const struct member *m, char *why, size_t size);

/* ---- members_news.c, loop thread ---- */

/* After a session has ended. was_used: it could be sent work. */
void odm_member_tell_lost(struct member *m, bool was_used, const char *why);
/* When it can be sent work; does nothing before, and the second time. */
void odm_member_tell_back(struct member *m);
/* Every tick: who is back, and at the end of the start, who is missing. */
void odm_members_tell(struct odm_members *ms, uint64_t now);

/* ---- members_links.c, loop thread: what links and workers cost (link_cost.h) ---- */

OD_MUST_CHECK int odm_members_links_init(struct odm_members *ms, struct od_err *err);
void odm_members_links_fini(struct odm_members *ms);
void odm_member_echo(struct member *m, const Od__Pong *p); /* under the lock */
void odm_member_probe(
	struct member *m); /* one whose link is not measured yet: sends the probe that is due, if one is */
/* Every tick: sends the next worker's that is due. One at a time, because all share main's port. */
void odm_members_probe(struct odm_members *ms);
bool odm_member_measured(struct member *m); /* its link is known well enough to use it */
void odm_members_weigh(struct odm_members *ms); /* decides again who is used */

/* ---- members_times.c: what workers take for their work (worker_times.h) ---- */

/* Under the lock: decides whether workers are alike, and whose home experts are. */
void odm_members_compare(struct odm_members *ms);
void odm_members_tell_times(struct odm_members *ms); /* loop thread */

/* ---- members_shadow.c ---- */

/* Under the lock: the connected shadows that hold all layers together, or none. */
void odm_members_find_shadow(const struct odm_members *ms, struct odm_view *v);
/* Under the lock, when all hosts are connected: shadows that do not make up the model are a mistake in their
 * options. */
OD_MUST_CHECK int odm_members_check_shadows(const struct odm_members *ms, struct od_err *err);
/* Loop thread, every tick: logs what has become wrong with the shadows of the hosts file, and what is right again. */
void odm_members_watch_shadows(struct odm_members *ms);

#endif
