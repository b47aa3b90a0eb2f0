#include "deploy/plan/plan_report.h"

#include "common/base/args.h"
#include "common/pack/shadow/shadow_load.h"
#include "common/text/utf8_text.h"

#include <stdlib.h>
#include <string.h>

#define GIB 1073741824.0
#define NAMED 4 /* hosts of one machine */
#define UNIT_SPEED 1e10 /* speed=1 */

/* ---- text ---- */

/* "12.3 GB", of 10^9: as models and disks are sold; memory words are GiB, as options have them. */
static const char *size_text(double bytes, char buf[32])
{
	static const char *const unit[] = { "B", "KB", "MB", "GB", "TB" };
	size_t i = 0;

	for (; i < 4 && bytes >= 999.5; i++)
		bytes /= 1000;
	snprintf(buf, 32, bytes < 9.95 && i > 0 ? "%.1f %s" : "%.0f %s", bytes, unit[i]);
	return buf;
}

static const char *gib_text(uint64_t bytes, char buf[32])
{
	const double g = (double)bytes / GIB;

	snprintf(buf, 32, g < 0.1 ? "%.3f" : g < 10 ? "%.2f" : "%.1f", g);
	return buf;
}

static const char *count_text(double n, char buf[32])
{
	if (n >= 1e12)
		snprintf(buf, 32, "%.2f T", n / 1e12);
	else if (n >= 1e9)
		snprintf(buf, 32, "%.1f G", n / 1e9);
	else
		snprintf(buf, 32, "%.1f M", n / 1e6);
	return buf;
}

static void print_model(const struct odp_model *m, FILE *out)
{
	static const char *const source[] = {
		[OD_SHAPE_PACK] = "",
		[OD_SHAPE_CHECKPOINT] = "; stored sizes are those usual for the format",
		[OD_SHAPE_CONFIG] = "; from config.json alone: stored sizes are those usual for the format",
	};
	const struct od_config *c = m->config;
	char a[32], b[32], d[32], e[32];

	fprintf(out,
		"%s: %s, %s weights, %s of them a token; %u experts, %u a token, in %u of %u layers; pack %s, expert %s%s\n",
		od_pack_dir(m->pack), c->family->name, count_text(odp_model_weights(m), a),
		count_text(odp_model_active_weights(m), b), c->n_experts, c->top_k, c->n_moe, c->n_layers,
		size_text((double)od_pack_disk_bytes(m->pack), d), size_text((double)m->expert_stored_bytes, e),
		source[m->source]);
}

static void print_host(const struct odp_host_plan *h, int width, FILE *out)
{
	char a[32], b[32], d[32], l[32];

	fprintf(out, "%-6s  %-*s  %6s of %6s  %8s  %9s  ", odp_role_names[h->role], width, h->machine.name,
		gib_text(h->memory.need_bytes, a), gib_text(h->memory.limit_bytes, b),
		size_text((double)h->disk_bytes, d), h->link_bytes > 0 ? size_text(h->link_bytes, l) : "-");
	for (size_t i = 0; i < h->memory.n; i++)
		fprintf(out, "%s%s %s", i > 0 ? ", " : "", h->memory.share[i].what,
			gib_text(h->memory.share[i].bytes, a));
	fputc('\n', out);
}

static void print_hosts(const struct odp_plan *p, FILE *out)
{
	int width = 4;

	for (size_t i = 0; i < p->n; i++)
		if ((int)strlen(p->host[i].machine.name) > width)
			width = (int)strlen(p->host[i].machine.name);
	fprintf(out, "\n%-6s  %-*s  %-16s  %8s  %9s  what takes memory\n", "role", width, "host", "memory, GiB", "disk",
		"a token");
	for (size_t i = 0; i < p->n; i++)
		print_host(&p->host[i], width, out);
}

