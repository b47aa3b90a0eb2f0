#include "main-node/cluster/name_lookup.h"

#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct odm_name_lookup {
	_Atomic unsigned refs; /* the caller's and the thread's */
	atomic_bool done;      /* then the next two are set */
	int status;	       /* of getaddrinfo or getnameinfo */
	char address[ODM_ADDRESS_CHARS];
	char name[];
};

static void *resolve(void *arg)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *best;
	struct odm_name_lookup *l = arg;
	struct addrinfo *list = NULL;

	l->status = getaddrinfo(l->name, NULL, &hints, &list);
	best = list;
	for (const struct addrinfo *a = list; a != NULL && best->ai_family != AF_INET; a = a->ai_next) {
		if (a->ai_family == AF_INET) /* our default listening addresses are IPv4 */
			best = a;
	}
	if (l->status == 0)
		l->status = getnameinfo(best->ai_addr, best->ai_addrlen, l->address, sizeof(l->address), NULL, 0, NI_NUMERICHOST);
	if (list != NULL)
		freeaddrinfo(list);
	atomic_store(&l->done, true);
	odm_name_lookup_end(l);
	return NULL;
}

struct odm_name_lookup *odm_name_lookup_begin(const char *name)
{
	struct odm_name_lookup *l = calloc(1, sizeof(*l) + strlen(name) + 1);
	pthread_t thread;

	if (l == NULL)
		return NULL;
	l->refs = 2;
	memcpy(l->name, name, strlen(name));
	if (pthread_create(&thread, NULL, resolve, l) != 0) {
		free(l);
		return NULL;
	}
	pthread_setname_np(thread, "od-lookup");
	pthread_detach(thread);
	return l;
}

bool odm_name_lookup_done(const struct odm_name_lookup *l, char address[ODM_ADDRESS_CHARS], const char **why)
{
	if (!atomic_load(&l->done))
		return false;
	*why = l->status != 0 ? gai_strerror(l->status) : NULL;
	memcpy(address, l->address, sizeof(l->address));
	return true;
}

void odm_name_lookup_end(struct odm_name_lookup *l)
{
	if (l != NULL && atomic_fetch_sub(&l->refs, 1) == 1)
		free(l);
}
