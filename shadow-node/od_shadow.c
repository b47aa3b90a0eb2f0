/* od-shadow: a quantised copy of the whole model that runs ahead of main and predicts the next experts. This file
 * is the wiring: command line, memory, the control socket's loop and the emulator thread.
 *
 * Two threads. The loop thread runs the daemon and its callbacks; the emulator thread owns the data port, the
 * emulator and the device. The loop thread passes session data to the emulator thread through a mailbox. */
#include "common/base/clock.h"
#include "common/base/hangup.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/pulse.h"
#include "common/compute/cards.h"
#include "common/compute/device.h"
#include "common/compute/open_device.h"
#include "common/daemon/daemon_args.h"
#include "common/net/hosts.h"
#include "common/pack/load/expert_form.h"
#include "common/pack/shadow/shadow_load.h"
#include "common/pair/pair_join.h"
#include "shadow-node/emulator_messages.h"
#include "shadow-node/part.h"
#include "shadow-node/publish.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UNASKED_PARTS 2 /* without --memory-limit: other programs may need the rest */
#define CEILING_EXTRA_BYTES (256u << 20) /* above model and state: design section 6 */
#define MESSAGES_PER_PIECE 64 /* taken before the next piece of work */
#define MAX_PACE_MS 60000

static struct od_daemon_about about = {
	.role = "shadow",
	.port = OD_DEFAULT_SHADOW_PORT,
	.usage = "Usage: od-shadow [--pack MODEL] [--precision P] [--listen ADDR]\n"
		 "       od-shadow join [--enable] WORDS [ADDRESS]   (od-shadow join --help)\n"
		 "Runs a quantised copy of the model ahead of od-main and predicts the next experts.\n",
};

struct shadow_options {
	struct od_daemon_args common;
	uint64_t memory_limit; /* UINT64_MAX: none was given */
	int precision, dense_precision; /* index into od_precision_names; -1: od_shadow_default; dense: -1, the same */
	int departure; /* index into departures */
	char *layers; /* "A-B"; NULL: all */
	double layer_time_ms; /* paced, for measurements; 0: as fast as it goes */
};

enum { LATE, EARLY };
static const char *const departures[] = { "late", "early", NULL };

/* Mail from the loop thread to the emulator thread; only the newest one counts. */
struct mail {
	bool fresh;
	uint64_t session; /* 0: none */
	struct ods_emulator_opts opts;
	struct od_config config; /* opts', of this session */
};

struct shadow_daemon {
	struct shadow_options opt;
	struct od_pack *pack;
	struct od_shadow_choice choice;
	char precision[OD_SHADOW_CHOICE_CHARS]; /* its text */
	struct od_shadow_store *store;
	struct od_device *device; /* used by both profiles */
	uint64_t model_bytes, limit_bytes; /* limit: of all this process takes */
	struct od_split model; /* without sequences, their rows and their pages */
	struct od_keys *keys; /* NULL: none */
	struct od_daemon *daemon;
	struct od_data_port *port;
	pthread_t thread;
	bool has_thread;
	atomic_bool stopping, busy;
	_Atomic uint64_t progress;
	struct od_pulse pulse; /* the emulator thread's */

	/* The loop thread's: what HELLO asked for, and the model's configuration with main's routing. */
	struct ods_emulator_opts accepted;
	struct od_config accepted_config;

	pthread_mutex_t lock;
	/* Under lock: */
	struct mail mail;
	uint64_t told[OD_N_COUNTERS]; /* counters, as PONG has them */

	/* The emulator thread's. */
	uint64_t session;
	struct ods_emulator *emulator; /* NULL between sessions, and in a shadow that holds further layers */
	struct ods_emulator_opts opts; /* the session's */
	struct od_config config;
	struct ods_chain *chain; /* a first shadow's links to the holders of the other layers, since PARTS */
	struct ods_part *part; /* set in a shadow that holds further layers */
	struct ods_publisher publisher;
	uint64_t counters[OD_N_COUNTERS], before[OD_N_COUNTERS]; /* since the start; until this session */
};

/* ---- The emulator thread ---- */

static void end_emulation(struct shadow_daemon *s)
{
	uint64_t c[OD_N_COUNTERS];
	char text[600];

	ods_part_free(s->part);
	s->part = NULL;
	if (s->emulator != NULL) {
		od_counters_since(c, s->counters, s->before);
		od_log(OD_LOG_INFO, "session over: %s", od_counters_text(c, OD_OF_SHADOW, text, sizeof(text)));
	}
	ods_emulator_free(s->emulator);
	s->emulator = NULL;
	ods_chain_free(s->chain);
	s->chain = NULL;
}

