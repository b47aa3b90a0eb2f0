/* od-pack: a checkpoint to a pack, and what there is to know about one. */
#include "common/base/args.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/pool.h"
#include "common/base/version.h"
#include "common/pack/pack_info.h"
#include "common/pack/pack_verify.h"
#include "common/pack/pack_write.h"

#include <inttypes.h>
#include <limits.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum exit_status { EXIT_GOOD = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

#define THREADS_MAX 16 /* each has a few MiB of buffers; the ceiling is 512 MiB */

static const char *const shadow_choices[] = { "none", "int8", NULL };

struct options {
	bool help, version, force, json;
	uint64_t n_threads;
	int shadow; /* index into shadow_choices */
	const char *against;
	const char *word[3];
	size_t n_words;
};

/* ---- progress: a bar on a terminal, a line now and then elsewhere ---- */

#define BAR_CELLS 30
#define BAR_EVERY_NS (100 * OD_NS_PER_MS)
#define LINE_MIN_NS (2 * OD_NS_PER_S)
#define LINE_MAX_NS (10 * OD_NS_PER_S)

struct bar {
	const char *verb;
	bool tty, open;
	uint64_t begin_ns, last_ns;
	int last_tenth;
};

static void bar_init(struct bar *b, const char *verb)
{
	*b = (struct bar){ .verb = verb, .tty = isatty(STDERR_FILENO) != 0, .begin_ns = od_now_ns() };
	b->last_ns = b->begin_ns;
}

static void bar_draw(struct bar *b, double part, double mb_per_s, double eta_s)
{
	char cells[BAR_CELLS + 1];

	for (int i = 0; i < BAR_CELLS; i++)
		cells[i] = i < (int)(part * BAR_CELLS) ? '#' : '.';
	cells[BAR_CELLS] = '\0';
	fprintf(stderr, "\r%s [%s] %3d%%  %.0f MB/s  ETA %d:%02d  ", b->verb, cells, (int)(part * 100), mb_per_s,
		(int)eta_s / 60, (int)eta_s % 60);
	fflush(stderr);
	b->open = true;
}

static void on_progress(void *arg, uint64_t done, uint64_t all)
{
	struct bar *b = arg;
	uint64_t now = od_now_ns();
	double part = all > 0 ? (double)done / (double)all : 1, rate, eta;
	int tenth = (int)(part * 10);

	rate = (double)done / (od_seconds(now - b->begin_ns) + 1e-9);
	eta = (double)(all - done) / (rate + 1);
	if (b->tty) {
		if (now - b->last_ns < BAR_EVERY_NS && done < all)
			return;
		bar_draw(b, part, rate / 1e6, eta);
	} else {
		/* Ten lines in all, but none for what takes no time, and a sign of life every ten seconds. */
		if (now - b->last_ns < (tenth != b->last_tenth ? LINE_MIN_NS : LINE_MAX_NS))
			return;
		fprintf(stderr, "%s: %d%%, %.0f MB/s, %.0f s left\n", b->verb, (int)(part * 100), rate / 1e6, eta);
		b->last_tenth = tenth;
	}
	b->last_ns = now;
}

static void bar_end(struct bar *b)
{
	if (b->open)
		fputc('\n', stderr);
	b->open = false;
}

static void on_note(void *arg, const char *text)
{
	bar_end(arg);
	fprintf(stderr, "od-pack: %s\n", text);
}

/* ---- commands ---- */

