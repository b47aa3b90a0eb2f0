#include "deploy/model_list.h"

#include "common/base/args.h"
#include "common/base/file.h"
#include "common/model/config.h"
#include "common/model/family.h"
#include "common/pack/gguf/gguf_config.h"
#include "common/pack/models_folder.h"

#include <jansson.h>
#include <string.h>
#include <time.h>

static const char *const form_names[] = {
	[OD_MODELS_PACK] = "pack",
	[OD_MODELS_GGUF] = "gguf",
	[OD_MODELS_UNFINISHED] = "unfinished",
};

static int read_config(const struct od_models_entry *e, struct od_config *config, struct od_err *err)
{
	char path[PATH_MAX];
	json_t *root = NULL;
	struct od_gguf *g = NULL;
	int rc;

	if (e->form == OD_MODELS_PACK) {
		rc = od_path(path, sizeof(path), e->path, "config.json", err);
		return rc == OD_OK ? od_config_load(config, path, err) : rc;
	}
	rc = od_gguf_open(&g, e->open, err);
	if (rc == OD_OK)
		rc = od_gguf_config(g, &root, err);
	if (rc == OD_OK)
		rc = od_config_parse(config, root, e->open, err);
	json_decref(root);
	od_gguf_close(g);
	return rc;
}

/* The model's family; "?": it cannot be read, "": it is not complete. */
static const char *family_of(const struct od_models_entry *e)
{
	struct od_config config;
	struct od_err ignored;

	if (e->form == OD_MODELS_UNFINISHED)
		return "";
	return read_config(e, &config, &ignored) == OD_OK ? config.family->name : "?";
}

static const char *date_of(const struct od_models_entry *e, char buf[16])
{
	const time_t t = (time_t)e->mtime_s;
	struct tm tm;

	if (gmtime_r(&t, &tm) == NULL || strftime(buf, 16, "%Y-%m-%d", &tm) == 0)
		buf[0] = '\0';
	return buf;
}

static int print_json(const struct od_models *m, const char *used, FILE *out, struct od_err *err)
{
	json_t *list = json_array();
	char date[16];
	int rc = OD_OK;

	for (size_t i = 0; i < m->n; i++) {
		const struct od_models_entry *e = &m->entry[i];

		json_array_append_new(list,
				      json_pack("{s:s, s:s, s:s, s:I, s:s, s:s, s:s?, s:b}", "name", e->name, "form",
						form_names[e->form], "path", e->path, "bytes", (json_int_t)e->bytes,
						"family", family_of(e), "date", date_of(e, date), "source", e->source,
						"default", strcmp(e->open, used) == 0));
	}
	if (json_array_size(list) != m->n || json_dumpf(list, out, JSON_INDENT(1)) != 0)
		rc = od_fail(err, OD_ERR_NOMEM, "cannot print the list of models");
	else
		fputc('\n', out);
	json_decref(list);
	return rc;
}

static void print_table(const struct od_models *m, const char *used, FILE *out)
{
	char size[32], date[16];
	size_t width = 4;

	for (size_t i = 0; i < m->n; i++)
		width = strlen(m->entry[i].name) > width ? strlen(m->entry[i].name) : width;
	fprintf(out, "  %-*s  %-10s  %10s  %-14s  %-10s  %s\n", (int)width, "NAME", "FORM", "SIZE", "FAMILY", "DATE",
		"FROM");
	for (size_t i = 0; i < m->n; i++) {
		const struct od_models_entry *e = &m->entry[i];

		fprintf(out, "%c %-*s  %-10s  %10s  %-14s  %-10s  %s\n", strcmp(e->open, used) == 0 ? '*' : ' ',
			(int)width, e->name, form_names[e->form], od_format_bytes(e->bytes, size, sizeof(size)),
			family_of(e), date_of(e, date), e->source != NULL ? e->source : "");
	}
}

int odp_model_list(bool json, FILE *out, struct od_err *err)
{
	char used[PATH_MAX];
	struct od_err why;
	struct od_models m;
	int rc = od_models_list(&m, err);

	if (rc != OD_OK)
		return rc;
	if (od_models_find(used, NULL, &why) != OD_OK)
		used[0] = '\0';
	if (json) {
		rc = print_json(&m, used, out, err);
	} else {
		if (m.n > 0)
			print_table(&m, used, out);
		if (used[0] != '\0')
			fprintf(out, "Without --pack, programs use %s.\n", used);
		else
			fprintf(out, "Without --pack: %s.\n", why.msg);
	}
	od_models_fini(&m);
	return rc;
}
