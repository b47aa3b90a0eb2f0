/* Whose text each byte of a rendering is. Two renderings of a template differ only in a user's characters, which are
 * from two private alphabets: what differs between them, and each private character, must be the user's. Letters that
 * only the template has must be the template's. Every filter and method that makes text is in the list, and all cases
 * of tests/golden/chat are rendered too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/json.h"
#include "common/text/jinja/jinja.h"

#define FOLDER "tests/golden/chat/"
#define OWN_LETTER 'Q' /* in no user's text */

static struct od_err err;

struct jinja_users_output {
	char *text;
	size_t len;
	char *user; /* [len], 1: a user's */
};

static size_t own(void *arg, const json_t *object, const char *key, const json_t *string,
		  const struct od_text_span **span)
{
	static struct od_text_span whole;

	(void)arg;
	(void)object;
	whole = (struct od_text_span){ 0, json_string_length(string) };
	*span = &whole;
	return strcmp(key, "own") == 0 || strcmp(key, "role") == 0;
}

/* False: the template refuses the variables. */
static bool render(const struct od_jinja *t, const json_t *vars, struct jinja_users_output *o)
{
	const struct tm now = { .tm_year = 126, .tm_mon = 1, .tm_mday = 3 };
	struct od_text_spans users = { 0 };
	const struct od_jinja_opts opts = { .own = own, .users = &users, .now = &now };
	int rc = od_jinja_render(t, vars, &opts, &o->text, &o->len, &err);
	size_t end = 0;

	o->user = calloc(1, o->len + 1);
	assert_non_null(o->user);
	for (size_t i = 0; i < users.n; i++) {
		assert_true(users.v[i].begin < users.v[i].end && users.v[i].end <= o->len &&
			    (i == 0 || users.v[i].begin > end));
		end = users.v[i].end;
		memset(o->user + users.v[i].begin, 1, end - users.v[i].begin);
	}
	assert_true(rc == OD_OK || users.n == 0);
	od_text_spans_fini(&users);
	return rc == OD_OK;
}

static void output_fini(struct jinja_users_output *o)
{
	free(o->text);
	free(o->user);
}

static void show(const char *template, const struct jinja_users_output *o)
{
	fprintf(stderr, "template: %s\noutput, the user's bytes in {}: ", template);
	for (size_t i = 0; i < o->len; i++)
		fprintf(stderr, "%s%c%s", o->user[i] && (i == 0 || !o->user[i - 1]) ? "{" : "", o->text[i],
			o->user[i] && !o->user[i + 1] ? "}" : "");
	fprintf(stderr, "\n");
}

/* U+E000 to U+EFFF */
static bool is_private(const struct jinja_users_output *o, size_t at)
{
	while (at > 0 && ((unsigned char)o->text[at] & 0xc0) == 0x80)
		at--;
	return (unsigned char)o->text[at] == 0xee;
}

/* Returns how many bytes were compared. */
static size_t compare(const char *template, const struct jinja_users_output *a, const struct jinja_users_output *b)
{
	if (a->len != b->len)
		return 0;
	for (size_t i = 0; i < a->len; i++) {
		const bool users = a->text[i] != b->text[i] || is_private(a, i);

		if (users && !(a->user[i] && b->user[i])) {
			show(template, a);
			fail_msg("byte %zu is the user's", i);
		}
		if (a->text[i] == OWN_LETTER && a->user[i]) {
			show(template, a);
			fail_msg("byte %zu is the template's", i);
		}
	}
	return a->len;
}

/* ---- operations ---- */

