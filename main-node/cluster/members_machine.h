/* members_machine.h - members as the page of main shows them, with what is wrong and what to do about it.
 *
 * Thread: any (a monitor, members.h). Owner: the caller. */
#ifndef ODM_MEMBERS_MACHINE_H
#define ODM_MEMBERS_MACHINE_H

#include "main-node/cluster/members.h"
#include "main-node/step/machine.h"

/* Adds all members of the hosts file, by id. Out of memory: the rest is left out. */
void odm_members_machines(struct odm_members *ms, struct odm_machines *list);

/* Tells an operator what is wrong with a member that cannot be used, and returns what to do about it. why: the reason
 * that the log has. problem: a sentence without keys and paths, and without anything that a peer has said. */
const char *odm_member_remedy(const char *why, char *problem, size_t size);
/* Where it fails, in a word or two: "name", "port", "key", "protocol", "model", ... */
const char *odm_member_step(const char *why);

#endif
