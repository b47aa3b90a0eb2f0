#include "common/pack/models_folder.h"

#include "common/base/file.h"
#include "common/base/mem.h"
#include "common/base/strbuf.h"
#include "common/pack/pack_layout.h"
#include "common/text/utf8_text.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MACHINE_DIR "/var/lib/od-moe/models"
#define MACHINE_PACK "/var/lib/od-moe/pack"
#define FIRST_OF_SPLIT "-00001-of-"
#define REMOVED ".removed-" /* a model that od-pack rm has taken its name from */
#define SOURCE_MAX_BYTES 2048
#define GET_ONE "get one with: od-pack hf://ORGANISATION/NAME"

static bool ends(const char *s, const char *end)
{
	const size_t n = strlen(s), k = strlen(end);

	return n > k && strcmp(s + n - k, end) == 0;
}

/* ---- the folders ---- */

#define N_FOLDERS 2

/* Folder number i. False: it does not apply here. */
static bool folder(int i, char out[PATH_MAX])
{
	const char *own = getenv("OD_MODELS"), *data = getenv("XDG_DATA_HOME"), *home = getenv("HOME");
	int n;

	if (own != NULL && own[0] != '\0')
		return i == 0 && snprintf(out, PATH_MAX, "%s", own) < PATH_MAX;
	if (i == 0)
		n = snprintf(out, PATH_MAX, MACHINE_DIR);
	else if (data != NULL && data[0] == '/')
		n = snprintf(out, PATH_MAX, "%s/od-moe/models", data);
	else if (home != NULL && home[0] == '/')
		n = snprintf(out, PATH_MAX, "%s/.local/share/od-moe/models", home);
	else
		return false;
	return n < PATH_MAX;
}

int od_models_home(char out[PATH_MAX], struct od_err *err)
{
	struct od_err first = { 0 };

	for (int i = 0; i < N_FOLDERS; i++)
		if (folder(i, out) && od_mkdir_p(out, first.code == OD_OK ? &first : err) == OD_OK) {
			if (access(out, W_OK | X_OK) == 0)
				return OD_OK;
			if (first.code == OD_OK)
				od_fail_errno(&first, OD_ERR_IO, "cannot write the folder of models %s", out);
		}
	out[0] = '\0';
	if (first.code == OD_OK)
		return od_fail(err, OD_ERR_ARG, "no folder for models: neither OD_MODELS nor HOME is set");
	return od_fail(err, first.code,
		       "%.300s; as root (sudo) it goes to the machine's folder, or name another: OD_MODELS=DIR",
		       first.msg);
}

/* ---- the list ---- */

static void free_entry(struct od_models_entry *e)
{
	free(e->name);
	free(e->path);
	free(e->open);
	free(e->source);
}

void od_models_fini(struct od_models *m)
{
	for (size_t i = 0; i < m->n; i++)
		free_entry(&m->entry[i]);
	free(m->entry);
	*m = (struct od_models){ 0 };
}

/* The files of a folder, one level deep. */
struct inside {
	bool pack;
	char first[NAME_MAX + 1]; /* the first file of a split GGUF file; "": none */
	uint64_t bytes;
};

static void look_inside(const char *dir, struct inside *in)
{
	DIR *d = opendir(dir);
	struct dirent *e;
	struct stat st;

	*in = (struct inside){ 0 };
	if (d == NULL)
		return;
	while ((e = readdir(d)) != NULL) {
		if (fstatat(dirfd(d), e->d_name, &st, 0) != 0 || !S_ISREG(st.st_mode))
			continue;
		if (!od_add(in->bytes, (uint64_t)st.st_size, &in->bytes))
			in->bytes = UINT64_MAX;
		in->pack = in->pack || strcmp(e->d_name, OD_MODEL_NAME) == 0;
		if (e->d_name[0] != '.' && ends(e->d_name, ".gguf") && strstr(e->d_name, FIRST_OF_SPLIT) != NULL &&
		    (in->first[0] == '\0' || strcmp(e->d_name, in->first) < 0))
			snprintf(in->first, sizeof(in->first), "%s", e->d_name);
	}
	closedir(d);
}

