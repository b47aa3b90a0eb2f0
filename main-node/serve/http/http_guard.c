#include "main-node/serve/http/http_guard.h"

#include "common/base/file.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 1024
#define FREE_PORT_TRIES 20
#define MAX_KEY_FILE_BYTES (1u << 20)
#define HASH_BYTES 32

/* ---- Addresses ---- */

/* Cuts "host:port" apart; *port is empty if there is none. False: malformed. */
static bool split_address(const char *text, char *host, size_t size, const char **port)
{
	const char *end, *begin = text;
	size_t len;

	if (text[0] == '[') {
		begin = text + 1;
		end = strchr(begin, ']');
		if (end == NULL || (end[1] != '\0' && end[1] != ':'))
			return false;
		*port = end[1] == ':' ? end + 2 : "";
	} else {
		end = strchr(text, ':');
		if (end != NULL && strchr(end + 1, ':') != NULL)
			end = NULL; /* an IPv6 address without brackets */
		*port = end != NULL ? end + 1 : "";
		end = end != NULL ? end : text + strlen(text);
	}
	len = (size_t)(end - begin);
	if (len >= size)
		return false;
	memcpy(host, begin, len);
	host[len] = '\0';
	return true;
}

/* An IPv6 address without brackets whose last group may be meant as a port. */
static bool is_ambiguous(const char *text)
{
	const char *colon = strrchr(text, ':');
	char host[INET6_ADDRSTRLEN];
	struct in6_addr a;

	if (text[0] == '[' || colon == NULL || (size_t)(colon - text) >= sizeof(host))
		return false;
	snprintf(host, sizeof(host), "%.*s", (int)(colon - text), text);
	return inet_pton(AF_INET6, host, &a) == 1;
}

int odm_address_parse(struct odm_address *a, const char *text, uint16_t default_port, struct od_err *err)
{
	static const char expected[] = "expected host:port, such as 127.0.0.1:8080, localhost:8080 or [::1]:8080";
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:%";
	const char *port;
	uint64_t number = default_port;
	int rc = OD_OK;

	*a = (struct odm_address){ 0 };
	if (strstr(text, "://") != NULL)
		return od_fail(err, OD_ERR_ARG, "%s, without http://, found \"%s\"", expected, text);
	if (is_ambiguous(text))
		return od_fail(err, OD_ERR_ARG, "%s, found \"%s\": an IPv6 address needs brackets, [ADDRESS]:PORT",
			       expected, text);
	if (text[0] == '\0' || !split_address(text, a->host, sizeof(a->host), &port))
		return od_fail(err, OD_ERR_ARG, "%s, found \"%s\"", expected, text);
	if (a->host[0] != '\0' && strspn(a->host, "0123456789") == strlen(a->host))
		return od_fail(err, OD_ERR_ARG, "%s, found \"%s\": the address in front of the port is missing",
			       expected, text);
	if (port[0] != '\0')
		rc = od_parse_u64(port, 0, UINT16_MAX, &number, err);
	if (rc != OD_OK)
		return od_fail_within(err, "port");
	if (a->host[0] == '\0' || strcmp(a->host, "*") == 0)
		snprintf(a->host, sizeof(a->host), "::");
	if (strspn(a->host, plain) != strlen(a->host))
		return od_fail(err, OD_ERR_ARG, "%s, found \"%s\"", expected, text);
	a->port = (uint16_t)number;
	return OD_OK;
}