/* Hosts of one machine, and what that means. */
static void print_shared(const struct odp_plan *p, size_t first, FILE *out)
{
	uint64_t bytes = 0;
	size_t n = 0;
	char a[32];

	for (size_t i = first; i < p->n; i++) {
		const struct odp_host_plan *h = &p->host[i];

		if (h->on != first)
			continue;
		n++;
		bytes += h->memory.need_bytes;
		if (n == 2)
			fprintf(out, "\nOne machine: %s %s", odp_role_names[p->host[first].role],
				p->host[first].machine.name);
		if (n > 1 && n <= NAMED)
			fprintf(out, ", %s %s", odp_role_names[h->role], h->machine.name);
	}
	if (n < 2)
		return;
	if (n > NAMED)
		fprintf(out, " and %zu more", n - NAMED);
	fprintf(out,
		". It needs %s GiB for them together.\nFigures are as if each had processors, a disk and a port of its "
		"own.\n",
		gib_text(bytes, a));
}

static void print_tiers(const struct odp_plan *p, FILE *out)
{
	const double kept = 100.0 * (double)p->kept_experts / (double)p->all_experts;

	fprintf(out, "\nExperts: %.0f %% stay in memory%s, as %s; ", kept, p->alone ? "" : " of the workers",
		od_form_names[p->alone ? p->host[0].form : p->host[p->n - 1].form]);
	if (kept < 100)
		fprintf(out, "the others are read when they are needed. ");
	else
		fprintf(out, "none is read while texts are written. ");
	if (!p->alone && p->kept_experts == 0) /* with caches all workers are one group */
		fprintf(out, "Groups of %u workers. ", p->group_size);
	fprintf(out, "Up to %u text%s at once, %llu tokens each.\n", p->texts.parallel,
		p->texts.parallel > 1 ? "s" : "", (unsigned long long)p->texts.ctx_tokens);
}

static void print_streamed(const struct odp_plan *p, FILE *out)
{
	char a[32], b[32];

	if (p->streamed_bytes > 0)
		fprintf(out,
			"Main has no memory for all dense weights: each step reads %s of them; with %s GiB it would read none.\n",
			size_text(p->streamed_bytes, a), gib_text(p->streams_below, b));
}

static const char *rate_text(double value, char buf[32])
{
	snprintf(buf, 32, value < 9.95 ? "%.2f" : "%.1f", value);
	return buf;
}

static void print_shadow(const struct odp_plan *p, FILE *out)
{
	char with[32], drafts[32], without[32];
	const bool pays = p->with_drafts > p->without_shadow || p->with_shadow > p->without_shadow;

	rate_text(p->without_shadow, without);
	if (p->shadow != 0)
		fprintf(out, "Shadow: %s. It %s: %s tokens/s with it, %s with its drafts, %s without a shadow.\n",
			od_precision_names[p->shadow - 1], pays ? "pays" : "does not pay",
			rate_text(p->with_shadow, with), rate_text(p->with_drafts, drafts), without);
	else if (p->better_shadow != NULL)
		fprintf(out,
			"Shadow: none. %s as one (%s) instead of a worker would give %s tokens/s with drafts; now %s.\n",
			p->better_shadow->machine.name, od_precision_names[p->better_precision - 1],
			rate_text(p->better_value, with), without);
	else if (!p->alone)
		fprintf(out, "Shadow: none, and no worker would serve better as one.\n");
	if (p->shadow != 0 && p->shadow_texts < p->texts.parallel)
		fprintf(out, "Its memory has room for %u such text%s at once.\n", p->shadow_texts,
			p->shadow_texts > 1 ? "s" : "");
	if (!p->alone && p->shadow == 0)
		fprintf(out, "Predictions: %s.\n",
			p->next_gate ? "main's own, next-gate (as right as measured with a small model)" :
				       "none; main's own would not pay");
}

static void figure_name(const struct odp_figure *f, char *buf, size_t size)
{
	if (f->kind == ODP_FIRST_TOKEN)
		snprintf(buf, size, "first token after %u", f->prompt_tokens);
	else
		snprintf(buf, size, "%u text%s, %s", f->texts, f->texts > 1 ? "s" : "", f->drafts ? "drafts" : "plain");
}

static void value_text(const struct odp_figure *f, double value, char buf[32])
{
	if (f->kind == ODP_DECODE)
		snprintf(buf, 32, value < 9.95 ? "%.2f tok/s" : "%.1f tok/s", value);
	else
		snprintf(buf, 32, value < 0.9995 ? "%.0f ms" : "%.2f s", value < 0.9995 ? value * 1000 : value);
}

