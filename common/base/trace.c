#include "common/base/trace.h"

#include "common/base/log.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_NAME 200 /* bytes of a name, or of a list of requests */

bool od_trace_on;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *file;
static char file_path[4096];
static bool any; /* an event was written: the next one needs a comma */
static unsigned n_opened; /* traces of this process so far */

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

/* A program or thread is called what its user likes: only what JSON takes as it is. */
static void put_name(const char *name)
{
	for (size_t i = 0; *name != '\0' && i < MAX_NAME; name++, i++)
		fputc(*name < ' ' || *name > '~' || *name == '"' || *name == '\\' ? '_' : *name, file);
}

int od_trace_open(const char *path, const char *process, struct od_err *err)
{
	file = fopen(path, "we");
	if (file == NULL)
		return od_fail_errno(err, OD_ERR_IO, "cannot write the trace %s", path);
	snprintf(file_path, sizeof(file_path), "%s", path);
	any = false;
	n_opened++;
	fputc('[', file);
	separate();
	fprintf(file, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"", getpid());
	put_name(process);
	fputs("\"}}", file);
	od_trace_on = true;
	return OD_OK;
}

/* Threads are named once in a trace, by what pthread_setname_np gave them. */
static void name_thread(void)
{
	static __thread unsigned named_in;
	char name[16] = "";

	if (named_in == n_opened)
		return;
	named_in = n_opened;
	if (pthread_getname_np(pthread_self(), name, sizeof(name)) != 0)
		return;
	separate();
	fprintf(file, "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"", getpid(),
		thread_id());
	put_name(name);
	fputs("\"}}", file);
}

/* All of an event but its end. */
static void put_span(const char *what, uint64_t begin_ns, uint64_t end_ns, int pid, int tid, int64_t step, int64_t m,
		     int64_t expert)
{
	const struct {
		const char *key;
		int64_t value;
	} arg[] = { { "step", step }, { "m", m }, { "expert", expert } };
	const char *comma = "";

	separate();
	fprintf(file, "{\"name\":\"%s\",\"ph\":\"X\",\"ts\":%.3f,\"dur\":%.3f,\"pid\":%d,\"tid\":%d,\"args\":{", what,
		(double)begin_ns * 1e-3, (double)(end_ns - begin_ns) * 1e-3, pid, tid);
	for (size_t i = 0; i < sizeof(arg) / sizeof(arg[0]); i++) {
		if (arg[i].value < 0)
			continue;
		fprintf(file, "%s\"%s\":%" PRId64, comma, arg[i].key, arg[i].value);
		comma = ",";
	}
}

void od_trace_span(const char *what, uint64_t begin_ns, int64_t step, int64_t m, int64_t expert)
{
	uint64_t end_ns = od_now_ns();
	char buf[256];
	const struct od_log_field about = od_log_about_field(buf, sizeof(buf));

	pthread_mutex_lock(&lock);
	if (file != NULL) {
		name_thread();
		put_span(what, begin_ns, end_ns, getpid(), thread_id(), step, m, expert);
		if (about.key != NULL) {
			fprintf(file, "%s\"%s\":\"", step >= 0 || m >= 0 || expert >= 0 ? "," : "", about.key);
			put_name(about.text);
			fputc('"', file);
		}
		fputs("}}", file);
	}
	pthread_mutex_unlock(&lock);
}

void od_trace_name(int pid, int tid, const char *process, const char *thread)
{
	pthread_mutex_lock(&lock);
	if (file != NULL) {
		separate();
		fprintf(file, "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"", pid);
		put_name(process);
		fprintf(file,
			"\"}},\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"",
			pid, tid);
		put_name(thread);
		fputs("\"}}", file);
	}
	pthread_mutex_unlock(&lock);
}

void od_trace_add(const char *what, uint64_t begin_ns, uint64_t end_ns, int pid, int tid, int64_t step, int64_t m,
		  int64_t expert)
{
	pthread_mutex_lock(&lock);
	if (file != NULL) {
		put_span(what, begin_ns, end_ns, pid, tid, step, m, expert);
		fputs("}}", file);
	}
	pthread_mutex_unlock(&lock);
}

int od_trace_merge(const char *path, struct od_err *err)
{
	char line[512]; /* more than an event needs */
	bool begins = true; /* line is at the begin of one, not within one that is too long */
	FILE *from = fopen(path, "re");
	int rc = OD_OK;

	if (from == NULL)
		return od_fail_errno(err, OD_ERR_IO, "cannot read the trace %s", path);
	pthread_mutex_lock(&lock);
	/* One event a line; a process that was killed leaves its last line cut, which is left out. */
	while (file != NULL && fgets(line, sizeof(line), from) != NULL) {
		size_t len = strcspn(line, "\n");
		bool whole = begins && line[0] == '{' && line[len] == '\n';

		begins = line[len] == '\n';
		if (!whole)
			continue;
		if (line[len - 1] == ',')
			len--;
		separate();
		fwrite(line, 1, len, file);
	}
	pthread_mutex_unlock(&lock);
	if (ferror(from))
		rc = od_fail_errno(err, OD_ERR_IO, "reading the trace %s", path);
	fclose(from);
	return rc;
}

int od_trace_close(struct od_err *err)
{
	bool failed;
	int rc = OD_OK;

	if (file == NULL)
		return OD_OK;
	od_trace_on = false;
	fputs("\n]\n", file);
	failed = ferror(file); /* an earlier write may have failed: its errno is gone */
	if (fclose(file) != 0)
		rc = od_fail_errno(err, OD_ERR_IO, "writing the trace %s", file_path);
	else if (failed)
		rc = od_fail(err, OD_ERR_IO, "writing the trace %s: parts of it are missing", file_path);
	file = NULL;
	return rc;
}