/* -1: errno says why. */
static int bind_one(const struct addrinfo *to, bool with_ipv4)
{
	const int on = 1, only = !with_ipv4;
	const int fd = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int why;

	if (fd < 0)
		return -1;
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (to->ai_family == AF_INET6)
		(void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof(only));
	if (bind(fd, to->ai_addr, to->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
		return fd;
	why = errno;
	close(fd);
	errno = why;
	return -1;
}

static void set_port(struct addrinfo *to, uint16_t port)
{
	if (to->ai_family == AF_INET6)
		((struct sockaddr_in6 *)to->ai_addr)->sin6_port = htons(port);
	else
		((struct sockaddr_in *)to->ai_addr)->sin_port = htons(port);
}

static uint16_t port_of(int fd)
{
	struct sockaddr_storage s = { 0 };
	socklen_t len = sizeof(s);

	if (getsockname(fd, (struct sockaddr *)&s, &len) != 0)
		return 0;
	return ntohs(s.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&s)->sin6_port :
					       ((struct sockaddr_in *)&s)->sin_port);
}

void odm_listening_close(struct odm_listening *l)
{
	while (l->n > 0)
		close(l->fd[--l->n]);
	*l = (struct odm_listening){ 0 };
}

static bool is_missing(int why)
{
	return why == EADDRNOTAVAIL || why == EAFNOSUPPORT;
}

/* All addresses of the list with one port. False: why says it. */
static bool bind_all(struct addrinfo *list, const char *host, uint16_t port, struct odm_listening *l, int *why)
{
	const bool everywhere = strcmp(host, "::") == 0; /* every address, IPv4 too */

	*l = (struct odm_listening){ .port = port };
	for (struct addrinfo *to = list; to != NULL && l->n < ODM_MAX_LISTEN; to = to->ai_next) {
		if (to->ai_family != AF_INET && to->ai_family != AF_INET6)
			continue;
		set_port(to, l->port);
		l->fd[l->n] = bind_one(to, everywhere);
		if (l->fd[l->n] >= 0)
			l->port = port_of(l->fd[l->n++]);
		else if (!is_missing(*why = errno))
			break;
		*why = l->n > 0 ? 0 : *why;
	}
	if (*why != 0)
		odm_listening_close(l);
	return *why == 0;
}

static const char *advice(int why)
{
	if (why == EADDRINUSE)
		return "; another program uses this port: choose another one, or 0 for any free one";
	if (why == EACCES)
		return "; ports below 1024 are root's";
	return is_missing(why) ? "; this machine has no such address" : "";
}

int odm_listen(const struct odm_address *a, struct odm_listening *l, struct od_err *err)
{
	/* Without a name and AI_PASSIVE it is 127.0.0.1 and ::1. Browsers take both for localhost, whatever /etc/hosts
	 * says. */
	const bool loopback = strcasecmp(a->host, "localhost") == 0;
	const struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = loopback ? 0 : AI_PASSIVE };
	struct addrinfo *list = NULL;
	int why = 0, rc;

	*l = (struct odm_listening){ 0 };
	rc = getaddrinfo(loopback ? NULL : a->host, "0", &hints, &list);
	if (rc != 0)
		return od_fail(err, OD_ERR_ARG, "--listen: host \"%s\" has no address: %s", a->host, gai_strerror(rc));
	rc = OD_OK;
	for (int i = 0; i < FREE_PORT_TRIES && !bind_all(list, a->host, a->port, l, &why); i++) {
		/* the port that was free at one address may be taken at another */
		if (a->port != 0 || why != EADDRINUSE)
			break;
	}
	freeaddrinfo(list);
	if (l->n == 0)
		rc = od_fail(err, OD_ERR_IO, "--listen: cannot listen on %s, port %u: %s%s", a->host, a->port,
			     strerror(why), advice(why));
	return rc;
}

/* ---- Host ---- */

static bool is_ip(const char *host)
{
	struct in6_addr six;
	struct in_addr four;

	return inet_pton(AF_INET, host, &four) == 1 || inet_pton(AF_INET6, host, &six) == 1;
}

