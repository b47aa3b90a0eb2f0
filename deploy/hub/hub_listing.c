#include "deploy/hub/hub_listing.h"

#include "common/base/json.h"
#include "common/base/mem.h"
#include "common/pack/sums.h"
#include "deploy/hub/hub_name.h"

#include <stdlib.h>
#include <string.h>

#define MAX_FILES 100000
#define MAX_PATH_BYTES 512
#define GIT_SUM_BYTES 20

/* The checksum in an object's "oid". */
static int read_sum(const json_t *obj, enum odp_sum_kind kind, struct odp_sum *sum, const char *where,
		    struct od_err *err)
{
	const size_t n = kind == ODP_SUM_SHA256 ? ODP_SUM_BYTES : GIT_SUM_BYTES;
	const char *hex;
	int rc = od_json_str(obj, "oid", &hex, where, err);

	if (rc != OD_OK)
		return rc;
	if (!od_unhex(hex, sum->bytes, n))
		return od_fail(err, OD_ERR_FORMAT, "%s: field \"oid\": expected %zu hexadecimal digits", where, 2 * n);
	sum->kind = kind;
	return OD_OK;
}

/* A large file is listed with its pointer's sum and, within "lfs", its own. */
static int read_file(const json_t *obj, struct odp_hub_file *f, const char *where, struct od_err *err)
{
	uint64_t lfs_bytes = 0;
	json_t *lfs;
	int rc = od_json_u64(obj, "size", 0, INT64_MAX, &f->bytes, where, err);

	if (rc != OD_OK || !od_json_has(obj, "lfs"))
		return rc == OD_OK ? read_sum(obj, ODP_SUM_GIT, &f->sum, where, err) : rc;
	rc = od_json_obj(obj, "lfs", &lfs, where, err);
	if (rc == OD_OK)
		rc = od_json_u64(lfs, "size", 0, INT64_MAX, &lfs_bytes, where, err);
	if (rc == OD_OK && lfs_bytes != f->bytes)
		rc = od_fail(err, OD_ERR_FORMAT, "%s: a file has two sizes, %llu and %llu", where,
			     (unsigned long long)f->bytes, (unsigned long long)lfs_bytes);
	return rc == OD_OK ? read_sum(lfs, ODP_SUM_SHA256, &f->sum, where, err) : rc;
}

static int add(struct odp_listing *l, const json_t *obj, const char *where, struct od_err *err)
{
	struct odp_hub_file f = { 0 };
	const char *type, *path;
	int rc;

	if (!json_is_object(obj))
		return od_fail(err, OD_ERR_FORMAT, "%s: expected a list of objects", where);
	rc = od_json_str(obj, "type", &type, where, err);
	if (rc != OD_OK || strcmp(type, "file") != 0)
		return rc;
	rc = od_json_str(obj, "path", &path, where, err);
	if (rc != OD_OK)
		return rc;
	if (!odp_is_safe_path(path, json_string_length(json_object_get(obj, "path"))) || strlen(path) > MAX_PATH_BYTES)
		return od_fail(err, OD_ERR_FORMAT, "%s: the path of a file is not safe to write: \"%.100s\"", where,
			       path);
	rc = read_file(obj, &f, where, err);
	if (rc != OD_OK)
		return rc;
	f.path = strdup(path);
	if (f.path == NULL || !od_grow((void **)&l->file, l->n, 1, &l->cap, sizeof(f))) {
		free(f.path);
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for the list of files", where);
	}
	l->file[l->n++] = f;
	return OD_OK;
}

int odp_listing_add(struct odp_listing *l, const char *json, size_t len, const char *where, struct od_err *err)
{
	json_error_t why;
	json_t *root = od_json_decode(json, len, JSON_REJECT_DUPLICATES, &why);
	int rc = OD_OK;

	if (root == NULL)
		return od_json_refuse(json, len, &why, where, err);
	if (!json_is_array(root))
		rc = od_fail(err, OD_ERR_FORMAT, "%s: expected a list of files", where);
	for (size_t i = 0; rc == OD_OK && i < json_array_size(root); i++) {
		rc = add(l, json_array_get(root, i), where, err);
		if (rc == OD_OK && l->n > MAX_FILES)
			rc = od_fail(err, OD_ERR_UNSUPPORTED, "%s: more than %d files", where, MAX_FILES);
	}
	json_decref(root);
	return rc;
}

static int by_path(const void *a, const void *b)
{
	return strcmp(((const struct odp_hub_file *)a)->path, ((const struct odp_hub_file *)b)->path);
}

int odp_listing_finish(struct odp_listing *l, const char *where, struct od_err *err)
{
	if (l->n > 0)
		qsort(l->file, l->n, sizeof(*l->file), by_path);
	for (size_t i = 1; i < l->n; i++)
		if (strcmp(l->file[i - 1].path, l->file[i].path) == 0)
			return od_fail(err, OD_ERR_FORMAT, "%s: %.100s is listed twice", where, l->file[i].path);
	return OD_OK;
}

const struct odp_hub_file *odp_listing_find(const struct odp_listing *l, const char *path)
{
	const struct odp_hub_file key = { .path = (char *)path };

	return l->n > 0 ? bsearch(&key, l->file, l->n, sizeof(key), by_path) : NULL;
}

void odp_listing_fini(struct odp_listing *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->file[i].path);
	free(l->file);
	*l = (struct odp_listing){ 0 };
}
