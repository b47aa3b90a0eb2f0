#include "common/net/members_file.h"

#include "common/net/line_file.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* ---- main's hosts file ---- */

static bool is_address(const char *host)
{
	struct in_addr v4;

	return strchr(host, ':') != NULL || inet_pton(AF_INET, host, &v4) == 1;
}

/* The lines that h concerns; 0: there is none. */
struct host_lines {
	unsigned same_key, same_address;
	bool is_name; /* the first has a name */
	const char *name; /* the second's, which stays; NULL: it has the address itself */
};

/* Whether this name, which a person wrote, has the address. Asks the name server, if there is no other way. */
static bool leads_to(const char *name, const char *address)
{
	const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
	struct addrinfo *list = NULL;
	char numeric[100];
	bool found = false;

	if (getaddrinfo(name, NULL, &hints, &list) != 0)
		return false;
	for (const struct addrinfo *a = list; a != NULL && !found; a = a->ai_next)
		found = getnameinfo(a->ai_addr, a->ai_addrlen, numeric, sizeof(numeric), NULL, 0, NI_NUMERICHOST) ==
				0 &&
			strcasecmp(numeric, address) == 0;
	freeaddrinfo(list);
	return found;
}

/* Two lines for one daemon are none that main can use. */
static void find_name(struct host_lines *found, const struct od_hosts *all, const struct od_host *h)
{
	for (size_t i = 0; i < all->n && found->same_address == 0; i++) {
		const struct od_host *o = &all->host[i];

		if (o->port != h->port || is_address(o->host) || !leads_to(o->host, h->host))
			continue;
		found->same_address = o->line;
		found->name = o->host;
	}
}

static struct host_lines find_lines(const struct od_hosts *all, const struct od_host *h)
{
	struct host_lines found = { 0 };

	for (size_t i = 0; i < all->n; i++) {
		const struct od_host *o = &all->host[i];

		if (o->role == h->role && o->port == h->port && o->has_key &&
		    memcmp(o->key, h->key, OD_KEY_BYTES) == 0) {
			found.same_key = o->line;
			found.is_name = !is_address(o->host);
		}
		if (o->port == h->port && strcasecmp(o->host, h->host) == 0)
			found.same_address = o->line;
	}
	if (found.same_key == 0)
		find_name(&found, all, h);
	return found;
}

/* "worker 10.0.0.11 key=...", then the words of the machine, then the comment. */
static void host_line(const struct od_host *h, const char *words, const char *comment, size_t len, char *line,
		      size_t size)
{
	const uint16_t usual = h->role == OD_NODE_WORKER ? OD_DEFAULT_WORKER_PORT : OD_DEFAULT_SHADOW_PORT;
	const bool ipv6 = strchr(h->host, ':') != NULL;
	char port[8] = "", key[OD_KEY_CHARS + 1];

	if (h->port != usual)
		snprintf(port, sizeof(port), ":%u", (unsigned)h->port);
	snprintf(line, size, ipv6 && port[0] != '\0' ? "%s [%s]%s key=%s%s%s%.*s" : "%s %s%s key=%s%s%s%.*s",
		 od_node_names[h->role], h->host, port, od_key_text(h->key, key), words, len > 0 ? " " : "", (int)len,
		 comment);
}

/* A line of the file without its end; it was read from this text. */
static const char *line_of(const struct od_line_file *f, unsigned line, size_t *len)
{
	const char *at = f->text, *end = f->text + f->len;

	while (--line > 0)
		at = (const char *)memchr(at, '\n', (size_t)(end - at)) + 1;
	*len = strcspn(at, "\r\n");
	return at;
}

/* Copies the settings of a line that drop does not say to leave out, each with the blanks before it. Returns the
 * length. */
static size_t copy_line(const char *line, size_t len, bool (*drop)(const char *word, size_t len, const void *arg),
			const void *arg, char *out)
{
	size_t n = 0;

	for (size_t at = 0; at < len;) {
		size_t blanks = strspn(line + at, " \t"), word = strcspn(line + at + blanks, " \t\r\n");

		if (blanks > len - at)
			blanks = len - at;
		if (word > len - at - blanks)
			word = len - at - blanks;
		if (word > 0 && !drop(line + at + blanks, word, arg)) {
			memcpy(out + n, line + at, blanks + word);
			n += blanks + word;
		}
		at += blanks + word;
	}
	out[n] = '\0';
	return n;
}

static bool is_no_machine_word(const char *word, size_t len, const void *arg)
{
	const char *name = od_hosts_word(word, len);

	(void)arg;
	return name == NULL || strcmp(name, "key=") == 0;
}

