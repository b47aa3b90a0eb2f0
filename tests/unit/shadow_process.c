#include "tests/unit/shadow_process.h"

#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

static char dir[64];
char pack_dir[96];
struct od_pack *pack;
const struct od_config *cfg;

/* ---- Processes ---- */

pid_t start(const char *const *args, int *ready, int *errors)
{
	const char *b = getenv("B");
	posix_spawn_file_actions_t actions;
	int fds[2], text[2];
	char program[256];
	pid_t pid;

	snprintf(program, sizeof(program), "%s/%s/%s", b != NULL ? b : "build",
		 strcmp(args[0], "od-shadow") == 0 ? "tests" : "bin", args[0]);
	assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
	assert_int_equal(pipe2(text, O_CLOEXEC), 0);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, fds[1], 3);
	posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	if (errors != NULL)
		posix_spawn_file_actions_adddup2(&actions, text[1], STDERR_FILENO);
	assert_int_equal(posix_spawn(&pid, program, &actions, NULL, (char *const *)args, environ), 0);
	posix_spawn_file_actions_destroy(&actions);
	close(fds[1]);
	close(text[1]);
	if (ready != NULL)
		*ready = fds[0];
	else
		close(fds[0]);
	if (errors != NULL)
		*errors = text[0];
	else
		close(text[0]);
	return pid;
}

int finish(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void read_all(int fd, char *text, size_t size)
{
	size_t used = 0;
	ssize_t n;

	while (used < size - 1 && (n = read(fd, text + used, size - 1 - used)) > 0)
		used += (size_t)n;
	text[used] = '\0';
	close(fd);
}

enum od_cpu shadow_cpu = OD_CPU_AUTO;
const char *shadow_layer_ms = "0";
const struct od_shadow_choice bf16 = { OD_PRECISION_BF16, OD_PRECISION_BF16, OD_ACT_FASTER, OD_FORM_PLAIN };
const struct od_shadow_choice int8 = { OD_PRECISION_INT8, OD_PRECISION_INT8, OD_ACT_FASTER, OD_FORM_PLAIN };

pid_t start_limited(const struct od_shadow_choice *c, const char *departure, const char *limit, uint16_t *port)
{
	char text[16], parent[16];
	const char *const args[] = { "od-shadow", "--pack", pack_dir, "--precision", od_precision_names[c->experts - 1],
				     "--departure", departure, "--port", "0", "--ready-fd", "3", "--die-with-parent",
				     parent, "--threads", "2", "--quiet", "--memory-limit", limit, "--cpu",
				     od_cpu_names[shadow_cpu], "--layer-time", shadow_layer_ms,
				     /* Not said when it is the same. */
				     c->dense != c->experts ? "--dense-precision" : NULL,
				     od_precision_names[c->dense - 1], NULL };
	int ready;
	pid_t pid;

	snprintf(parent, sizeof(parent), "%d", (int)getpid());
	pid = start(args, &ready, NULL);
	read_all(ready, text, sizeof(text));
	*port = (uint16_t)strtoul(text, NULL, 10);
	assert_int_not_equal(*port, 0);
	return pid;
}

pid_t start_shadow(const struct od_shadow_choice *c, const char *departure, uint16_t *port)
{
	return start_limited(c, departure, "4GiB", port);
}

void stop_shadow(pid_t pid)
{
	kill(pid, SIGTERM);
	assert_int_equal(finish(pid), 0);
}

/* ---- The pack ---- */

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at)
{
	(void)st;
	(void)kind;
	(void)at;
	return remove(path);
}

int make_pack(void **state)
{
	char checkpoint[96];
	const char *const synth[] = { "od-bench", "synth", checkpoint, "--preset", "tiny",
				      "--ctx",	  "256",   "--json",   NULL };
	const char *const do_pack[] = { "od-pack", checkpoint, pack_dir,	"--threads",
					"1",	   "--shadow", "int8,fp16,nf4", NULL };
	struct od_err err;
	char text[4096];
	int errors;
	pid_t pid;

	(void)state;
	snprintf(dir, sizeof(dir), "/tmp/od-test-shadow-XXXXXX");
	assert_non_null(mkdtemp(dir));
	snprintf(checkpoint, sizeof(checkpoint), "%s/model", dir);
	snprintf(pack_dir, sizeof(pack_dir), "%s/pack", dir);
	assert_int_equal(finish(start(synth, NULL, NULL)), 0);
	pid = start(do_pack, NULL, &errors);
	read_all(errors, text, sizeof(text));
	if (finish(pid) != 0)
		fail_msg("od-pack: %s", text);
	assert_ok(od_pack_open(&pack, pack_dir, &err), &err);
	cfg = od_pack_config(pack);
	assert_true(cfg->n_moe <= MAX_LAYERS && cfg->top_k <= MAX_K);
	return 0;
}

int remove_pack(void **state)
{
	(void)state;
	od_pack_close(pack);
	return nftw(dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}
