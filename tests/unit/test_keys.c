/* Keys as text and in files. The pairs are those of ZeroMQ's manual page zmq_curve(7). */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/net/hosts.h"
#include "common/net/keys.h"

#define CLIENT_PUBLIC "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID"
#define CLIENT_SECRET "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs"
#define SERVER_PUBLIC "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
#define SERVER_SECRET "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"

static const uint8_t server_public[OD_KEY_BYTES] = {
	0x54, 0xfc, 0xba, 0x24, 0xe9, 0x32, 0x49, 0x96, 0x93, 0x16, 0xfb, 0x61, 0x7c, 0x87, 0x2b, 0xb0,
	0xc1, 0xd1, 0xff, 0x14, 0x80, 0x04, 0x27, 0xc5, 0x94, 0xcb, 0xfa, 0xcf, 0x1b, 0xc2, 0xd6, 0x52,
};
static const uint8_t client_public[OD_KEY_BYTES] = {
	0xbb, 0x88, 0x47, 0x1d, 0x65, 0xe2, 0x65, 0x9b, 0x30, 0xc5, 0x5a, 0x53, 0x21, 0xce, 0xbb, 0x5a,
	0xab, 0x2b, 0x70, 0xa3, 0x98, 0x64, 0x5c, 0x26, 0xdc, 0xa2, 0xb2, 0xfc, 0xb4, 0x3f, 0xc5, 0x18,
};

static char dir[] = "/tmp/od-keys-XXXXXX", path[64];

static void says(const char *text, const char *wanted)
{
	if (strstr(text, wanted) == NULL)
		fail_msg("\"%s\" does not contain \"%s\"", text, wanted);
}

static void write_file(const char *text, mode_t mode)
{
	FILE *f = fopen(path, "w");

	assert_non_null(f);
	assert_int_equal(fputs(text, f) >= 0, 1);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(chmod(path, mode), 0);
}

static void a_key_as_text(void **state)
{
	static const char *const bad[][2] = {
		{ "", "40 characters, found 0" },
		{ "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hI", "found 39" },
		{ CLIENT_PUBLIC "D", "found 41" },
		{ "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hI\"", "Z85" },
		{ "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hI\xff", "Z85" },
		{ "#ne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID", "Z85" }, /* more than 32 bits */
		{ "0000000000000000000000000000000000000000", "zeros" },
	};
	char text[OD_KEY_CHARS + 1];
	uint8_t key[OD_KEY_BYTES];
	struct od_err err;

	(void)state;
	assert_int_equal(od_key_parse(key, SERVER_PUBLIC, &err), OD_OK);
	assert_memory_equal(key, server_public, sizeof(key));
	assert_int_equal(od_key_parse(key, CLIENT_PUBLIC, &err), OD_OK);
	assert_memory_equal(key, client_public, sizeof(key));
	assert_string_equal(od_key_text(server_public, text), SERVER_PUBLIC);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(od_key_parse(key, bad[i][0], &err), OD_ERR_ARG);
		says(err.msg, bad[i][1]);
	}
}

static void secret_files(void **state)
{
	static const char *const bad[][2] = {
		{ "", "expected a secret key, found none" },
		{ "# nothing\n", "expected a secret key, found none" },
		{ SERVER_SECRET " name\n",
		  "line 1: expected a secret key alone on its line, found more words: is this a file of public" },
		{ SERVER_SECRET "\n" SERVER_SECRET "\n", "line 2: expected one secret key, found a second" },
		{ "\n\n"
		  "abc\n",
		  "line 3: expected a key of 40 characters, found 3" },
	};
	struct od_key_pair pair;
	struct od_err err;

	(void)state;
	write_file("# comment\n\n  " SERVER_SECRET "  # another\r\n", 0600);
	assert_int_equal(od_key_pair_load(&pair, path, &err), OD_OK);
	assert_memory_equal(pair.public_key, server_public, OD_KEY_BYTES);
	write_file(CLIENT_SECRET, 0400);
	assert_int_equal(od_key_pair_load(&pair, path, &err), OD_OK);
	assert_memory_equal(pair.public_key, client_public, OD_KEY_BYTES);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		static const struct od_key_pair none;

		write_file(bad[i][0], 0600);
		assert_int_not_equal(od_key_pair_load(&pair, path, &err), OD_OK);
		says(err.msg, bad[i][1]);
		says(err.msg, path);
		assert_memory_equal(&pair, &none, sizeof(pair));
	}
}

