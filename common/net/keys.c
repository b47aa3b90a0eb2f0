#include "common/net/keys.h"

#include "common/base/file.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#define MAX_FILE_BYTES (1024 * 1024)
#define MAX_KEY_FILE_BYTES 4096
#define OTHERS 077 /* mode bits: anything for group or others */

/* ---- text ---- */

static bool is_z85(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		const char c = text[i];
		const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');

		if (!plain && (c == '\0' || strchr(".-:+=^!/*?&<>()[]{}@%$#", c) == NULL))
			return false;
	}
	return true;
}

int od_key_parse(uint8_t key[OD_KEY_BYTES], const char *text, struct od_err *err)
{
	const size_t len = strlen(text);

	memset(key, 0, OD_KEY_BYTES);
	if (len != OD_KEY_CHARS)
		return od_fail(err, OD_ERR_ARG, "expected a key of %d characters, found %zu", OD_KEY_CHARS, len);
	/* zmq_z85_decode refuses groups of five that stand for more than 32 bits. */
	if (!is_z85(text, len) || zmq_z85_decode(key, text) == NULL)
		return od_fail(err, OD_ERR_ARG, "expected a key in Z85, found 40 characters that are none");
	if (sodium_is_zero(key, OD_KEY_BYTES))
		return od_fail(err, OD_ERR_ARG, "this key is all zeros");
	return OD_OK;
}

const char *od_key_text(const uint8_t key[OD_KEY_BYTES], char *text)
{
	return zmq_z85_encode(text, key, OD_KEY_BYTES);
}

#define MAX_WORDS 3
struct key_line {
	char text[512];
	char *word[MAX_WORDS];
	size_t n;
};

/* Cuts a line at blanks; a word that begins with '#' ends it. */
static int split(struct key_line *l, const char *line, size_t len, struct od_err *err)
{
	char *save = NULL;

	l->n = 0;
	if (len >= sizeof(l->text) || memchr(line, '\0', len) != NULL)
		return od_fail(err, OD_ERR_FORMAT, "expected a line of text of at most %zu characters",
			       sizeof(l->text) - 1);
	memcpy(l->text, line, len);
	l->text[len] = '\0';
	for (char *t = strtok_r(l->text, " \t\r", &save); t != NULL; t = strtok_r(NULL, " \t\r", &save)) {
		if (t[0] == '#')
			break;
		if (l->n == MAX_WORDS)
			return od_fail(err, OD_ERR_FORMAT, "expected a key and a name, found more than two words");
		l->word[l->n++] = t;
	}
	return OD_OK;
}

/* Calls take for each line that is not empty. */
static int each_line(const char *text, size_t len, const char *where,
		     int (*take)(void *arg, const struct key_line *l, unsigned number, struct od_err *err), void *arg,
		     struct od_err *err)
{
	struct key_line l;
	unsigned number = 0;
	int rc = OD_OK;

	for (size_t at = 0; at < len && rc == OD_OK;) {
		const char *end = memchr(text + at, '\n', len - at);
		const size_t n = end != NULL ? (size_t)(end - text) - at : len - at;

		rc = split(&l, text + at, n, err);
		number++;
		if (rc == OD_OK && l.n > 0)
			rc = take(arg, &l, number, err);
		if (rc != OD_OK)
			od_fail_within(err, "%s line %u", where, number);
		at += n + 1;
	}
	sodium_memzero(&l, sizeof(l));
	return rc;
}

/* ---- this node's pair ---- */

int od_key_pair_new(struct od_key_pair *out, struct od_err *err)
{
	char public_text[OD_KEY_CHARS + 1], secret_text[OD_KEY_CHARS + 1];

	memset(out, 0, sizeof(*out));
	if (sodium_init() < 0 || zmq_has("curve") != 1)
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "this ZeroMQ was built without CURVE: install the distribution's libzmq5");
	do { /* about two in five have no '#': no tool can take a part of them for a comment */
		if (zmq_curve_keypair(public_text, secret_text) != 0)
			return od_fail_errno(err, OD_ERR_INTERNAL, "cannot make a key pair");
	} while (strchr(public_text, '#') != NULL || strchr(secret_text, '#') != NULL);
	zmq_z85_decode(out->public_key, public_text);
	zmq_z85_decode(out->secret_key, secret_text);
	sodium_memzero(secret_text, sizeof(secret_text));
	return OD_OK;
}

struct secret_file {
	struct od_key_pair *pair;
	unsigned n;
};

static int take_secret(void *arg, const struct key_line *l, unsigned number, struct od_err *err)
{
	struct secret_file *f = arg;

	(void)number;
	if (l->n > 1)
		return od_fail(err, OD_ERR_FORMAT,
			       "expected a secret key alone on its line, found more words: is this a file of "
			       "public keys?");
	if (f->n++ > 0)
		return od_fail(err, OD_ERR_FORMAT, "expected one secret key, found a second");
	return od_key_parse(f->pair->secret_key, l->word[0], err);
}

