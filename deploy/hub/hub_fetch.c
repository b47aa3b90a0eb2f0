#include "deploy/hub/hub_fetch.h"

#include "common/base/args.h"
#include "common/base/file.h"
#include "common/base/json.h"
#include "common/base/mem.h"
#include "common/base/strbuf.h"
#include "common/model/config.h"
#include "common/pack/gguf/gguf_config.h"
#include "common/pack/models_folder.h"
#include "common/pack/pack_verify.h"
#include "common/pack/shadow/shadow_layout.h"
#include "common/text/tokenizer.h"
#include "deploy/hub/gguf_begin.h"
#include "deploy/hub/hub_choose.h"
#include "deploy/hub/hub_file.h"
#include "deploy/hub/hub_name.h"
#include "deploy/hub/hub_repo.h"
#include "deploy/hub/hub_token.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define BEGIN_BYTES (1u << 20) /* settings of a GGUF file come before its vocabulary, which has some MiB */
#define LONG_BEGIN_BYTES (64u << 20)
#define SOURCE_NAME ".source" /* in the work folder: names the model and version of its files */
#define SOURCE_MAX_BYTES 2048
#define STAT_BLOCK_BYTES 512 /* the unit of st_blocks */
#define INDEX_MAX_BYTES (64u << 20)

/* A file to fetch. */
struct want {
	char *url, *name; /* name: in the work folder */
	uint64_t bytes;
	struct odp_sum sum;
};

struct fetching {
	const struct odp_fetch_job *job;
	struct odp_http *http;
	char *endpoint, *token;
	struct odp_repo repo; /* for hf:// */
	char where[300]; /* the address, for messages */
	char source[400]; /* the address that the model is from, without spaces */
	char version[400]; /* its commit, or by what its server tells versions apart */
	char etag[201], modified[65]; /* an address has them */
	char model[256]; /* its name */
	bool checkpoint, split;
	struct want *want; /* [n_wants] */
	size_t n_wants, cap_wants;
	char home[PATH_MAX], work[PATH_MAX], final[PATH_MAX];
	int lock_fd;
	uint64_t done, all; /* progress, in bytes */
};

static void note(const struct fetching *f, const char *fmt, ...) OD_PRINTF(2, 3);

static void note(const struct fetching *f, const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	f->job->pack.note(f->job->pack.arg, text);
}

static void on_note(void *arg, const char *text)
{
	note(arg, "%s", text);
}

static int no_memory(struct od_err *err)
{
	return od_fail(err, OD_ERR_NOMEM, "no memory to fetch a model");
}

/* Takes url, which may be NULL. */
static int add_want(struct fetching *f, char *url, const char *name, uint64_t bytes, const struct odp_sum *sum,
		    struct od_err *err)
{
	struct want w = { .url = url, .name = strdup(name), .bytes = bytes, .sum = *sum };

	if (w.url == NULL || w.name == NULL || !od_grow((void **)&f->want, f->n_wants, 1, &f->cap_wants, sizeof(w))) {
		free(w.url);
		free(w.name);
		return no_memory(err);
	}
	f->want[f->n_wants++] = w;
	return OD_OK;
}

/* ---- the beginning of a GGUF file ---- */

struct gguf_probe {
	uint8_t *buf;
	size_t len, max;
};

static int on_probe_begin(void *arg, const struct odp_http_answer *a, struct od_err *err)
{
	(void)a;
	(void)err;
	((struct gguf_probe *)arg)->len = 0;
	return OD_OK;
}

static int on_probe(void *arg, const void *bytes, size_t n, bool *enough, struct od_err *err)
{
	struct gguf_probe *p = arg;
	const size_t k = n < p->max - p->len ? n : p->max - p->len;

	(void)err;
	memcpy(p->buf + p->len, bytes, k);
	p->len += k;
	*enough = p->len == p->max; /* the server may send the whole file */
	return OD_OK;
}

static int read_begin(struct fetching *f, const char *url, size_t max, struct odp_gguf_begin *begin,
		      struct odp_http_answer *answer, struct od_err *err)
{
	struct gguf_probe p = { .buf = malloc(max), .max = max };
	struct odp_http_request r = { .url = url, .n = max, .begin = on_probe_begin, .take = on_probe, .arg = &p };
	int rc = p.buf != NULL ? odp_http_run(f->http, &r, answer, err) : no_memory(err);

