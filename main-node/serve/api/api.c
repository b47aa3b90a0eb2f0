#include "main-node/serve/api/api.h"

#include "main-node/serve/http/json_fields.h"
#include "main-node/serve/jobs/engine_thread.h"

#include <string.h>

int odm_api_engine(struct odm_exchange *x, const struct odm_engine **engine, struct odm_api_error *e)
{
	*engine = odm_engine_thread_engine(odm_app_of(x)->thread);
	return *engine != NULL ? OD_OK : odm_api_fail(e, 503, NULL, OD_ERR_UNREACHABLE, "the model is being loaded");
}

bool odm_api_is_model(const struct odm_app *app, const char *name)
{
	static const char latest[] = ":latest";
	const size_t len = strlen(name), n = sizeof(latest) - 1;
	const bool tagged = len > n && strcmp(name + len - n, latest) == 0;

	for (size_t i = 0; i <= app->n_aliases; i++) {
		const char *known = i == 0 ? app->model : app->alias[i - 1];

		if (strcmp(name, known) == 0 ||
		    (tagged && strlen(known) == len - n && strncmp(name, known, len - n) == 0))
			return true;
	}
	return false;
}

int odm_api_begin(struct odm_exchange *x, enum odm_api_kind kind, json_t **request, const struct odm_engine **engine,
		  struct odm_api_error *e)
{
	static const struct odm_field fields[] = { { "model", ODM_FIELD_STRING, 0, 0, 0, NULL }, { 0 } };
	const struct odm_app *app = odm_app_of(x);
	const char *model = NULL, *body;
	size_t len;
	int rc = odm_api_engine(x, engine, e);

	*request = NULL;
	body = odm_exchange_body(x, &len);
	if (rc == OD_OK)
		rc = odm_fields_parse(body, len, request, e);
	if (rc == OD_OK)
		rc = odm_client_fields_apply(*request, kind, e);
	if (rc == OD_OK)
		rc = odm_fields_read(fields, *request, &model, e);
	if (rc != OD_OK || model == NULL || !app->model_checked || odm_api_is_model(app, model))
		return rc;
	odm_api_fail(e, 404, "model", OD_ERR_MISSING, "model: expected \"%s\", found \"%.200s\"", app->model, model);
	e->code = "model_not_found";
	return OD_ERR_MISSING;
}
