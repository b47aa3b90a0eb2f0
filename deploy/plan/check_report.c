#include "deploy/plan/check_report.h"

#include "common/base/args.h"
#include "common/base/clock.h"
#include "common/base/version.h"
#include "common/text/utf8_text.h"
#include "deploy/plan/check_findings.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#define UNIT 1e10 /* weights, or multiply-adds, a second: 1 of speed= and many= */
#define MAX_CELL 48

/* ---- Cells ---- */

static const char *state_of(const struct odp_checked *c)
{
	if (!c->asked)
		return c->facts.refused_code == OD_ERR_BUSY ? "serves" : "wrong";
	return odp_is_wrong(c) ? "wrong" : "good";
}

static const char *known(const char *text)
{
	return text[0] != '\0' ? text : "-";
}

static const char *bytes_cell(uint64_t bytes, char *buf)
{
	return bytes > 0 ? od_format_bytes(bytes, buf, MAX_CELL) : "-";
}

static const char *rate_cell(double v, const char *format, double unit, char *buf)
{
	if (v <= 0)
		return "-";
	snprintf(buf, MAX_CELL, format, v / unit);
	return buf;
}

static const char *held_cell(const struct odp_check_report *r, const struct odp_checked *c, char *buf)
{
	if (!c->asked || c->facts.member.role == OD_NODE_SHADOW || !c->facts.told_held || r->n_experts == 0)
		return "-";
	snprintf(buf, MAX_CELL, "%.0f%%", 100.0 * (double)c->facts.n_held / (double)r->n_experts);
	return buf;
}

static const char *slots_cell(const struct odp_checked *c, char *buf)
{
	if (!c->asked)
		return "-";
	if (c->facts.member.role == OD_NODE_SHADOW)
		return known(c->facts.precision);
	snprintf(buf, MAX_CELL, "%u", c->facts.member.slots);
	return buf;
}

static const char *clock_cell(const struct odp_checked *c, char *buf)
{
	const double s = (double)c->facts.told.clock_ns / OD_NS_PER_S;

	if (!c->facts.told.has_clock)
		return "-";
	snprintf(buf, MAX_CELL, "%+.3f s", s > -0.0005 && s < 0.0005 ? 0.0 : s);
	return buf;
}

static const char *keys_cell(const struct odp_checked *c)
{
	return !c->asked ? "-" : c->facts.member.own != NULL ? "yes" : "no";
}

/* ---- Text ---- */

static int name_width(const struct odp_check_report *r)
{
	size_t most = strlen("host");

	for (size_t i = 0; i < r->n_hosts; i++)
		most = strlen(r->host[i].name) > most ? strlen(r->host[i].name) : most;
	return most < 60 ? (int)most : 60;
}

static void print_told(FILE *out, const struct odp_check_report *r, int width)
{
	char memory[MAX_CELL], machine[MAX_CELL], disk[MAX_CELL], held[MAX_CELL], slots[MAX_CELL], when[MAX_CELL];

	fprintf(out, "%-*s  %-6s  %-8s  %-14s  %-7s  %-10s  %-10s  %-6s  %-7s  %-10s  %-4s  %s\n", width, "host",
		"state", "version", "backend", "threads", "limit", "free", "slots", "experts", "disk free", "keys",
		"clock");
	for (size_t i = 0; i < r->n_hosts; i++) {
		const struct odp_checked *c = &r->host[i];
		const struct odm_told_facts *t = &c->facts.told;

		fprintf(out, "%-*s  %-6s  %-8s  %-14.40s  %-7u  %-10s  %-10s  %-6s  %-7s  %-10s  %-4s  %s\n", width,
			c->name, state_of(c), known(t->program_version), known(t->backend), t->threads,
			bytes_cell(t->memory_bytes, memory), bytes_cell(t->free_ram_bytes, machine),
			slots_cell(c, slots), held_cell(r, c, held), bytes_cell(t->free_disk_bytes, disk), keys_cell(c),
			clock_cell(c, when));
	}
}

