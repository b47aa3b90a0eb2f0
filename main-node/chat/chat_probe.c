#include "main-node/chat/chat_probe.h"

#include "common/base/strbuf.h"
#include "main-node/chat/chat_messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N(a) (sizeof(a) / sizeof((a)[0]))
#define MAX_OPERATIONS 400000 /* limit of steps of a rendering; the largest published templates take a tenth */
#define MAX_MARKS 24
#define MARK_BYTES 24

/* A conversation is written as a text, a letter for each message:
 *   S system, D developer, Z an unknown role, U user, A assistant, O assistant without text, T a tool's result for the
 *   next call, N a result with a name, C a call without text (null), E a call with an empty text, B text and a call,
 *   H thought and call, I thought and text, P two calls.
 * - in front: the request has no tools. */
struct probe {
	struct odm_chat_format format; /* the best so far */
	const struct od_jinja *template;
	const json_t *tokens;
	char parts; /* the messages of this letter have two parts for content; 0: none have */
	bool exact; /* the model writes arguments as JSON */
};

struct talk {
	json_t *messages;
	char mark[MAX_MARKS][MARK_BYTES]; /* each must come out */
	size_t n_marks, n_calls, n_results;
};

struct probe_score {
	unsigned fails, faults; /* renderings; texts that are lost, and what is no text */
	size_t len;
};

/* ---- A conversation ---- */

static const char *mark(struct talk *t, const char *kind)
{
	char *m = t->mark[t->n_marks];

	if (t->n_marks + 1 < MAX_MARKS)
		t->n_marks++;
	snprintf(m, MARK_BYTES, "od%s%c", kind, (char)('a' + t->n_marks));
	return m;
}

/* The text is one that tojson writes in one way only, so that arguments that come out otherwise are seen. */
static json_t *new_call(struct talk *t)
{
	char arguments[MARK_BYTES + 32];
	const char *value = mark(t, "value");
	json_t *call;

	snprintf(arguments, sizeof(arguments), "{\"odkey\": \"%s\", \"odnumber\": 7}", value);
	call = json_pack("{s:o, s:s, s:{s:s, s:s}}", "id", json_sprintf("call_0123456789abcdef%zu", t->n_calls), "type",
			 "function", "function", "name", mark(t, "call"), "arguments", arguments);
	t->n_calls++;
	return call;
}

static json_t *content_of(struct talk *t, bool parts)
{
	const char *first = mark(t, "text");

	if (!parts)
		return json_string(first);
	return json_pack("[{s:s, s:s}, {s:s, s:s}]", "type", "text", "text", first, "type", "text", "text",
			 mark(t, "part"));
}

static json_t *new_assistant(struct talk *t, char letter, bool parts)
{
	const bool text = strchr("ABI", letter) != NULL;
	json_t *content = text ? content_of(t, parts) : letter == 'E' ? json_string("") : json_null();
	json_t *m = json_pack("{s:s, s:o}", "role", "assistant", "content", content), *calls = json_array();

	for (size_t n = strchr("CEBH", letter) != NULL ? 1 : letter == 'P' ? 2 : 0; n > 0; n--)
		json_array_append_new(calls, new_call(t));
	if (letter == 'H' || letter == 'I')
		json_object_set_new(m, "reasoning_content", json_string(mark(t, "thought")));
	if (json_array_size(calls) > 0)
		json_object_set(m, "tool_calls", calls);
	json_decref(calls);
	return m;
}

static json_t *new_result(struct talk *t, char letter, bool parts)
{
	json_t *m =
		json_pack("{s:s, s:o, s:o}", "role", "tool", "tool_call_id",
			  json_sprintf("call_0123456789abcdef%zu", t->n_results++), "content", content_of(t, parts));

	if (letter == 'N')
		json_object_set_new(m, "name", json_string("odnamed"));
	return m;
}

static json_t *new_message(struct talk *t, char letter, bool parts)
{
	static const char *const roles[] = {
		['S' - 'A'] = "system", ['D' - 'A'] = "developer", ['Z' - 'A'] = "odunknown", ['U' - 'A'] = "user"
	};
	static const char others[] = "SDZU";

	if (letter == 'T' || letter == 'N')
		return new_result(t, letter, parts);
	if (strchr(others, letter) == NULL)
		return new_assistant(t, letter, parts);
	return json_pack("{s:s, s:o}", "role", roles[letter - 'A'], "content", content_of(t, parts));
}