static int check_mode(int fd, const char *path, struct od_err *err)
{
	struct stat st;

	if (fstat(fd, &st) != 0)
		return od_fail_errno(err, OD_ERR_IO, "%s", path);
	if ((st.st_mode & OTHERS) != 0)
		return od_fail(err, OD_ERR_ARG,
			       "%s has mode %04o, so that other users can use this secret key: chmod 600 %s", path,
			       (unsigned)st.st_mode & 07777, path);
	return OD_OK;
}

/* Checks and reads one descriptor, so that the file that is checked is the file that is read. */
static int read_secret(const char *path, char text[MAX_KEY_FILE_BYTES], size_t *len, struct od_err *err)
{
	uint64_t size;
	int fd, rc = od_file_open(path, &fd, &size, err);

	*len = 0;
	if (rc != OD_OK)
		return rc;
	rc = check_mode(fd, path, err);
	if (rc == OD_OK && size > MAX_KEY_FILE_BYTES)
		rc = od_fail(err, OD_ERR_FORMAT, "%s: expected a file with one key, found %llu bytes", path,
			     (unsigned long long)size);
	if (rc == OD_OK)
		rc = od_file_pread(fd, text, (size_t)size, 0, path, err);
	close(fd);
	if (rc == OD_OK)
		*len = (size_t)size;
	return rc;
}

int od_key_pair_load(struct od_key_pair *out, const char *path, struct od_err *err)
{
	struct secret_file f = { .pair = out };
	char text[MAX_KEY_FILE_BYTES];
	size_t len, mark;
	int rc;

	memset(out, 0, sizeof(*out));
	if (sodium_init() < 0 || zmq_has("curve") != 1)
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "this ZeroMQ was built without CURVE: install the distribution's libzmq5");
	rc = read_secret(path, text, &len, err);
	if (rc == OD_OK)
		rc = od_check_text(text, len, path, err);
	mark = od_byte_order_mark(text, len);
	if (rc == OD_OK)
		rc = each_line(text + mark, len - mark, path, take_secret, &f, err);
	if (rc == OD_OK && f.n == 0)
		rc = od_fail(err, OD_ERR_FORMAT, "%s: expected a secret key, found none", path);
	if (rc == OD_OK)
		crypto_scalarmult_base(out->public_key, out->secret_key);
	else
		sodium_memzero(out, sizeof(*out));
	sodium_memzero(text, sizeof(text));
	return rc;
}

/* ---- public keys of others ---- */

static int take_peer(void *arg, const struct key_line *l, unsigned number, struct od_err *err)
{
	struct od_peers *all = arg;
	struct od_peer *p = &all->peer[all->n];
	const char *name = l->n > 1 ? l->word[1] : "";
	int rc;

	if (all->n == OD_MAX_PEERS)
		return od_fail(err, OD_ERR_ARG, "more than %d keys", OD_MAX_PEERS);
	if (l->n > 2)
		return od_fail(err, OD_ERR_FORMAT, "expected a key and a name, found a third word");
	if (strlen(name) >= sizeof(p->name))
		return od_fail(err, OD_ERR_FORMAT, "expected a name of at most %zu characters", sizeof(p->name) - 1);
	rc = od_key_parse(p->key, l->word[0], err);
	if (rc != OD_OK)
		return rc;
	memcpy(p->name, name, strlen(name) + 1);
	p->line = number;
	all->n++;
	return OD_OK;
}

int od_peers_parse(struct od_peers *out, const char *text, size_t len, const char *where, struct od_err *err)
{
	int rc;

	*out = (struct od_peers){ .peer = calloc(OD_MAX_PEERS, sizeof(*out->peer)) };
	if (out->peer == NULL)
		return od_fail(err, OD_ERR_NOMEM, "%s", where);
	rc = each_line(text, len, where, take_peer, out, err);
	if (rc != OD_OK)
		od_peers_fini(out);
	return rc;
}

int od_peers_load(struct od_peers *out, const char *path, struct od_err *err)
{
	char *text;
	size_t len;
	int rc = od_file_read_text(path, MAX_FILE_BYTES, &text, &len, err);

	*out = (struct od_peers){ 0 };
	if (rc != OD_OK)
		return rc;
	rc = od_peers_parse(out, text, len, path, err);
	free(text);
	return rc;
}

void od_peers_fini(struct od_peers *p)
{
	free(p->peer);
	*p = (struct od_peers){ 0 };
}

int od_peers_find(const struct od_peers *p, const char *name, const uint8_t **out, struct od_err *err)
{
	const struct od_peer *found = NULL;

	*out = NULL;
	for (size_t i = 0; i < p->n; i++) {
		const struct od_peer *o = &p->peer[i];

		if (strcasecmp(o->name, name) != 0)
			continue;
		if (found != NULL && memcmp(found->key, o->key, OD_KEY_BYTES) != 0)
			return od_fail(err, OD_ERR_ARG,
				       "two keys have the name %s (lines %u and %u), and one is to be used: remove one",
				       name, found->line, o->line);
		found = o;
	}
	*out = found != NULL ? found->key : NULL;
	return OD_OK;
}