static void secret_files_that_others_can_read(void **state)
{
	static const mode_t modes[] = { 0640, 0604, 0620, 0602, 0610, 0601, 0666 };
	struct od_key_pair pair;
	char expected[128];
	struct od_err err;

	(void)state;
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		write_file(SERVER_SECRET "\n", modes[i]);
		assert_int_equal(od_key_pair_load(&pair, path, &err), OD_ERR_ARG);
		snprintf(expected, sizeof(expected), "has mode %04o", (unsigned)modes[i]);
		says(err.msg, expected);
		snprintf(expected, sizeof(expected), "chmod 600 %s", path);
		says(err.msg, expected);
	}
	assert_int_equal(unlink(path), 0);
	assert_int_not_equal(od_key_pair_load(&pair, path, &err), OD_OK);
	says(err.msg, path);
}

static void peers(void **state)
{
	static const char text[] = "# who may come\n" SERVER_PUBLIC " box1\r\n\n\t" CLIENT_PUBLIC
				   "\t# no name\n" CLIENT_PUBLIC " BOX2:5701 # again\n"
				   "#" CLIENT_PUBLIC " revoked";
	struct od_peers p;
	const uint8_t *key;
	struct od_err err;

	(void)state;
	assert_int_equal(od_peers_parse(&p, text, sizeof(text) - 1, "peers", &err), OD_OK);
	assert_int_equal(p.n, 3);
	assert_memory_equal(p.peer[0].key, server_public, OD_KEY_BYTES);
	assert_string_equal(p.peer[0].name, "box1");
	assert_int_equal(p.peer[0].line, 2);
	assert_memory_equal(p.peer[1].key, client_public, OD_KEY_BYTES);
	assert_string_equal(p.peer[1].name, "");
	assert_int_equal(p.peer[2].line, 5);
	assert_int_equal(od_peers_find(&p, "Box1", &key, &err), OD_OK);
	assert_ptr_equal(key, p.peer[0].key);
	assert_int_equal(od_peers_find(&p, "box3", &key, &err), OD_OK);
	assert_null(key);
	snprintf(p.peer[2].name, sizeof(p.peer[2].name), "box1");
	assert_int_equal(od_peers_find(&p, "box1", &key, &err), OD_ERR_ARG);
	assert_null(key);
	says(err.msg, "two keys have the name box1 (lines 2 and 5)");
	od_peers_fini(&p);
	assert_null(p.peer);
}

static void bad_peers(void **state)
{
	static const char *const bad[][2] = {
		{ "\nbox1 " CLIENT_PUBLIC, "peers line 2: expected a key of 40 characters, found 4" },
		{ CLIENT_PUBLIC " box1 box2", "peers line 1: expected a key and a name, found a third word" },
		{ CLIENT_PUBLIC " a b c", "peers line 1: expected a key and a name" },
		{ CLIENT_PUBLIC "x", "found 41" },
	};
	struct od_peers p = { .n = 7 };
	char *text = malloc((OD_MAX_PEERS + 1) * (OD_KEY_CHARS + 1));
	struct od_err err;

	(void)state;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_not_equal(od_peers_parse(&p, bad[i][0], strlen(bad[i][0]), "peers", &err), OD_OK);
		says(err.msg, bad[i][1]);
		assert_null(p.peer);
		assert_int_equal(p.n, 0);
	}
	assert_non_null(text);
	for (size_t i = 0; i <= OD_MAX_PEERS; i++)
		memcpy(text + i * (OD_KEY_CHARS + 1), CLIENT_PUBLIC "\n", OD_KEY_CHARS + 1);
	assert_int_equal(od_peers_parse(&p, text, OD_MAX_PEERS * (OD_KEY_CHARS + 1), "peers", &err), OD_OK);
	assert_int_equal(p.n, OD_MAX_PEERS);
	od_peers_fini(&p);
	assert_int_equal(od_peers_parse(&p, text, (OD_MAX_PEERS + 1) * (OD_KEY_CHARS + 1), "peers", &err), OD_ERR_ARG);
	says(err.msg, "more than");
	free(text);
}