/* messages are NULL without memory. */
static void talk_init(struct talk *t, const char *letters, char parts)
{
	*t = (struct talk){ .messages = json_array() };
	for (; *letters != '\0'; letters++)
		if (json_array_append_new(t->messages, new_message(t, *letters, *letters == parts)) != 0) {
			json_decref(t->messages);
			t->messages = NULL;
		}
}

/* ---- What comes out ---- */

static const char *source_text(void *context, const json_t *object)
{
	return odm_context_source(context, object);
}

static json_t *some_tools(void)
{
	return json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s, s:s}}, s:[s]}}}]", "type", "function", "function",
			 "name", "odtool", "description", "A tool.", "parameters", "type", "object", "properties",
			 "odkey", "type", "string", "description", "A key.", "required", "odkey");
}

/* The text, malloc'd; NULL: the template fails. */
static char *render(const struct probe *p, const struct odm_chat_format *format, const json_t *messages, bool tools)
{
	struct odm_context context;
	struct od_jinja_opts opts = { .limits = { .operations = MAX_OPERATIONS },
				      .source = source_text,
				      .arg = &context };
	json_t *vars = p->tokens != NULL ? json_copy((json_t *)p->tokens) : json_object();
	char *text = NULL;
	size_t len;
	int rc = odm_context_build(&context, messages, format, NULL);

	if (rc == OD_OK && json_object_set(vars, "messages", context.messages) == 0 &&
	    json_object_set_new(vars, "tools", tools ? some_tools() : json_null()) == 0 &&
	    json_object_set_new(vars, "documents", json_null()) == 0 &&
	    json_object_set_new(vars, "add_generation_prompt", json_true()) == 0 &&
	    od_jinja_render(p->template, vars, &opts, &text, &len, NULL) != OD_OK)
		text = NULL;
	odm_context_fini(&context);
	json_decref(vars);
	return text;
}

static char *render_letters(const struct probe *p, const struct odm_chat_format *format, const char *letters,
			    struct talk *t)
{
	const bool tools = letters[0] != '-';
	char *text;

	talk_init(t, letters + !tools, p->parts);
	text = t->messages != NULL ? render(p, format, t->messages, tools) : NULL;
	json_decref(t->messages);
	t->messages = NULL;
	return text;
}

static unsigned count(const char *text, const char *what)
{
	unsigned n = 0;

	for (; (text = strstr(text, what)) != NULL; text += strlen(what))
		n++;
	return n;
}

/* Counts texts that are not of the conversation, and arguments that are not as the model wrote them. */
static unsigned count_odd(const struct probe *p, const struct talk *t, const char *text)
{
	static const char *const signs[] = { "None", "'type'", "'text'", "\"type\": \"text\"" };
	unsigned n = 0;

	for (size_t i = 0; i < N(signs); i++)
		n += count(text, signs[i]);
	if (!p->exact)
		return n;
	for (size_t i = 0; i < t->n_marks; i++) {
		char exact[MARK_BYTES + 32];

		snprintf(exact, sizeof(exact), "{\"odkey\": \"%s\", \"odnumber\": 7}", t->mark[i]);
		if (strncmp(t->mark[i], "odvalue", 7) == 0)
			n += count(text, exact) == 0;
	}
	return n;
}

static void add_score(struct probe_score *s, const struct probe *p, const struct odm_chat_format *format,
		      const char *letters)
{
	struct talk t;
	char *text = render_letters(p, format, letters, &t);

	s->fails += text == NULL;
	if (text == NULL)
		return;
	for (size_t i = 0; i < t.n_marks; i++)
		s->faults += count(text, t.mark[i]) == 0;
	s->faults += count_odd(p, &t, text);
	s->len += strlen(text);
	free(text);
}

static struct probe_score score_of(const struct probe *p, const struct odm_chat_format *format,
				   const char *const *talks)
{
	struct probe_score s = { 0 };

	for (; *talks != NULL; talks++)
		add_score(&s, p, format, *talks);
	return s;
}

static bool better(const struct probe_score *a, const struct probe_score *b, bool shorter)
{
	if (a->fails != b->fails)
		return a->fails < b->fails;
	if (a->faults != b->faults)
		return a->faults < b->faults;
	return shorter && a->len < b->len;
}

