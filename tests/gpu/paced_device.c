#include "tests/gpu/paced_device.h"

#include "common/base/args.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/compute/cpu/cpu_device.h"
#include "common/compute/device_internal.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_WORDS 1024
#define MAX_RATE 1e15
#define MAX_TIME_NS 1e12
#define LOOK_NS (20 * OD_NS_PER_MS) /* a file of words is looked at so often at most */

struct paced_machine {
	double speed, many; /* a ns; 0: no time */
	double read; /* bytes a ns; 0: no time */
	double op_ns, layer_ns, expert_ns;
};

struct paced_queue {
	uint64_t free_ns; /* when the machine has done all that was queued: also the ticket */
	uint64_t late_ns; /* by how much the last wait returned too late */
};

struct paced_device {
	struct od_device base;
	struct od_device *cpu;
	char *file; /* NULL: the words do not change */
	pthread_mutex_t lock; /* for all below */
	struct paced_machine machine;
	struct timespec file_time;
	uint64_t looked_ns;
	struct paced_queue queue[OD_N_QUEUES];
};

/* ---- words ---- */

static int parse_time(const char *text, double *ns, struct od_err *err)
{
	char *end;
	const double x = strtod(text, &end);

	*ns = strcmp(end, "us") == 0 ? x * 1e3 : x * 1e6;
	if (end == text || (strcmp(end, "us") != 0 && strcmp(end, "ms") != 0) || !(*ns >= 0 && *ns <= MAX_TIME_NS))
		return od_fail(err, OD_ERR_ARG, "expected a time such as 20us or 3.5ms, found \"%s\"", text);
	return OD_OK;
}

static int parse_word(struct paced_machine *m, double *stretch, const char *name, const char *value, struct od_err *err)
{
	struct {
		const char *name;
		double *rate, *time_ns;
	} const words[] = { { "speed", &m->speed, NULL },    { "many", &m->many, NULL },
			    { "stretch", stretch, NULL },    { "op", NULL, &m->op_ns },
			    { "layer", NULL, &m->layer_ns }, { "expert", NULL, &m->expert_ns } };
	uint64_t bytes;
	int rc;

	if (strcmp(name, "read") == 0) {
		rc = od_parse_size(value, &bytes, err);
		m->read = (double)bytes * 1e-9;
		return rc;
	}
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (strcmp(name, words[i].name) == 0)
			return words[i].rate != NULL ? od_parse_real(value, 1e-9, MAX_RATE, words[i].rate, err) :
						       parse_time(value, words[i].time_ns, err);
	return od_fail(err, OD_ERR_ARG, "expected speed, many, read, op, layer, expert or stretch");
}

static int parse(struct paced_machine *m, const char *words, struct od_err *err)
{
	char text[MAX_WORDS], *rest = text, *word;
	double stretch = 1;
	int rc = OD_OK;

	*m = (struct paced_machine){ 0 };
	if (snprintf(text, sizeof(text), "%s", words) >= (int)sizeof(text))
		return od_fail(err, OD_ERR_ARG, "OD_PACED: at most %d characters", MAX_WORDS - 1);
	while (rc == OD_OK && (word = strtok_r(rest, " \t\n", &rest)) != NULL) {
		char *value = strchr(word, '=');

		if (value == NULL)
			return od_fail(err, OD_ERR_ARG, "OD_PACED: expected NAME=VALUE, found \"%s\"", word);
		*value = '\0';
		rc = parse_word(m, &stretch, word, value + 1, err);
		if (rc != OD_OK)
			return od_fail_within(err, "OD_PACED: %s", word);
	}
	m->many = m->many > 0 ? m->many : 8 * m->speed;
	m->speed *= 10 / stretch; /* from 10^10 a second to a ns */
	m->many *= 10 / stretch;
	m->read /= stretch;
	m->op_ns *= stretch;
	m->layer_ns *= stretch;
	m->expert_ns *= stretch;
	return OD_OK;
}

static int read_file(struct paced_device *p, struct od_err *err)
{
	char text[MAX_WORDS] = "";
	FILE *f = fopen(p->file, "r");
	struct stat st;
	size_t n;

	if (f == NULL || fstat(fileno(f), &st) != 0) {
		if (f != NULL)
			fclose(f);
		return od_fail(err, OD_ERR_IO, "OD_PACED: cannot read %s", p->file);
	}
	n = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[n] = '\0';
	p->file_time = st.st_mtim;
	return parse(&p->machine, text, err);
}

/* Words that are wrong leave the machine as it was. */
static void look_at_file(struct paced_device *p, uint64_t now_ns)
{
	const struct paced_machine before = p->machine;
	struct od_err err = { 0 };
	struct stat st;

	if (p->file == NULL || now_ns - p->looked_ns < LOOK_NS)
		return;
	p->looked_ns = now_ns;
	if (stat(p->file, &st) != 0 ||
	    (st.st_mtim.tv_sec == p->file_time.tv_sec && st.st_mtim.tv_nsec == p->file_time.tv_nsec))
		return;
	if (read_file(p, &err) != OD_OK) {
		od_log(OD_LOG_WARN, "%s", err.msg);
		p->machine = before;
	}
}