/* x, y: a user's texts; u: the same in a dict and a list; o.own: the template's text in a variable. */
static const char *const operations[] = {
	"{{ x }}",
	"Q{{ x }}Q{{ y }}Q",
	"{{ 'Q' + x + 'Q' }}",
	"{{ 'Q' ~ x ~ 1 ~ 'Q' }}",
	"{{ x ~ y }}",
	"{{ (x ~ 'Q')[2:] }}",
	"{{ (x ~ 'Q')[::-1] }}",
	"{{ (x ~ 'Q')[::2] ~ ('Q' ~ x)[-3:-1] }}",
	"{{ x[0] }}Q{{ x[-1] }}",
	"{{ ('Q' ~ x)[0] }}",
	"{{ x * 3 ~ 'Q' * 2 }}",
	"{{ ('Q' ~ x) * 2 }}",
	"{% for c in 'Q' ~ x %}[{{ c }}]{% endfor %}",
	"{% for c in x %}{{ loop.index }}{{ c }}Q{% endfor %}",
	"{{ (' ' ~ x ~ 'Q ')|trim }}",
	"{{ ('Q' ~ x).strip('Q') }}",
	"{{ ('Q' ~ x ~ 'Q').lstrip() }}",
	"{{ (x ~ 'Q\n').rstrip('\n') }}",
	"{{ ('QQ' ~ x).removeprefix('Q') }}",
	"{{ (x ~ 'QQ').removesuffix('Q') }}",
	"{% for p in (x ~ ',Q,' ~ y).split(',') %}{{ p }};{% endfor %}",
	"{% for p in (x ~ ' Q ' ~ y).split() %}{{ p }}{% endfor %}",
	"{% for p in (x ~ ',Q,' ~ y).rsplit(',', 1) %}{{ p }};{% endfor %}",
	"{% for p in (x ~ ' Q ' ~ y).rsplit() %}{{ p }}{% endfor %}",
	"{% for p in (x ~ '\nQ\n' ~ y).splitlines() %}{{ p }};{% endfor %}",
	"{{ (x ~ 'Q' ~ y).partition('Q')|join('|') }}",
	"{{ (x ~ 'Q' ~ y).rpartition('Q')|join('|') }}",
	"{{ [x, 'Q', y]|join(',Q') }}",
	"{{ [x, 'Q']|join(y) }}",
	"{{ 'Q'.join([x, y, 'Q']) }}",
	"{{ x.join(['Q', 'Q']) }}",
	"{{ ('Q' ~ x)|replace(x, y) }}",
	"{{ 'QaQ'|replace('a', x) }}",
	"{{ ('Q' ~ x).replace('', y) }}",
	"{{ 'Q Q'.replace(' ', x, 1) }}",
	"{{ ('Q\n' ~ x ~ '\nQ\n' ~ y)|indent(2) }}",
	"{{ ('Q\n' ~ x)|indent(x, true) }}",
	"{{ x|indent('Q', true, true) }}",
	"{{ x|upper }}{{ ('Q' ~ x)|upper }}",
	"{{ ('Q' ~ x)|lower }}",
	"{{ x|title ~ 'Q'|title }}",
	"{{ x|capitalize }}",
	"{{ ('Q' ~ x).swapcase().swapcase() }}",
	"{{ ('Q' ~ x).title() }}",
	"{{ x.upper() ~ x.lower() ~ x.capitalize() }}",
	"{{ x|center(20) }}Q",
	"{{ ('Q' ~ x).center(20, 'Q') }}",
	"{{ 'Q'.ljust(4, x[0]) }}",
	"{{ ('Q' ~ x).rjust(12, 'Q') }}",
	"{{ x.zfill(12) }}Q",
	"{{ ('Q\t' ~ x ~ '\tQ').expandtabs(4) }}",
	"{{ '%s Q %s' % (x, 'Q') }}",
	"{{ 'Q%5s%-9sQ' % ('Q', x) }}",
	"{{ '%(a)sQ' % {'a': x} }}",
	"{{ '%.2sQ' % x }}",
	"{{ '%r %a Q' % (x, x) }}",
	"{{ '%c%c' % (x[0], 'Q') }}",
	"{{ x % () ~ 'Q' }}",
	"{{ '{} Q {}'.format(x, 'Q') }}",
	"{{ '{a:>9}{b!r}Q'.format(a=x, b=y) }}",
	"{{ '{0[k]}{0.k}Q'.format(u) }}",
	"{{ '{:Q^9}'.format(x) }}",
	"{{ '{:{f}>9}'.format('Q', f=x[0]) }}",
	"{{ '{}'.format([x, 'Q']) }}",
	"{{ (x ~ '{}').format('Q') }}",
	"{{ '%s Q'|format(x) }}",
	"{{ x|tojson }}Q",
	"{{ u|tojson }}",
	"{{ {'Q': x, 'Qk': ['Q', y]}|tojson }}",
	"{{ u|tojson(indent=2) }}",
	"{{ {'Q': x}|tojson(indent=2, separators=('Q', y)) }}",
	"{{ u|tojson(ensure_ascii=true) }}",
	"{{ {x: 'Q'}|tojson(sort_keys=true) }}",
	"{{ [x, {'Q': y}] }}",
	"{{ (x, 'Q') }}",
	"{{ u }}",
	"{{ u.items() }}{{ u.keys() }}",
	"{{ x|string ~ 'Q'|string }}",
	"{{ x|safe ~ 'Q' }}",
	"{{ ('<Q>' ~ x)|escape }}",
	"{{ (x|safe) + '<Q>' }}",
	"{{ ('Q' ~ x)|forceescape }}",
	"{{ ('Q' ~ x)|e|safe|upper }}",
	"{{ x|urlencode }}Q",
	"{{ {'Q': x}|urlencode }}",
	"{{ (x ~ ' Q Q Q Q')|truncate(6, true, 'Q') }}",
	"{{ (x ~ ' Q Q Q Q')|truncate(9, false, y, 0) }}",
	"{{ none|default(x) }}{{ nothing|default('Q') }}",
	"{{ x or 'Q' }}{{ '' or x }}{{ x and 'Q' }}",
	"{{ x if true else 'Q' }}",
	"{% set z %}Q{{ x }}Q{% endset %}{{ z }}{{ z[1:] }}",
	"{% set z | upper %}Q{{ x }}{% endset %}{{ z }}",
	"{% filter upper %}Q{{ x }}{% endfilter %}",
	"{% macro m(a, b='Q') %}Q{{ a }}{{ b }}{% endmacro %}{{ m(x) }}{{ m('Q', y) }}{{ m(x)|trim }}",
	"{% macro m() %}Q{{ caller() }}Q{% endmacro %}{% call m() %}{{ x }}Q{% endcall %}",
	"{% macro m() %}{{ varargs|join('Q') }}{{ kwargs }}{% endmacro %}{{ m(x, 'Q', k=y) }}",
	"{% set ns = namespace(t='Q') %}{% for c in u.list %}{% set ns.t = ns.t ~ c ~ 'Q' %}{% endfor %}{{ ns.t }}",
	"{% for k, v in u.items() %}Q{{ k }}={{ v }}{% endfor %}",
	"{% for k, v in u|dictsort %}{{ k }}Q{{ v }}{% endfor %}",
	"{% for k in u %}{{ k }}Q{% endfor %}",
	"{{ u.list|first ~ u.list|last ~ 'Q' }}",
	"{{ [x, 'Q']|map('upper')|join }}",
	"{{ [u, {'k': 'Q'}]|map(attribute='k')|join('Q') }}",
	"{{ ['Q', x]|list|sort|join }}",
	"{{ [x, 'Q', x]|unique|join }}",
	"{{ ['Q' ~ x]|select('string')|join }}",
	"{{ [x, 'Q']|batch(1)|list }}",
	"{{ [x, 'Q']|slice(2)|list }}",
	"{{ [x, 'Q']|reverse|join }}",
	"{{ ('Q' ~ x)|reverse }}",
	"{{ [u]|groupby('k') }}",
	"{{ [u]|selectattr('k')|map(attribute='k')|join }}",
	"{{ [x, 'Q']|sum(start='') if false else x }}",
	"{{ [x, 'Q']|max ~ [x]|min }}",
	"{% set c = cycler(x, 'Q') %}{{ c.next() }}{{ c.next() }}",
	"{% set j = joiner(x) %}{{ j() }}Q{{ j() }}",
	"{% for i in range(2) %}{{ loop.cycle(x, 'Q') }}{% endfor %}",
	"{% for c in [x] recursive %}Q{{ c }}{% if loop.depth < 2 %}{{ loop([y]) }}{% endif %}{% endfor %}",
	"{{ dict(Q=x) }}{{ dict([(x, 'Q')]) }}",
	"{{ u|list }}{{ u|items|list }}",
	"{{ o.own }}Q{{ x }}",
	"{{ '<' ~ o.own ~ '>' }}{{ o.own|upper }}{{ o.own|trim ~ x }}",
	"{{ strftime_now('%Y') }}Q{{ x }}",
	"{{ 1 }}{{ 1.5 }}{{ true }}Q{{ none }}{{ [1, 'Q'] }}{{ '%05dQ' % 3 }}",
	"{{ 'Q' if x == y else x }}",
	"{{ x|attr('upper')() }}",
	"{{ (x ~ 'Q').encode is defined }}{{ x.casefold() if x.casefold is defined else x }}",
	"{{ u['k'] ~ u.get('k') ~ u.get('n', 'Q') }}",
	"{{ x.__class__ }}Q",
	"{{ u.k.split(x[1])|join('Q') }}",
	"{{ ('Q' ~ x) | d('Q') }}",
	"{{ x|wordcount }}Q{{ x|length }}",
};