	if (rc == OD_OK)
		rc = odp_gguf_begin_read(begin, p.buf, p.len, f->where, err);
	free(p.buf);
	return rc;
}

/* Refuses a model without experts before it is fetched. */
static int probe_gguf(struct fetching *f, const char *url, struct odp_http_answer *answer, struct od_err *err)
{
	struct odp_gguf_begin begin = { 0 };
	struct odp_http_answer again;
	int rc = read_begin(f, url, BEGIN_BYTES, &begin, answer, err);

	if (rc == OD_OK && !begin.has_experts && !begin.complete)
		rc = read_begin(f, url, LONG_BEGIN_BYTES, &begin, &again, err);
	if (rc == OD_OK && !begin.has_experts && begin.complete)
		return od_fail(
			err, OD_ERR_UNSUPPORTED,
			"%s is a model without experts (architecture %s): od-moe runs mixture-of-experts models only",
			f->where, begin.arch[0] != '\0' ? begin.arch : "not said");
	return rc == OD_OK && begin.arch[0] != '\0' ?
		       od_gguf_check_arch(f->where, begin.arch, strlen(begin.arch), err) :
		       rc;
}

/* ---- plans: which files, under which names ---- */

static int plan_checkpoint(struct fetching *f, struct od_err *err)
{
	const struct odp_listing *l = &f->repo.files;
	int rc = OD_OK;

	f->checkpoint = true;
	odp_local_name(f->repo.name.name, f->model, sizeof(f->model));
	for (size_t i = 0; rc == OD_OK && i < l->n; i++)
		if (odp_checkpoint_wants(l, l->file[i].path))
			rc = add_want(f, odp_repo_url(&f->repo, l->file[i].path), l->file[i].path, l->file[i].bytes,
				      &l->file[i].sum, err);
	return rc;
}

static int plan_variant(struct fetching *f, const struct odp_variant *v, struct od_err *err)
{
	const struct odp_hub_file *file;
	struct odp_http_answer answer;
	char name[256];
	int rc = OD_OK;

	f->split = v->n_files > 0;
	odp_local_name(v->stem, f->model, sizeof(f->model));
	for (unsigned i = 0; rc == OD_OK && (file = odp_variant_file(v, &f->repo.files, i)) != NULL; i++) {
		odp_local_name(file->path, name, sizeof(name));
		rc = add_want(f, odp_repo_url(&f->repo, file->path), name, file->bytes, &file->sum, err);
	}
	if (rc != OD_OK)
		return rc;
	rc = probe_gguf(f, f->want[0].url, &answer, err);
	return rc == OD_OK ? OD_OK : odp_repo_refused(&f->repo, &answer, err);
}

static void explain(const struct fetching *f, const struct odp_variants *v, const struct odp_variant *chosen,
		    uint64_t memory)
{
	struct od_strbuf b = { 0 };

	odp_variants_explain(v, chosen, memory, &b);
	note(f, "%s has these quantisations:", f->where);
	for (char *at = b.text, *end; at != NULL && *at != '\0'; at = end + 1) {
		end = strchr(at, '\n');
		*end = '\0';
		note(f, "%s", at);
	}
	od_strbuf_fini(&b);
}

static int plan_gguf(struct fetching *f, struct od_err *err)
{
	const uint64_t memory = od_available_ram_bytes();
	const struct odp_variant *chosen;
	struct odp_variants v;
	int rc = odp_variants_find(&v, &f->repo.files, err);

	if (rc == OD_OK && v.n == 0)
		rc = f->repo.name.quant[0] == '\0' ?
			     odp_refuse_listing(&f->repo.files, f->where, err) :
			     od_fail(err, OD_ERR_MISSING,
				     "%s has no GGUF files, so there is no quantisation %s to choose; without :%s %s",
				     f->where, f->repo.name.quant, f->repo.name.quant,
				     odp_is_checkpoint(&f->repo.files) ? "its checkpoint is packed" :
									 "nothing in it can be used either");
	if (rc == OD_OK)
		rc = odp_variants_choose(&v, f->repo.name.quant, memory, f->where, &chosen, err);
	if (rc == OD_OK && f->repo.name.quant[0] == '\0')
		explain(f, &v, chosen, memory);
	if (rc == OD_OK)
		snprintf(f->source, sizeof(f->source), "%s:%s", f->repo.address,
			 chosen->label[0] != '\0' ? chosen->label : "gguf");
	if (rc == OD_OK)
		rc = plan_variant(f, chosen, err);
	odp_variants_fini(&v);
	return rc;
}