/* True for names that a terminal and JSON can show. */
static bool is_text(const char *name)
{
	for (const char *c = name; *c != '\0'; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			return false;
	return odm_utf8_valid(name, strlen(name));
}

/* A model's file or folder by its name there. False: it is none. */
static bool recognise(const char *path, const char *name, const struct stat *st, struct od_models_entry *e)
{
	struct inside in = { 0 };
	const char *end = "";

	if (name[0] == '.' || !is_text(name))
		return false;
	if (S_ISREG(st->st_mode)) {
		end = ".gguf";
		e->form = OD_MODELS_GGUF;
		e->bytes = (uint64_t)st->st_size;
		if (!ends(name, end))
			return false;
	} else if (S_ISDIR(st->st_mode)) {
		look_inside(path, &in);
		end = ends(name, ".part") ? ".part" : ends(name, ".partial") ? ".partial" : "";
		e->form = end[0] != '\0' ? OD_MODELS_UNFINISHED : in.pack ? OD_MODELS_PACK : OD_MODELS_GGUF;
		e->bytes = in.bytes;
		if (e->form == OD_MODELS_GGUF && in.first[0] == '\0')
			return false;
	} else {
		return false;
	}
	e->mtime_s = st->st_mtime;
	e->name = strndup(name, strlen(name) - strlen(end));
	e->path = strdup(path);
	if (e->form != OD_MODELS_GGUF || in.first[0] == '\0')
		e->open = strdup(path);
	else if (asprintf(&e->open, "%s/%s", path, in.first) < 0)
		e->open = NULL;
	return true;
}

static void read_source(const char *dir, struct od_models_entry *e)
{
	char path[PATH_MAX];
	struct od_err ignored;
	size_t len;

	if (snprintf(path, sizeof(path), "%s/.%s.source", dir, e->name) >= (int)sizeof(path) ||
	    od_file_read(path, SOURCE_MAX_BYTES, &e->source, &len, &ignored) != OD_OK)
		return;
	e->source[strcspn(e->source, "\n")] = '\0';
	for (char *c = e->source; *c != '\0'; c++)
		*c = *c >= ' ' && *c <= '~' ? *c : '?';
}

/* A complete model comes before what an interrupted od-pack left under its name. */
static bool is_known(const struct od_models *m, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (m->entry[i].form != OD_MODELS_UNFINISHED && strcmp(m->entry[i].name, name) == 0)
			return true;
	return false;
}

static int add_entry(struct od_models *m, size_t n_before, const char *dir, const char *name, struct od_err *err)
{
	struct od_models_entry e = { 0 };
	char path[PATH_MAX];
	struct stat st;

	if (od_path(path, sizeof(path), dir, name, NULL) != OD_OK || stat(path, &st) != 0 ||
	    !recognise(path, name, &st, &e))
		return OD_OK;
	if (e.name == NULL || e.path == NULL || e.open == NULL ||
	    !od_grow((void **)&m->entry, m->n, 1, &m->cap, sizeof(e))) {
		free_entry(&e);
		return od_fail(err, OD_ERR_NOMEM, "no memory for the list of models");
	}
	if (is_known(m, n_before, e.name)) {
		free_entry(&e);
		return OD_OK;
	}
	read_source(dir, &e);
	m->entry[m->n++] = e;
	return OD_OK;
}

static int add_folder(struct od_models *m, const char *dir, struct od_err *err)
{
	const size_t before = m->n;
	DIR *d = opendir(dir);
	struct dirent *e;
	int rc = OD_OK;

	if (d == NULL)
		return errno == ENOENT || errno == ENOTDIR || errno == EACCES ?
			       OD_OK :
			       od_fail_errno(err, OD_ERR_IO, "cannot read the folder of models %s", dir);
	while (rc == OD_OK && (e = readdir(d)) != NULL)
		rc = add_entry(m, before, dir, e->d_name, err);
	closedir(d);
	return rc;
}

static int by_name(const void *a, const void *b)
{
	const struct od_models_entry *x = a, *y = b;
	const int order = strcmp(x->name, y->name);

	return order != 0 ? order : strcmp(x->path, y->path);
}

int od_models_list(struct od_models *m, struct od_err *err)
{
	char dir[PATH_MAX];
	int rc = OD_OK;

	*m = (struct od_models){ 0 };
	for (int i = 0; rc == OD_OK && i < N_FOLDERS; i++)
		if (folder(i, dir))
			rc = add_folder(m, dir, err);
	if (rc != OD_OK)
		od_models_fini(m);
	else if (m->n > 0)
		qsort(m->entry, m->n, sizeof(*m->entry), by_name);
	return rc;
}

/* ---- --pack NAME ---- */

static bool is_name(const char *given)
{
	return given[0] != '\0' && given[0] != '.' && strchr(given, '/') == NULL;
}

/* The complete model of this name, with or without .gguf; NULL: none. */
static const struct od_models_entry *find_name(const struct od_models *m, const char *name)
{
	const size_t cut = ends(name, ".gguf") ? strlen(name) - strlen(".gguf") : strlen(name);

	for (size_t i = 0; i < m->n; i++) {
		const struct od_models_entry *e = &m->entry[i];

		if (e->form != OD_MODELS_UNFINISHED &&
		    (strcmp(e->name, name) == 0 ||
		     (ends(e->path, ".gguf") && strncmp(e->name, name, cut) == 0 && e->name[cut] == '\0')))
			return e;
	}
	return NULL;
}

/* "a, b and 3 more" of the complete models; returns their number. */
static size_t name_all(const struct od_models *m, char *text, size_t size)
{
	size_t n = 0, at = 0, left_out = 0;

	text[0] = '\0';
	for (size_t i = 0; i < m->n; i++) {
		const char *name = m->entry[i].name;

		if (m->entry[i].form == OD_MODELS_UNFINISHED)
			continue;
		n++;
		if (at + strlen(name) + 24 < size)
			at += (size_t)snprintf(text + at, size - at, "%s%s", at > 0 ? ", " : "", name);
		else
			left_out++;
	}
	if (left_out > 0)
		snprintf(text + at, size - at, " and %zu more", left_out);
	return n;
}

static int copy_path(char out[PATH_MAX], const char *path, struct od_err *err)
{
	if (snprintf(out, PATH_MAX, "%s", path) < PATH_MAX)
		return OD_OK;
	out[0] = '\0';
	return od_fail(err, OD_ERR_ARG, "the name of the pack is too long: %.64s...", path);
}

static int find_only(char out[PATH_MAX], const struct od_models *m, struct od_err *err)
{
	char names[400], dir[PATH_MAX];
	const size_t n = name_all(m, names, sizeof(names));

	if (n > 1)
		return od_fail(err, OD_ERR_ARG, "there are %zu models: %s; say which: --pack NAME", n, names);
	for (size_t i = 0; i < m->n; i++)
		if (m->entry[i].form != OD_MODELS_UNFINISHED)
			return copy_path(out, m->entry[i].open, err);
	if (!folder(0, dir))
		dir[0] = '\0';
	return od_fail(err, OD_ERR_MISSING,
		       "no model: neither --pack nor OD_PACK names one, and there is no pack at " MACHINE_PACK
		       " and no model in %.200s; " GET_ONE,
		       dir);
}

int od_models_find(char out[PATH_MAX], const char *given, struct od_err *err)
{
	const struct od_models_entry *found;
	struct od_models m;
	int rc;

	out[0] = '\0';
	if (given == NULL || given[0] == '\0')
		given = getenv("OD_PACK");
	if (given != NULL && given[0] != '\0' && (!is_name(given) || od_file_there(given)))
		return copy_path(out, given, err);
	if ((given == NULL || given[0] == '\0') && od_file_there(MACHINE_PACK))
		return copy_path(out, MACHINE_PACK, err);
	rc = od_models_list(&m, err);
	if (rc != OD_OK)
		return rc;
	if (given == NULL || given[0] == '\0') {
		rc = find_only(out, &m, err);
	} else {
		found = find_name(&m, given);
		rc = copy_path(out, found != NULL ? found->open : given, err);
	}
	od_models_fini(&m);
	return rc;
}

int od_models_name_others(const char *given, struct od_err *err)
{
	char names[300], said[sizeof(err->msg)];
	struct od_models m;
	struct od_err ignored;

	if (err == NULL || !is_name(given) || od_models_list(&m, &ignored) != OD_OK)
		return err != NULL ? err->code : OD_ERR_MISSING;
	memcpy(said, err->msg, sizeof(said));
	if (name_all(&m, names, sizeof(names)) > 0)
		snprintf(err->msg, sizeof(err->msg), "%.440s; models that are there: %s", said, names);
	od_models_fini(&m);
	return err->code;
}

/* ---- where it is from ---- */

int od_models_set_source(const char *dir, const char *name, const char *source, struct od_err *err)
{
	char path[PATH_MAX];
	struct od_strbuf b = { 0 };
	int rc;

	if (snprintf(path, sizeof(path), "%s/.%s.source", dir, name) >= (int)sizeof(path))
		return od_fail(err, OD_ERR_ARG, "the name of the model is too long: %.64s...", name);
	if (source == NULL) {
		unlink(path);
		return OD_OK;
	}
	od_strbuf_printf(&b, "%s\n", source);
	rc = b.failed ? od_fail(err, OD_ERR_NOMEM, "no memory") : od_file_write_atomic(path, b.text, b.len, err);
	od_strbuf_fini(&b);
	return rc;
}

/* ---- removing ---- */

int od_models_hold(int fd, const char *path, struct od_err *err)
{
	/* Other errors: a file system without locks, where od-pack rm cannot know who uses a model. */
	if (flock(fd, LOCK_SH | LOCK_NB) == 0 || errno != EWOULDBLOCK)
		return OD_OK;
	return od_fail(err, OD_ERR_BUSY, "%s is being removed by od-pack rm", path);
}

/* Takes the locks that readers of the files and writers of the folder share. */
static int lock_one(int dir, const char *name, const char *path, int *fd, struct od_err *err)
{
	*fd = openat(dir, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (*fd < 0 || flock(*fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK)
		return OD_OK;
	return od_fail(err, OD_ERR_BUSY,
		       "%s is in use (od-main, a worker or a shadow runs it, or od-pack writes it); stop that first",
		       path);
}

#define MAX_LOCKS 1024 /* files of a split GGUF file */

/* *fd: [MAX_LOCKS], of which *n are open. */
static int lock_all(const char *path, int *fd, size_t *n, struct od_err *err)
{
	DIR *d = NULL;
	struct dirent *e;
	int rc = lock_one(AT_FDCWD, path, path, &fd[(*n)++], err);

	if (rc == OD_OK)
		d = opendir(path);
	while (rc == OD_OK && d != NULL && (e = readdir(d)) != NULL)
		if (*n < MAX_LOCKS && (strcmp(e->d_name, OD_DENSE_NAME) == 0 || ends(e->d_name, ".gguf")))
			rc = lock_one(dirfd(d), e->d_name, path, &fd[(*n)++], err);
	if (d != NULL)
		closedir(d);
	return rc;
}

/* First the name goes, so that a half-removed model is never found. Neither step follows a symbolic link. */
static int remove_path(const char *path, struct od_err *err)
{
	char aside[PATH_MAX];
	const char *name = strrchr(path, '/') + 1;

	if (snprintf(aside, sizeof(aside), "%.*s" REMOVED "%s", (int)(name - path), path, name) >= (int)sizeof(aside))
		return od_fail(err, OD_ERR_ARG, "the name is too long: %s", path);
	if (od_remove_tree(aside, err) != OD_OK) /* a killed od-pack rm may have left one */
		return err != NULL ? err->code : OD_ERR_IO;
	if (rename(path, aside) != 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot remove %s", path);
	return od_remove_tree(aside, err);
}

static int remove_entry(const struct od_models_entry *e, struct od_err *err)
{
	char dir[PATH_MAX];
	int *fd = calloc(MAX_LOCKS, sizeof(*fd));
	size_t n = 0;
	int rc = fd != NULL ? lock_all(e->path, fd, &n, err) : od_fail(err, OD_ERR_NOMEM, "no memory");

	if (rc == OD_OK)
		rc = remove_path(e->path, err);
	for (size_t i = 0; i < n; i++)
		if (fd[i] >= 0)
			close(fd[i]);
	free(fd);
	snprintf(dir, sizeof(dir), "%.*s", (int)(strrchr(e->path, '/') - e->path), e->path);
	if (rc == OD_OK && e->form != OD_MODELS_UNFINISHED)
		rc = od_models_set_source(dir, e->name, NULL, err);
	return rc;
}

int od_models_remove(const char *name, char path[PATH_MAX], struct od_err *err)
{
	const struct od_models_entry *e;
	char names[300];
	struct od_models m;
	int rc;

	path[0] = '\0';
	if (!is_name(name))
		return od_fail(err, OD_ERR_ARG, "expected the name of a model, as od-pack list shows it, found \"%s\"",
			       name);
	rc = od_models_list(&m, err);
	if (rc != OD_OK)
		return rc;
	e = find_name(&m, name);
	if (e != NULL) {
		snprintf(path, PATH_MAX, "%s", e->path);
		rc = remove_entry(e, err);
	}
	/* Two folders may be unfinished: a download, and the pack that is made of it. */
	for (size_t i = 0; rc == OD_OK && e == NULL && i < m.n; i++)
		if (m.entry[i].form == OD_MODELS_UNFINISHED && strcmp(m.entry[i].name, name) == 0) {
			snprintf(path, PATH_MAX, "%s", m.entry[i].path);
			rc = remove_entry(&m.entry[i], err);
		}
	if (rc == OD_OK && path[0] == '\0') {
		const size_t n = name_all(&m, names, sizeof(names));

		rc = od_fail(err, OD_ERR_MISSING, "there is no model %s%s%s", name,
			     n > 0 ? "; models that are there: " : "", n > 0 ? names : "");
	}
	od_models_fini(&m);
	return rc;
}