/* ---- The questions ---- */

/* A role's content is given as a string, then as a list. */
static void find_content(struct probe *p, enum odm_role role, char letter, const char *const *talks)
{
	static const enum odm_content ways[] = { ODM_CONTENT_BOTH, ODM_CONTENT_TEXT, ODM_CONTENT_PARTS,
						 ODM_CONTENT_PART };
	struct probe_score best = { .fails = ~0u };
	size_t n = 0;

	while (talks[n] != NULL)
		n++;
	for (size_t i = 0; i < N(ways); i++) {
		struct odm_chat_format format = p->format;
		struct probe_score s, as_list;

		format.content[role] = ways[i];
		s = score_of(p, &format, talks);
		p->parts = letter;
		as_list = score_of(p, &format, talks);
		p->parts = 0;
		s = (struct probe_score){ s.fails + as_list.fails, s.faults + as_list.faults, 0 };
		if (!better(&s, &best, false))
			continue;
		best = s;
		p->format.content[role] = best.fails < 2 * n ? ways[i] : ODM_CONTENT_TEXT;
	}
}

/* Arguments, ids and content of calls: each hides the others if it is wrong. */
static void find_calls(struct probe *p)
{
	static const char *const talks[] = { "UCT",	"UHT",	 "UCTAU", "UHTAU", "UHTHT", "UBTA",
					     "SUPTTIU", "-UCTA", "-UHT",  "C",	   NULL };
	static const char *const empty[] = { "UET", "UETAU", "-UETA", NULL };
	const enum odm_echo of_family = p->format.echo;
	const enum odm_echo ways[] = { of_family == ODM_ECHO_OBJECT ? ODM_ECHO_TEXT : of_family, ODM_ECHO_OBJECT,
				       ODM_ECHO_TEXT };
	const bool counted = p->format.ids == ODM_IDS_COUNTED;
	struct probe_score best = { .fails = ~0u }, given, never;
	struct odm_chat_format format;

	for (size_t i = 0; i < N(ways); i++)
		for (int shape = 0; shape < 4; shape++) {
			struct probe_score s;

			format = p->format;
			format.echo = ways[i];
			format.no_text = shape % 2 == 0 ? ODM_NO_TEXT_EMPTY : ODM_NO_TEXT_GIVEN;
			format.ids = shape < 2 ? (counted ? ODM_IDS_COUNTED : ODM_IDS_ANY) : ODM_IDS_SHORT;
			s = score_of(p, &format, talks);
			if (!better(&s, &best, format.no_text != p->format.no_text))
				continue;
			best = s;
			p->format = format;
		}
	format = p->format;
	format.no_text = ODM_NO_TEXT_NEVER;
	given = score_of(p, &p->format, empty);
	never = score_of(p, &format, empty);
	if (p->format.no_text == ODM_NO_TEXT_GIVEN && better(&never, &given, false))
		p->format = format;
}

static void find_thoughts(struct probe *p)
{
	static const char *const talks[] = { "UHT", "UHTI", "UI", "UIU", "UHTIU", NULL };
	struct probe_score best = score_of(p, &p->format, talks);

	for (int i = ODM_THOUGHT_ONLY + 1; i <= ODM_THOUGHT_PARTS; i++) {
		struct odm_chat_format format = p->format;
		struct probe_score s;

		format.thought_field = i;
		s = score_of(p, &format, talks);
		if (better(&s, &best, false)) {
			best = s;
			p->format = format;
		}
	}
}

/* "" as `what` changes nothing */
static char *replaced(const char *text, const char *what, const char *with)
{
	struct od_strbuf out = { 0 };
	size_t len;
	const char *at = *what != '\0' ? strstr(text, what) : NULL;

	while (at != NULL) {
		od_strbuf_append(&out, text, (size_t)(at - text));
		od_strbuf_append(&out, with, strlen(with));
		text = at + strlen(what);
		at = strstr(text, what);
	}
	od_strbuf_append(&out, text, strlen(text));
	return od_strbuf_take(&out, &len);
}

/* Returns whether both conversations are rendered alike, except that the second has `with` where the first has
 * `what`. */