static void print_rates(FILE *out, const struct odp_checked *c, int width)
{
	const struct odp_rates *r = &c->rates;
	char cell[7][MAX_CELL];

	fprintf(out, "%-*s  %-12s  %-14s  %-12s  %-8s  %-8s  %-10s  %s\n", width, c->name,
		rate_cell(r->latency_ns, "%.3f ms", 1e6, cell[0]),
		rate_cell(r->link_rate * 8, "%.4g Gbit/s", 1e9, cell[1]),
		rate_cell(r->read_rate, "%.4g GB/s", 1e9, cell[2]), rate_cell(r->speed, "%.4g", UNIT, cell[3]),
		rate_cell(r->many, "%.4g", UNIT, cell[4]), rate_cell(r->fixed_ns, "%.4f ms", 1e6, cell[5]),
		rate_cell(r->layer_ns, "%.3f ms", 1e6, cell[6]));
}

static void print_guesses(FILE *out, const struct odp_checked *c)
{
	const struct odp_rates *r = &c->rates;

	if (r->recall > 0)
		fprintf(out, "%s predicts %.1f %% of the experts that are used", c->name, 100 * r->recall);
	if (r->recall > 0 && r->accept > 0)
		fprintf(out, ", and %.1f %% of the tokens", 100 * r->accept);
	if (r->recall > 0)
		fputc('\n', out);
}

static void print_measured(FILE *out, const struct odp_check_report *r, int width)
{
	bool any = r->main->measured;

	for (size_t i = 0; i < r->n_hosts; i++)
		any = any || r->host[i].measured;
	if (!any)
		return;
	fprintf(out, "\n%-*s  %-12s  %-14s  %-12s  %-8s  %-8s  %-10s  %s\n", width, "measured", "latency", "link",
		"read", "speed", "many", "fixed", "layer");
	if (r->main->measured)
		print_rates(out, r->main, width);
	for (size_t i = 0; i < r->n_hosts; i++)
		if (r->host[i].measured)
			print_rates(out, &r->host[i], width);
	for (size_t i = 0; i < r->n_hosts; i++)
		print_guesses(out, &r->host[i]);
}

static void print_findings(FILE *out, const struct odp_check_report *r, enum odp_grade grade, const char *title)
{
	for (size_t i = 0; i <= r->n_hosts; i++) {
		const struct odp_checked *c = i == 0 ? r->main : &r->host[i - 1];

		for (size_t j = 0; j < c->n_findings; j++) {
			const struct odp_finding *f = &c->finding[j];

			if (f->grade != grade)
				continue;
			if (title != NULL)
				fprintf(out, "\n%s\n", title);
			title = NULL;
			fprintf(out, "  %s", c->name);
			if (c->line > 0)
				fprintf(out, " (%s line %u)", r->hosts_path, c->line);
			fprintf(out, ", %s: %s.\n", f->step, f->what);
			if (f->remedy[0] != '\0')
				fprintf(out, "      To do: %s.\n", f->remedy);
		}
	}
}

void odp_check_print(FILE *out, const struct odp_check_report *r)
{
	const int width = name_width(r);
	size_t n_good = 0, n_served = 0;

	for (size_t i = 0; i < r->n_hosts; i++) {
		n_good += strcmp(state_of(&r->host[i]), "good") == 0;
		n_served += strcmp(state_of(&r->host[i]), "serves") == 0;
	}
	fprintf(out, "od-plan " OD_VERSION ": %s, fingerprint %.12s, profile %s, kernel class %s\n\n", r->model,
		r->fingerprint, r->profile, r->kernel_class);
	print_told(out, r, width);
	print_measured(out, r, width);
	print_findings(out, r, ODP_WRONG, "Wrong:");
	print_findings(out, r, ODP_NOTE, "Notes:");
	fprintf(out, "\n%s: %zu of %zu hosts are good", r->hosts_path, n_good, r->n_hosts);
	if (n_served > 0)
		fprintf(out, ", %zu serve%s a main", n_served, n_served == 1 ? "s" : "");
	fprintf(out, "; %s.\n", r->good ? "nothing is wrong" : "see what is wrong above");
}

/* ---- JSON ---- */

/* 0 is unknown. */
static json_t *positive(double v)
{
	return v > 0 ? json_real(v) : json_null();
}

static json_t *count(uint64_t v)
{
	return v > 0 ? json_integer((json_int_t)(v < INT64_MAX ? v : INT64_MAX)) : json_null();
}

