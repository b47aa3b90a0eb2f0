#include "main-node/chat/first_time.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define MAX_TEXTS 128
#define MAX_BYTES 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char known[MAX_TEXTS][MAX_BYTES];
static size_t n_known;

bool odm_first_time(const char *kind, const char *what)
{
	char text[MAX_BYTES] = ""; /* compared and copied whole */
	bool first;
	size_t i = 0;

	snprintf(text, sizeof(text), "%s %s", kind, what);
	pthread_mutex_lock(&lock);
	while (i < n_known && strcmp(known[i], text) != 0)
		i++;
	first = i == n_known && n_known < MAX_TEXTS;
	if (first)
		memcpy(known[n_known++], text, sizeof(text));
	pthread_mutex_unlock(&lock);
	return first;
}