/* "abc" of an alphabet: three private characters, told apart by the case of what they stand for. */
static void put(char *to, unsigned alphabet, const char *letters)
{
	size_t n = 0;

	for (; *letters != '\0'; letters++) {
		const unsigned c = 0xe000 + 0x100 * alphabet + (unsigned char)*letters;

		to[n++] = (char)(0xe0 | c >> 12);
		to[n++] = (char)(0x80 | (c >> 6 & 63));
		to[n++] = (char)(0x80 | (c & 63));
	}
	to[n] = '\0';
}

static json_t *variables(unsigned alphabet)
{
	char x[64], y[64], k[64];

	put(x, alphabet, "abcd");
	put(y, alphabet, "efgh");
	put(k, alphabet, "key");
	return json_pack("{s:s, s:s, s:{s:s, s:[s,s], s:s}, s:{s:s}}", "x", x, "y", y, "u", "k", x, "list", x, y, k, y,
			 "o", "own", "Qown");
}

/* A client chooses the digits of an integer beyond 64 bits, and how many there are. */
static void digits_are_the_users(void **state)
{
	static const char vars[] = "{\"b\": 18446744073709551615}",
			  template[] = "Q{{ b }}Q{{ {'Q': b}|tojson }}Q{{ -b }}Q";
	json_error_t why;
	json_t *v = od_json_decode(vars, strlen(vars), 0, &why);
	struct od_jinja *t;
	struct jinja_users_output o;

	(void)state;
	assert_int_equal(od_jinja_parse(&t, template, strlen(template), "t", &err), OD_OK);
	assert_true(render(t, v, &o));
	for (size_t i = 0; i < o.len; i++)
		assert_int_equal(o.user[i], o.text[i] >= '0' && o.text[i] <= '9');
	output_fini(&o);
	od_jinja_free(t);
	json_decref(v);
}

