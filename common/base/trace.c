#include "common/base/trace.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

bool od_trace_on;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *file;
static char file_path[4096];
static bool any; /* an event was written: the next one needs a comma */

static int thread_id(void)
{
	static __thread int id;

	if (id == 0)
		id = (int)syscall(SYS_gettid);
	return id;
}

static void separate(void)
{
	fputs(any ? ",\n" : "\n", file);
	any = true;
}

int od_trace_open(const char *path, const char *process, struct od_err *err)
{
	file = fopen(path, "we");
	if (file == NULL)
		return od_fail_errno(err, OD_ERR_IO, "cannot write the trace %s", path);
	snprintf(file_path, sizeof(file_path), "%s", path);
	any = false;
	fputc('[', file);
	separate();
	fprintf(file, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"%s\"}}", getpid(), process);
	od_trace_on = true;
	return OD_OK;
}

/* Threads are named once, by what pthread_setname_np gave them. */
static void name_thread(void)
{
	static __thread bool named;
	char name[16] = "";

	if (named)
		return;
	named = true;
	if (pthread_getname_np(pthread_self(), name, sizeof(name)) != 0)
		return;
	separate();
	fprintf(file, "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}", getpid(),
		thread_id(), name);
}

void od_trace_span(const char *what, uint64_t begin_ns, int64_t step, int64_t m, int64_t expert)
{
	uint64_t end_ns = od_now_ns();
	const char *comma = "";

	pthread_mutex_lock(&lock);
	if (file != NULL) {
		name_thread();
		separate();
		fprintf(file, "{\"name\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,\"tid\":%d,\"args\":{", what,
			(double)begin_ns * 1e-3, (double)(end_ns - begin_ns) * 1e-3, getpid(), thread_id());
		if (step >= 0) {
			fprintf(file, "\"step\":%" PRId64, step);
			comma = ",";
		}
		if (m >= 0) {
			fprintf(file, "%s\"m\":%" PRId64, comma, m);
			comma = ",";
		}
		if (expert >= 0)
			fprintf(file, "%s\"expert\":%" PRId64, comma, expert);
		fputs("}}", file);
	}
	pthread_mutex_unlock(&lock);
}

int od_trace_merge(const char *path, struct od_err *err)
{
	char line[512];
	FILE *from = fopen(path, "re");

	if (from == NULL)
		return od_fail_errno(err, OD_ERR_IO, "cannot read the trace %s", path);
	pthread_mutex_lock(&lock);
	/* One event a line; a process that was killed leaves its last line cut, which is left out. */
	while (file != NULL && fgets(line, sizeof(line), from) != NULL) {
		size_t len = strcspn(line, "\n");

		if (line[len] != '\n' || line[0] != '{')
			continue;
		if (len > 0 && line[len - 1] == ',')
			len--;
		separate();
		fwrite(line, 1, len, file);
	}
	pthread_mutex_unlock(&lock);
	fclose(from);
	return OD_OK;
}

int od_trace_close(struct od_err *err)
{
	int rc = OD_OK;

	if (file == NULL)
		return OD_OK;
	od_trace_on = false;
	fputs("\n]\n", file);
	if (ferror(file) || fclose(file) != 0)
		rc = od_fail_errno(err, OD_ERR_IO, "writing the trace %s", file_path);
	file = NULL;
	return rc;
}