static json_t *text_or_null(const char *text)
{
	return text[0] != '\0' ? odm_json_text(text, strlen(text)) : json_null();
}

static json_t *rates_json(const struct odp_checked *c)
{
	const struct odp_rates *r = &c->rates;

	if (!c->measured)
		return json_null();
	return json_pack("{s:o, s:o, s:o, s:o, s:o, s:f, s:o, s:o, s:o, s:f}", "latency_ms",
			 positive(r->latency_ns / 1e6), "link_bits", positive(r->link_rate * 8), "read_bytes",
			 positive(r->read_rate), "speed", positive(r->speed / UNIT), "many", positive(r->many / UNIT),
			 "fixed_ms", r->fixed_ns / 1e6, "layer_ms", positive(r->layer_ns / 1e6), "recall",
			 positive(r->recall), "accept", positive(r->accept), "took_s", r->took_ns / 1e9);
}

static json_t *findings_json(const struct odp_checked *c)
{
	json_t *list = json_array();

	for (size_t i = 0; i < c->n_findings; i++) {
		const struct odp_finding *f = &c->finding[i];

		json_array_append_new(list, json_pack("{s:b, s:s, s:s, s:o}", "wrong", f->grade == ODP_WRONG, "step",
						      f->step, "what", f->what, "to_do", text_or_null(f->remedy)));
	}
	return list;
}

static json_t *told_json(const struct odp_check_report *r, const struct odp_checked *c)
{
	const struct odm_member_facts *f = &c->facts;
	const struct odm_told_facts *t = &f->told;
	const bool worker = f->member.role == OD_NODE_WORKER;

	if (!c->asked)
		return json_null();
	return json_pack(
		"{s:o, s:o, s:o, s:o, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:b}", "version",
		text_or_null(t->program_version), "host_name", text_or_null(f->host_name), "backend",
		text_or_null(t->backend), "kernel_class", text_or_null(t->kernel_class), "threads", (int)t->threads,
		"memory_bytes", count(t->memory_bytes), "cache_bytes", count(t->cache_bytes), "machine_bytes",
		count(t->ram_bytes), "machine_free_bytes", count(t->free_ram_bytes), "disk_free_bytes",
		count(t->free_disk_bytes), "slots", worker ? count(f->member.slots) : json_null(), "precision",
		text_or_null(f->precision), "clock_s",
		t->has_clock ? json_real((double)t->clock_ns / OD_NS_PER_S) : json_null(), "experts_held",
		worker && f->told_held && r->n_experts > 0 ? json_real((double)f->n_held / (double)r->n_experts) :
							     json_null(),
		"keys", f->member.own != NULL, "data_port", c->data_port);
}

static json_t *served_json(const struct odp_checked *c)
{
	const struct odm_told_facts *t = &c->facts.told;

	if (c->asked || c->facts.refused_code != OD_ERR_BUSY)
		return json_null();
	return json_pack("{s:o, s:f}", "main", text_or_null(t->main_name), "seconds", od_seconds(t->served_ns));
}

static json_t *host_json(const struct odp_check_report *r, const struct odp_checked *c)
{
	return json_pack("{s:s, s:i, s:s, s:o, s:o, s:o, s:o}", "name", c->name, "line", (int)c->line, "state",
			 state_of(c), "serves", served_json(c), "told", told_json(r, c), "measured", rates_json(c),
			 "findings", findings_json(c));
}

bool odp_check_print_json(FILE *out, const struct odp_check_report *r)
{
	json_t *hosts = json_array(), *root;
	bool good;

	for (size_t i = 0; i < r->n_hosts; i++)
		json_array_append_new(hosts, host_json(r, &r->host[i]));
	root = json_pack("{s:b, s:s, s:o, s:s, s:s, s:s, s:{s:o, s:o, s:o}, s:o}", "good", r->good, "version",
			 OD_VERSION, "model", text_or_null(r->model), "fingerprint", r->fingerprint, "profile",
			 r->profile, "kernel_class", r->kernel_class, "main", "memory_bytes", positive(r->memory_bytes),
			 "measured", rates_json(r->main), "findings", findings_json(r->main), "hosts", hosts);
	good = root != NULL && json_dumpf(root, out, JSON_INDENT(2)) == 0;
	fputc('\n', out);
	json_decref(root);
	return good;
}