static void print_figures(const struct odp_plan *p, FILE *out)
{
	char name[48], value[32];

	fprintf(out, "\n%-22s  %12s  %-20s  what would lift it\n", "", "expected", "limited by");
	for (size_t i = 0; i < p->n_figures; i++) {
		const struct odp_figure *f = &p->figure[i];

		figure_name(f, name, sizeof(name));
		value_text(f, f->value, value);
		fprintf(out, "%-22s  %12s  %-20s  ", name, value, f->limit);
		for (size_t k = 0; k < f->n_lifts && k < 2; k++) {
			value_text(f, f->lift[k].value, value);
			fprintf(out, "%s%s: %s", k > 0 ? "; " : "", f->lift[k].what, value);
		}
		fputc('\n', out);
	}
}

/* A GGUF file or a checkpoint is to be packed yet. */
static const char *pack_name(const struct odp_plan *p)
{
	return p->model->source == OD_SHAPE_PACK ? od_pack_dir(p->model->pack) : "PACK";
}

static bool same_options(const struct odp_host_plan *a, const struct odp_host_plan *b)
{
	return a->role == b->role && a->port == b->port && a->memory.limit_bytes == b->memory.limit_bytes &&
	       a->machine.slots == b->machine.slots && a->machine.cache_bytes == b->machine.cache_bytes;
}

static void print_port(const struct odp_host_plan *h, FILE *out)
{
	if (h->port != 0)
		fprintf(out, " --port %u", (unsigned)h->port);
}

/* Workers from `first` on that have the same options. Returns the last. */
static size_t print_workers(const struct odp_plan *p, size_t first, FILE *out)
{
	const struct odp_host_plan *w = &p->host[first];
	size_t last = first;

	while (last + 1 < p->n && same_options(w, &p->host[last + 1]))
		last++;
	fprintf(out, "  od-worker --pack %s --memory-limit %lluM --slots %u", pack_name(p),
		(unsigned long long)(w->memory.limit_bytes >> 20), w->machine.slots);
	print_port(w, out);
	if (w->machine.cache_bytes > 0)
		fprintf(out, " --cache-mib %llu", (unsigned long long)(w->machine.cache_bytes >> 20));
	fprintf(out, "     # on %s", w->machine.name);
	if (last > first)
		fprintf(out, " to %s", p->host[last].machine.name);
	fputc('\n', out);
	return last;
}

/* Parts of a shadow have layers by their memory, each at least one. */
static void print_shadows(const struct odp_plan *p, FILE *out)
{
	const uint32_t n_layers = p->model->config->n_layers;
	double all = 0, before = 0;
	uint32_t begin = 0, part = 0;

	for (size_t i = 0; i < p->n; i++)
		all += p->host[i].role == ODP_SHADOW ? (double)p->host[i].memory.limit_bytes : 0;
	for (size_t i = 0; i < p->n && p->shadow != 0; i++) {
		const struct odp_host_plan *h = &p->host[i];
		const uint32_t left = p->n_shadows - part - 1;
		uint32_t end;

		if (h->role != ODP_SHADOW)
			continue;
		part++;
		before += (double)h->memory.limit_bytes;
		end = (uint32_t)(before / all * n_layers + 0.5);
		end = end > begin ? end : begin + 1;
		end = left == 0 || end > n_layers - left ? n_layers - left : end;
		fprintf(out, "  od-shadow --pack %s --precision %s", pack_name(p), od_precision_names[p->shadow - 1]);
		print_port(h, out);
		if (p->n_shadows > 1)
			fprintf(out, " --layers %u-%u", begin, end - 1);
		fprintf(out, "     # on %s\n", h->machine.name);
		begin = end;
	}
}

