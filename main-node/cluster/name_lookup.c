#include "main-node/cluster/name_lookup.h"

#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct odm_name_lookup {
	_Atomic unsigned refs; /* the caller's and the thread's */
	atomic_bool done; /* then the next two are set */
	int status; /* result of getaddrinfo or getnameinfo */
	struct odm_addresses found;
	char name[];
};

/* 0, or of getnameinfo. */
static int add(struct odm_addresses *found, const struct addrinfo *a)
{
	const int rc =
		getnameinfo(a->ai_addr, a->ai_addrlen, found->at[found->n], ODM_ADDRESS_CHARS, NULL, 0, NI_NUMERICHOST);

	found->n += rc == 0;
	return rc;
}

static void *resolve(void *arg)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
	struct odm_name_lookup *l = arg;
	struct addrinfo *list = NULL;

	l->status = getaddrinfo(l->name, NULL, &hints, &list);
	for (int ipv4 = 1; ipv4 >= 0; ipv4--) {
		for (const struct addrinfo *a = list; a != NULL && l->found.n < ODM_MAX_ADDRESSES; a = a->ai_next)
			if ((a->ai_family == AF_INET) == ipv4)
				l->status = add(&l->found, a);
	}
	if (l->found.n > 0)
		l->status = 0;
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

bool odm_name_lookup_done(const struct odm_name_lookup *l, struct odm_addresses *found, const char **why)
{
	if (!atomic_load(&l->done))
		return false;
	*why = l->status != 0 ? gai_strerror(l->status) : NULL;
	*found = l->found;
	return true;
}

void odm_name_lookup_end(struct odm_name_lookup *l)
{
	if (l != NULL && atomic_fetch_sub(&l->refs, 1) == 1)
		free(l);
}