/* ---- what a process uses ---- */

int od_keys_path(char *path, const char *name, struct od_err *err)
{
	const char *dir = getenv("OD_KEYS");

	return od_path(path, PATH_MAX, dir != NULL && dir[0] != '\0' ? dir : OD_KEYS_DIR, name, err);
}

static int load_own(struct od_keys *k, const char *given, const char *why, struct od_err *err)
{
	char path[PATH_MAX];
	int rc;

	if (given != NULL)
		return od_key_pair_load(&k->own, given, err);
	rc = od_keys_path(path, OD_KEY_NAME, err);
	if (rc == OD_OK && !od_file_there(path))
		return od_fail(
			err, OD_ERR_MISSING,
			"%s%sthis node has no key, %s: pairing makes one (od-main pair; join of the others), and so does "
			"od-main keygen; --key names another file%s",
			why != NULL ? why : "", why != NULL ? ", so traffic is encrypted, and " : "", path,
			why != NULL ? "; on a network where you trust everybody, --insecure does without" : "");
	return rc == OD_OK ? od_key_pair_load(&k->own, path, err) : rc;
}

/* As given, else beside the key. */
static int find_peers(char path[PATH_MAX], const struct od_keys_args *args, struct od_err *err)
{
	const char *slash = args->key != NULL ? strrchr(args->key, '/') : NULL;
	int n;

	if (args->peers == NULL && args->key == NULL)
		return od_keys_path(path, OD_PEERS_NAME, err);
	if (args->peers != NULL)
		n = snprintf(path, PATH_MAX, "%s", args->peers);
	else
		n = snprintf(path, PATH_MAX, "%.*s%s", slash != NULL ? (int)(slash + 1 - args->key) : 0, args->key,
			     OD_PEERS_NAME);
	return n < PATH_MAX ?
		       OD_OK :
		       od_fail(err, OD_ERR_ARG, "--%s: this path is too long", args->peers != NULL ? "peers" : "key");
}

static int load_peers(struct od_keys *k, const struct od_keys_args *args, bool need, struct od_err *err)
{
	char path[PATH_MAX];
	int rc = find_peers(path, args, err);

	if (rc != OD_OK)
		return rc;
	if (need && !od_file_there(path))
		return od_fail(
			err, OD_ERR_MISSING,
			"there is no file %s, so no node could connect: join main (od-main pair shows the words), or copy "
			"its node.pub there (its public key, a line), or name another file with --peers",
			path);
	if (args->peers != NULL || od_file_there(path)) {
		memcpy(k->peers_path, path, sizeof(path));
		rc = od_peers_load(&k->peers, path, err);
	}
	if (rc == OD_OK && need && k->peers.n == 0)
		rc = od_fail(err, OD_ERR_MISSING,
			     "%s lists no key, so no node could connect: write the public key of od-main's node "
			     "there (the line in its node.pub), or name another file with --peers",
			     path);
	return rc;
}

int od_keys_open(struct od_keys **out, const struct od_keys_args *args, const char *why, bool need_peers,
		 struct od_err *err)
{
	const bool asked = args->key != NULL || args->peers != NULL;
	struct od_keys *k;
	int rc;

	*out = NULL;
	if (args->insecure && asked)
		return od_fail(err, OD_ERR_ARG,
			       "--insecure and %s exclude each other: keys encrypt traffic, --insecure does not",
			       args->key != NULL ? "--key" : "--peers");
	if (args->insecure || (!asked && why == NULL))
		return OD_OK;
	k = calloc(1, sizeof(*k));
	if (k == NULL)
		return od_fail(err, OD_ERR_NOMEM, "keys");
	rc = load_own(k, args->key, why, err);
	if (rc == OD_OK)
		rc = load_peers(k, args, need_peers, err);
	if (rc != OD_OK) {
		od_keys_free(k);
		return rc;
	}
	*out = k;
	return OD_OK;
}

int od_keys_of_host(const struct od_keys *k, const char *host, uint16_t port, const uint8_t **out, struct od_err *err)
{
	char name[300];
	int rc;

	snprintf(name, sizeof(name), "%s:%u", host, (unsigned)port);
	rc = od_peers_find(&k->peers, name, out, err);
	if (rc == OD_OK && *out == NULL)
		rc = od_peers_find(&k->peers, host, out, err);
	return rc == OD_OK ? rc : od_fail_within(err, "%s", k->peers_path);
}

void od_keys_free(struct od_keys *k)
{
	if (k == NULL)
		return;
	od_peers_fini(&k->peers);
	sodium_memzero(k, sizeof(*k));
	free(k);
}
