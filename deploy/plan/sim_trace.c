/* A simulated run as a Chrome trace: each machine is a process, with threads that compute, read and send. */
#include "deploy/plan/sim_internal.h"

#include "common/base/trace.h"

#include <stdio.h>

static int pid_of(uint32_t node)
{
	return (int)node + 1;
}

static int tid_of(uint32_t node, enum sim_thread thread)
{
	return (int)node * N_THREADS + (int)thread + 1;
}

static const char *thread_name(uint32_t node, enum sim_thread thread)
{
	if (thread == SENDS)
		return "link";
	if (thread == READS)
		return "od-read";
	return node == MAIN ? "od-main" : node == SHADOW ? "od-emulator" : "od-engine";
}

static void name_node(const struct odp_sim *s, uint32_t node)
{
	const char *role = node == MAIN ? "main" : node == SHADOW ? "shadow" : "worker";
	char name[100];

	snprintf(name, sizeof(name), "%s %.60s", role, s->node[node].machine->name);
	for (int t = 0; t < N_THREADS; t++)
		if (t != READS || node >= FIRST_WORKER)
			od_trace_name(pid_of(node), tid_of(node, (enum sim_thread)t), name,
				      thread_name(node, (enum sim_thread)t));
}

int odp_trace_new(struct odp_sim *s, struct od_err *err)
{
	int rc;

	if (s->o.trace_path == NULL)
		return OD_OK;
	rc = od_trace_open(s->o.trace_path, "simulation", err);
	s->traces = rc == OD_OK;
	for (uint32_t i = 0; s->traces && i < FIRST_WORKER + s->cluster.n_workers; i++)
		if (i != SHADOW || s->cluster.has_shadow)
			name_node(s, i);
	return rc;
}

int odp_trace_free(struct odp_sim *s, struct od_err *err)
{
	const bool traces = s->traces;

	s->traces = false;
	return traces ? od_trace_close(err) : OD_OK;
}

void odp_trace(const struct odp_sim *s, uint32_t node, enum sim_thread thread, const char *what, uint64_t begin_ns,
	       int64_t step, int64_t m, int64_t expert)
{
	if (s->traces)
		od_trace_add(what, begin_ns, odp_clock_ns(), pid_of(node), tid_of(node, thread), step, m, expert);
}
