/* od-main serve: the command line of the server. */
#include "main-node/serve_command.h"

#include "common/base/descriptors.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/net/endpoint.h"
#include "main-node/node/engine_args.h"
#include "main-node/serve/server.h"

#include <signal.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_PORT 8080
#define MAX_PEM_BYTES (1u << 20)
#define LEVEL_UNSET (-1)

struct options {
	struct odm_engine_args engine;
	struct odm_serve_opts serve;
	const char *listen, *key_file, *cert_file, *tls_key_file, *alias;
	char *alias_names; /* the copy of alias that serve.aliases refers to */
	bool insecure, quiet, help;
	int log_level; /* enum od_log_level or LEVEL_UNSET */
	int log_format; /* enum od_log_format or OD_LOG_AUTO */
};

static void default_options(struct options *o)
{
	*o = (struct options){
		.serve = { .queue = 64,
			   .max_connections = 1024,
			   .max_body_bytes = 32u << 20,
			   .header_seconds = 20,
			   .drain_seconds = 60 },
		.listen = "127.0.0.1:8080",
		.log_level = LEVEL_UNSET,
		.log_format = OD_LOG_AUTO,
	};
	odm_engine_args_defaults(&o->engine);
	o->engine.opts.engine.parallel = 4;
	o->engine.opts.engine.prefix_cache_mib = o->engine.opts.engine.snapshot_mib = ODM_PREFIX_CACHE_AUTO;
}