/* Copies the words (" memory=12G") of a line that will be replaced, and returns its comment. */
static const char *kept_of(const struct od_line_file *f, unsigned line, char *words, size_t *comment_len)
{
	size_t len;
	const char *at = line_of(f, line, &len);
	size_t comment = od_hosts_comment(at, len);

	copy_line(at, comment, is_no_machine_word, NULL, words);
	*comment_len = len - comment;
	return at + comment;
}

static int put_host(const struct od_line_file *f, const struct od_host *h, const char *remark,
		    const struct host_lines *found, enum od_member_change *change, struct od_err *err)
{
	const unsigned line = found->same_key != 0 ? found->same_key : found->same_address;
	char text[OD_HOSTS_LINE + 1600], words[OD_HOSTS_LINE] = "", comment[300] = "";
	struct od_host as_written = *h;
	const char *kept = comment;
	size_t len;
	struct od_line_change c[] = { { line, text }, { found->same_address, NULL } };
	size_t n = found->same_key != 0 && found->same_address != 0 ? 2 : 1; /* the address was another host's */

	if (remark[0] != '\0')
		snprintf(comment, sizeof(comment), "# %s", remark);
	len = strlen(comment);
	if (line != 0)
		kept = kept_of(f, line, words, &len);
	if (found->name != NULL)
		snprintf(as_written.host, sizeof(as_written.host), "%s", found->name);
	host_line(&as_written, words, kept, len, text, sizeof(text));
	*change = found->same_key != 0	   ? OD_MEMBER_NEW_ADDRESS :
		  found->same_address != 0 ? OD_MEMBER_NEW_KEY :
					     OD_MEMBER_ADDED;
	return od_line_file_change(f, c, n, err);
}

/* With the new line, so that no file is written that cannot be read. */
static int check_room(const struct od_hosts *all, const struct od_host *h, const char *path, struct od_err *err)
{
	size_t shadows = h->role == OD_NODE_SHADOW;

	for (size_t i = 0; i < all->n; i++)
		shadows += all->host[i].role == OD_NODE_SHADOW;
	if (all->n >= OD_MAX_HOSTS || (h->role == OD_NODE_SHADOW && shadows > OD_MAX_SHADOWS))
		return od_fail(err, OD_ERR_ARG, "%s lists %zu hosts, and has no room for another %s", path, all->n,
			       od_node_names[h->role]);
	return OD_OK;
}

int od_hosts_put(const char *path, const struct od_host *h, const char *remark, enum od_member_change *change,
		 struct od_err *err)
{
	struct od_line_file f;
	struct host_lines found;
	struct od_hosts all;
	int rc = od_line_file_open(&f, path, err);

	*change = OD_MEMBER_SAME;
	if (rc != OD_OK)
		return rc;
	rc = od_hosts_parse_some(&all, f.text, f.len, path, err);
	if (rc == OD_OK) {
		found = find_lines(&all, h);
		if (found.same_key == 0 && found.same_address == 0)
			rc = check_room(&all, h, path, err);
		if (rc == OD_OK && (found.same_key == 0 || (found.same_key != found.same_address && !found.is_name)))
			rc = put_host(&f, h, remark, &found, change, err);
	}
	od_hosts_fini(&all);
	od_line_file_close(&f);
	return rc;
}

static bool is_replaced(const char *word, size_t len, const void *replacing)
{
	const char *name = od_hosts_word(word, len);

	return name != NULL && strstr((const char *)replacing, name) != NULL;
}

/* The line of h, or NULL. */
static const struct od_host *find_host(const struct od_hosts *all, const struct od_host *h)
{
	for (size_t i = 0; i <= all->n; i++) {
		const struct od_host *o = i < all->n ? &all->host[i] : &all->main;

		if (o->line != 0 && o->is_main == h->is_main && o->role == h->role && o->port == h->port &&
		    strcasecmp(o->host, h->host) == 0)
			return o;
	}
	return NULL;
}

/* The blanks in front of a comment stay in front of it. */
static int put_words(const struct od_line_file *f, unsigned line, const char *words, const char *path,
		     struct od_err *err)
{
	char text[2 * OD_HOSTS_LINE];
	const struct od_line_change c = { line, text };
	size_t len, n, settings, comment;
	const char *at = line_of(f, line, &len);

