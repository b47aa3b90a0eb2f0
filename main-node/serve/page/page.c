#include "main-node/serve/page/page.h"

#include <string.h>

#define INDEX "index.html"

/* The page shows what a model writes, which is hostile: so the browser runs and loads what came from here, and nothing
 * else. */
static const char *const headers[][2] = {
	{ "Content-Security-Policy",
	  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
	  "base-uri 'none'; form-action 'none'; frame-ancestors 'none'" },
	{ "X-Content-Type-Options", "nosniff" },
	{ "Referrer-Policy", "no-referrer" },
	{ "Cross-Origin-Opener-Policy", "same-origin" },
	{ NULL, NULL },
};

static const char *type_of(const char *name)
{
	static const char *const types[][2] = {
		{ ".html", "text/html; charset=utf-8" },
		{ ".css", "text/css; charset=utf-8" },
		{ ".js", "text/javascript; charset=utf-8" },
		{ ".svg", "image/svg+xml" },
	};
	const char *ending = strrchr(name, '.');

	for (size_t i = 0; ending != NULL && i < sizeof(types) / sizeof(types[0]); i++)
		if (strcmp(ending, types[i][0]) == 0)
			return types[i][1];
	return "application/octet-stream";
}

static void reply(struct odm_exchange *x, const char *name)
{
	const struct odm_page_file *f = odm_page_files;
	struct odm_api_error e;

	while (f->name != NULL && strcmp(f->name, name) != 0)
		f++;
	if (f->name == NULL) {
		odm_api_fail(&e, 404, NULL, OD_ERR_MISSING, "the page has no file of this name");
		odm_exchange_fail(x, &e);
		return;
	}
	odm_exchange_reply_file(x, &(struct odm_exchange_file){ .content_type = type_of(name),
								.etag = f->etag,
								.bytes = f->begin,
								.len = (size_t)(f->end - f->begin),
								.headers = headers });
}

static void start_index(struct odm_exchange *x)
{
	reply(x, INDEX);
}

static void start_file(struct odm_exchange *x)
{
	reply(x, odm_exchange_rest(x));
}

#define FLAGS (ODM_ENDPOINT_OPEN | ODM_ENDPOINT_DRAINING | ODM_ENDPOINT_PROBE)

const struct odm_endpoint odm_page_endpoint = { .method = "GET", .path = "/", .flags = FLAGS, .start = start_index };
const struct odm_endpoint odm_page_file_endpoint = {
	.method = "GET",
	.path = "/page/*",
	.flags = FLAGS,
	.start = start_file,
};
