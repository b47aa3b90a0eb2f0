#include "main-node/serve/ops/process_metrics.h"

#include "common/base/mem.h"
#include "main-node/serve/ops/metrics.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* field of /proc/self/stat, counted from 1 as in proc(5): ticks from boot to the process's start */
#define START_FIELD 22

static double open_descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	double n = -1; /* the descriptor of this folder does not count */

	while (d != NULL && readdir(d) != NULL)
		n++;
	if (d == NULL)
		return 0;
	closedir(d);
	return n - 2; /* "." and ".." */
}

/* Seconds from boot to the start of this process. */
static double start_after_boot(void)
{
	unsigned long long ticks = 0;
	char text[1024], *at;
	FILE *f = fopen("/proc/self/stat", "re");
	size_t n = f != NULL ? fread(text, 1, sizeof(text) - 1, f) : 0;

	if (f != NULL)
		fclose(f);
	text[n] = '\0';
	at = strrchr(text, ')'); /* the program's name, field 2, may have spaces */
	for (int field = 2; at != NULL && field < START_FIELD; field++)
		at = strchr(at + 1, ' ');
	if (at == NULL || sscanf(at, "%llu", &ticks) != 1)
		return 0;
	return (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

static double seconds(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Read once: two clocks never give the same difference twice, and to Prometheus each other value is a restart. */
static double start_time(void)
{
	static double start;

	if (start == 0)
		start = seconds(CLOCK_REALTIME) - seconds(CLOCK_BOOTTIME) + start_after_boot();
	return start;
}

void odm_process_metrics_write(struct od_strbuf *out)
{
	struct rlimit files = { 0 };

	getrlimit(RLIMIT_NOFILE, &files);
	odm_metrics_counter(out, "process_cpu_seconds_total", "Processor time of od-main, user and system.",
			    seconds(CLOCK_PROCESS_CPUTIME_ID));
	odm_metrics_gauge(out, "process_resident_memory_bytes", "Resident memory of od-main.", (double)od_rss_bytes());
	odm_metrics_gauge(out, "process_open_fds", "Open file descriptors of od-main.", open_descriptors());
	odm_metrics_gauge(out, "process_max_fds", "Limit of its open file descriptors.", (double)files.rlim_cur);
	odm_metrics_gauge(out, "process_start_time_seconds", "Start of od-main, in seconds since 1970.", start_time());
}
