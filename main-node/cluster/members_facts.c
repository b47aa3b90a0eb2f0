#include "main-node/cluster/members_facts.h"

#include "main-node/cluster/members_internal.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

uint64_t odm_wall_clock_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * OD_NS_PER_S + (uint64_t)now.tv_nsec;
}

/* WELCOME left between our HELLO and now, most probably in the middle. */
static void note_clock(struct odm_told_facts *f, uint64_t sent_ns, uint64_t theirs_ns)
{
	const uint64_t now_ns = odm_wall_clock_ns(), took_ns = now_ns > sent_ns ? now_ns - sent_ns : 0;

	f->has_clock = theirs_ns != 0 && theirs_ns <= INT64_MAX;
	f->clock_ns = f->has_clock ? (int64_t)theirs_ns - (int64_t)(sent_ns + took_ns / 2) : 0;
	f->clock_error_ns = took_ns / 2;
}

void odm_member_note_welcome(struct member *m, const Od__Welcome *w)
{
	struct odm_told_facts *f = &m->told_facts;

	*f = (struct odm_told_facts){
		.threads = w->threads,
		.memory_bytes = w->memory_bytes,
		.cache_bytes = w->cache_bytes,
		.ram_bytes = w->ram_bytes,
		.free_ram_bytes = w->free_ram_bytes,
		.free_disk_bytes = w->free_disk_bytes,
		.welcomed = true,
	};
	od_peer_text(w->program_version, f->program_version, sizeof(f->program_version));
	od_peer_text(w->kernel_class, f->kernel_class, sizeof(f->kernel_class));
	od_peer_text(w->backend, f->backend, sizeof(f->backend));
	od_peer_text(w->boot_id, f->boot_id, sizeof(f->boot_id));
	note_clock(f, m->greeted_wall_ns, w->wall_clock_ns);
}

void odm_member_note_refuse(struct member *m, const Od__Refuse *r)
{
	struct odm_told_facts *f = &m->told_facts;

	*f = (struct odm_told_facts){ .served_ns = r->served_ns };
	od_peer_text(r->program_version, f->program_version, sizeof(f->program_version));
	od_peer_text(r->main_name, f->main_name, sizeof(f->main_name));
}

static uint64_t count_held(const struct member *m)
{
	const struct odm_members *ms = m->ms;
	uint64_t n = 0;

	if (!m->pub.spool)
		return ms->cached_bytes;
	for (size_t i = 0; i < ms->cached_bytes; i++)
		n += m->holds[i / 8] >> i % 8 & 1;
	return n;
}

bool odm_members_facts(struct odm_members *ms, uint32_t listed, struct odm_member_facts *f)
{
	const struct member *m;

	pthread_mutex_lock(&ms->lock);
	m = listed < ms->n_listed ? ms->listed[listed] : NULL;
	*f = (struct odm_member_facts){ 0 };
	if (m != NULL) {
		f->member = m->pub;
		f->told = m->told_facts;
		f->refused_code = m->refused_code;
		snprintf(f->why, sizeof(f->why), "%s", m->why);
		snprintf(f->host_name, sizeof(f->host_name), "%s", m->host_name);
		snprintf(f->precision, sizeof(f->precision), "%s", m->precision);
		f->n_held = count_held(m);
		f->told_held = m->stats.pongs > 0 || m->answered > 0;
		memcpy(f->c, m->stats.c, sizeof(f->c));
	}
	pthread_mutex_unlock(&ms->lock);
	return m != NULL;
}