static void hosts_have_keys(void **state)
{
	static const char text[] =
		"shadow box9:1 key=" SERVER_PUBLIC " # comment\n10.0.0.1 key=" CLIENT_PUBLIC "#\nbox2#key=x\n";
	static const char good[] =
		"shadow box9:1 key=" SERVER_PUBLIC " # comment\n10.0.0.1\tkey=" CLIENT_PUBLIC "\nbox2#key=x\n";
	static const char hash[] = "box1 key=Yne@#w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID\n"; /* '#' as a digit */
	static const char twice[] = "box1 key=" CLIENT_PUBLIC " key=" SERVER_PUBLIC "\n";
	struct od_hosts h;
	struct od_err err;

	(void)state;
	assert_int_equal(od_hosts_parse(&h, text, sizeof(text) - 1, "hosts.txt", &err), OD_ERR_ARG);
	says(err.msg, "hosts.txt line 2: key=: expected a key of 40 characters, found 41");
	assert_int_equal(od_hosts_parse(&h, good, sizeof(good) - 1, "hosts.txt", &err), OD_OK);
	assert_int_equal(h.n, 3);
	assert_true(h.host[0].has_key && h.host[1].has_key && !h.host[2].has_key);
	assert_memory_equal(h.host[0].key, server_public, OD_KEY_BYTES);
	assert_memory_equal(h.host[1].key, client_public, OD_KEY_BYTES);
	assert_string_equal(h.host[2].host, "box2");
	od_hosts_fini(&h);
	assert_int_equal(od_hosts_parse(&h, hash, sizeof(hash) - 1, "hosts.txt", &err), OD_OK);
	assert_true(h.host[0].has_key);
	assert_int_equal(h.host[0].key[3] - client_public[3], 1); /* '#' is the digit after '$' */
	od_hosts_fini(&h);
	assert_int_equal(od_hosts_parse(&h, twice, sizeof(twice) - 1, "hosts.txt", &err), OD_ERR_ARG);
	says(err.msg, "expected key= once, found it twice");
}