static int plan_hub(struct fetching *f, struct od_err *err)
{
	int rc = odp_hub_name_parse(&f->repo.name, f->job->address, err);

	if (rc != OD_OK)
		return rc;
	f->repo.http = f->http;
	f->repo.endpoint = f->endpoint;
	f->repo.has_token = f->token != NULL;
	snprintf(f->where, sizeof(f->where), "hf://%s/%s", f->repo.name.org, f->repo.name.name);
	snprintf(f->source, sizeof(f->source), "%s", f->where);
	rc = odp_repo_open(&f->repo, err);
	if (rc != OD_OK)
		return rc;
	snprintf(f->version, sizeof(f->version), "%s", f->repo.commit);
	return f->repo.name.quant[0] == '\0' && odp_is_checkpoint(&f->repo.files) ? plan_checkpoint(f, err) :
										    plan_gguf(f, err);
}

/* One GGUF file by its address. The hub tells its checksum on the way; of others the length and how the server tells
 * versions apart stand for one. */
static int plan_address(struct fetching *f, struct od_err *err)
{
	struct odp_sum sum = { .kind = ODP_SUM_NONE };
	struct odp_http_answer answer;
	char name[256];
	uint64_t bytes;
	int rc;

	odp_url_shown(f->job->address, f->where, sizeof(f->where));
	odp_url_file_name(f->job->address, name, sizeof(name));
	if (strlen(name) <= 5 || strcasecmp(name + strlen(name) - 5, ".gguf") != 0)
		return od_fail(
			err, OD_ERR_ARG,
			"%s: expected the address of a GGUF file, which ends with .gguf, or hf://ORGANISATION/NAME",
			f->where);
	if (strstr(name, "-of-") != NULL)
		note(f, "if this is one file of a split one, the others are missing: hf:// fetches all of them");
	rc = probe_gguf(f, f->job->address, &answer, err);
	if (rc == OD_ERR_FORMAT && strstr(f->where, "/blob/") != NULL)
		return od_fail_within(err, "/blob/ is the page of a file, /resolve/ in its place is the file");
	if (rc != OD_OK)
		return rc;
	bytes = answer.has_range ? answer.range_total : answer.length;
	if (bytes == 0 || bytes > INT64_MAX || !(answer.has_range || answer.has_length))
		return od_fail(err, OD_ERR_UNSUPPORTED, "%s: its server does not say how long the file is", f->where);
	snprintf(f->source, sizeof(f->source), "%s", f->where);
	snprintf(f->version, sizeof(f->version), "%" PRIu64 " %s %s", bytes, answer.etag, answer.modified);
	snprintf(f->etag, sizeof(f->etag), "%s", answer.etag);
	snprintf(f->modified, sizeof(f->modified), "%s", answer.modified);
	snprintf(f->model, sizeof(f->model), "%.*s", (int)(strlen(name) - 5), name);
	if (od_unhex(answer.linked, sum.bytes, ODP_SUM_BYTES))
		sum.kind = ODP_SUM_SHA256;
	else
		note(f, "%s has no checksum to compare with: only the length is checked", f->where);
	return add_want(f, strdup(f->job->address), name, bytes, &sum, err);
}

/* ---- the work folder ---- */