static void print_commands(const struct odp_plan *p, FILE *out)
{
	char memory[32] = "";

	fprintf(out, "\nTo run it like this%s:\n", p->alone ? "" : ", with --listen and keys as each host has them");
	if (p->alone) {
		fprintf(out, "  od-main serve --pack %s --memory %lluM --ctx-size %llu --parallel %u\n", pack_name(p),
			(unsigned long long)(p->host[0].memory.limit_bytes >> 20),
			(unsigned long long)p->texts.ctx_tokens, p->texts.parallel);
		return;
	}
	for (size_t i = 0; i < p->n; i++)
		if (p->host[i].role == ODP_WORKER)
			i = print_workers(p, i, out);
	print_shadows(p, out);
	if (p->streamed_bytes > 0)
		snprintf(memory, sizeof(memory), " --memory %lluM",
			 (unsigned long long)(p->host[0].memory.limit_bytes >> 20));
	fprintf(out, "  od-main serve --workers HOSTS --pack %s --group-size %u --ctx-size %llu --parallel %u%s%s\n",
		pack_name(p), p->group_size, (unsigned long long)p->texts.ctx_tokens, p->texts.parallel, memory,
		p->next_gate ? " --predictor next-gate" : "");
}

void odp_plan_print(const struct odp_plan *p, FILE *out)
{
	print_model(p->model, out);
	print_hosts(p, out);
	for (size_t i = 0; i < p->n; i++)
		print_shared(p, i, out);
	if (p->n_problems > 0)
		fprintf(out, "\nIt does not fit:\n");
	for (size_t i = 0; i < p->n_problems; i++)
		fprintf(out, "- %s; %s\n", p->problem[i].what, p->problem[i].remedy);
	if (p->n_more_problems > 0)
		fprintf(out, "- and %zu more\n", p->n_more_problems);
	if (p->n_problems > 0)
		return;
	print_tiers(p, out);
	print_streamed(p, out);
	print_shadow(p, out);
	print_figures(p, out);
	if (p->assumed)
		fprintf(out,
			"(Reads were not measured, and 1 GB/s is assumed. With a pack they are measured; or say it in a hosts "
			"file: main HOST memory=%lluM read=2G speed=%.2g)\n",
			(unsigned long long)(p->host[0].memory.limit_bytes >> 20),
			p->host[0].machine.speed / UNIT_SPEED);
	print_commands(p, out);
}

/* ---- JSON ---- */

static json_t *memory_json(const struct odp_memory *m)
{
	json_t *shares = json_object();

	for (size_t i = 0; i < m->n; i++)
		json_object_set_new(shares, m->share[i].what, json_integer((json_int_t)m->share[i].bytes));
	return json_pack("{s:I, s:I, s:b, s:o}", "need_bytes", (json_int_t)m->need_bytes, "limit_bytes",
			 (json_int_t)m->limit_bytes, "fits", odp_memory_fits(m), "what", shares);
}

static json_t *host_json(const struct odp_plan *p, const struct odp_host_plan *h)
{
	json_t *o = json_pack("{s:s, s:s, s:o, s:I, s:f}", "role", odp_role_names[h->role], "host", h->machine.name,
			      "memory", memory_json(&h->memory), "disk_bytes", (json_int_t)h->disk_bytes,
			      "link_bytes_token", h->link_bytes);

	if (o != NULL && h->on != (size_t)(h - p->host))
		json_object_set_new(o, "machine_of", json_string(p->host[h->on].machine.name));
	if (o != NULL && h->role != ODP_SHADOW && (h->role == ODP_WORKER || p->alone)) {
		json_object_set_new(o, "slots", json_integer(h->machine.slots));
		json_object_set_new(o, "cache_mib", json_integer((json_int_t)(h->machine.cache_bytes >> 20)));
		json_object_set_new(o, "kept_experts", json_integer((json_int_t)h->kept_experts));
		json_object_set_new(o, "form", json_string(od_form_names[h->form]));
	}
	return o;
}

static json_t *figure_json(const struct odp_figure *f)
{
	json_t *lifts = json_array(), *o;

	for (size_t i = 0; i < f->n_lifts; i++)
		json_array_append_new(lifts,
				      json_pack("{s:s, s:f}", "what", f->lift[i].what, "value", f->lift[i].value));
	o = json_pack("{s:s, s:i, s:b, s:f, s:s, s:o, s:f, s:f, s:f}", "figure",
		      f->kind == ODP_DECODE ? "tokens_per_second" : "seconds_to_first_token", "texts", (int)f->texts,
		      "drafts", f->drafts, "value", f->value, "limit", f->limit, "lifts", lifts, "up_bytes_token",
		      f->up_bytes, "down_bytes_token", f->down_bytes, "loads_token", f->loads);
	if (o != NULL && f->kind == ODP_FIRST_TOKEN)
		json_object_set_new(o, "prompt_tokens", json_integer(f->prompt_tokens));
	if (o != NULL)
		json_object_set_new(o, "busy",
				    json_pack("{s:f, s:f, s:f, s:f, s:f}", "main", f->main_busy, "link", f->link_busy,
					      "reads", f->read_busy, "workers", f->worker_busy, "shadow",
					      f->shadow_busy));
	return o;
}

