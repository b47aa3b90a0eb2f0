#include "main-node/serve/http/api_error.h"

#include "common/text/utf8_text.h"

#include <stdio.h>
#include <string.h>

int odm_api_fail(struct odm_api_error *e, int status, const char *param, int code, const char *fmt, ...)
{
	va_list ap;

	if (e == NULL)
		return code;
	*e = (struct odm_api_error){ .status = status };
	snprintf(e->param, sizeof(e->param), "%s", param != NULL ? param : "");
	va_start(ap, fmt);
	vsnprintf(e->message, sizeof(e->message), fmt, ap);
	va_end(ap);
	return code;
}

static int status_of(int code)
{
	switch ((enum od_status)code) {
	case OD_ERR_ARG:
	case OD_ERR_RANGE:
	case OD_ERR_NOMEM: /* a KV cache that could never fit */
	case OD_ERR_FORMAT:
	case OD_ERR_UNSUPPORTED: return 400;
	case OD_ERR_BUSY: return 429;
	case OD_ERR_UNREACHABLE:
	case OD_ERR_TIMEOUT:
	case OD_ERR_CANCELLED: return 503;
	case OD_OK:
	case OD_ERR_IO:
	case OD_ERR_CORRUPT:
	case OD_ERR_SHAPE:
	case OD_ERR_MISMATCH:
	case OD_ERR_PROTOCOL:
	case OD_ERR_MISSING:
	case OD_ERR_INTERNAL: break;
	}
	return 500;
}

int odm_no_memory(struct odm_api_error *e)
{
	return odm_api_fail(e, 503, NULL, OD_ERR_NOMEM, "out of memory");
}

void odm_api_error_rename(struct odm_api_error *e, const char *from, const char *to)
{
	const size_t n = strlen(from), len = strlen(e->param);
	char rest[sizeof(e->message)];

	if (strncmp(e->param, from, n) != 0 || (e->param[n] != '\0' && e->param[n] != '[' && e->param[n] != '.'))
		return;
	snprintf(rest, sizeof(rest), "%s", e->message + (strncmp(e->message, e->param, len) == 0 ? len : 0));
	snprintf(e->message, sizeof(e->message), "%s%s%.*s", to, rest[0] == ':' ? "" : ": ",
		 (int)(sizeof(e->message) - strlen(to) - 3), rest);
	snprintf(e->param, sizeof(e->param), "%s", to);
}

void odm_hide_folder(char *message, const char *folder)
{
	size_t len = strlen(folder);
	char *at = message;

	while (len > 1 && folder[len - 1] == '/')
		len--;
	while (len > 0 && (at = memmem(at, strlen(at), folder, len)) != NULL) {
		const char *rest = at + len;

		rest += strspn(rest, "/");
		memmove(at, rest, strlen(rest) + 1);
	}
}

void odm_api_from_err(struct odm_api_error *e, const struct od_err *err)
{
	odm_api_fail(e, status_of(err->code), NULL, err->code, "%s", err->msg);
}

static const char *type_of(int status)
{
	switch (status) {
	case 401: return "authentication_error";
	case 403: return "permission_error";
	case 404: return "not_found_error";
	case 429: return "rate_limit_error";
	case 501: return "not_supported_error"; /* as llama-server names it */
	case 503: return "service_unavailable_error";
	default: return status >= 500 ? "server_error" : "invalid_request_error";
	}
}

json_t *odm_api_error_json(const struct odm_api_error *e)
{
	json_t *o = json_object(), *inner = json_object();

	json_object_set_new(inner, "message", odm_json_text(e->message, strlen(e->message)));
	json_object_set_new(inner, "type", json_string(type_of(e->status)));
	json_object_set_new(inner, "param",
			    e->param[0] != '\0' ? odm_json_text(e->param, strlen(e->param)) : json_null());
	json_object_set_new(inner, "code", e->code != NULL ? json_string(e->code) : json_null());
	json_object_set_new(o, "error", inner);
	return o;
}

static const char *anthropic_type_of(int status)
{
	switch (status) {
	case 401: return "authentication_error";
	case 403: return "permission_error";
	case 404: return "not_found_error";
	case 413: return "request_too_large";
	case 429: return "rate_limit_error";
	case 503: return "overloaded_error";
	default: return status >= 500 ? "api_error" : "invalid_request_error";
	}
}

json_t *odm_api_error_anthropic(const struct odm_api_error *e, const char *request_id)
{
	return json_pack("{s:s, s:{s:s, s:o}, s:s}", "type", "error", "error", "type", anthropic_type_of(e->status),
			 "message", odm_json_text(e->message, strlen(e->message)), "request_id", request_id);
}

json_t *odm_api_error_ollama(const struct odm_api_error *e)
{
	return json_pack("{s:o}", "error", odm_json_text(e->message, strlen(e->message)));
}