static void every_operation(void **state)
{
	json_t *first = variables(0), *second = variables(1);

	(void)state;
	for (size_t i = 0; i < sizeof(operations) / sizeof(operations[0]); i++) {
		struct jinja_users_output a, b;
		struct od_jinja *t;

		if (od_jinja_parse(&t, operations[i], strlen(operations[i]), "t", &err) != OD_OK)
			fail_msg("%s: %s", operations[i], err.msg);
		if (!render(t, first, &a) || !render(t, second, &b))
			fail_msg("%s: %s", operations[i], err.msg);
		if (compare(operations[i], &a, &b) == 0) {
			show(operations[i], &a);
			fail_msg("nothing was compared");
		}
		output_fini(&a);
		output_fini(&b);
		od_jinja_free(t);
	}
	json_decref(first);
	json_decref(second);
}

/* ---- templates ---- */

/* A copy whose strings, but for roles and types, are of an alphabet, and so are keys within "parameters" and
 * "arguments". */
static json_t *in_alphabet(const json_t *v, unsigned alphabet)
{
	json_t *copy, *item;
	const char *key;
	size_t i;

	if (json_is_string(v)) {
		char *to = malloc(3 * json_string_length(v) + 1);

		assert_non_null(to);
		put(to, alphabet, json_string_value(v));
		copy = json_string(to);
		free(to);
		return copy;
	}
	if (json_is_array(v)) {
		copy = json_array();
		json_array_foreach(v, i, item) json_array_append_new(copy, in_alphabet(item, alphabet));
		return copy;
	}
	if (!json_is_object(v))
		return json_incref((json_t *)v);
	copy = json_object();
	json_object_foreach((json_t *)v, key, item)
	{
		const bool word = strcmp(key, "role") == 0 || strcmp(key, "type") == 0;

		json_object_set_new(copy, key, word ? json_incref(item) : in_alphabet(item, alphabet));
	}
	return copy;
}