static void send_to_first(void *arg, Od__Header *header, const struct od_out_frame *frames, size_t n_frames)
{
	struct shadow_daemon *s = arg;
	int rc;

	header->session = s->session;
	rc = od_data_port_send(s->port, header, frames, n_frames);
	if (rc != OD_OK)
		od_log_limited(OD_LOG_WARN, "cannot send %s: %s", od_body_name(header->body_case), od_status_text(rc));
}

static bool holds_all(const struct od_config *c)
{
	return od_config_begin(c) == 0 && od_config_end(c) == c->n_layers;
}

static int begin_emulator(struct shadow_daemon *s, struct od_err *err)
{
	const struct ods_sink sink = ods_publisher_sink(&s->publisher);

	memcpy(s->before, s->counters, sizeof(s->before));
	return ods_emulator_new(&s->emulator, &s->opts, &sink, err);
}

/* Takes the mail and publishes the counters for PONG. Buffers are allocated and freed here, not on the loop thread, so
 * that two sessions never hold buffers at the same time. */
static void read_mail(struct shadow_daemon *s)
{
	const struct od_config *c = od_pack_config(s->pack);
	struct od_err err;
	struct mail mail;
	int rc = OD_OK;

	pthread_mutex_lock(&s->lock);
	mail = s->mail;
	s->mail.fresh = false;
	memcpy(s->told, s->counters, sizeof(s->told));
	pthread_mutex_unlock(&s->lock);
	if (!mail.fresh)
		return;
	end_emulation(s);
	s->session = mail.session;
	if (mail.session == 0)
		return;
	s->opts = mail.opts;
	s->config = mail.config;
	s->opts.forward.config = &s->config;
	s->opts.counters = s->counters;
	s->publisher = (struct ods_publisher){
		.daemon = s->daemon, .port = s->port, .session = mail.session, .counters = s->counters
	};
	if (holds_all(c))
		rc = begin_emulator(s, &err);
	else if (od_config_begin(c) > 0)
		rc = ods_part_new(&s->part, &s->opts, send_to_first, s, &err);
	if (rc != OD_OK)
		od_log(OD_LOG_ERROR, "no predictions in this session: %s", err.msg);
}

/* While the emulator waits for another shadow. */
static bool is_interrupted(void *arg)
{
	struct shadow_daemon *s = arg;
	bool fresh;

	od_pulse_beat();
	pthread_mutex_lock(&s->lock);
	fresh = s->mail.fresh;
	pthread_mutex_unlock(&s->lock);
	return fresh || atomic_load(&s->stopping);
}

/* Once the chain is up. Its emulator has room for what all its parts have. */
static int begin_late(struct shadow_daemon *s, struct od_err *err)
{
	struct ods_emulator_opts *o = &s->opts;
	struct ods_chain_room room = { o->forward.max_rows, o->max_sequences, o->n_pages };
	bool fresh;
	int rc;

	if (!ods_chain_up(s->chain, od_now_ns(), &fresh))
		return OD_OK;
	rc = ods_chain_room(s->chain, &room, err);
	if (rc == OD_OK) {
		o->chain = s->chain;
		o->forward.max_rows = room.max_rows;
		o->max_sequences = room.max_sequences;
		o->n_pages = room.n_pages;
		rc = begin_emulator(s, err);
	}
	if (rc != OD_OK) {
		ods_chain_free(s->chain);
		s->chain = NULL;
	}
	return rc;
}

static int begin_chain(struct shadow_daemon *s, const Od__Parts *parts, struct od_err *err)
{
	const struct ods_chain_opts o = {
		.config = od_pack_config(s->pack), .keys = s->keys, .interrupted = is_interrupted, .arg = s
	};
	int rc;

	end_emulation(s);
	if (holds_all(o.config))
		return od_fail(err, OD_ERR_PROTOCOL, "this shadow holds all layers");
	rc = ods_chain_new(&s->chain, &o, parts, err);
	return rc == OD_OK ? begin_late(s, err) : rc;
}

static int dispatch(struct shadow_daemon *s, const struct od_msg *m, struct od_err *err)
{
	if (s->part != NULL)
		return ods_part_message(s->part, m, err);
	if (m->header->body_case == OD__HEADER__BODY_PARTS)
		return begin_chain(s, m->header->parts, err);
	return s->emulator != NULL ? ods_emulator_message(s->emulator, m, od_now_ns(), err) : OD_OK;
}

