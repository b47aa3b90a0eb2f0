#include "deploy/hub/hub_repo.h"

#include "common/base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define URL_BYTES 4096
#define INFO_MAX_BYTES (8u << 20) /* JSON makes thirty times as much of it at worst */
#define PAGE_MAX_BYTES (8u << 20)
#define MAX_PAGES 1000

static bool is_code(const struct odp_http_answer *a, const char *code)
{
	return strcmp(a->code, code) == 0;
}

static int refuse_gated(const struct odp_repo *r, const struct odp_http_answer *a, struct od_err *err)
{
	if (!r->has_token)
		return od_fail(
			err, OD_ERR_IO,
			"%s is gated: accept its licence at %s/%s/%s, signed in, then give a token of that account in "
			"HF_TOKEN (through sudo: --preserve-env=HF_TOKEN) or in the token file; tokens: %s/settings/tokens",
			r->address, r->site, r->name.org, r->name.name, r->site);
	if (odp_http_token_held(r->http))
		return od_fail(
			err, OD_ERR_IO,
			"%s is gated, and the token is not sent, because %s is http://, where anyone on the way can read "
			"it: name an endpoint with https:// in HF_ENDPOINT",
			r->address, r->site);
	if (!a->of_endpoint)
		return od_fail(
			err, OD_ERR_IO,
			"%s is gated, and %s sends us on to %s, which does not get the token: name https://%s in "
			"HF_ENDPOINT",
			r->address, r->site, a->host, a->host);
	return od_fail(
		err, OD_ERR_IO,
		"%s is gated, and the account of this token (HF_TOKEN, or the token file) has no access: accept its "
		"licence at %s/%s/%s, signed in as that account; some owners then decide by hand",
		r->address, r->site, r->name.org, r->name.name);
}

int odp_repo_refused(const struct odp_repo *r, const struct odp_http_answer *a, struct od_err *err)
{
	if (a->status < 400)
		return err->code;
	if (is_code(a, "GatedRepo"))
		return refuse_gated(r, a, err);
	if (is_code(a, "RevisionNotFound"))
		return od_fail(err, OD_ERR_MISSING, "%s has no revision %s: expected a branch, a tag or a commit of it",
			       r->address, r->name.revision);
	if (!a->of_endpoint && !is_code(a, "RepoNotFound"))
		return err->code; /* a redirect's host, which is named, knows nothing of repositories */
	if (is_code(a, "RepoNotFound") || (a->status == 404 && !is_code(a, "EntryNotFound")) ||
	    (a->status == 401 && !r->has_token))
		return od_fail(err, OD_ERR_MISSING, "%s does not exist at %s%s; check its spelling there", r->address,
			       r->site,
			       r->has_token ? ", or this token may not see it" : ", or is private (then set HF_TOKEN)");
	if (a->status == 401)
		return od_fail(
			err, OD_ERR_IO,
			"%s: %s refuses this token (HF_TOKEN, or the token file; status 401)%s%s: make another one, or "
			"none for a public model",
			r->address, r->site, a->message[0] != '\0' ? ": " : "", a->message);
	if (a->status == 403)
		return od_fail(err, OD_ERR_IO, "%s: %s forbids it (status 403)%s%s", r->address, r->site,
			       a->message[0] != '\0' ? ": " : "", a->message);
	return err->code;
}

/* ENDPOINT/api/models/ORG/NAME/WHAT/REVISION */
static void api_url(const struct odp_repo *r, const char *what, const char *revision, char url[URL_BYTES])
{
	snprintf(url, URL_BYTES, "%s/api/models/%s/%s/%s/", r->endpoint, r->name.org, r->name.name, what);
	odp_url_append(url, URL_BYTES - 32, revision, false);
}

static bool is_commit(const char *text)
{
	const size_t n = strlen(text);

	return n >= 7 && n <= 64 && strspn(text, "0123456789abcdef") == n;
}

static int find_commit(struct odp_repo *r, struct od_err *err)
{
	struct odp_http_answer answer;
	char url[URL_BYTES], *text;
	const char *commit = NULL;
	json_t *root = NULL;
	size_t len;
	int rc;

	api_url(r, "revision", r->name.revision, url);
	rc = odp_http_text(r->http, url, INFO_MAX_BYTES, &text, &len, &answer, err);
	if (rc != OD_OK)
		return odp_repo_refused(r, &answer, err);
	rc = od_json_parse(text, len, r->address, &root, err);
	if (rc == OD_OK)
		rc = od_json_str(root, "sha", &commit, r->address, err);
	if (rc == OD_OK && !is_commit(commit))
		rc = od_fail(err, OD_ERR_FORMAT, "%s: field \"sha\": expected a commit, found \"%.64s\"", r->address,
			     commit);
	if (rc == OD_OK)
		snprintf(r->commit, sizeof(r->commit), "%s", commit);
	json_decref(root);
	free(text);
	return rc;
}

/* The address of the next page; "" behind the last. It is always the endpoint's: mirrors pass on the links of the hub. */
static int next_page(const struct odp_repo *r, const char *link, char url[URL_BYTES], struct od_err *err)
{
	const char *path = strstr(link, "/api/models/");

	url[0] = '\0';
	if (link[0] == '\0' || (path != NULL && snprintf(url, URL_BYTES, "%s%s", r->endpoint, path) < URL_BYTES))
		return OD_OK;
	return od_fail(err, OD_ERR_PROTOCOL, "%s: the list of files goes on at an address that is not the hub's",
		       r->address);
}

static int list_files(struct odp_repo *r, struct od_err *err)
{
	struct odp_http_answer answer = { 0 };
	char url[URL_BYTES], *text;
	size_t len;
	int rc = OD_OK;

	api_url(r, "tree", r->commit, url);
	strncat(url, "?recursive=true", sizeof(url) - strlen(url) - 1);
	for (int page = 0; rc == OD_OK && url[0] != '\0'; page++) {
		if (page == MAX_PAGES)
			return od_fail(err, OD_ERR_PROTOCOL, "%s: the list of files has more than %d pages", r->address,
				       MAX_PAGES);
		rc = odp_http_text(r->http, url, PAGE_MAX_BYTES, &text, &len, &answer, err);
		if (rc != OD_OK)
			return odp_repo_refused(r, &answer, err);
		rc = odp_listing_add(&r->files, text, len, r->address, err);
		free(text);
		if (rc == OD_OK)
			rc = next_page(r, answer.next, url, err);
	}
	return rc == OD_OK ? odp_listing_finish(&r->files, r->address, err) : rc;
}

int odp_repo_open(struct odp_repo *r, struct od_err *err)
{
	int rc;

	odp_url_shown(r->endpoint, r->site, sizeof(r->site));
	snprintf(r->address, sizeof(r->address), "hf://%s/%s", r->name.org, r->name.name);
	rc = find_commit(r, err);
	return rc == OD_OK ? list_files(r, err) : rc;
}

void odp_repo_fini(struct odp_repo *r)
{
	odp_listing_fini(&r->files);
}

char *odp_repo_url(const struct odp_repo *r, const char *path)
{
	const size_t size = strlen(r->endpoint) + sizeof(r->name) + sizeof(r->commit) + 3 * strlen(path) + 32;
	char *url = malloc(size);

	if (url == NULL)
		return NULL;
	snprintf(url, size, "%s/%s/%s/resolve/%s/", r->endpoint, r->name.org, r->name.name, r->commit);
	odp_url_append(url, size, path, true);
	return url;
}