static json_t *case_variables(const json_t *file, const json_t *c, unsigned alphabet)
{
	static const char *const names[] = { "messages", "tools", "documents", "bos_token", "eos_token" };
	json_t *vars = json_object(), *extra = json_object(), *v;

	json_object_update(extra, json_object_get(file, "extra"));
	json_object_update(extra, json_object_get(c, "extra"));
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		v = json_object_get(c, names[i]) != NULL ? json_object_get(c, names[i]) :
							   json_object_get(file, names[i]);
		if (v != NULL && !json_is_null(v))
			json_object_set(extra, names[i], v);
	}
	json_object_update_new(vars, in_alphabet(extra, alphabet));
	json_object_set_new(vars, "add_generation_prompt", json_true());
	json_decref(extra);
	return vars;
}

static size_t n_compared, n_refused, n_bytes;

static void compare_case(const json_t *file, const json_t *c, const char *template)
{
	json_t *first = case_variables(file, c, 0), *second = case_variables(file, c, 1);
	struct jinja_users_output a, b;
	struct od_jinja *t;
	bool good;

	/* some cases are templates with an error */
	if (od_jinja_parse(&t, template, strlen(template), "t", &err) == OD_OK) {
		good = render(t, first, &a);
		good = render(t, second, &b) && good;
		if (good)
			n_bytes += compare(template, &a, &b);
		n_compared += good;
		n_refused += !good;
		output_fini(&a);
		output_fini(&b);
		od_jinja_free(t);
	}
	json_decref(first);
	json_decref(second);
}

static void all_templates(void **state)
{
	static const char *const files[] = { "chat_cases.json", "chat_cases-3.json", "constructs.json", "random.json" };

	(void)state;
	for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++) {
		char path[64];
		json_t *file, *c;
		size_t i;

		snprintf(path, sizeof(path), FOLDER "%s", files[f]);
		file = json_load_file(path, JSON_ALLOW_NUL, NULL);
		assert_non_null(file);
		json_array_foreach(json_object_get(file, "cases"), i, c)
			compare_case(file, c, json_string_value(json_object_get(c, "template")));
		json_decref(file);
	}
	/* Some refuse texts that mean nothing. */
	if (n_compared < 400 || n_bytes < 30000)
		fail_msg("%zu compared (%zu bytes), %zu refused", n_compared, n_bytes, n_refused);
}

/* ---- spans ---- */