static void handle(struct shadow_daemon *s, const struct od_msg *m)
{
	struct od_err err;
	int rc;

	/* The session's begin was mailed before main learnt of it, so mail is never behind the data socket. */
	if (m->header->session != s->session)
		read_mail(s);
	if (m->header->session != s->session)
		return;
	rc = dispatch(s, m, &err);
	if (rc == OD_OK || rc == OD_ERR_BUSY)
		return;
	s->counters[OD_C_SHADOW_DROPPED]++;
	od_log_limited(OD_LOG_WARN, "data socket: dropped %s: %s", od_body_name(m->header->body_case), err.msg);
}

static void take_messages(struct shadow_daemon *s)
{
	struct od_msg m;

	for (int i = 0; i < MESSAGES_PER_PIECE && od_data_port_recv(s->port, &m) == OD_OK; i++) {
		handle(s, &m);
		atomic_fetch_add(&s->progress, s->part != NULL);
		od_msg_fini(&m);
	}
}

/* True when a piece of work was done. */
static bool work(struct shadow_daemon *s)
{
	struct od_err err;
	bool did;

	if (s->emulator == NULL && s->chain != NULL && begin_late(s, &err) != OD_OK)
		od_log(OD_LOG_ERROR, "no predictions in this session: %s", err.msg);
	if (s->emulator == NULL)
		return false;
	if (ods_emulator_work(s->emulator, od_now_ns(), &did, &err) != OD_OK) {
		od_log_limited(OD_LOG_WARN, "the predictions of a run were lost: %s", err.msg);
		return true; /* there may be other work */
	}
	return did;
}

/* Waits for a message, or for the emulator's deadline. The port counts whole milliseconds; a paced layer must end more
 * exactly, so the last part of its time is slept: a message then waits for less than a millisecond. */
static void wait_for_work(struct shadow_daemon *s)
{
	uint64_t deadline = s->emulator != NULL ? ods_emulator_deadline(s->emulator) :
			    s->chain != NULL	? ods_chain_deadline(s->chain) :
						  UINT64_MAX,
		 now = od_now_ns();
	const bool paced = s->opt.layer_time_ms > 0;

	if (deadline == UINT64_MAX)
		od_data_port_wait(s->port, -1);
	else if (paced && deadline < now + OD_NS_PER_MS)
		od_sleep_until(deadline);
	else
		od_data_port_wait(s->port, deadline > now ? (int)((deadline - now) / OD_NS_PER_MS) + !paced : 0);
}

static void *emulate(void *arg)
{
	struct shadow_daemon *s = arg;
	bool did;

	od_pulse_of_thread(&s->pulse);
	while (!atomic_load(&s->stopping)) {
		od_pulse_beat();
		take_messages(s);
		did = work(s);
		read_mail(s);
		if (did) {
			atomic_store(&s->busy, true);
			atomic_fetch_add(&s->progress, 1);
			continue;
		}
		/* Waiting for main is not a hang. */
		atomic_store(&s->busy, false);
		wait_for_work(s);
	}
	end_emulation(s);
	return NULL;
}

/* ---- The loop thread: callbacks of the daemon ---- */

static void leave_mail(struct shadow_daemon *s, uint64_t session)
{
	pthread_mutex_lock(&s->lock);
	s->mail = (struct mail){ .fresh = true, .session = session, .opts = s->accepted, .config = s->accepted_config };
	pthread_mutex_unlock(&s->lock);
	od_data_port_wake(s->port);
}

static int check_hello(const struct shadow_daemon *s, const Od__Hello *h, const char **field, struct od_err *err)
{
	const struct od_config *c = od_pack_config(s->pack);
	const char *ours;
	char class[32];

	*field = "profile";
	if (h->profile != OD_PROFILE_F32 && h->profile != OD_PROFILE_BF16)
		return od_fail(err, OD_ERR_MISMATCH, "profile: expected %d (f32) or %d (bf16), found %u",
			       OD_PROFILE_F32, OD_PROFILE_BF16, h->profile);
	*field = "kernel_class";
	ours = od_device_kernel_class(s->device, (enum od_profile)h->profile);
	if (!h->mixed && strcmp(h->kernel_class, ours) != 0)
		return od_fail(
			err, OD_ERR_MISMATCH,
			"kernel_class: expected %s, found %s (%s kernels on this shadow): "
			"predictions would be less accurate; choose kernels of one class with --cpu, of od-main or here, or allow it "
			"with od-main's --mixed",
			od_peer_text(h->kernel_class, class, sizeof(class)), ours,
			od_device_kernels(s->device, (enum od_profile)h->profile));
	*field = "ctx_tokens";
	if (h->ctx_tokens == 0 || h->ctx_tokens > c->ctx_max)
		return od_fail(err, OD_ERR_RANGE, "ctx_tokens: expected 1 to %u, found %u", c->ctx_max, h->ctx_tokens);
	*field = "max_rows";
	if (h->max_rows == 0)
		return od_fail(err, OD_ERR_RANGE, "max_rows: expected at least 1, found 0");
	*field = "max_sequences";
	if (h->max_sequences == 0 || h->max_sequences > ODS_MAX_SEQUENCES)
		return od_fail(err, OD_ERR_RANGE, "max_sequences: expected 1 to %d, found %u", ODS_MAX_SEQUENCES,
			       h->max_sequences);
	return OD_OK;
}

