#include "common/pack/gguf/gguf_folder.h"

#include "common/base/file.h"
#include "common/pack/gguf/gguf_config.h"
#include "common/pack/gguf/gguf_fingerprint.h"
#include "common/pack/gguf/gguf_map.h"
#include "common/pack/gguf/gguf_tokenizer.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LAYOUT "3" /* version of the folder's contents: raise it when they change */
#define NAME_DIGITS 32 /* digits of the fingerprint in a folder's name */

#define N_ROOTS 4

/* The folders for caches, the first one to be tried first. False: number i does not apply here. */
static bool root_of(int i, char out[PATH_MAX])
{
	static const char *const variables[N_ROOTS] = { "CACHE_DIRECTORY", NULL, "XDG_CACHE_HOME", "HOME" };
	static const char *const below[N_ROOTS] = { "", "/var/cache/od-moe", "/od-moe", "/.cache/od-moe" };
	const char *base = variables[i] != NULL ? getenv(variables[i]) : "";

	if (base == NULL || (variables[i] != NULL && base[0] != '/'))
		return false;
	/* systemd separates several by colons. */
	return snprintf(out, PATH_MAX, "%.*s%s/gguf", (int)strcspn(base, ":"), base, below[i]) < PATH_MAX;
}

static bool can_write(const char *root)
{
	struct od_err ignored;

	return od_mkdir_p(root, &ignored) == OD_OK && access(root, W_OK | X_OK) == 0;
}

/* The path of the file's folder, in the first root that can be written. Where none can, another user may have made it:
 * then it is read. False: it is nowhere. */
static bool find_place(const char *fingerprint, char out[PATH_MAX], bool *good)
{
	char root[PATH_MAX];
	struct od_err ignored;

	for (int read_only = 0; read_only < 2; read_only++)
		for (int i = 0; i < N_ROOTS; i++) {
			if (!root_of(i, root) || (read_only == 0 && !can_write(root)) ||
			    snprintf(out, PATH_MAX, "%s/%.*s-" LAYOUT, root, NAME_DIGITS, fingerprint) >= PATH_MAX)
				continue;
			*good = od_sums_check(out, &ignored) == OD_OK;
			if (read_only == 0 || *good)
				return true;
		}
	return false;
}

static int write_text(const char *dir, const char *name, const struct od_strbuf *text, struct od_err *err)
{
	char path[PATH_MAX];
	int rc = od_path(path, sizeof(path), dir, name, err);

	return rc == OD_OK ? od_file_write_atomic(path, od_strbuf_text(text), text->len, err) : rc;
}