static size_t some(void *arg, const json_t *object, const char *key, const json_t *string,
		   const struct od_text_span **span)
{
	static const struct od_text_span spans[] = { { 0, 1 }, { 3, 5 } };

	(void)object;
	(void)arg;
	*span = spans;
	return strcmp(key, "some") == 0 && json_string_length(string) == 5 ? 2 : 0;
}

/* Parts of a string, at the top and within; what is empty; a text that is all the template's, or all the user's. */
static void spans_of_strings(void **state)
{
	static const struct {
		const char *template;
		size_t n;
		struct od_text_span spans[4];
	} cases[] = {
		{ "{{ some }}", 1, { { 1, 3 } } },
		{ "[{{ d.some }}]", 1, { { 2, 4 } } },
		{ "{{ d.other }}{{ list[0] }}", 1, { { 0, 10 } } },
		{ "{{ some ~ d.some }}", 2, { { 1, 3 }, { 6, 8 } } },
		{ "{{ d|tojson }}", 4, { { 2, 6 }, { 11, 13 }, { 19, 24 }, { 28, 33 } } },
		{ "abc", 0, { { 0, 0 } } },
		{ "", 0, { { 0, 0 } } },
		{ "{{ d.other }}", 1, { { 0, 5 } } },
	};
	json_t *vars = json_pack("{s:s, s:{s:s, s:s}, s:[s]}", "some", "abcde", "d", "some", "vwxyz", "other", "other",
				 "list", "abcde");

	(void)state;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct od_text_spans users = { 0 };
		const struct od_jinja_opts opts = { .own = some, .users = &users };
		struct od_jinja *t;
		char *text;
		size_t len;

		assert_int_equal(od_jinja_parse(&t, cases[i].template, strlen(cases[i].template), "t", &err), OD_OK);
		assert_int_equal(od_jinja_render(t, vars, &opts, &text, &len, &err), OD_OK);
		for (size_t k = 0; k < users.n; k++)
			if (k >= cases[i].n || users.v[k].begin != cases[i].spans[k].begin ||
			    users.v[k].end != cases[i].spans[k].end)
				fail_msg("%s: %s: span %zu is %zu to %zu", cases[i].template, text, k, users.v[k].begin,
					 users.v[k].end);
		if (users.n < cases[i].n)
			fail_msg("%s: %zu spans", cases[i].template, users.n);
		free(text);
		od_text_spans_fini(&users);
		od_jinja_free(t);
	}
	json_decref(vars);
}

/* A long text goes through many copies in linear time, and its marks with it. */
static void long_texts(void **state)
{
	static const char template[] =
		"{% set ns = namespace(t='') %}{% for i in range(300) %}{% set ns.t = ns.t ~ 'Q' ~ x[:4096] ~ '\n' %}{% endfor %}"
		"{{ ns.t }}{{ ns.t|trim|replace('Q', 'QQ') }}{% for line in ns.t.split('\n') %}{{ line|trim }}{% endfor %}{{ x|tojson }}";
	char *long_text = malloc(4u << 20);
	struct jinja_users_output o;
	struct od_jinja *t;
	size_t n_own = 0;
	json_t *vars;

	(void)state;
	assert_non_null(long_text);
	memset(long_text, 'a', 4u << 20);
	vars = json_pack("{s:s%}", "x", long_text, (size_t)4 << 20);
	assert_int_equal(od_jinja_parse(&t, template, strlen(template), "t", &err), OD_OK);
	assert_true(render(t, vars, &o));
	for (size_t i = 0; i < o.len; i++) {
		assert_int_equal(o.user[i], o.text[i] == 'a');
		n_own += !o.user[i];
	}
	assert_int_equal(n_own, 300 * 4 + 300 + 299 + 2);
	output_fini(&o);
	od_jinja_free(t);
	json_decref(vars);
	free(long_text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_operation), cmocka_unit_test(digits_are_the_users),
		cmocka_unit_test(all_templates),   cmocka_unit_test(spans_of_strings),
		cmocka_unit_test(long_texts),
	};

	return cmocka_run_group_tests_name("jinja_users", tests, NULL, NULL);
}