/* Messages quote names from files; no file shall move the cursor. */
static void print_error(struct od_err *err)
{
	for (char *c = err->msg; *c != '\0'; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			*c = '?';
	fprintf(stderr, "od-pack: error: %s\n", err->msg);
}

static int usage_error(const char *text)
{
	/* What the parser says may point there already. */
	fprintf(stderr, "od-pack: %s%s\n", text, strstr(text, "see --help") != NULL ? "" : "; see od-pack --help");
	return EXIT_USAGE;
}

static int cmd_pack(const struct options *o)
{
	struct bar bar;
	struct od_err err;
	char kept[PATH_MAX];
	const struct od_pack_job job = {
		.checkpoint = o->word[0],
		.pack = o->word[1],
		.int8 = o->shadow == 1,
		.force = o->force,
		.n_threads = (unsigned)o->n_threads,
		.note = on_note,
		.progress = on_progress,
		.arg = &bar,
		.kept = kept,
	};
	int rc;

	bar_init(&bar, "packing");
	rc = od_pack_write(&job, &err);
	bar_end(&bar);
	if (rc != OD_OK) {
		print_error(&err);
		if (kept[0] != '\0')
			fprintf(stderr, "od-pack: what is done so far is kept in %s; run the same command again to go "
				"on\n", kept);
		return EXIT_FAILED;
	}
	printf("%s is complete.\n", o->word[1]);
	return EXIT_GOOD;
}

static int cmd_verify(const struct options *o)
{
	struct bar bar;
	struct od_err err;
	const struct od_verify_job job = {
		.pack = o->word[1],
		.against = o->against,
		.n_threads = (unsigned)o->n_threads,
		.progress = on_progress,
		.arg = &bar,
	};
	int rc;

	bar_init(&bar, "verifying");
	rc = od_pack_verify(&job, &err);
	bar_end(&bar);
	if (rc != OD_OK) {
		print_error(&err);
		return EXIT_FAILED;
	}
	printf("%s: good%s%s\n", o->word[1], o->against != NULL ? ", and the same as " : "",
	       o->against != NULL ? o->against : "");
	return EXIT_GOOD;
}

static int cmd_info(const struct options *o)
{
	struct od_pack *pack;
	struct od_err err;
	int rc = od_pack_open(&pack, o->word[1], &err);

	if (rc == OD_OK)
		rc = od_pack_info(pack, o->json, stdout, &err);
	od_pack_close(pack);
	if (rc != OD_OK) {
		print_error(&err);
		return EXIT_FAILED;
	}
	return EXIT_GOOD;
}

static void print_help(const struct od_arg *table, size_t n)
{
	printf("od-pack CHECKPOINT PACK            make a pack from a checkpoint folder (config.json, *.safetensors)\n"
	       "od-pack verify PACK                check every byte of a pack\n"
	       "od-pack info PACK                  what is in a pack\n"
	       "\n"
	       "PACK appears when it is complete; until then it is PACK.partial. Interrupted, the same command goes\n"
	       "on where it stopped. Exit status: 0 good, 1 failed, 2 wrong usage.\n");
	od_args_help(stdout, table, n);
}

static int run(const struct options *o)
{
	const char *word = o->n_words > 0 ? o->word[0] : "";
	bool verify = strcmp(word, "verify") == 0, info = strcmp(word, "info") == 0;

	if (o->n_words != 2)
		return usage_error(verify || info ? "expected one PACK" : "expected CHECKPOINT and PACK");
	if (o->against != NULL && !verify)
		return usage_error("--against belongs to od-pack verify");
	if (o->json && !info)
		return usage_error("--json belongs to od-pack info");
	if (o->force && (verify || info))
		return usage_error("--force belongs to packing");
	if (verify)
		return cmd_verify(o);
	return info ? cmd_info(o) : cmd_pack(o);
}

int main(int argc, char **argv)
{
	struct options o = { .shadow = 1, .n_threads = od_cpu_count() };
	const struct od_arg table[] = {
		{ .kind = OD_ARG_TITLE, .help = "Packing" },
		{ .name = "shadow", .kind = OD_ARG_CHOICE, .out = &o.shadow, .metavar = "int8|none",
		  .help = "quantised copy of the model for od-shadow (default: int8)", .choices = shadow_choices },
		{ .name = "force", .kind = OD_ARG_FLAG, .out = &o.force, .help = "replace PACK if it exists" },
		{ .name = "threads", .kind = OD_ARG_UINT, .out = &o.n_threads, .metavar = "N",
		  .help = "threads to use (default: one for each CPU, at most 16)", .min = 1, .max = THREADS_MAX },
		{ .kind = OD_ARG_TITLE, .help = "Looking" },
		{ .name = "against", .kind = OD_ARG_STRING, .out = &o.against, .metavar = "CHECKPOINT",
		  .help = "verify: also compare every tensor with this checkpoint" },
		{ .name = "json", .kind = OD_ARG_FLAG, .out = &o.json, .help = "info: as JSON" },
		{ .name = "help", .kind = OD_ARG_FLAG, .out = &o.help, .help = "this text" },
		{ .name = "version", .kind = OD_ARG_FLAG, .out = &o.version, .help = "the version" },
	};
	const size_t n = sizeof(table) / sizeof(table[0]);
	struct od_err err;

	od_log_init("od-pack", OD_LOG_INFO);
	o.n_threads = o.n_threads < THREADS_MAX ? o.n_threads : THREADS_MAX;
	if (od_args_parse(table, n, argc, argv, o.word, 3, &o.n_words, &err) != OD_OK)
		return usage_error(err.msg);
	if (o.help) {
		print_help(table, n);
		return EXIT_GOOD;
	}
	if (o.version) {
		printf("od-pack %s\n", OD_VERSION);
		return EXIT_GOOD;
	}
	if (sodium_init() < 0) {
		fprintf(stderr, "od-pack: error: libsodium does not start\n");
		return EXIT_FAILED;
	}
	return run(&o);
}