static json_t *model_json(const struct odp_model *m)
{
	static const char *const source[] = { "pack", "checkpoint", "config" };

	const char *name = od_pack_dir(m->pack);

	return json_pack("{s:o, s:s, s:s, s:f, s:f, s:I, s:I, s:I, s:I, s:i, s:i, s:i, s:i}", "name",
			 odm_json_text(name, strlen(name)), "family", m->config->family->name, "source",
			 source[m->source], "weights", odp_model_weights(m), "active_weights",
			 odp_model_active_weights(m), "pack_bytes", (json_int_t)od_pack_disk_bytes(m->pack),
			 "dense_bytes", (json_int_t)m->dense_bytes, "expert_stored_bytes",
			 (json_int_t)m->expert_stored_bytes, "kv_bytes_token", (json_int_t)m->kv_bytes, "layers",
			 (int)m->config->n_layers, "moe_layers", (int)m->config->n_moe, "experts",
			 (int)m->config->n_experts, "top_k", (int)m->config->top_k);
}

static json_t *shadow_json(const struct odp_plan *p)
{
	json_t *o = json_object();

	if (p->shadow != 0)
		json_object_update_new(o, json_pack("{s:s, s:i}", "precision", od_precision_names[p->shadow - 1],
						    "texts", (int)p->shadow_texts));
	if (p->shadow != 0 && p->n_figures > 0) {
		json_object_set_new(o, "with", json_real(p->with_shadow));
		json_object_set_new(o, "with_drafts", json_real(p->with_drafts));
		json_object_set_new(o, "without", json_real(p->without_shadow));
	}
	if (p->better_shadow != NULL) {
		json_object_set_new(o, "better_host", json_string(p->better_shadow->machine.name));
		json_object_set_new(o, "better_precision", json_string(od_precision_names[p->better_precision - 1]));
		json_object_set_new(o, "better_value", json_real(p->better_value));
	}
	return o;
}

int odp_plan_print_json(const struct odp_plan *p, FILE *out, struct od_err *err)
{
	json_t *hosts = json_array(), *figures = json_array(), *problems = json_array(), *root;
	int rc = OD_OK;

	for (size_t i = 0; i < p->n; i++)
		json_array_append_new(hosts, host_json(p, &p->host[i]));
	for (size_t i = 0; i < p->n_figures; i++)
		json_array_append_new(figures, figure_json(&p->figure[i]));
	for (size_t i = 0; i < p->n_problems; i++)
		json_array_append_new(
			problems, json_pack("{s:s, s:s}", "what", p->problem[i].what, "remedy", p->problem[i].remedy));
	root = json_pack("{s:b, s:o, s:o, s:i, s:s, s:f, s:i, s:I, s:I, s:I, s:b, s:o, s:o, s:o, s:i}", "fits",
			 p->n_problems == 0, "model", model_json(p->model), "hosts", hosts, "group_size",
			 (int)p->group_size, "predictor",
			 p->shadow != 0 ? "shadow" :
			 p->next_gate	? "next-gate" :
					  "none",
			 "dense_step_bytes", p->streamed_bytes, "texts", (int)p->texts.parallel, "ctx_tokens",
			 (json_int_t)p->texts.ctx_tokens, "kept_experts", (json_int_t)p->kept_experts, "all_experts",
			 (json_int_t)p->all_experts, "reads_assumed", p->assumed, "shadow", shadow_json(p), "figures",
			 figures, "problems", problems, "more_problems", (int)p->n_more_problems);
	if (root == NULL || json_dumpf(root, out, JSON_INDENT(2)) != 0)
		rc = od_fail(err, OD_ERR_IO, "the plan cannot be written");
	else
		fputc('\n', out);
	json_decref(root);
	return rc;
}