	settings = comment = od_hosts_comment(at, len);
	while (settings > 0 && (at[settings - 1] == ' ' || at[settings - 1] == '\t'))
		settings--;
	n = copy_line(at, settings, is_replaced, words, text);
	if (n + strlen(words) >= OD_HOSTS_LINE || len - settings >= sizeof(text) - OD_HOSTS_LINE)
		return od_fail(err, OD_ERR_ARG, "%s line %u is too long for more words", path, line);
	snprintf(text + n, sizeof(text) - n, "%s%.*s", words, (int)(len - settings), at + settings);
	return od_line_file_change(f, &c, 1, err);
}

static int add_main(const struct od_line_file *f, const struct od_host *h, const char *words, struct od_err *err)
{
	char text[OD_HOSTS_LINE];
	const struct od_line_change c = { 0, text };

	snprintf(text, sizeof(text), "main %s%s", h->host, words);
	return od_line_file_change(f, &c, 1, err);
}

int od_hosts_set_words(const char *path, const struct od_host *h, const struct od_host_words *words, struct od_err *err)
{
	const struct od_host *found;
	struct od_line_file f;
	struct od_hosts all;
	char text[256];
	int rc = od_line_file_open(&f, path, err);

	if (rc != OD_OK)
		return rc;
	rc = od_hosts_parse_some(&all, f.text, f.len, path, err);
	if (rc == OD_OK) {
		found = find_host(&all, h);
		if (od_host_words_text(words, text, sizeof(text))[0] == '\0')
			rc = OD_OK;
		else if (found == NULL && h->is_main && !all.has_main)
			rc = add_main(&f, h, text, err);
		else if (found == NULL)
			rc = od_fail(err, OD_ERR_MISSING, "%s no longer lists host %s", path, h->host);
		else
			rc = put_words(&f, found->line, text, path, err);
	}
	od_hosts_fini(&all);
	od_line_file_close(&f);
	return rc;
}

/* ---- a worker's or shadow's peers file ---- */

/* The line that the peer concerns; 0: it is new. */
static unsigned find_peer(const struct od_peers *all, const uint8_t *key, const char *address,
			  enum od_member_change *change)
{
	*change = OD_MEMBER_ADDED;
	for (size_t i = 0; i < all->n; i++) {
		const struct od_peer *o = &all->peer[i];

		if (memcmp(o->key, key, OD_KEY_BYTES) != 0)
			continue;
		*change = strcasecmp(o->name, address) == 0 ? OD_MEMBER_SAME : OD_MEMBER_NEW_ADDRESS;
		return o->line;
	}
	for (size_t i = 0; i < all->n; i++) {
		if (strcasecmp(all->peer[i].name, address) != 0)
			continue;
		*change = OD_MEMBER_NEW_KEY;
		return all->peer[i].line;
	}
	return 0;
}

static int check_alone(const struct od_peers *all, unsigned line, const char *path, struct od_err *err)
{
	for (size_t i = 0; i < all->n; i++) {
		const struct od_peer *o = &all->peer[i];

		if (o->line == line)
			continue;
		return od_fail(err, OD_ERR_ARG,
			       "%s line %u names another main%s%s, and a worker has one main: to change to this one, "
			       "remove that line and join again",
			       path, o->line, o->name[0] != '\0' ? ", " : "", o->name);
	}
	return OD_OK;
}

static int put_peer(const struct od_line_file *f, unsigned line, const uint8_t *key, const char *address,
		    struct od_err *err)
{
	char text[OD_KEY_CHARS + 300], key_text[OD_KEY_CHARS + 1];
	const struct od_line_change c = { line, text };

	snprintf(text, sizeof(text), "%s %s", od_key_text(key, key_text), address);
	return od_line_file_change(f, &c, 1, err);
}

int od_peers_put(const char *path, const uint8_t key[OD_KEY_BYTES], const char *address,
		 const struct od_peers_put_opts *opts, enum od_member_change *change, struct od_err *err)
{
	struct od_line_file f;
	struct od_peers all;
	unsigned line;
	int rc = od_line_file_open(&f, path, err);

	*change = OD_MEMBER_SAME;
	if (rc != OD_OK)
		return rc;
	rc = od_peers_parse(&all, f.text, f.len, path, err);
	if (rc == OD_OK) {
		line = find_peer(&all, key, address, change);
		if (opts->alone)
			rc = check_alone(&all, line, path, err);
		if (rc == OD_OK && !opts->try && *change != OD_MEMBER_SAME)
			rc = put_peer(&f, line, key, address, err);
	}
	od_peers_fini(&all);
	od_line_file_close(&f);
	return rc;
}