static int write_config(const char *dir, const json_t *config, struct od_err *err)
{
	struct od_strbuf b = { 0 };
	char *text = json_dumps(config, JSON_INDENT(1));
	int rc;

	if (text == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for config.json", dir);
	od_strbuf_append(&b, text, strlen(text));
	rc = write_text(dir, "config.json", &b, err);
	od_strbuf_fini(&b);
	free(text);
	return rc;
}

static int write_types(const struct od_gguf *g, const struct od_config *cfg, const char *fingerprint, const char *path,
		       struct od_err *err)
{
	struct od_layer_types *layer = calloc(cfg->n_moe, sizeof(*layer));
	int rc = layer != NULL ? OD_OK : od_fail(err, OD_ERR_NOMEM, "%s: no memory", path);

	for (uint32_t m = 0; rc == OD_OK && m < cfg->n_moe; m++)
		for (int mat = 0; rc == OD_OK && mat < od_expert_tensors(cfg); mat++) {
			struct od_gguf_place at;

			rc = od_gguf_experts(g, cfg, m, (enum od_expert_mat)mat, &at, err);
			layer[m].type[mat] = at.type;
		}
	if (rc == OD_OK)
		rc = od_manifest_write_share(fingerprint, layer, cfg, path, err);
	free(layer);
	return rc;
}

/* For workers that pull their share: model.json, and the sums of all. */
static int write_model(const struct od_gguf *g, const json_t *config, const char *fingerprint, const char *dir,
		       struct od_err *err)
{
	struct od_config cfg;
	char path[PATH_MAX];
	int rc = od_config_parse(&cfg, config, od_gguf_path(g), err);

	if (rc == OD_OK)
		rc = od_gguf_check(g, &cfg, err); /* a file that is refused leaves no folder */
	if (rc == OD_OK)
		rc = od_path(path, sizeof(path), dir, OD_MODEL_NAME, err);
	if (rc == OD_OK)
		rc = write_types(g, &cfg, fingerprint, path, err);
	return rc == OD_OK ? od_sums_write(dir, err) : rc;
}

static int fill(const struct od_gguf *g, const json_t *config, const char *fingerprint, const char *dir,
		struct od_err *err)
{
	struct od_gguf_texts t;
	int rc = od_gguf_texts(g, &t, err);

	if (rc == OD_OK)
		rc = write_config(dir, config, err);
	if (rc == OD_OK && t.name != NULL) {
		rc = write_text(dir, t.name, &t.tokenizer, err);
		if (rc == OD_OK)
			rc = write_text(dir, "tokenizer_config.json", &t.config, err);
		if (rc == OD_OK)
			rc = write_text(dir, "generation_config.json", &t.generation, err);
	}
	od_gguf_texts_fini(&t);
	return rc == OD_OK ? write_model(g, config, fingerprint, dir, err) : rc;
}

void od_gguf_folder_remove(const char *folder)
{
	DIR *d = opendir(folder);
	struct dirent *e;
	char path[PATH_MAX];
	struct od_err ignored;

	while (d != NULL && (e = readdir(d)) != NULL)
		if (e->d_name[0] != '.' && od_path(path, sizeof(path), folder, e->d_name, &ignored) == OD_OK)
			unlink(path);
	if (d != NULL)
		closedir(d);
	rmdir(folder);
}

/* A new folder beside final, or in the place for temporary files (final NULL). */
static int make_new(char out[PATH_MAX], const char *final, struct od_err *err)
{
	const char *tmp = getenv("TMPDIR");
	int n;

	if (final != NULL)
		n = snprintf(out, PATH_MAX, "%s.XXXXXX", final);
	else
		n = snprintf(out, PATH_MAX, "%s/od-gguf.XXXXXX", tmp != NULL && tmp[0] == '/' ? tmp : "/tmp");
	if (n >= PATH_MAX || mkdtemp(out) == NULL)
		return od_fail_errno(err, OD_ERR_IO, "cannot make a folder %s", out);
	return OD_OK;
}

/* Moves a file from the new folder to the final one, or removes it there. */
static int replace(const char *final, const char *made, const char *name, struct od_err *err)
{
	char from[PATH_MAX], to[PATH_MAX];
	int rc = od_path(from, sizeof(from), made, name, err);

	if (rc == OD_OK)
		rc = od_path(to, sizeof(to), final, name, err);
	if (rc != OD_OK)
		return rc;
	if (od_file_there(from) ? rename(from, to) != 0 : unlink(to) != 0 && errno != ENOENT)
		return od_fail_errno(err, OD_ERR_IO, "cannot replace %s, which is damaged: remove the folder", to);
	return OD_OK;
}

/* The final folder is there: another process was faster, or its files are damaged. Shadows and checksums stay. */
static int mend(const char *final, const char *made, struct od_err *err)
{
	int rc = OD_OK;

	for (const struct od_small_file *f = od_small_files; rc == OD_OK && f->name != NULL; f++)
		rc = replace(final, made, f->name, err);
	return rc == OD_OK ? replace(final, made, OD_SUMS_NAME, err) : rc;
}

static int make(const struct od_gguf *g, const char *fingerprint, const json_t *config, const char *final,
		char made[PATH_MAX], struct od_err *err)
{
	int rc = make_new(made, final, err);

	if (rc != OD_OK)
		return rc;
	rc = fill(g, config, fingerprint, made, err);
	if (rc == OD_OK && final != NULL && chmod(made, 0755) != 0) /* others of this machine use it, too */
		rc = od_fail_errno(err, OD_ERR_IO, "cannot change the mode of %s", made);
	if (rc == OD_OK && final != NULL && rename(made, final) != 0)
		rc = od_is_dir(final) ? mend(final, made, err) :
					od_fail_errno(err, OD_ERR_IO, "cannot rename %s to %s", made, final);
	if (rc != OD_OK || (final != NULL && od_is_dir(made)))
		od_gguf_folder_remove(made);
	return rc;
}

int od_gguf_folder_make(const struct od_gguf *g, const char *fingerprint, const json_t *config, char **folder,
			bool *temporary, struct od_err *err)
{
	char final[PATH_MAX], made[PATH_MAX];
	bool good = false;
	int rc = OD_OK;

	*folder = NULL;
	*temporary = !find_place(fingerprint, final, &good);
	if (!good)
		rc = make(g, fingerprint, config, *temporary ? NULL : final, made, err);
	if (rc == OD_OK) {
		*folder = strdup(*temporary ? made : final);
		if (*folder == NULL)
			rc = od_fail(err, OD_ERR_NOMEM, "%s: no memory", od_gguf_path(g));
	}
	return rc;
}

int od_gguf_folder_of(const char *path, char **folder, bool *temporary, struct od_err *err)
{
	char fingerprint[OD_FINGERPRINT_CHARS + 1];
	json_t *config = NULL;
	struct od_gguf *g;
	int rc = od_gguf_open(&g, path, err);

	*folder = NULL;
	*temporary = false;
	if (rc == OD_OK)
		rc = od_gguf_config(g, &config, err);
	if (rc == OD_OK)
		rc = od_gguf_fingerprint(g, fingerprint, err);
	if (rc == OD_OK)
		rc = od_gguf_folder_make(g, fingerprint, config, folder, temporary, err);
	json_decref(config);
	od_gguf_close(g);
	return rc;
}