static int take_routing(struct shadow_daemon *s, const Od__Hello *h, const char **field, struct od_err *err)
{
	const struct od_cache_prior prior = { h->recent_experts, h->kept_experts, h->lambda };
	int rc;

	*field = "recent_experts, kept_experts, lambda";
	s->accepted_config = *od_pack_config(s->pack);
	rc = od_config_set_prior(&s->accepted_config, &prior, err);
	return rc == OD_OK ? rc : od_fail_within(err, "%s", *field);
}

static uint64_t base_bytes(const struct shadow_daemon *s)
{
	return ODS_BASE_BYTES + od_device_own_bytes(s->device);
}

/* After any return od_split_fini is valid. */
static int open_split(const struct shadow_daemon *s, const struct ods_emulator_opts *o, struct od_split *split,
		      struct od_err *err)
{
	int rc = od_split_copy(split, &s->model, err);

	if (rc == OD_OK)
		ods_emulator_split(o, split);
	return rc;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Main's default is a context for which it has memory itself; a longer text than there is room for here gets no
 * predictions. */
static uint32_t least_ctx(const struct ods_emulator_opts *o)
{
	return (uint32_t)smaller(o->ctx_tokens, od_config_least_ctx(o->forward.config));
}

/* One small context, and at least one page for each further sequence; then one full context, a small one for each, and
 * one `divisor`th of what is left, as far as memory allows. Returns the bytes of all, or 0: not even the first
 * fits. o->max_sequences: as many as main may open, or fewer if memory is short. */
static uint64_t choose_pages(const struct od_split *split, struct ods_emulator_opts *o, uint64_t divisor)
{
	const uint64_t ctx_pages = od_state_pages(o->ctx_tokens), least = od_state_pages(least_ctx(o));
	uint64_t n = 1, pages, most;

	if (!od_split_fits(split, least, 1))
		return 0;
	while (n < o->max_sequences && od_split_fits(split, least + n, n + 1))
		n++;
	most = smaller(od_split_most_pages(split, n), UINT32_MAX);
	pages = smaller(n * least > ctx_pages ? n * least : ctx_pages, most);
	pages = smaller(pages + (most - pages) / divisor, n * ctx_pages);
	o->max_sequences = (size_t)n;
	o->n_pages = (uint32_t)pages;
	return od_split_need(split, split->n_cards, pages, n);
}

static int plan_memory(const struct shadow_daemon *s, struct ods_emulator_opts *o, uint64_t *ceiling,
		       struct od_err *err)
{
	const uint64_t least = od_state_pages(least_ctx(o));
	const size_t asked = o->max_sequences;
	struct od_split split;
	char a[32], b[32], cards[OD_SPLIT_TEXT_BYTES];
	int rc = open_split(s, o, &split, err);
	uint64_t need = 0;