/* ---- time ---- */

static double product_ns(const struct paced_machine *m, double weights, double rows)
{
	const double one = m->speed > 0 ? weights / m->speed : 0, many = m->many > 0 ? weights * rows / m->many : 0;

	return rows > 0 ? fmax(one, many) : 0;
}

static double linear_ns(const struct paced_machine *m, const struct od_op_linear *l, double rows)
{
	double ns = 0;

	for (size_t i = 0; i < OD_MAX_LINEAR && l->w[i] != NULL; i++)
		ns += product_ns(m, (double)l->w[i]->n_out * (double)l->w[i]->n_in, rows);
	return ns;
}

static double ffn_weights(const struct od_weight *mat)
{
	double n = 0;

	for (size_t i = 0; i < OD_N_EXPERT_MATS; i++)
		n += (double)mat[i].n_out * (double)mat[i].n_in;
	return n;
}

static double ffn_ns(const struct paced_machine *m, const struct od_op_ffn *f)
{
	double ns = f->routed ? m->expert_ns * f->n_segments : 0;

	for (uint32_t i = 0; i < f->n_segments; i++)
		ns += product_ns(m, ffn_weights(f->segment[i].mat), f->segment[i].n_rows);
	return ns;
}

/* Rows by expert, from the choices in the device's memory. */
static double experts_ns(const struct paced_machine *m, const struct od_op_experts *x, uint32_t n_rows)
{
	const uint16_t *choice = (const uint16_t *)(x->choice.buf->at + x->choice.at);
	const size_t n = (size_t)n_rows * x->top_k;
	double ns = 0;

	if (m->speed <= 0 && m->many <= 0 && m->expert_ns <= 0)
		return 0;
	for (uint32_t e = 0; e < x->n_experts; e++) {
		size_t rows = 0;

		for (size_t i = 0; i < n; i++)
			rows += choice[i] == e;
		if (rows > 0)
			ns += m->expert_ns + product_ns(m, ffn_weights(x->expert[e].mat), (double)rows);
	}
	return ns;
}

static double op_ns(const struct paced_machine *m, const struct od_op *op)
{
	const double heads = op->kind == OD_OP_LATENT_QUERY ? op->latent_query.n_heads : op->latent_value.n_heads;

	switch (op->kind) {
	case OD_OP_LINEAR: return linear_ns(m, &op->linear, op->n_rows);
	case OD_OP_LATENT_QUERY:
		return product_ns(m, heads * op->latent_query.nope_dim * op->latent_query.rank, op->n_rows);
	case OD_OP_LATENT_VALUE:
		return product_ns(m, heads * op->latent_value.v_dim * op->latent_value.rank, op->n_rows);
	case OD_OP_ATTEND:
	case OD_OP_DELTA: return m->layer_ns;
	case OD_OP_FFN: return ffn_ns(m, &op->ffn);
	case OD_OP_EXPERTS: return experts_ns(m, &op->experts, op->n_rows);
	case OD_OP_EMBED:
	case OD_OP_ANGLES:
	case OD_OP_NORM:
	case OD_OP_ROPE_STORE:
	case OD_OP_LATENT_STORE:
	case OD_OP_SPLIT:
	case OD_OP_GATE:
	case OD_OP_DELTA_IN:
	case OD_OP_ROUTE:
	case OD_OP_ACT:
	case OD_OP_COMBINE:
	case OD_OP_COPY:
	case OD_OP_MERGE: return 0;
	}
	return 0;
}

/* Under the lock: the machine begins when it is free, or at now_ns, but earlier by what the last wait was late. At
 * least 1 ns, so that no two tickets are the same. */
static void occupy(struct paced_queue *q, uint64_t now_ns, double ns)
{
	const uint64_t cost_ns = (uint64_t)ns + 1, early_ns = q->late_ns < cost_ns ? q->late_ns : cost_ns;

	now_ns -= early_ns;
	q->late_ns = 0;
	q->free_ns = (now_ns > q->free_ns ? now_ns : q->free_ns) + cost_ns;
}

static struct paced_device *of(struct od_device *d)
{
	return (struct paced_device *)d;
}

/* ---- memory ---- */

static int buf_new(struct od_buf **out, struct od_device *d, uint64_t bytes, const char *what, struct od_err *err)
{
	int rc = of(d)->cpu->ops->buf_new(out, of(d)->cpu, bytes, what, err);

	if (rc == OD_OK)
		(*out)->device = d;
	return rc;
}

static int buf_new_sparse(struct od_buf **out, struct od_device *d, uint64_t bytes, const char *what,
			  struct od_err *err)
{
	int rc = of(d)->cpu->ops->buf_new_sparse(out, of(d)->cpu, bytes, what, err);

	if (rc == OD_OK)
		(*out)->device = d;
	return rc;
}

