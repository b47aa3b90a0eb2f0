#include "common/pack/shadow/shadow_add.h"

#include "common/base/file.h"
#include "common/pack/shadow/shadow_file.h"
#include "common/pack/shadow/shadow_load.h"
#include "common/pack/shadow/shadow_write.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

int od_shadow_lock(const struct od_pack *p, int *fd, struct od_err *err)
{
	int rc;

	*fd = -1;
	if (p->temporary)
		return od_fail(
			err, OD_ERR_IO,
			"%s: a shadow of a GGUF file is kept in a cache, and no folder for one can be written: make "
			"/var/cache/od-moe or ~/.cache writable, or set XDG_CACHE_HOME, for the shadow node, too",
			p->dir);
	*fd = open(p->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (*fd < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot open %s", p->folder);
	if (flock(*fd, LOCK_EX | LOCK_NB) == 0)
		return OD_OK;
	if (errno == EWOULDBLOCK)
		rc = od_fail(err, OD_ERR_BUSY, "another od-pack is adding a shadow to %s", p->dir);
	else
		rc = od_fail_errno(err, OD_ERR_IO, "cannot lock %s", p->dir);
	close(*fd);
	*fd = -1;
	return rc;
}

static void note(const struct od_shadow_add *job, const char *fmt, ...) OD_PRINTF(2, 3);

static void note(const struct od_shadow_add *job, const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	if (job->note == NULL)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	job->note(job->arg, text);
}

/* Removes the temporary files of a killed run, of any precision: they cannot be resumed. */
static void remove_temps(const struct od_pack *p)
{
	char path[PATH_MAX];

	for (int i = 0; i < OD_N_PRECISIONS; i++)
		if (od_shadow_temp_names[i] != NULL &&
		    od_path(path, sizeof(path), p->folder, od_shadow_temp_names[i], NULL) == OD_OK)
			unlink(path);
}

/* One that is there and is this pack's stays. One that cannot be used is no reason to refuse a new one. */
static bool is_there(const struct od_shadow_add *job, enum od_precision precision)
{
	struct od_shadow_file f;
	struct od_err err;
	int rc = od_shadow_file_open(&f, job->pack, precision, &err);

	od_shadow_file_close(&f);
	if (rc == OD_OK && !job->force)
		note(job, "%s/%s is there already", job->pack->folder, od_shadow_file_names[precision - 1]);
	else if (rc != OD_OK && rc != OD_ERR_MISSING)
		note(job, "making it again: %s", err.msg);
	return rc == OD_OK && !job->force;
}

static int write_header(const struct od_shadow_job *job, const char *fingerprint, struct od_err *err)
{
	uint8_t *buf = malloc(job->table->header_bytes);
	int rc;

	if (buf == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for a shadow's header");
	od_shadow_header_write(job->table, fingerprint, buf);
	rc = od_file_pwrite(job->fd, buf, job->table->header_bytes, 0, job->path, err);
	free(buf);
	if (rc == OD_OK && fsync(job->fd) != 0)
		rc = od_fail_errno(err, OD_ERR_IO, "cannot sync %s", job->path);
	return rc;
}

/* A file that is larger than what it stands for saves nothing. False: it was not asked for, so there is none. */
static bool is_of_use(const struct od_shadow_add *job, enum od_precision precision)
{
	const double own = od_shadow_expert_bits(job->pack, precision),
		     published = od_shadow_expert_bits(job->pack, OD_PRECISION_BF16);
	const char *name = od_precision_names[precision - 1];

	if (own < published)
		return true;
	if (job->by_default)
		note(job,
		     "no %s shadow: it would have %.2f bits for each weight of an expert, the model has %.2f; od-shadow runs the "
		     "pack as it is",
		     name, own, published);
	else
		note(job,
		     "warning: %s has %.2f bits for each weight of an expert, the model only %.2f: od-shadow --precision bf16 "
		     "(the pack as it is) takes less memory for them",
		     name, own, published);
	return !job->by_default;
}

/* Records, header, disk, name: in this order, so that what has the name is whole. */
static int make(const struct od_shadow_add *job, struct od_shadow_table *table, uint64_t done, struct od_err *err)
{
	const struct od_pack *p = job->pack;
	char path[PATH_MAX], temp[PATH_MAX];
	int fd, rc = od_path(path, sizeof(path), p->folder, od_shadow_file_names[table->precision - 1], err);

	if (rc == OD_OK)
		rc = od_path(temp, sizeof(temp), p->folder, od_shadow_temp_names[table->precision - 1], err);
	if (rc != OD_OK)
		return rc;
	fd = open(temp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot create %s", temp);
	const struct od_shadow_job records = {
		.pack = p,
		.table = table,
		.fd = fd,
		.path = temp,
		.n_threads = job->n_threads,
		.progress = job->progress,
		.progress_arg = job->arg,
		.done_bytes = done,
		.all_bytes = job->all_bytes,
	};

	rc = od_shadow_run(&records, err);
	if (rc == OD_OK)
		rc = write_header(&records, p->manifest.fingerprint, err);
	close(fd);
	if (rc == OD_OK && rename(temp, path) != 0)
		rc = od_fail_errno(err, OD_ERR_IO, "cannot rename %s to %s", temp, path);
	if (rc != OD_OK) {
		unlink(temp);
		return rc;
	}
	return od_fsync_dir(p->folder, err);
}

unsigned od_shadow_add(const struct od_shadow_add *job, unsigned set)
{
	uint64_t done = job->done_bytes;
	unsigned missing = 0;

	remove_temps(job->pack);
	for (int i = 0; i < OD_N_PRECISIONS; i++) {
		const enum od_precision precision = (enum od_precision)(i + 1);
		struct od_shadow_table table;
		struct od_err err;
		int rc;

		if ((set & OD_SHADOW_BIT(precision)) == 0)
			continue;
		rc = od_shadow_table_init(&table, &job->pack->config, precision, &err);
		if (rc == OD_OK && !is_there(job, precision) && is_of_use(job, precision))
			rc = make(job, &table, done, &err);
		done += table.file_bytes;
		od_shadow_table_fini(&table);
		if (rc != OD_OK) {
			missing |= OD_SHADOW_BIT(precision);
			note(job, "error: no %s shadow: %s", od_precision_names[i], err.msg);
		}
	}
	return missing;
}