static bool alike(const struct probe *p, const struct odm_chat_format *format, const char *a, const char *b,
		  const char *what, const char *with)
{
	struct talk t;
	char *first = render_letters(p, format, a, &t), *second = render_letters(p, format, b, &t), *same = NULL;
	bool yes;

	if (first != NULL)
		same = replaced(first, what, with);
	yes = same != NULL && second != NULL && strcmp(same, second) == 0;
	free(first);
	free(second);
	free(same);
	return yes;
}

static void find_name(struct probe *p)
{
	struct odm_chat_format format = p->format;

	format.name_is_role = true; /* only N has a name, so only N can differ */
	p->format.name_is_role =
		alike(p, &format, "UCN", "UCT", "odnamed", "tool") && !alike(p, &format, "UCN", "UCT", "", "");
}

static void find_needs(struct probe *p)
{
	static const struct {
		unsigned need;
		const char *talks[5]; /* ends with NULL */
	} rows[] = {
		{ ODM_NEED_ONE_USER, { "UU", "UAUU" } },
		{ ODM_NEED_ONE_ASSISTANT, { "UAAU", "UAAUA" } },
		{ ODM_NEED_SAID, { "UO", "UOU" } },
		{ ODM_NEED_NO_SYSTEM | ODM_NEED_SYSTEM_FIRST, { "SU", "SUAU" } },
		{ ODM_NEED_ONE_SYSTEM, { "SSU", "SSUAU" } },
		{ ODM_NEED_SYSTEM_FIRST, { "US", "SUS", "UASU", "SUASU" } },
		{ ODM_NEED_USER_FIRST, { "AU", "SAU" } },
		{ ODM_NEED_ONE_CALL, { "UPTT" } },
		/* Only the latest turn counts: templates may leave out older ones, as they do with thoughts. */
		{ ODM_NEED_CALL_ALONE, { "UBT" } },
		{ ODM_NEED_CALL_ONLY, { "UBT" } },
		{ ODM_NEED_CALL_AS_TEXT, { "UCT" } },
		{ ODM_NEED_RESULT_AS_USER, { "UCT" } },
		{ ODM_NEED_CALL_AS_TEXT, { "UCT" } }, /* again: the result failed */
		{ ODM_NEED_RESULT_AS_USER | ODM_NEED_CALL_AS_TEXT, { "UCT" } },
	};

	for (size_t i = 0; i < N(rows); i++) {
		struct odm_chat_format format = p->format;
		struct probe_score without = score_of(p, &format, rows[i].talks), with;

		format.needs |= rows[i].need;
		with = score_of(p, &format, rows[i].talks);
		if (better(&with, &without, false))
			p->format = format;
	}
}

/* A role that comes out as any would is not known to the model; one that comes out as the system's is no other. */
static void find_developer(struct probe *p)
{
	static const char *const talks[] = { "DU", "SDU", "DDU", "DUAU", NULL }, *const alone[] = { "DU", NULL };
	struct odm_chat_format format = p->format;
	struct probe_score with, without = score_of(p, &format, talks);

	format.takes_developer = true;
	with = score_of(p, &format, talks);
	if (better(&without, &with, false) || alike(p, &format, "ZU", "DU", "odunknown", "developer") ||
	    alike(p, &format, "SU", "DU", "", ""))
		return;
	p->format = format;
	find_content(p, ODM_ROLE_DEVELOPER, 'D', alone);
}

void odm_chat_probe(struct odm_chat_format *format, const struct od_jinja *template, const json_t *tokens)
{
	static const char *const user[] = { "U", "UAU", NULL }, *const system[] = { "SU", "SUAU", NULL },
				 *const assistant[] = { "UAU", "UA", NULL }, *const tool[] = { "UCT", "UCTAU", NULL };
	struct probe p = {
		.format = *format, .template = template, .tokens = tokens, .exact = format->echo == ODM_ECHO_OBJECT
	};

	find_content(&p, ODM_ROLE_USER, 'U', user);
	find_content(&p, ODM_ROLE_SYSTEM, 'S', system);
	find_content(&p, ODM_ROLE_ASSISTANT, 'A', assistant);
	find_calls(&p);
	find_content(&p, ODM_ROLE_TOOL, 'T', tool);
	find_thoughts(&p);
	find_name(&p);
	find_needs(&p);
	find_developer(&p);
	*format = p.format;
}