static void what_a_process_uses(void **state)
{
	struct od_keys_args a = { 0 };
	struct od_keys *k = (void *)1;
	const uint8_t *key;
	struct od_err err;
	char peers_path[80];
	FILE *f;

	(void)state;
	snprintf(peers_path, sizeof(peers_path), "%s/peers", dir);
	assert_int_equal(setenv("OD_KEYS", dir, 1), 0);
	unlink(path);
	assert_int_equal(od_keys_open(&k, &a, NULL, true, &err), OD_OK);
	assert_null(k); /* loopback */
	assert_int_equal(od_keys_open(&k, &a, "hosts.txt line 1: host 127.0.0.1 has a key", true, &err),
			 OD_ERR_MISSING);
	says(err.msg, "hosts.txt line 1: host 127.0.0.1 has a key, so traffic is encrypted, and this node has no key");
	says(err.msg, "od-main keygen");
	says(err.msg, "--insecure");
	says(err.msg, path);
	a.insecure = true;
	assert_int_equal(od_keys_open(&k, &a, "--listen 0.0.0.0", true, &err), OD_OK);
	assert_null(k);
	a.peers = peers_path;
	assert_int_equal(od_keys_open(&k, &a, NULL, true, &err), OD_ERR_ARG);
	says(err.msg, "--insecure and --peers exclude each other");
	a = (struct od_keys_args){ 0 };
	write_file(SERVER_SECRET "\n", 0600);
	assert_int_equal(od_keys_open(&k, &a, "--listen 0.0.0.0", true, &err), OD_ERR_MISSING);
	says(err.msg, "there is no file ");
	says(err.msg, peers_path);
	says(err.msg, "node.pub");
	f = fopen(peers_path, "w");
	fclose(f);
	assert_int_equal(od_keys_open(&k, &a, "--listen 0.0.0.0", true, &err), OD_ERR_MISSING);
	says(err.msg, "peers lists no key, so no node could connect");
	unlink(peers_path);
	assert_int_equal(od_keys_open(&k, &a, "--listen 0.0.0.0", false, &err), OD_OK);
	assert_int_equal(k->peers.n, 0);
	assert_string_equal(k->peers_path, "");
	od_keys_free(k);
	f = fopen(peers_path, "w");
	fputs(CLIENT_PUBLIC " box1\n" SERVER_PUBLIC " box1:5702\n", f);
	fclose(f);
	assert_int_equal(od_keys_open(&k, &a, "--listen 0.0.0.0", true, &err), OD_OK);
	assert_memory_equal(k->own.public_key, server_public, OD_KEY_BYTES);
	assert_int_equal(od_keys_of_host(k, "box1", 5701, &key, &err), OD_OK);
	assert_memory_equal(key, client_public, OD_KEY_BYTES);
	assert_int_equal(od_keys_of_host(k, "box1", 5702, &key, &err), OD_OK);
	assert_memory_equal(key, server_public, OD_KEY_BYTES);
	assert_int_equal(od_keys_of_host(k, "box2", 5702, &key, &err), OD_OK);
	assert_null(key);
	od_keys_free(k);
	a.key = path; /* asked for, so loopback has keys, too */
	assert_int_equal(od_keys_open(&k, &a, NULL, true, &err), OD_OK);
	assert_non_null(k);
	od_keys_free(k);
	unlink(peers_path);
}

static void new_pairs(void **state)
{
	struct od_key_pair a, b;
	char text[OD_KEY_CHARS + 1];
	struct od_err err;

	(void)state;
	assert_int_equal(od_key_pair_new(&a, &err), OD_OK);
	assert_int_equal(od_key_pair_new(&b, &err), OD_OK);
	assert_memory_not_equal(a.secret_key, b.secret_key, OD_KEY_BYTES);
	write_file(od_key_text(a.secret_key, text), 0600);
	assert_int_equal(od_key_pair_load(&b, path, &err), OD_OK);
	assert_memory_equal(a.public_key, b.public_key, OD_KEY_BYTES);
	for (int i = 0; i < 100; i++) { /* two keys in three have one */
		assert_int_equal(od_key_pair_new(&a, &err), OD_OK);
		assert_null(strchr(od_key_text(a.public_key, text), '#'));
		assert_null(strchr(od_key_text(a.secret_key, text), '#'));
	}
}

static int make_folder(void **state)
{
	(void)state;
	if (mkdtemp(dir) == NULL)
		return -1;
	snprintf(path, sizeof(path), "%s/%s", dir, OD_KEY_NAME);
	return 0;
}

static int remove_folder(void **state)
{
	(void)state;
	unlink(path);
	return rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_key_as_text),
		cmocka_unit_test(secret_files),
		cmocka_unit_test(secret_files_that_others_can_read),
		cmocka_unit_test(peers),
		cmocka_unit_test(bad_peers),
		cmocka_unit_test(hosts_have_keys),
		cmocka_unit_test(what_a_process_uses),
		cmocka_unit_test(new_pairs),
	};

	return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
