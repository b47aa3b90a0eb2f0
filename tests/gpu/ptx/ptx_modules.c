/* PTX files: directives, and where kernels begin and end. */
#include "tests/gpu/ptx/ptx_modules.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/ptx/ptx_text.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ptx_kernel *kernels; /* under the lock */

static char *copy_of(const char *text, size_t n)
{
	return memcpy(ptx_zeros(n + 1, 1), text, n);
}

/* .const .align 4 .b8 name[64] = {0, ...}; with .global the same: kernels have no variables there. */
static void read_constant(struct ptx_text *t, struct ptx_module *m)
{
	struct ptx_constant *c;
	size_t n, room;

	if (m->n_constants == PTX_MOST_CONSTANTS)
		ptx_bad_text(t, "more than %u constants", PTX_MOST_CONSTANTS);
	c = &m->constant[m->n_constants++];
	ptx_expect(t, ".align");
	if (ptx_next_number(t) > 64)
		ptx_bad_text(t, "an alignment of more than 64 bytes");
	ptx_expect(t, ".b8");
	ptx_take(t);
	c->name = copy_of(t->token, strlen(t->token));
	ptx_expect(t, "[");
	n = (size_t)ptx_next_number(t);
	room = (n + 63) / 64 * 64;
	c->bytes = aligned_alloc(64, room);
	if (c->bytes == NULL)
		ptx_bad_text(t, "out of memory");
	ptx_expect(t, "]");
	ptx_expect(t, "=");
	for (size_t i = 0; i < n; i++) {
		ptx_expect(t, i == 0 ? "{" : ",");
		c->bytes[i] = (unsigned char)ptx_next_number(t);
	}
	ptx_expect(t, "}");
	ptx_expect(t, ";");
}

/* .extern .shared .align 16 .b8 gpu_shared_bytes[]; */
static void read_shared(struct ptx_text *t, struct ptx_module *m)
{
	ptx_expect(t, ".shared");
	ptx_expect(t, ".align");
	if (ptx_next_number(t) != 16)
		ptx_bad_text(t, "shared memory that is not aligned to 16 bytes");
	ptx_expect(t, ".b8");
	ptx_expect(t, "gpu_shared_bytes");
	ptx_expect(t, "[");
	ptx_expect(t, "]");
	ptx_expect(t, ";");
	m->has_shared = true;
}

/* The token is _Z<length>name_kernel<types>. */
static char *plain_name(const struct ptx_text *t)
{
	static const char ending[] = "_kernel";
	const size_t n_ending = sizeof(ending) - 1;
	char *begin = NULL;
	const unsigned long n = ptx_starts(t->token, "_Z") ? strtoul(t->token + 2, &begin, 10) : 0;

	if (n <= n_ending || strlen(begin) < n || strncmp(begin + n - n_ending, ending, n_ending) != 0)
		ptx_bad_text(t, "the name of kernel %s is not known", t->token);
	return copy_of(begin, n - n_ending);
}

static void skip_body(struct ptx_text *t)
{
	unsigned depth = 0;

	do {
		ptx_take(t);
		depth += ptx_is(t, "{");
		depth -= depth > 0 && ptx_is(t, "}");
	} while (depth > 0 || !ptx_is(t, "}"));
}

static void read_entry(struct ptx_text *t, const struct ptx_module *m)
{
	struct ptx_kernel *k = ptx_zeros(1, sizeof(*k));

	ptx_expect(t, ".entry");
	ptx_take(t);
	k->name = plain_name(t);
	k->module = m;
	k->begin = t->p;
	k->begin_line = t->line;
	skip_body(t);
	k->end = t->p;
	k->next = kernels;
	kernels = k;
}

/* .file 1 "name" */
static void read_file_name(struct ptx_text *t, struct ptx_module *m)
{
	const uint64_t n = ptx_next_number(t);

	ptx_take(t);
	if (n < PTX_MOST_SOURCES && t->token[0] == '"')
		m->source[n] = copy_of(t->token + 1, strlen(t->token) - 2);
}

static void read_directives(struct ptx_text *t, struct ptx_module *m)
{
	while (ptx_next(t)) {
		if (ptx_is(t, ".version") || ptx_is(t, ".target") || ptx_is(t, ".address_size")) {
			ptx_skip_line(t);
		} else if (ptx_is(t, ".extern")) {
			read_shared(t, m);
		} else if (ptx_is(t, ".const") || ptx_is(t, ".global")) {
			read_constant(t, m);
		} else if (ptx_is(t, ".visible")) {
			read_entry(t, m);
		} else if (ptx_is(t, ".file")) {
			read_file_name(t, m);
		} else if (ptx_is(t, ".section")) {
			ptx_take(t);
			skip_body(t);
		} else {
			ptx_bad_text(t, "directive %s is not known", t->token);
		}
	}
}

/* All of a file, and a 0. */
static char *read_text(const char *path, size_t *n)
{
	FILE *f = fopen(path, "r");
	long bytes = -1;
	char *text = NULL;

	if (f != NULL && fseek(f, 0, SEEK_END) == 0)
		bytes = ftell(f);
	if (bytes >= 0) {
		rewind(f);
		text = ptx_zeros((size_t)bytes + 1, 1);
	}
	if (bytes < 0 || fread(text, 1, (size_t)bytes, f) != (size_t)bytes) {
		fprintf(stderr, "ptx: %s cannot be read\n", path);
		abort();
	}
	fclose(f);
	*n = (size_t)bytes;
	return text;
}

static void read_module(const char *path)
{
	struct ptx_module *m = ptx_zeros(1, sizeof(*m));
	struct ptx_text t = { .line = 1 };
	size_t n;

	m->path = copy_of(path, strlen(path));
	m->text = read_text(path, &n);
	t.file = m->path;
	t.p = m->text;
	t.end = m->text + n;
	read_directives(&t, m);
}

static void read_all(void)
{
	const char *folder = getenv("OD_PTX");
	DIR *d = folder != NULL ? opendir(folder) : NULL;
	const struct dirent *e;
	char path[1024];

	if (d == NULL) {
		fprintf(stderr, "ptx: OD_PTX=%s: expected a folder with PTX files\n", folder != NULL ? folder : "");
		abort();
	}
	while ((e = readdir(d)) != NULL) {
		const size_t n = strlen(e->d_name);

		if (n < 4 || strcmp(e->d_name + n - 4, ".ptx") != 0)
			continue;
		snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
		read_module(path);
	}
	closedir(d);
}

struct ptx_kernel *ptx_find(const char *name)
{
	struct ptx_kernel *k;

	pthread_mutex_lock(&lock);
	if (kernels == NULL)
		read_all();
	k = kernels;
	while (k != NULL && strcmp(k->name, name) != 0)
		k = k->next;
	if (k != NULL && k->code == NULL)
		ptx_parse(k);
	pthread_mutex_unlock(&lock);
	return k;
}

const char *ptx_file(const struct ptx_kernel *k)
{
	return k->module->path;
}

const char *ptx_source_file(const struct ptx_kernel *k, uint32_t source)
{
	const uint32_t number = source >> 20;
	const char *file = number < PTX_MOST_SOURCES ? k->module->source[number] : NULL;

	return file != NULL ? file : "?";
}
