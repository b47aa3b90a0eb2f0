/* Any bytes as a page of a listing, as a name, as an address and as the beginning of a GGUF file: what is accepted
 * is safe to write here, and every choice can be explained.
 * Input: 'L', a page; 'N', a name or address; 'G', a file. */
#include <stdlib.h>
#include <string.h>

#include "deploy/hub/gguf_begin.h"
#include "deploy/hub/hub_choose.h"
#include "deploy/hub/hub_name.h"
#include "tests/fuzz/fuzz.h"

static void check_local(const char *name)
{
	check(name[0] != '.' && strchr(name, '/') == NULL);
	for (const char *c = name; *c != '\0'; c++)
		check(*c > ' ' && *c < 0x7f && *c != '\\');
}

static void choose(const struct odp_listing *l)
{
	static const char *const quants[] = { "", "Q8_0", "M" };
	struct od_err err = { 0 };
	struct odp_variants v;

	check(odp_variants_find(&v, l, &err) == OD_OK);
	for (size_t i = 0; i < sizeof(quants) / sizeof(quants[0]); i++) {
		const struct odp_variant *chosen;
		struct od_strbuf b = { 0 };

		if (odp_variants_choose(&v, quants[i], 1 << 20, "hub", &chosen, &err) != OD_OK) {
			check(chosen == NULL && err.msg[0] != '\0');
			continue;
		}
		check(chosen->whole);
		for (unsigned k = 0; k < chosen->n_files; k++)
			check(odp_variant_file(chosen, l, k) != NULL);
		odp_variants_explain(&v, chosen, 1 << 20, &b);
		check(!b.failed && strstr(b.text, "<- chosen") != NULL);
		od_strbuf_fini(&b);
	}
	odp_variants_fini(&v);
	check(odp_refuse_listing(l, "hub", &err) == OD_ERR_UNSUPPORTED);
	(void)odp_is_checkpoint(l);
}

static void read_page(const char *text, size_t size)
{
	struct odp_listing l = { 0 };
	struct od_err err = { 0 };
	char name[256];

	if (odp_listing_add(&l, text, size, "hub", &err) != OD_OK)
		check(err.msg[0] != '\0');
	for (size_t i = 0; i < l.n; i++) {
		check(odp_is_safe_path(l.file[i].path, strlen(l.file[i].path)));
		check(l.file[i].sum.kind != ODP_SUM_NONE && l.file[i].bytes <= INT64_MAX);
		odp_local_name(l.file[i].path, name, sizeof(name));
		check_local(name);
	}
	if (odp_listing_finish(&l, "hub", &err) == OD_OK)
		choose(&l);
	odp_listing_fini(&l);
}

static void read_name(const char *text)
{
	struct odp_hub_name n;
	struct od_err err = { 0 };
	char name[256];

	odp_url_file_name(text, name, sizeof(name));
	check_local(name);
	odp_url_shown(text, name, sizeof(name));
	for (const char *c = name; *c != '\0'; c++)
		check(*c > ' ' && *c < 0x7f && *c != '#');
	if (strncmp(text, "hf://", 5) != 0)
		return;
	if (odp_hub_name_parse(&n, text, &err) != OD_OK) {
		check(err.code == OD_ERR_ARG);
		return;
	}
	check_local(n.org);
	check_local(n.name);
	check(n.revision[0] != '\0' && strstr(n.revision, "..") == NULL);
}

static void read_file(const uint8_t *data, size_t size)
{
	struct odp_gguf_begin b;
	struct od_err err = { 0 };

	if (odp_gguf_begin_read(&b, data, size, "hub", &err) != OD_OK)
		check(err.msg[0] != '\0' && !b.complete);
	for (const char *c = b.arch; *c != '\0'; c++)
		check(*c > ' ' && *c < 0x7f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text;

	if (size == 0)
		return 0;
	text = malloc(size);
	check(text != NULL);
	memcpy(text, data + 1, size - 1);
	text[size - 1] = '\0';
	if (data[0] == 'L')
		read_page(text, size - 1);
	else if (data[0] == 'N')
		read_name(text);
	else if (data[0] == 'G')
		read_file(data + 1, size - 1);
	free(text);
	return 0;
}