bool odm_is_host_name(const char *name)
{
	static const char signs[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
	const size_t len = strlen(name);

	return len > 0 && strspn(name, signs) == len;
}

/* An allowed name may end with the root's dot, too. */
static bool same_name(const char *name, size_t len, const char *allowed)
{
	size_t n = strlen(allowed);

	n -= n > 0 && allowed[n - 1] == '.';
	return len > 0 && len == n && strncasecmp(name, allowed, n) == 0;
}

bool odm_host_allowed(const char *host, const struct odm_address *listen, const char *machine,
		      const struct od_arg_list *also)
{
	char name[256];
	const char *port;
	size_t len;

	if (host == NULL)
		return true;
	if (!split_address(host, name, sizeof(name), &port))
		return false;
	len = strlen(name);
	if (len > 0 && name[len - 1] == '.') /* the name's root */
		name[--len] = '\0';
	if (is_ip(name) || strcasecmp(name, "localhost") == 0 || strcasecmp(name, listen->host) == 0)
		return true;
	if (len > strlen(".localhost") && strcasecmp(name + len - strlen(".localhost"), ".localhost") == 0)
		return true;
	for (size_t i = 0; i < also->n; i++)
		if (same_name(name, len, also->value[i]))
			return true;
	return machine[0] != '\0' && strcasecmp(name, machine) == 0;
}

/* ---- Keys ---- */

struct odm_api_keys {
	size_t n;
	unsigned char (*hash)[HASH_BYTES]; /* keys have different lengths, their hashes do not */
};

static void hash_key(unsigned char *hash, const char *key, size_t len)
{
	crypto_generichash(hash, HASH_BYTES, (const unsigned char *)key, len, NULL, 0);
}

static int read_keys(struct odm_api_keys *k, const char *text, const char *path, struct od_err *err)
{
	size_t most = 1;

	for (const char *c = text; *c != '\0'; c++)
		most += *c == '\n';
	k->hash = calloc(most, HASH_BYTES);
	if (k->hash == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s: no memory for %zu keys", path, most);
	for (const char *line = text; *line != '\0';) {
		const char *next = line + strcspn(line, "\n");
		const char *begin = line + strspn(line, " \t"), *end = next;

		while (end > begin && strchr(" \t\r", end[-1]) != NULL)
			end--;
		if (end > begin && *begin != '#')
			hash_key(k->hash[k->n++], begin, (size_t)(end - begin));
		line = *next == '\n' ? next + 1 : next;
	}
	return k->n > 0 ? OD_OK : od_fail(err, OD_ERR_FORMAT, "%s: expected an API key a line, found none", path);
}

int odm_api_keys_load(struct odm_api_keys **out, const char *path, struct od_err *err)
{
	struct odm_api_keys *k = calloc(1, sizeof(*k));
	char *text = NULL;
	size_t len;
	int rc;

	*out = NULL;
	if (k == NULL)
		return od_fail(err, OD_ERR_NOMEM, "API keys");
	rc = sodium_init() < 0 ? od_fail(err, OD_ERR_INTERNAL, "libsodium does not start") :
				 od_file_read_text(path, MAX_KEY_FILE_BYTES, &text, &len, err);
	if (rc == OD_OK)
		rc = read_keys(k, text, path, err);
	if (text != NULL)
		sodium_memzero(text, len);
	free(text);
	if (rc != OD_OK) {
		odm_api_keys_free(k);
		return rc;
	}
	*out = k;
	return OD_OK;
}

void odm_api_keys_free(struct odm_api_keys *k)
{
	if (k == NULL)
		return;
	free(k->hash);
	free(k);
}

/* Looks at every key, so that the time tells nothing. */
static bool known(const struct odm_api_keys *k, const char *key)
{
	unsigned char hash[HASH_BYTES];
	int found = 0;

	hash_key(hash, key, strlen(key));
	for (size_t i = 0; i < k->n; i++)
		found |= sodium_memcmp(hash, k->hash[i], HASH_BYTES) == 0;
	return found != 0;
}

bool odm_api_key_known(const struct odm_api_keys *k, const char *authorization, const char *x_api_key)
{
	static const char scheme[] = "Bearer ";

	if (authorization != NULL && strncasecmp(authorization, scheme, sizeof(scheme) - 1) == 0)
		return known(k, authorization + sizeof(scheme) - 1 + strspn(authorization + sizeof(scheme) - 1, " "));
	return x_api_key != NULL && known(k, x_api_key);
}

bool odm_is_json_type(const char *content_type)
{
	static const char json[] = "application/json";
	size_t len;

	if (content_type == NULL)
		return false;
	content_type += strspn(content_type, " \t");
	len = strcspn(content_type, "; \t");
	return len == sizeof(json) - 1 && strncasecmp(content_type, json, len) == 0;
}