static int parse_options(struct options *o, int argc, char **argv, struct od_err *err)
{
	struct odm_main_opts *eo = &o->engine.opts;
	struct odm_serve_opts *s = &o->serve;
	const struct od_arg own[] = {
		/* No title: this ends the engine's group "Cluster". */
		{ "serve-store", OD_ARG_STRING, &eo->serve_store, "ADDR",
		  "let workers pull the pack from here: host[:port] (default port: 5702)", 0, 0, NULL },
		{ .kind = OD_ARG_TITLE, .help = "Serve" },
		{ "listen", OD_ARG_STRING, &o->listen, "ADDR",
		  "host:port for HTTP; port 0: any free one; :8080: every address of this machine (default: 127.0.0.1:8080)",
		  0, 0, NULL },
		{ "api-key-file", OD_ARG_STRING, &o->key_file, "FILE",
		  "an API key a line; requests must have one of them", 0, 0, NULL },
		{ "tls-cert", OD_ARG_STRING, &o->cert_file, "FILE", "certificate chain (PEM): HTTPS instead of HTTP", 0,
		  0, NULL },
		{ "tls-key", OD_ARG_STRING, &o->tls_key_file, "FILE", "its private key (PEM)", 0, 0, NULL },
		{ "insecure", OD_ARG_FLAG, &o->insecure, NULL,
		  "beyond loopback: HTTP without API keys and TLS, and links to other machines without keys", 0, 0,
		  NULL },
		{ "allow-host", OD_ARG_LIST, &s->hosts, "NAME",
		  "without API keys: also answer requests to NAME (the header Host), such as host.docker.internal; repeatable",
		  0, 0, NULL },
		{ "cors", OD_ARG_STRING, &s->cors, "ORIGIN",
		  "let pages of this origin (https://host) use the server in a browser; *: of any", 0, 0, NULL },
		{ "model-name", OD_ARG_STRING, &s->model, "NAME",
		  "name of the model; requests for another are refused (default: the pack's folder, any name is taken)",
		  0, 0, NULL },
		{ "alias", OD_ARG_STRING, &o->alias, "NAME[,NAME...]",
		  "further names of the model, which /v1/models lists too", 0, 0, NULL },
		{ .kind = OD_ARG_TITLE, .help = "Limits" },
		{ "parallel", OD_ARG_UINT, &eo->engine.parallel, "N", "write N texts at once (default: 4)", 1,
		  ODM_MAX_PARALLEL, NULL },
		{ "state-memory", OD_ARG_SIZE, &eo->engine.state_bytes, "SIZE",
		  "KV cache of all texts (default: N contexts, at most what is free)", 0, 0, NULL },
		{ "prefix-cache-mib", OD_ARG_UINT, &eo->engine.prefix_cache_mib, "N",
		  "KV cache of ended texts, for texts that begin alike; 0: none (default: a quarter of what is free, at most 1024, and what texts in progress do not need)",
		  0, 1e9, NULL },
		{ "snapshot-mib", OD_ARG_UINT, &eo->engine.snapshot_mib, "N",
		  "of models with recurrent state (Qwen3-Next, Qwen3.5): its snapshots where texts may part, beside that; 0: none, and no prefix cache (default: a quarter of what is free, at most 4096)",
		  0, 1e9, NULL },
		{ "prefix-cache", OD_ARG_STRING, &eo->engine.prefix_cache_dir, "DIR",
		  "keep it in files too, 16 times as much: it outlives the server", 0, 0, NULL },
		{ "queue", OD_ARG_UINT, &s->queue, "N",
		  "requests that may wait beside these; more get status 429 (default: 64)", 0, 100000, NULL },
		{ "max-body", OD_ARG_SIZE, &s->max_body_bytes, "SIZE", "of a request (default: 32MiB)", 0, 0, NULL },
		{ "max-connections", OD_ARG_UINT, &s->max_connections, "N", "open at once; more wait (default: 1024)",
		  1, 100000, NULL },
		{ "header-seconds", OD_ARG_REAL, &s->header_seconds, "S",
		  "limit of a request's header, and of each 16 KiB of its body (default: 20)", 0.1, 3600, NULL },
		{ "drain-seconds", OD_ARG_REAL, &s->drain_seconds, "S",
		  "after SIGTERM open requests may end for S seconds (default: 60)", 0, 86400, NULL },
		{ .kind = OD_ARG_TITLE, .help = "Output" },
		{ "log-level", OD_ARG_CHOICE, &o->log_level, "LEVEL",
		  "the least that is logged: error, warn, info (progress and requests too) or debug (default: info)", 0,
		  0, od_log_level_names },
		{ "quiet", OD_ARG_FLAG, &o->quiet, NULL, "the same as --log-level warn", 0, 0, NULL },
		{ "log-format", OD_ARG_CHOICE, &o->log_format, "FORM", OD_LOG_FORMAT_HELP, 0, 0, od_log_format_names },
		{ "help", OD_ARG_FLAG, &o->help, NULL, "print this text", 0, 0, NULL },
	};

	return odm_engine_args_parse(
		&o->engine, NULL, own, sizeof(own) / sizeof(own[0]), argc, argv, &o->help,
		"Usage: od-main serve [--pack MODEL] [--workers hosts.txt | --local N | --resident] [--listen ADDR]\n"
		"Serves a mixture-of-experts model over HTTP: /v1/chat/completions, /v1/completions,\n"
		"/v1/responses, /v1/messages (with /count_tokens), /v1/models, /tokenize, /detokenize,\n"
		"Ollama's /api/chat, /api/generate, /api/tags, /api/show, /api/ps, /api/version,\n"
		"/props, /slots, /health, /metrics, /cluster, /cluster/events.\n"
		"Its page has a chat and shows the cluster: open http://127.0.0.1:8080/ in a browser.\n",
		err);
}

static int check_hosts(const struct od_arg_list *hosts, struct od_err *err)
{
	for (size_t i = 0; i < hosts->n; i++)
		if (!odm_is_host_name(hosts->value[i]))
			return od_fail(err, OD_ERR_ARG,
				       "--allow-host: expected a host's name without scheme and port, such as "
				       "host.docker.internal, found \"%s\"",
				       hosts->value[i]);
	return OD_OK;
}

static bool is_among(const struct od_arg_list *list, const char *name)
{
	size_t i = 0;

	while (i < list->n && strcmp(list->value[i], name) != 0)
		i++;
	return i < list->n;
}

/* "a,b": cuts a copy into names. */
static int split_aliases(struct options *o, struct od_err *err)
{
	struct od_arg_list *list = &o->serve.aliases;
	char *at, *name;

	o->alias_names = o->alias != NULL ? strdup(o->alias) : NULL;
	if (o->alias != NULL && o->alias_names == NULL)
		return od_fail(err, OD_ERR_NOMEM, "--alias");
	for (at = o->alias_names; (name = strsep(&at, ",")) != NULL;) {
		if (name[0] == '\0' || is_among(list, name) || list->n == OD_ARG_LIST_MAX)
			return od_fail(err, OD_ERR_ARG,
				       "--alias: expected at most %d names, each once and none empty, found \"%s\"",
				       OD_ARG_LIST_MAX, o->alias);
		list->value[list->n++] = name;
	}
	return OD_OK;
}