static void buf_free(struct od_buf *b)
{
	of(b->device)->cpu->ops->buf_free(b);
}

static void release(struct od_ref from, uint64_t n)
{
	of(from.buf->device)->cpu->ops->release(from, n);
}

static void *map(struct od_ref r)
{
	(void)r;
	return NULL;
}

/* ---- queues ---- */

static void put(struct od_device *d, enum od_queue q, struct od_ref to, const void *from, size_t n)
{
	struct paced_device *p = of(d);
	const uint64_t now_ns = od_now_ns();

	p->cpu->ops->put(p->cpu, q, to, from, n);
	pthread_mutex_lock(&p->lock);
	look_at_file(p, now_ns);
	occupy(&p->queue[q], now_ns, q == OD_QUEUE_LOADS && p->machine.read > 0 ? (double)n / p->machine.read : 0);
	pthread_mutex_unlock(&p->lock);
}

static void get(struct od_device *d, enum od_queue q, void *to, struct od_ref from, size_t n)
{
	struct paced_device *p = of(d);
	const uint64_t now_ns = od_now_ns();

	p->cpu->ops->get(p->cpu, q, to, from, n);
	pthread_mutex_lock(&p->lock);
	occupy(&p->queue[q], now_ns, 0);
	pthread_mutex_unlock(&p->lock);
}

static void run(struct od_device *d, enum od_queue q, const struct od_op *op)
{
	struct paced_device *p = of(d);
	const uint64_t now_ns = od_now_ns();

	p->cpu->ops->run(p->cpu, q, op);
	pthread_mutex_lock(&p->lock);
	look_at_file(p, now_ns);
	occupy(&p->queue[q], now_ns, p->machine.op_ns + op_ns(&p->machine, op));
	pthread_mutex_unlock(&p->lock);
}

static void after(struct od_device *d, enum od_queue q, enum od_queue other, uint64_t t)
{
	struct paced_device *p = of(d);

	(void)other;
	pthread_mutex_lock(&p->lock);
	if (p->queue[q].free_ns < t)
		p->queue[q].free_ns = t;
	pthread_mutex_unlock(&p->lock);
}

static uint64_t ticket(struct od_device *d, enum od_queue q)
{
	struct paced_device *p = of(d);
	uint64_t t;

	pthread_mutex_lock(&p->lock);
	t = p->queue[q].free_ns;
	pthread_mutex_unlock(&p->lock);
	return t;
}

/* A ticket is the time when the machine is done. */
static int wait_for(struct od_device *d, enum od_queue q, uint64_t t, struct od_err *err)
{
	struct paced_device *p = of(d);

	if (od_now_ns() < t) {
		od_sleep_until(t);
		pthread_mutex_lock(&p->lock);
		p->queue[q].late_ns = od_now_ns() - t;
		pthread_mutex_unlock(&p->lock);
	}
	return p->cpu->ops->wait(p->cpu, q, 0, err); /* all is done; for errors */
}

/* ---- life ---- */

static void free_device(struct od_device *d)
{
	struct paced_device *p = of(d);

	od_device_free(p->cpu);
	pthread_mutex_destroy(&p->lock);
	free(p->file);
	free(p);
}

static const struct od_device_ops ops = {
	.buf_new = buf_new,
	.buf_new_sparse = buf_new_sparse,
	.buf_free = buf_free,
	.release = release,
	.map = map,
	.put = put,
	.get = get,
	.run = run,
	.ticket = ticket,
	.wait = wait_for,
	.after = after,
	.free = free_device,
};

static int read_words(struct paced_device *p, const char *words, struct od_err *err)
{
	if (words[0] != '@')
		return parse(&p->machine, words, err);
	p->file = strdup(words + 1);
	return p->file != NULL ? read_file(p, err) : od_fail(err, OD_ERR_NOMEM, "no memory for a device");
}

int od_device_paced_new(struct od_device **out, const char *words, enum od_cpu cpu, unsigned n_threads,
			const char *name, struct od_err *err)
{
	struct paced_device *p = calloc(1, sizeof(*p));
	int rc;

	*out = NULL;
	if (p == NULL)
		return od_fail(err, OD_ERR_NOMEM, "no memory for a device");
	pthread_mutex_init(&p->lock, NULL);
	rc = read_words(p, words, err);
	if (rc == OD_OK)
		rc = od_device_cpu_new(&p->cpu, cpu, n_threads, name, err);
	if (rc != OD_OK) {
		free_device(&p->base);
		return rc;
	}
	p->base.ops = &ops;
	snprintf(p->base.name, sizeof(p->base.name), "paced %s", od_device_kernels(p->cpu, OD_PROFILE_F32));
	memcpy(p->base.kernels, p->cpu->kernels, sizeof(p->base.kernels));
	memcpy(p->base.kernel_class, p->cpu->kernel_class, sizeof(p->base.kernel_class));
	p->base.likes_planes = p->cpu->likes_planes;
	p->base.cache_bytes = p->cpu->cache_bytes;
	*out = &p->base;
	return OD_OK;
}
