/* members_facts.h - what members have said of themselves and their machines, for od-plan --check.
 *
 * Thread: any (a monitor, members.h). Owner: the caller. */
#ifndef ODM_MEMBERS_FACTS_H
#define ODM_MEMBERS_FACTS_H

#include "main-node/cluster/members.h"

/* By WELCOME or REFUSE. Older programs leave out what 0 and "" stand for here. */
struct odm_told_facts {
	char program_version[24], kernel_class[40], backend[128];
	char boot_id[40]; /* its machine has booted under this name */
	uint32_t threads;
	uint64_t memory_bytes, cache_bytes; /* its limit, and the part of it that is a worker's cache */
	uint64_t ram_bytes, free_ram_bytes, free_disk_bytes;
	int64_t clock_ns; /* how far its clock is ahead of ours */
	uint64_t clock_error_ns; /* at most so much of that is the time of the messages */
	bool has_clock;
	bool welcomed; /* its last word was WELCOME */
	char main_name[64]; /* the main that it serves; "": it has not said that it serves one */
	uint64_t served_ns;
};

struct odm_member_facts {
	struct odm_member member; /* session 0: it cannot be used */
	struct odm_told_facts told;
	int refused_code; /* why it refuses us, or its handshake did; 0: it does not */
	char why[400]; /* it cannot be used; "": nothing has failed yet */
	char host_name[64], precision[40];
	uint64_t n_held; /* experts on its disk; all of them without a spool */
	bool told_held; /* it has answered a heartbeat, so n_held is known */
	uint64_t c[OD_N_COUNTERS]; /* as in odm_member_stats */
};

/* The host at this place of the hosts file. False: there is none. */
bool odm_members_facts(struct odm_members *ms, uint32_t listed, struct odm_member_facts *f);

#endif