static int check_level(struct options *o, struct od_err *err)
{
	if (o->quiet && o->log_level != LEVEL_UNSET)
		return od_fail(err, OD_ERR_ARG, "--quiet and --log-level exclude each other");
	if (o->log_level == LEVEL_UNSET)
		o->log_level = o->quiet ? OD_LOG_WARN : OD_LOG_INFO;
	o->engine.opts.engine.quiet = o->log_level < OD_LOG_INFO;
	return OD_OK;
}

static int check_options(struct options *o, struct od_err *err)
{
	struct odm_serve_opts *s = &o->serve;
	int rc = odm_address_parse(&s->listen, o->listen, DEFAULT_PORT, err);

	if (rc != OD_OK)
		return od_fail_within(err, "--listen");
	rc = check_hosts(&s->hosts, err);
	if (rc == OD_OK)
		rc = split_aliases(o, err);
	if (rc == OD_OK)
		rc = check_level(o, err);
	if (rc != OD_OK)
		return rc;
	if ((o->cert_file == NULL) != (o->tls_key_file == NULL))
		return od_fail(err, OD_ERR_ARG, "--tls-cert and --tls-key need each other");
	if (!od_is_loopback(s->listen.host) && !o->insecure && (o->key_file == NULL || o->cert_file == NULL))
		return od_fail(
			err, OD_ERR_ARG,
			"--listen %s is not loopback only: this needs --api-key-file with --tls-cert and --tls-key, or "
			"--insecure",
			o->listen);
	if (s->max_body_bytes == 0)
		return od_fail(err, OD_ERR_ARG, "--max-body: expected more than 0");
	if (o->engine.opts.engine.prefix_cache_dir != NULL && o->engine.opts.engine.prefix_cache_mib == 0)
		return od_fail(err, OD_ERR_ARG,
			       "--prefix-cache needs --prefix-cache-mib above 0: files are written from memory");
	o->engine.opts.keys.insecure =
		o->insecure && (o->engine.opts.cluster.hosts_path != NULL || o->engine.opts.serve_store != NULL);
	rc = odm_engine_args_finish(&o->engine, err);
	s->node = o->engine.opts;
	return rc;
}

static int load_secrets(const struct options *o, struct odm_api_keys **keys, char **cert, char **key,
			struct od_err *err)
{
	size_t len;
	int rc = o->key_file != NULL ? odm_api_keys_load(keys, o->key_file, err) : OD_OK;

	if (rc == OD_OK && o->cert_file != NULL)
		rc = od_file_read(o->cert_file, MAX_PEM_BYTES, cert, &len, err);
	if (rc == OD_OK && o->tls_key_file != NULL)
		rc = od_file_read(o->tls_key_file, MAX_PEM_BYTES, key, &len, err);
	return rc;
}

static int serve(struct options *o, struct od_err *err)
{
	struct odm_api_keys *keys = NULL;
	char *cert = NULL, *key = NULL;
	int rc = load_secrets(o, &keys, &cert, &key, err);

	o->serve.keys = keys;
	o->serve.cert = cert;
	o->serve.key = key;
	if (rc == OD_OK)
		rc = odm_serve(&o->serve, err);
	odm_api_keys_free(keys);
	if (key != NULL)
		sodium_memzero(key, strlen(key));
	free(key);
	free(cert);
	return rc;
}

int odm_serve_command(int argc, char **argv)
{
	struct options o;
	struct od_err err = { 0 };
	int rc;

	default_options(&o);
	rc = parse_options(&o, argc, argv, &err);
	od_log_set_format(o.log_format);
	if (rc == OD_OK && o.help)
		return 0;
	if (rc == OD_OK)
		rc = check_options(&o, &err);
	if (rc != OD_OK) {
		od_log(OD_LOG_ERROR, "%s", err.msg);
		free(o.alias_names);
		return 2;
	}
	od_log_init("od-main", (enum od_log_level)o.log_level);
	od_descriptors_raise();
	signal(SIGPIPE, SIG_IGN);
	rc = serve(&o, &err);
	free(o.alias_names);
	if (rc == OD_OK)
		return 0;
	od_log(OD_LOG_ERROR, "%s", err.msg);
	return 1;
}