	if (rc == OD_OK) {
		od_split_count(&split, s->device);
		need = choose_pages(&split, o, s->opt.memory_limit != UINT64_MAX ? 1 : UNASKED_PARTS);
	}
	if (rc == OD_OK && need == 0) {
		need = od_split_need(&split, split.n_cards, least, 1);
		rc = od_fail(err, OD_ERR_NOMEM,
			     "ctx_tokens: %u tokens of context need %llu bytes here (%s), of %llu (%s): "
			     "try a smaller --ctx-size%s",
			     least_ctx(o), (unsigned long long)need, od_format_bytes(need, a, sizeof(a)),
			     (unsigned long long)s->limit_bytes, od_format_bytes(s->limit_bytes, b, sizeof(b)),
			     od_split_text(&split, s->device, least, 1, cards, sizeof(cards)));
	}
	od_split_fini(&split);
	if (rc != OD_OK)
		return rc;
	if (o->n_pages < od_state_pages(o->ctx_tokens))
		od_log(OD_LOG_WARN,
		       "main allows texts of %u tokens; this shadow has memory for %u, and predicts nothing for longer ones",
		       o->ctx_tokens, o->n_pages * OD_KV_PAGE);
	if (o->max_sequences < asked)
		od_log(OD_LOG_WARN, "main may open %zu sequences; this shadow has memory for %zu", asked,
		       o->max_sequences);
	*ceiling = s->opt.memory_limit != UINT64_MAX ? s->limit_bytes : need - ODS_BASE_BYTES + CEILING_EXTRA_BYTES;
	return OD_OK;
}

static int on_accept(void *arg, const Od__Hello *h, Od__Welcome *w, const char **field, struct od_err *err)
{
	struct shadow_daemon *s = arg;
	struct ods_emulator_opts *o = &s->accepted;
	int rc = check_hello(s, h, field, err);

	if (rc == OD_OK)
		rc = take_routing(s, h, field, err);
	if (rc != OD_OK)
		return rc;
	*o = (struct ods_emulator_opts){
		.forward = {
			.config = &s->accepted_config,
			.dense = od_shadow_dense(s->store),
			.device = s->device,
			.profile = (enum od_profile)h->profile,
			.max_rows = h->max_rows < ODS_MAX_STEP_ROWS ? h->max_rows : ODS_MAX_STEP_ROWS,
		},
		.experts = od_shadow_experts(s->store),
		.ctx_tokens = h->ctx_tokens,
		.max_sequences = h->max_sequences,
		.early = s->opt.departure == EARLY,
		.layer_ns = (uint64_t)(s->opt.layer_time_ms * OD_NS_PER_MS),
	};
	*field = "ctx_tokens";
	rc = plan_memory(s, o, &w->memory_bytes, err);
	if (rc != OD_OK)
		return rc;
	w->kernel_class = (char *)od_device_kernel_class(s->device, o->forward.profile);
	w->backend = (char *)od_device_name(s->device);
	w->precision = s->precision;
	w->threads = (uint32_t)s->opt.common.threads;
	w->first_layer = od_config_begin(o->forward.config);
	w->end_layer = od_config_end(o->forward.config);
	return OD_OK;
}

static void on_begin(void *arg, uint64_t session)
{
	leave_mail(arg, session);
}

static void on_end(void *arg, uint64_t session)
{
	(void)session;
	leave_mail(arg, 0);
}

/* All other control messages are between main and workers. */
static int on_message(void *arg, const struct od_msg *m, struct od_err *err)
{
	(void)arg;
	return od_fail(err, OD_ERR_PROTOCOL, "a shadow does not accept %s", od_body_name(m->header->body_case));
}

static void on_pong(void *arg, Od__Pong *p, uint64_t *c)
{
	struct shadow_daemon *s = arg;

	pthread_mutex_lock(&s->lock);
	od_counters_add(c, s->told);
	pthread_mutex_unlock(&s->lock);
	p->progress = atomic_load(&s->progress);
	p->busy = atomic_load(&s->busy);
}

static bool on_alive(void *arg)
{
	struct shadow_daemon *s = arg;
	const bool moved = od_pulse_moved(&s->pulse);

	od_data_port_wake(s->port);
	return moved;
}

static int on_failed(void *arg, struct od_err *why)
{
	return od_device_failed(((struct shadow_daemon *)arg)->device, why);
}

/* No drained: predictions are advice, so nothing is lost when a shadow leaves at once. */
static const struct od_daemon_ops daemon_ops = {
	.accept = on_accept,
	.begin = on_begin,
	.end = on_end,
	.message = on_message,
	.pong = on_pong,
	.alive = on_alive,
	.failed = on_failed,
};

/* ---- Start ---- */

/* "A-B", as --layers has it. */
static int take_layers(struct shadow_daemon *s, struct od_err *err)
{
	const char *text = s->opt.layers, *dash = strchr(text, '-');
	uint64_t begin, last;
	char first[16];

	if (dash == NULL || (size_t)(dash - text) >= sizeof(first))
		return od_fail(err, OD_ERR_ARG, "--layers: expected A-B, as in 0-15, found \"%s\"", text);
	snprintf(first, sizeof(first), "%.*s", (int)(dash - text), text);
	if (od_parse_u64(first, 0, OD_MAX_LAYERS - 1, &begin, err) != OD_OK ||
	    od_parse_u64(dash + 1, 0, OD_MAX_LAYERS - 1, &last, err) != OD_OK)
		return od_fail(err, OD_ERR_ARG, "--layers: expected A-B, as in 0-15, found \"%s\"", text);
	return od_pack_take_layers(s->pack, (uint32_t)begin, (uint32_t)last + 1, err);
}

static int need_bytes(struct shadow_daemon *s, uint64_t *need, struct od_err *err)
{
	int rc = od_shadow_need_bytes(s->pack, &s->choice, &s->model_bytes, err);

	if (rc == OD_OK && !od_add(s->model_bytes, base_bytes(s), need))
		*need = UINT64_MAX;
	return rc;
}

/* ": layers 0-20 would fit; ...", or "". */
static const char *advise_layers(struct shadow_daemon *s, char *text, size_t size)
{
	const struct od_config *c = od_pack_config(s->pack);
	const uint32_t begin = od_config_begin(c), end = od_config_end(c);
	uint64_t need;

	text[0] = '\0';
	for (uint32_t i = end - 1; i > begin && text[0] == '\0'; i--)
		if (od_pack_take_layers(s->pack, begin, i, NULL) == OD_OK && need_bytes(s, &need, NULL) == OD_OK &&
		    need <= s->limit_bytes)
			snprintf(
				text, size,
				". Layers %u-%u fit without their context: --layers gives this shadow a part, and another "
				"shadow of the hosts file the rest",
				begin, i - 1);
	(void)!od_pack_take_layers(s->pack, begin, end, NULL); /* as it was */
	return text;
}

/* Refuses a model that does not fit before it is read, with the numbers. */
static int check_memory(struct shadow_daemon *s, struct od_err *err)
{
	const struct od_config *c = od_pack_config(s->pack);
	bool given = s->opt.memory_limit != UINT64_MAX;
	uint64_t have = od_device_free_bytes(s->device), need;
	char a[32], b[32], memory[64], available[80], layers[64] = "", advice[200];
	int rc = need_bytes(s, &need, err);

	if (rc != OD_OK)
		return rc;
	s->limit_bytes = given ? s->opt.memory_limit : have != 0 ? have : UINT64_MAX;
	/* each of several cards has its own limit: deal_layers */
	if (need <= s->limit_bytes || (!given && od_device_cards(s->device) > 1))
		return OD_OK;
	if (s->opt.layers != NULL)
		snprintf(layers, sizeof(layers), "layers %u-%u of ", od_config_begin(c), od_config_end(c) - 1);
	snprintf(available, sizeof(available), "available %s are",
		 od_device_memory_name(s->device, memory, sizeof(memory)));
	return od_fail(err, OD_ERR_NOMEM,
		       "%sthe %s model of %s need%s %llu bytes (%s) besides %s context, %s %llu bytes (%s)%s", layers,
		       s->precision, od_pack_dir(s->pack), layers[0] == '\0' ? "s" : "", (unsigned long long)need,
		       od_format_bytes(need, a, sizeof(a)), layers[0] == '\0' ? "its" : "their",
		       given ? "--memory-limit is" : available, (unsigned long long)s->limit_bytes,
		       od_format_bytes(s->limit_bytes, b, sizeof(b)), advise_layers(s, advice, sizeof(advice)));
}

/* Deals the layers to the cards before main says how long texts may be, and how many rows a step has: room for as many
 * rows as there may be, if that is possible, and for most state. */
static int deal_layers(struct shadow_daemon *s, struct od_err *err)
{
	const struct od_config *c = od_pack_config(s->pack);
	struct ods_emulator_opts o = { .forward = { .config = c,
						    .device = s->device,
						    .profile = OD_PROFILE_F32,
						    .max_rows = ODS_MAX_STEP_ROWS },
				       .ctx_tokens = 1,
				       .max_sequences = 1 };
	bool fits = od_device_cards(s->device) == 1;
	const uint64_t limit = fits || s->opt.memory_limit != UINT64_MAX ? s->limit_bytes : UINT64_MAX;
	int rc = od_split_init(&s->model, s->device, c->n_layers, od_config_begin(c), od_config_end(c), limit, err);

	if (rc == OD_OK)
		rc = od_shadow_split(s->pack, &s->choice, &s->model, err);
	od_split_add(&s->model.beside.bytes, ODS_BASE_BYTES);
	for (; rc == OD_OK && !fits && o.forward.max_rows > 0; o.forward.max_rows /= 2) {
		struct od_split split;
		char cards[OD_SPLIT_TEXT_BYTES];

		rc = open_split(s, &o, &split, err);
		if (rc == OD_OK) {
			od_split_deal(&split, s->device, 1, 1);
			fits = od_split_fits(&split, 1, 1);
		}
		if (rc == OD_OK && !fits && o.forward.max_rows == 1)
			rc = od_fail(err, OD_ERR_NOMEM,
				     "layers %u-%u of the %s model of %s do not fit one after the other%s",
				     od_config_begin(c), od_config_end(c) - 1, s->precision, od_pack_dir(s->pack),
				     od_split_text(&split, s->device, 1, 1, cards, sizeof(cards)));
		if (rc == OD_OK && fits)
			od_split_log(&split, s->device, 1, 1);
		od_split_fini(&split);
	}
	return rc;
}

/* Whether there is room for a session, too, if main has its default context: what it needs, it says after the model is
 * loaded. */
static int check_session(const struct shadow_daemon *s, struct od_err *err)
{
	const struct od_config *c = od_pack_config(s->pack);
	struct ods_emulator_opts o = { .forward = { .config = c,
						    .device = s->device,
						    .profile = OD_PROFILE_F32,
						    .max_rows = ODS_MAX_STEP_ROWS },
				       .ctx_tokens = od_config_least_ctx(c),
				       .max_sequences = 1 };
	uint64_t ceiling;

	return plan_memory(s, &o, &ceiling, err);
}

static int plan_layers(struct shadow_daemon *s, struct od_err *err)
{
	int rc = check_memory(s, err);

	return rc == OD_OK ? deal_layers(s, err) : rc;
}

/* The form of experts is the faster one only if the model and a session fit with it. */
static int plan_form(struct shadow_daemon *s, struct od_err *err)
{
	int rc = od_pack_choose_form(s->pack, s->device, OD_FORM_AUTO, &s->choice.form, err), fits;

	if (rc == OD_OK)
		rc = plan_layers(s, err);
	fits = rc == OD_OK ? check_session(s, NULL) : rc;
	if (fits != OD_ERR_NOMEM || s->choice.form == OD_FORM_PLANES ||
	    od_pack_can_form(s->pack, OD_FORM_PLANES, NULL) != OD_OK)
		return rc;
	od_split_fini(&s->model);
	s->choice.form = OD_FORM_PLANES;
	rc = plan_layers(s, err);
	if (rc == OD_OK)
		od_log(OD_LOG_INFO,
		       "experts stay compressed in memory: as BF16 the model and its context would not fit");
	return rc;
}

static int plan_device(struct shadow_daemon *s, struct od_err *err)
{
	/* others have one form */
	int rc = s->choice.experts == OD_PRECISION_BF16 ? plan_form(s, err) : plan_layers(s, err);

	if (rc == OD_OK && od_device_can_fall_back(s->device)) /* else sessions with a smaller context may fit */
		rc = check_session(s, err);
	return rc;
}

static int open_device(struct shadow_daemon *s, struct od_err *err)
{
	const enum od_cpu cpu = (enum od_cpu)s->opt.common.cpu;
	const unsigned threads = (unsigned)s->opt.common.threads;
	int rc = od_device_open(&s->device, s->opt.common.device, cpu, threads, "od-compute", err);

	if (rc != OD_OK)
		return rc;
	rc = plan_device(s, err);
	if (rc == OD_OK)
		return rc;
	od_split_fini(&s->model);
	rc = od_device_fall_back(&s->device, rc, cpu, threads, "od-compute", err);
	return rc == OD_OK ? plan_device(s, err) : rc;
}

static void show_progress(void *arg, uint64_t done, uint64_t all)
{
	char a[32], b[32];

	(void)arg;
	fprintf(stderr, "\rloading the model: %s of %s%s", od_format_bytes(done, a, sizeof(a)),
		od_format_bytes(all, b, sizeof(b)), done == all ? "\n" : "   ");
}

static int load_model(struct shadow_daemon *s, struct od_err *err)
{
	int experts = s->opt.precision, dense = s->opt.dense_precision;
	unsigned threads = (unsigned)s->opt.common.threads;
	int rc = od_daemon_args_keys(&s->opt.common, NULL, &s->keys, err);

	if (rc == OD_OK)
		rc = od_pack_open(&s->pack, s->opt.common.pack, err);
	if (rc == OD_OK && s->opt.layers != NULL)
		rc = take_layers(s, err);
	if (rc != OD_OK)
		return rc;
	experts = experts >= 0 ? experts : (int)od_shadow_default(s->pack) - 1;
	s->choice = (struct od_shadow_choice){
		.experts = (enum od_precision)(experts + 1),
		.dense = (enum od_precision)((dense >= 0 ? dense : experts) + 1),
		.act = OD_ACT_FASTER,
	};
	od_shadow_choice_text(&s->choice, s->precision);
	rc = open_device(s, err);
	if (rc != OD_OK)
		return rc;
	return od_shadow_load(&s->store, s->pack, s->device, &s->choice, threads,
			      !s->opt.common.quiet && isatty(STDERR_FILENO) ? show_progress : NULL, NULL, err);
}

static int open_daemon(struct shadow_daemon *s, struct od_err *err)
{
	struct od_daemon_opts o;

	od_daemon_args_fill(&s->opt.common, &about, s->keys, &o);
	od_pack_fingerprint_bytes(s->pack, o.fingerprint);
	o.folder = od_pack_dir(s->pack);
	return od_daemon_new(&s->daemon, &o, &daemon_ops, s, &s->port, err);
}

/* Signals belong to the loop thread: the emulator thread blocks them. */
static int start_thread(struct shadow_daemon *s, struct od_err *err)
{
	sigset_t all, before;
	int rc;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	rc = pthread_create(&s->thread, NULL, emulate, s);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (rc != 0)
		return od_fail(err, OD_ERR_NOMEM, "emulator thread: %s", strerror(rc));
	pthread_setname_np(s->thread, "od-emulator");
	s->has_thread = true;
	return OD_OK;
}

static void stop(struct shadow_daemon *s)
{
	if (s->has_thread) {
		atomic_store(&s->stopping, true);
		od_data_port_wake(s->port);
		pthread_join(s->thread, NULL);
	}
	od_daemon_free(s->daemon);
	od_keys_free(s->keys);
	od_shadow_free(s->store);
	od_split_fini(&s->model);
	od_device_free(s->device);
	od_pack_close(s->pack);
	pthread_mutex_destroy(&s->lock);
}

static int run(struct shadow_daemon *s, struct od_err *err)
{
	char size[32], where[400], layers[48] = "";
	int rc = load_model(s, err);

	if (rc != OD_OK)
		return rc;
	rc = open_daemon(s, err);
	if (rc != OD_OK)
		return rc;
	rc = start_thread(s, err);
	if (rc != OD_OK)
		return rc;
	if (s->opt.layers != NULL)
		snprintf(layers, sizeof(layers), ", layers %u-%u", od_config_begin(od_pack_config(s->pack)),
			 od_config_end(od_pack_config(s->pack)) - 1);
	od_device_log_memory(s->device);
	od_log(OD_LOG_INFO, "pack %s: %s model%s of %s, %s departure; listening on %s, port %u, data port %u",
	       od_pack_dir(s->pack), s->precision, layers, od_format_bytes(s->model_bytes, size, sizeof(size)),
	       departures[s->opt.departure], od_daemon_args_where(&s->opt.common, s->keys, where, sizeof(where)),
	       od_daemon_port(s->daemon), od_data_port_number(s->port));
	return od_daemon_run(s->daemon, err);
}

int main(int argc, char **argv)
{
	struct shadow_daemon s = {
		.opt = { .precision = -1, .dense_precision = -1, .departure = EARLY, .memory_limit = UINT64_MAX }
	};
	const struct od_arg own[] = {
		{ "precision", OD_ARG_CHOICE, &s.opt.precision, "P",
		  "the experts' weights: int8, fp16 or nf4 as od-pack shadow makes them, or bf16, the pack as it is (default: int8, but bf16 where int8 would not be smaller)",
		  0, 0, od_precision_names },
		{ "dense-precision", OD_ARG_CHOICE, &s.opt.dense_precision, "P",
		  "attention's weights, from the same list (default: as --precision)", 0, 0, od_precision_names },
		{ "departure", OD_ARG_CHOICE, &s.opt.departure, "D",
		  "early: continue with the shadow's own next token (default); late: wait for main's", 0, 0,
		  departures },
		{ .kind = OD_ARG_TITLE, .help = "How much of this machine to use" },
		{ "layers", OD_ARG_STRING, &s.opt.layers, "A-B",
		  "hold only these layers (0-15); other shadows of the hosts file hold the others (default: all)", 0, 0,
		  NULL },
		{ "memory-limit", OD_ARG_SIZE, &s.opt.memory_limit, "SIZE",
		  "memory that this shadow may use, for the model and the context (default: what is available at the start)",
		  0, 0, NULL },
		{ .kind = OD_ARG_TITLE, .help = "Experiments: emulate a slower machine" },
		{ "layer-time", OD_ARG_REAL, &s.opt.layer_time_ms, "MS",
		  "attention and experts of a layer take at least MS milliseconds together", 0, MAX_PACE_MS, NULL },
	};
	struct od_err err = { 0 };
	bool done;
	int rc;

	if (argc > 1 && strcmp(argv[1], "join") == 0)
		return od_pair_join_command(OD_NODE_SHADOW, argc - 1, argv + 1);
	od_hangup_hold();
	about.own = own;
	about.n_own = sizeof(own) / sizeof(own[0]);
	rc = od_daemon_args_begin(&s.opt.common, &about, argc, argv, &done, &err);
	if (rc == OD_OK && done)
		return 0;
	pthread_mutex_init(&s.lock, NULL);
	if (rc == OD_OK)
		rc = run(&s, &err);
	stop(&s);
	return od_daemon_args_end(&s.opt.common, rc, &err);
}