static int lock_work(struct fetching *f, struct od_err *err)
{
	struct stat ours, there;
	int rc = od_mkdir_p(f->work, err);

	if (rc != OD_OK)
		return rc;
	f->lock_fd = open(f->work, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (f->lock_fd < 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot open %s", f->work);
	/* Another od-pack that has just finished may have removed the folder. */
	if (flock(f->lock_fd, LOCK_EX | LOCK_NB) == 0 && fstat(f->lock_fd, &ours) == 0 && stat(f->work, &there) == 0 &&
	    ours.st_ino == there.st_ino)
		return OD_OK;
	close(f->lock_fd);
	f->lock_fd = -1;
	return od_fail(err, OD_ERR_BUSY, "another od-pack is fetching %s into %s", f->model, f->home);
}

/* The name is one of this version's files, of its part, or of its folder. */
static bool is_wanted(const struct fetching *f, const char *name)
{
	const size_t n = strlen(name), k = n > 5 && strcmp(name + n - 5, ".part") == 0 ? n - 5 : n;

	for (size_t i = 0; i < f->n_wants; i++) {
		const char *want = f->want[i].name;

		if (strcmp(want, name) == 0 || (strncmp(want, name, k) == 0 && want[k] == '\0') ||
		    (strncmp(want, name, n) == 0 && want[n] == '/'))
			return true;
	}
	return strcmp(name, SOURCE_NAME) == 0;
}

/* Files of another version only: packing could take them for this one's. */
static int remove_others(const struct fetching *f, struct od_err *err)
{
	DIR *d = opendir(f->work);
	struct dirent *e;
	char path[PATH_MAX];
	int rc = d != NULL ? OD_OK : od_fail_errno(err, OD_ERR_IO, "cannot read %s", f->work);

	while (rc == OD_OK && (e = readdir(d)) != NULL) {
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || is_wanted(f, e->d_name))
			continue;
		rc = od_path(path, sizeof(path), f->work, e->d_name, err);
		if (rc == OD_OK)
			rc = od_remove_tree(path, err);
	}
	if (d != NULL)
		closedir(d);
	return rc;
}

/* Files that an earlier run completed of another version are read and compared again. */
static int demote(struct fetching *f, struct od_err *err)
{
	char whole[PATH_MAX], part[PATH_MAX];

	for (size_t i = 0; i < f->n_wants; i++) {
		if (snprintf(whole, sizeof(whole), "%s/%s", f->work, f->want[i].name) >= (int)sizeof(whole) ||
		    snprintf(part, sizeof(part), "%s.part", whole) >= (int)sizeof(part))
			return od_fail(err, OD_ERR_ARG, "%s: the name is too long", f->work);
		if (f->want[i].sum.kind == ODP_SUM_NONE) {
			unlink(whole);
			unlink(part);
		} else if (od_file_there(whole) && rename(whole, part) != 0) {
			return od_fail_errno(err, OD_ERR_IO, "cannot rename %s", whole);
		}
	}
	return OD_OK;
}

/* Brings files of an earlier run in line with this model's version. */
static int adopt(struct fetching *f, struct od_err *err)
{
	char path[PATH_MAX], *theirs = NULL;
	struct od_strbuf ours = { 0 };
	size_t len = 0;
	int rc = od_path(path, sizeof(path), f->work, SOURCE_NAME, err);

	od_strbuf_printf(&ours, "%s %s\n", f->source, f->version);
	if (rc == OD_OK && ours.failed)
		rc = no_memory(err);
	if (rc == OD_OK && (od_file_read(path, SOURCE_MAX_BYTES, &theirs, &len, NULL) != OD_OK || len != ours.len ||
			    memcmp(theirs, ours.text, len) != 0)) {
		rc = remove_others(f, err);
		if (rc == OD_OK)
			rc = demote(f, err);
		if (rc == OD_OK)
			rc = od_file_write_atomic(path, ours.text, ours.len, err);
	}
	free(theirs);
	od_strbuf_fini(&ours);
	return rc;
}

/* Looks for a complete model of that name. *there: it is this one. */
static int find_existing(struct fetching *f, bool *there, struct od_err *err)
{
	const size_t n = strlen(f->source);
	struct stat st;
	struct od_models m;
	int rc = od_models_list(&m, err);

	*there = false;
	for (size_t i = 0; rc == OD_OK && i < m.n; i++) {
		const struct od_models_entry *e = &m.entry[i];

		if (e->form == OD_MODELS_UNFINISHED || strcmp(e->name, f->model) != 0)
			continue;
		*there = e->source != NULL && strncmp(e->source, f->source, n) == 0 && e->source[n] == ' ';
		if (!*there)
			rc = od_fail(err, OD_ERR_ARG, "%s is there already, from %.200s; to replace it: od-pack rm %s",
				     e->path, e->source != NULL ? e->source : "elsewhere", f->model);
		else if (strcmp(e->source + n + 1, f->version) != 0)
			note(f,
			     "%s is there, of another version (%.64s) than %s has now (%.64s); to replace it: od-pack rm %s",
			     f->model, e->source + n + 1, f->where, f->version, f->model);
	}
	od_models_fini(&m);
	if (rc == OD_OK && !*there && lstat(f->final, &st) == 0)
		rc = od_fail(err, OD_ERR_ARG, "%s is there already, and is no model: move it away first", f->final);
	return rc;
}

/* ---- space ---- */

static uint64_t shadow_bytes(const struct fetching *f, const struct od_config *config, uint64_t checkpoint)
{
	const uint64_t bytes = od_shadow_set_bytes(config, f->job->pack.shadows);

	/* By default there is a shadow only if it is smaller than the model: of BF16, half of it. */
	return f->job->pack.by_default && bytes > checkpoint / 4 * 3 ? 0 : bytes;
}

/* Space that an earlier run's pack has taken. Its files have their whole size from the beginning, with holes: blocks
 * count. */
static uint64_t partial_bytes(const struct fetching *f)
{
	uint64_t bytes = 0;
	char path[PATH_MAX];
	struct dirent *e;
	struct stat st;
	DIR *d = NULL;

	if (snprintf(path, sizeof(path), "%s.partial", f->final) < (int)sizeof(path))
		d = opendir(path);
	if (d == NULL)
		return 0;
	while ((e = readdir(d)) != NULL)
		if (fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
			bytes += (uint64_t)st.st_blocks * STAT_BLOCK_BYTES;
	closedir(d);
	return bytes;
}

/* A pack has as many bytes as its checkpoint at most. */
static int check_space(struct fetching *f, const struct od_config *config, struct od_err *err)
{
	char need_text[32], all_text[32], pack_text[32], free_text[32];
	uint64_t have = 0, pack = 0, need, free_bytes, partial;
	int rc = od_free_bytes(f->home, &free_bytes, err);

	if (rc != OD_OK)
		return rc;
	for (size_t i = 0; i < f->n_wants; i++) {
		have += odp_file_have(f->work, f->want[i].name, f->want[i].bytes); /* at most f->all */
		if (!od_add(f->all, f->want[i].bytes, &f->all))
			return od_fail(err, OD_ERR_RANGE, "%s: its files have more bytes than can be counted",
				       f->where);
	}
	if (f->checkpoint) {
		partial = partial_bytes(f);
		if (!od_add(f->all, shadow_bytes(f, config, f->all), &pack))
			return od_fail(err, OD_ERR_RANGE, "%s: its pack has more bytes than can be counted", f->where);
		pack -= partial < pack ? partial : pack;
	}
	if (!od_add(f->all - have, pack, &need))
		need = UINT64_MAX;
	od_format_bytes(f->all, all_text, sizeof(all_text));
	od_format_bytes(pack, pack_text, sizeof(pack_text));
	od_format_bytes(need, need_text, sizeof(need_text));
	od_format_bytes(free_bytes, free_text, sizeof(free_text));
	if (need > free_bytes)
		return od_fail(
			err, OD_ERR_IO,
			"%s: expected %s of free space (the files have %s%s%s%s), found %s; make space, or name another "
			"folder: OD_MODELS=DIR",
			f->home, need_text, all_text, have > 0 ? ", of which some are there" : "",
			f->checkpoint ? ", then the pack up to " : "", f->checkpoint ? pack_text : "", free_text);
	if (f->checkpoint)
		note(f,
		     "%s: %s to fetch into %s, then a pack of up to %s; the checkpoint is removed when the pack is verified; "
		     "%s are free",
		     f->model, all_text, f->home, pack_text, free_text);
	else
		note(f, "%s: %s to fetch into %s; %s are free", f->model, all_text, f->home, free_text);
	return OD_OK;
}

/* ---- fetching ---- */

static void on_advance(void *arg, int64_t n)
{
	struct fetching *f = arg;

	f->done += (uint64_t)n;
	if (f->all > 0)
		f->job->pack.progress(f->job->pack.arg, f->done, f->all);
}

static int fetch_one(struct fetching *f, const struct want *w, struct od_err *err)
{
	const char *slash = strrchr(w->name, '/');
	struct odp_http_answer answer;
	char dir[PATH_MAX];
	const struct odp_file_job job = {
		.url = w->url,
		.dir = dir,
		.name = slash != NULL ? slash + 1 : w->name,
		.bytes = w->bytes,
		.sum = w->sum,
		.etag = f->etag,
		.modified = f->modified,
		.note = on_note,
		.advance = on_advance,
		.arg = f,
	};
	int rc;

	if (snprintf(dir, sizeof(dir), "%s/%.*s", f->work, slash != NULL ? (int)(slash - w->name) : 0, w->name) >=
	    (int)sizeof(dir))
		return od_fail(err, OD_ERR_ARG, "%s: the name is too long", f->work);
	rc = od_mkdir_p(dir, err);
	if (rc == OD_OK)
		rc = odp_file_fetch(f->http, &job, &answer, err);
	else
		return rc;
	return rc != OD_OK && f->repo.http != NULL ? odp_repo_refused(&f->repo, &answer, err) : rc;
}

/* config.json comes first: a model that od-moe does not have is refused before its weights are fetched. */
static int fetch_config(struct fetching *f, struct od_config *config, struct od_err *err)
{
	char path[PATH_MAX], *text = NULL;
	struct od_err ignored;
	bool dense;
	size_t len;
	int rc = od_path(path, sizeof(path), f->work, "config.json", err);

	for (size_t i = 0; rc == OD_OK && i < f->n_wants; i++)
		if (strcmp(f->want[i].name, "config.json") == 0)
			rc = fetch_one(f, &f->want[i], err);
	if (rc != OD_OK)
		return rc;
	rc = od_config_load(config, path, err);
	if (rc == OD_OK)
		return OD_OK;
	dense = od_file_read(path, 16u << 20, &text, &len, &ignored) == OD_OK && strstr(text, "expert") == NULL;
	free(text);
	if (dense && rc == OD_ERR_UNSUPPORTED)
		return od_fail(
			err, OD_ERR_UNSUPPORTED,
			"%s is a model without experts, or of a family that is not known: its config.json names none; "
			"od-moe runs mixture-of-experts models only (README, \"Models\")",
			f->where);
	return od_fail_within(err, "%s cannot be used", f->where);
}

/* A model that reads no text would be a surprise after its weights. */
static int check_tokenizer(const struct fetching *f, struct od_err *err)
{
	for (size_t i = 0; i < f->n_wants; i++)
		if (od_tokenizer_is_name(f->want[i].name))
			return OD_OK;
	return od_fail(
		err, OD_ERR_UNSUPPORTED,
		"%s has no tokeniser that od-moe reads: expected tokenizer.json, tiktoken.model or tokenizer.model",
		f->where);
}

/* The files that the index of the weights names, as keys. */
static int read_index(const struct fetching *f, json_t **names, struct od_err *err)
{
	char path[PATH_MAX];
	const char *tensor;
	json_t *root = NULL, *map, *value;
	int rc = od_path(path, sizeof(path), f->work, ODP_INDEX_NAME, err);

	*names = json_object();
	if (rc == OD_OK)
		rc = od_json_load(path, INDEX_MAX_BYTES, &root, err);
	if (rc == OD_OK)
		rc = od_json_obj(root, "weight_map", &map, path, err);
	if (rc != OD_OK) {
		json_decref(root);
		return rc;
	}
	json_object_foreach(map, tensor, value)
	{
		if (!json_is_string(value))
			rc = od_fail(err, OD_ERR_FORMAT, "%s: weight_map: expected names of files", path);
		else if (json_object_set_new(*names, json_string_value(value), json_true()) != 0)
			rc = no_memory(err);
		if (rc != OD_OK)
			break;
	}
	json_decref(root);
	return rc;
}

/* Keeps the weights that the index names, all of which must be listed. */
static int keep_indexed(struct fetching *f, json_t *names, struct od_err *err)
{
	const char *name;
	json_t *value;
	size_t n = 0;

	for (size_t i = 0; i < f->n_wants; i++) {
		struct want *w = &f->want[i];

		if (odp_is_weights(w->name) && json_object_get(names, w->name) == NULL) {
			free(w->url);
			free(w->name);
			continue;
		}
		(void)json_object_del(names, w->name);
		f->want[n++] = *w;
	}
	f->n_wants = n;
	json_object_foreach(names, name, value) return od_fail(
		err, OD_ERR_FORMAT, "%s: its index (" ODP_INDEX_NAME ") names %.100s, which is not there", f->where,
		name);
	return OD_OK;
}

/* Leaves out weights that are not read: repositories hold others, too. */
static int fetch_index(struct fetching *f, struct od_err *err)
{
	json_t *names = NULL;
	const struct want *index = NULL;
	int rc = OD_OK;

	for (size_t i = 0; i < f->n_wants; i++)
		if (strcmp(f->want[i].name, ODP_INDEX_NAME) == 0)
			index = &f->want[i];
	if (index == NULL || odp_listing_find(&f->repo.files, ODP_SINGLE_NAME) != NULL)
		return OD_OK;
	rc = fetch_one(f, index, err);
	if (rc == OD_OK)
		rc = read_index(f, &names, err);
	if (rc == OD_OK)
		rc = keep_indexed(f, names, err);
	json_decref(names);
	return rc;
}

static int fetch_all(struct fetching *f, struct od_err *err)
{
	int rc = OD_OK;

	f->done = 0;
	f->job->phase(f->job->pack.arg, "fetching");
	for (size_t i = 0; rc == OD_OK && i < f->n_wants; i++)
		rc = fetch_one(f, &f->want[i], err);
	return rc;
}

/* ---- the end ---- */

static int note_source(struct fetching *f, struct od_err *err)
{
	char text[sizeof(f->source) + sizeof(f->version) + 2];

	snprintf(text, sizeof(text), "%s %s", f->source, f->version);
	return od_models_set_source(f->home, f->model, text, err);
}

static int verify(struct fetching *f, struct od_err *err)
{
	struct od_verify_sums sums;
	const struct od_verify_job job = {
		.pack = f->final,
		.sums = &sums,
		.n_threads = f->job->pack.n_threads,
		.progress = f->job->pack.progress,
		.arg = f->job->pack.arg,
	};

	f->job->phase(f->job->pack.arg, "verifying");
	return od_pack_verify(&job, err);
}

static int pack(struct fetching *f, struct od_err *err)
{
	struct od_pack_job job = f->job->pack;
	int rc = note_source(f, err);

	job.checkpoint = f->work;
	job.pack = f->final;
	if (rc != OD_OK)
		return rc;
	f->job->phase(job.arg, "packing");
	rc = od_pack_write(&job, err);
	return rc == OD_OK ? verify(f, err) : rc;
}

/* All that od-moe reads of a GGUF file must be known, not only its beginning. */
static int check_gguf(struct fetching *f, struct od_err *err)
{
	struct od_gguf *g = NULL;
	json_t *config = NULL;
	char path[PATH_MAX];
	int rc = od_path(path, sizeof(path), f->work, f->want[0].name, err);

	if (rc == OD_OK)
		rc = od_gguf_open(&g, path, err);
	if (rc == OD_OK)
		rc = od_gguf_config(g, &config, err);
	json_decref(config);
	od_gguf_close(g);
	return rc == OD_OK ? OD_OK :
			     od_fail_within(err, "%s is fetched, but cannot be used (od-pack rm %s removes it)",
					    f->where, f->model);
}

static int publish_gguf(struct fetching *f, struct od_err *err)
{
	char from[PATH_MAX], path[PATH_MAX];
	int rc = check_gguf(f, err);

	if (rc == OD_OK)
		rc = note_source(f, err);
	if (rc == OD_OK)
		rc = od_path(path, sizeof(path), f->work, SOURCE_NAME, err);
	if (rc == OD_OK)
		rc = od_path(from, sizeof(from), f->work, f->want[0].name, err);
	if (rc != OD_OK)
		return rc;
	if (f->split)
		unlink(path);
	if (rename(f->split ? f->work : from, f->final) != 0)
		return od_fail_errno(err, OD_ERR_IO, "cannot rename %s to %s", f->work, f->final);
	return od_fsync_dir(f->home, err);
}

/* ---- the whole ---- */

/* NAME.part and NAME.partial are what is unfinished of a model NAME: a model's own dot becomes "_". */
static void keep_off_endings(char *model)
{
	char *dot = strrchr(model, '.');

	if (dot != NULL && (strcmp(dot, ".part") == 0 || strcmp(dot, ".partial") == 0))
		*dot = '_';
}

static int set_paths(struct fetching *f, struct od_err *err)
{
	const bool one_file = !f->checkpoint && !f->split;
	int rc = od_models_home(f->home, err);

	keep_off_endings(f->model);
	if (rc != OD_OK)
		return rc;
	if (snprintf(f->work, sizeof(f->work), "%s/%s.part", f->home, f->model) >= (int)sizeof(f->work) ||
	    snprintf(f->final, sizeof(f->final), "%s/%s%s", f->home, f->model, one_file ? ".gguf" : "") >=
		    (int)sizeof(f->final))
		return od_fail(err, OD_ERR_ARG, "the name of the model is too long: %.64s...", f->model);
	return OD_OK;
}

static int fetch_model(struct fetching *f, struct od_err *err)
{
	struct od_config config;
	struct od_err ignored;
	int rc = adopt(f, err);

	if (rc == OD_OK && f->checkpoint) {
		rc = fetch_config(f, &config, err);
		if (rc == OD_OK)
			rc = check_tokenizer(f, err);
		if (rc == OD_OK)
			rc = fetch_index(f, err);
		if ((rc == OD_ERR_UNSUPPORTED || rc == OD_ERR_FORMAT) && od_remove_tree(f->work, &ignored) == OD_OK)
			return rc; /* it would be refused again */
	}
	if (rc == OD_OK)
		rc = check_space(f, &config, err);
	if (rc == OD_OK)
		rc = fetch_all(f, err);
	if (rc == OD_OK)
		rc = f->checkpoint ? pack(f, err) : publish_gguf(f, err);
	return rc;
}

/* True when an earlier run had packed the checkpoint, and was ended before it had verified the pack. */
static bool is_unverified(const struct fetching *f)
{
	char path[PATH_MAX];

	return f->checkpoint && od_is_dir(f->final) &&
	       od_path(path, sizeof(path), f->work, "config.json", NULL) == OD_OK && od_file_there(path);
}

/* True when nothing came that another run could use. */
static bool is_empty(const char *work)
{
	DIR *d = opendir(work);
	struct dirent *e;
	struct stat st;
	bool empty = d != NULL;

	while (empty && (e = readdir(d)) != NULL)
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && strcmp(e->d_name, SOURCE_NAME) != 0)
			empty = fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
				st.st_size == 0;
	if (d != NULL)
		closedir(d);
	return empty;
}

static int fetch_locked(struct fetching *f, struct od_err *err)
{
	struct od_err ignored;
	bool there;
	int rc = find_existing(f, &there, err);

	if (rc == OD_OK && !there)
		rc = fetch_model(f, err);
	else if (rc == OD_OK && is_unverified(f))
		rc = verify(f, err);
	else if (rc == OD_OK)
		note(f, "%s is there already", f->model);
	if (rc == OD_OK)
		return od_remove_tree(f->work, err);
	if (is_empty(f->work))
		(void)!od_remove_tree(f->work, &ignored);
	else if (od_is_dir(f->work) && f->job->pack.kept != NULL)
		snprintf(f->job->pack.kept, PATH_MAX, "%s", f->work);
	return rc;
}

static int open_hub(struct fetching *f, struct od_err *err)
{
	struct odp_http_opts opts = { .note = on_note, .arg = f };
	int rc = odp_hub_endpoint(&f->endpoint, err);

	if (rc == OD_OK)
		rc = odp_hub_token(&f->token, err);
	opts.endpoint = f->endpoint;
	opts.token = f->token;
	return rc == OD_OK ? odp_http_new(&f->http, &opts, err) : rc;
}

static void close_all(struct fetching *f)
{
	if (f->lock_fd >= 0)
		close(f->lock_fd);
	for (size_t i = 0; i < f->n_wants; i++) {
		free(f->want[i].url);
		free(f->want[i].name);
	}
	free(f->want);
	odp_repo_fini(&f->repo);
	odp_http_free(f->http);
	if (f->token != NULL)
		explicit_bzero(f->token, strlen(f->token));
	free(f->token);
	free(f->endpoint);
	free(f);
}

int odp_fetch(const struct odp_fetch_job *job, char name[256], struct od_err *err)
{
	struct fetching *f = calloc(1, sizeof(*f));
	int rc;

	name[0] = '\0';
	if (job->pack.kept != NULL)
		job->pack.kept[0] = '\0';
	if (f == NULL)
		return no_memory(err);
	f->job = job;
	f->lock_fd = -1;
	rc = open_hub(f, err);
	if (rc == OD_OK)
		rc = strncmp(job->address, "hf://", 5) == 0 ? plan_hub(f, err) : plan_address(f, err);
	if (rc == OD_OK)
		rc = set_paths(f, err);
	if (rc == OD_OK)
		rc = lock_work(f, err);
	if (rc == OD_OK)
		rc = fetch_locked(f, err);
	if (rc == OD_OK)
		snprintf(name, 256, "%s", f->model);
	close_all(f);
	return rc;
}
