/* Any text at all as hosts.txt; what is accepted keeps to what hosts.h promises. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/net/hosts.h"
#include "tests/fuzz/fuzz.h"

/* Words that are written can be read. */
static void check_words(const struct od_hosts *all, size_t i)
{
	const struct od_host_words *w = &all->host[i].words;
	char text[300], line[400];
	struct od_err err = { 0 };
	struct od_hosts again;
	int len;

	check(w->memory_bytes >= 0 && w->read_rate >= 0 && w->speed >= 0 && w->many >= 0 && w->link_bits >= 0 &&
	      w->latency_ms >= 0 && w->fixed_ms >= 0);
	len = snprintf(line, sizeof(line), "box%s", od_host_words_text(w, text, 256));
	check(od_hosts_parse(&again, line, (size_t)len, "line", &err) == OD_OK);
	od_hosts_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct od_err err = { 0 };
	struct od_hosts h;
	size_t workers = 0;

	if (od_hosts_parse(&h, (const char *)data, size, "hosts.txt", &err) != OD_OK) {
		check(h.host == NULL && h.n == 0 && err.msg[0] != '\0' && err.code == OD_ERR_ARG);
		return 0;
	}
	for (size_t i = 0; i < h.n; i++) {
		check(h.host[i].port > 0 && h.host[i].line > 0);
		check(i == 0 || h.host[i].line > h.host[i - 1].line);
		check(h.host[i].host[0] != '\0' && strnlen(h.host[i].host, sizeof(h.host[i].host)) < 254);
		check(!h.host[i].is_main);
		check_words(&h, i);
		workers += h.host[i].role == OD_NODE_WORKER;
	}
	check(workers > 0 && h.n - workers <= OD_MAX_SHADOWS && h.n <= OD_MAX_HOSTS);
	od_hosts_fini(&h);
	return 0;
}
