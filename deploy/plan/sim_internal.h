/* sim_internal.h - the simulator of sim.h, for the files that make it up: sim.c (life, runs, figures), sim_clock.c
 * (events, links), sim_engine.c (main's texts and steps), sim_layer.c (main's layers), sim_measure.c (what main
 * knows of workers), sim_deal.c (groups, WANTs, pieces), sim_next_gate.c (main's own
 * predictor), sim_stream.c (main's dense weights), sim_worker.c, sim_shadow.c and sim_trace.c.
 *
 * Thread: the simulator's, one at a time. */
#ifndef ODP_SIM_INTERNAL_H
#define ODP_SIM_INTERNAL_H

#include "common/residency/schedule.h"
#include "deploy/plan/sim.h"
#include "main-node/cluster/layer_pieces.h"
#include "main-node/cluster/prompt_rows.h"
#include "main-node/cluster/want_target.h"
#include "main-node/engine/draft_policy.h"
#include "main-node/predict/prediction_wants.h"

#define NEVER UINT64_MAX
#define SESSION 1
#define MAIN 0u /* nodes: main, shadow, workers */
#define SHADOW 1u
#define FIRST_WORKER 2u

/* ---- Events ---- */

/* At the same time in this order: a load that is complete frees its slot before a prediction asks for it, and main
 * looks last. */
enum sim_event_kind { EV_READ, EV_COMPUTE, EV_WIRE, EV_ARRIVED, EV_SHADOW, EV_TEXT, EV_MAIN };

struct sim_message;

struct sim_event {
	uint64_t at_ns, serial;
	enum sim_event_kind kind;
	uint32_t who; /* worker, or text */
	uint64_t stamp; /* an event of an older one is void */
	struct sim_message *message;
};

struct sim_heap {
	struct sim_event *event;
	size_t n, cap;
	uint64_t serial;
};

/* ---- Messages ---- */

enum sim_message_kind {
	MSG_RUN,
	MSG_RESULT,
	MSG_WANT,
	MSG_CLOSE,
	MSG_PREDICT,
	MSG_STEP,
	MSG_STATE,
	MSG_STATE_REQUEST,
	MSG_TRUNCATE,
	MSG_CLOSE_TEXT,
};

struct sim_step_row {
	uint32_t text, position; /* MSG_STATE: the end of the rows */
	bool asked; /* MSG_STATE: rows of a prompt, on request */
	int32_t token; /* -1: the shadow's own */
	/* Set in a text's first row: its rows in the step, whether STATEs bring rows up to the last one, rows ahead. */
	uint32_t rows;
	bool due;
	uint32_t ahead;
};

struct sim_message {
	enum sim_message_kind kind;
	uint32_t from, to; /* nodes */
	double bytes;
	uint64_t begun_ns, left_ns; /* the sender's port begins, and is through with it */
	uint64_t step;
	uint32_t m, version, layer;
	bool prompt, closes;
	struct sim_run *run;
	uint32_t text, begin, end; /* used by STATE, TRUNCATE and the like */
	size_t n;
	void *list; /* [n]: experts, items, rows, predictions: the message's own */
};

/* A row of a PREDICT. */
struct sim_predicted {
	uint32_t text, position;
	int32_t token;
	float margin;
	struct odp_view view;
};

struct sim_port {
	uint64_t free_ns;
	uint64_t *busy_ns;
};

struct sim_node {
	const struct odp_machine *machine;
	struct sim_port up, down;
	struct odp_busy busy;
	double latency_ns; /* to main and back */
};

/* ---- Workers ---- */

struct sim_run {
	uint32_t worker;
	unsigned half; /* half of the step that its rows are in */
	uint64_t step, arrived_ns;
	double bytes;
	size_t n, n_open; /* items; not answered yet */
	struct odm_piece **piece; /* [n] */
	struct od_schedule_item *item; /* [n] */
};

struct sim_worker {
	struct od_schedule *schedule;
	struct od_expert_cache *cache;
	struct od_load_job read; /* the slice on the path to its storage, */
	bool reading; /* if there is one */
	uint64_t read_ns, read_stamp, read_begin_ns;
	struct od_schedule_item **group; /* [n_experts]: computed now */
	size_t n_group; /* 0: nothing is */
	uint64_t compute_begin_ns;
	/* Main's knowledge of its cache. */
	uint8_t *kept; /* [n_moe][n_experts]; NULL: no cache */
	uint64_t seen, told_ns;
	uint64_t held_bytes, window_bytes; /* rows on their way to it, or waiting there; and their limit */
};

/* ---- Main ---- */

enum sim_text_phase { TEXT_COMING, TEXT_WAITING, TEXT_PREFILL, TEXT_DECODE, TEXT_ENDED };

struct sim_text {
	enum sim_text_phase phase;
	uint64_t sequence, arrival_ns;
	uint32_t length; /* rows that are committed */
	uint32_t left; /* tokens that it still gets in decode */
	uint32_t steps; /* decode steps so far */
	uint32_t aligned; /* rows that the shadow was promised */
	struct odm_draft draft;
};

struct sim_row {
	uint32_t text, position;
	int32_t token;
};

struct sim_part {
	uint32_t text, first, n;
	bool seen; /* a prefill: the last row of its prompt is here */
};

/* Rows of a step that are at one layer. */
struct sim_half {
	uint32_t layer, m;
	size_t first, n_rows;
	bool begun;
};

/* A step under way. */
struct sim_pass {
	enum odm_phase phase;
	bool open;
	uint64_t step, begun_ns;
	struct sim_half half[ODM_HALVES];
	uint32_t n_halves, at; /* at: the half that main is about */
	struct sim_row *row;
	size_t n_rows;
	struct sim_part *part;
	size_t n_parts;
	uint64_t stall_ns;
};

enum sim_engine_state { ENGINE_IDLE, ENGINE_DENSE, ENGINE_PREDICTS, ENGINE_EXPERTS, ENGINE_HEAD };

/* Reading of dense weights: stages are layers, then the head. */
struct sim_stream {
	uint32_t next; /* the stage that is read next, unless another one is taken */
	double read_ns; /* the newest stage is read by then */
	double given_ns[2]; /* the ring had room again when the one before the last was given back, and the last */
};

struct sim_engine {
	enum sim_engine_state state;
	struct sim_pass decode, prefill, *now;
	uint64_t begin_ns; /* the state's */
	bool others; /* texts wait for their next decode step while this prefill runs */
	uint64_t prefill_begin_ns, layer_begin_ns; /* this piece of the prefill; its layer */
	uint64_t last_step, next_decode, decode_ns, layer_ns;
	size_t chunk_rows;
	uint32_t n_admitted, n_ended;
	double draft_experts;
	/* The layer under way. */
	bool computing; /* shared experts */
	uint32_t state_layer; /* STATEs of layers before it are sent */
	uint64_t routed_ns, layer_stall_ns;
	struct od_moe_call call[ODM_HALVES];
	struct sim_stream stream;
};

/* ---- The shadow ---- */

#define SHADOW_RING 64u /* positions whose tokens are kept: more than a step's rows and those ahead */

/* A text as the shadow knows it. */
struct sim_shadow_text {
	bool open, ready; /* ready: it has the prompt's rows */
	bool drafting; /* it may run several rows ahead, which do not wait for main's keys and values */
	uint32_t stepped; /* end of the newest STEP's rows */
	uint32_t next; /* the first position that has not run */
	uint32_t limit; /* end of the rows that it may run */
	uint32_t due_end; /* rows before it have come from main, or will */
	uint32_t *have; /* [n_layers]: rows before it have come */
	uint32_t known, right; /* positions before them have a token; one that is main's */
	int32_t token[SHADOW_RING]; /* by position */
	float margin[SHADOW_RING];
	uint32_t asked_layer, asked; /* the prompt's rows at layers before it have come, and so many of this one */
};

struct sim_shadow_row {
	uint32_t text, position;
	bool is_void;
};

enum sim_shadow_state { SHADOW_IDLE, SHADOW_HEAD, SHADOW_WAITS, SHADOW_ROUTES, SHADOW_RESTS };

struct sim_shadow {
	enum sim_shadow_state state;
	uint64_t stamp, begin_ns; /* the state's: events of older stamps are void */
	struct sim_shadow_text *text; /* [n_texts] */
	struct sim_shadow_row *row; /* [decode_rows] */
	size_t n_rows;
	uint32_t layer, m;
	struct odp_machine machine; /* with the speed that its weights give */
};

/* ---- All ---- */

struct odp_sim {
	struct odp_cluster cluster;
	struct odp_machine *given; /* [n_workers]: copies */
	struct odp_machine *machine; /* [n_workers]: the same in the order of main's view */
	uint32_t *place; /* [n_workers]: of each in the caller's order */
	uint32_t n_few, n_many; /* the first ones that get experts of decode steps, and of prompts */
	struct odm_deal_times *times; /* [n_workers] */
	struct odp_sim_model model;
	struct odp_sim_block *block; /* [n_layers]: copies */
	struct odp_sim_opts o;
	struct sim_heap heap;
	double disk_ns; /* with one_disk: all reads so far are done by then */
	struct sim_node *node; /* [FIRST_WORKER + n_workers] */
	struct sim_worker *worker; /* [n_workers] */
	struct odm_groups groups;
	struct odm_predictions *predictions;
	struct odm_draft_policy policy;
	struct odm_want_target target;
	struct odm_pieces pieces[ODM_HALVES];
	struct odm_prompt_rows prompt;
	uint64_t held_bytes; /* row bytes in flight, of all workers */
	uint16_t *needed; /* [n_experts]: scratch, as dealt */
	uint32_t *dealt;
	uint32_t *slots; /* [n_workers] */
	struct odm_piece **piece; /* [n_experts]: scratch */
	bool *used_worker; /* [n_workers]: it got a RUN of the layer */
	uint32_t *touched; /* [n_workers]: scratch: workers with pieces of the layer */
	uint32_t n_touched;
	size_t decode_rows, max_rows;
	uint16_t *used; /* [max_rows][top_k] */
	uint64_t *stamp, round; /* [max_rows]: the last round in which a row was seen */
	float *probability; /* [decode_rows][n_experts] */
	struct odm_predicted_row *predicted; /* [decode_rows] */
	uint32_t *row_ordered, *row_served; /* [decode_rows]: uses */
	bool *asked; /* [decode_rows]: main's own predictor predicts for the row */
	struct odm_draft **draft; /* [max_texts] */
	struct sim_engine engine;
	struct sim_shadow shadow;
	/* The run under way. */
	const struct odp_work *work;
	struct odp_sim_figures *f;
	struct sim_text *text; /* [n_texts] */
	uint64_t last_sequence;
	uint64_t c[OD_N_COUNTERS];
	uint64_t now_ns; /* the clock between two runs */
	bool traces;
	int rc; /* the first error */
};

/* ---- Clock and links (sim_clock.c) ---- */

uint64_t odp_clock_ns(void); /* this thread's virtual time */
void odp_clock_set(uint64_t ns);
void odp_at(struct odp_sim *s, uint64_t at_ns, enum sim_event_kind kind, uint32_t who, uint64_t stamp,
	    struct sim_message *message);
bool odp_next_event(struct odp_sim *s, struct sim_event *e);
/* A message; NULL: out of memory, which s->rc says. */
struct sim_message *odp_message(struct odp_sim *s, enum sim_message_kind kind, uint32_t from, uint32_t to, double bytes,
				size_t list_bytes);
void odp_send(struct odp_sim *s, struct sim_message *m); /* takes m */
void odp_on_wire(struct odp_sim *s, struct sim_message *m);
void odp_deliver(struct odp_sim *s, struct sim_message *m); /* takes m */
void odp_message_free(struct sim_message *m);

/* ---- Workers (sim_worker.c) ---- */

int odp_workers_new(struct odp_sim *s, struct od_err *err);
void odp_workers_free(struct odp_sim *s);
/* The worker's cache has the expert, or records its use in this step; its load takes no time. */
void odp_worker_fill(struct odp_sim *s, uint32_t w, uint64_t step, uint32_t m, uint32_t expert);
bool odp_worker_full(const struct odp_sim *s, uint32_t w); /* Does the cache have no room for another expert? */
void odp_worker_work(struct odp_sim *s, uint32_t w);
void odp_worker_event(struct odp_sim *s, const struct sim_event *e);
void odp_worker_receive(struct odp_sim *s, uint32_t w, struct sim_message *m);
uint64_t odp_wasted_loads(const struct odp_sim *s);

/* ---- Main ---- */

OD_MUST_CHECK int odp_measure(struct odp_sim *s, struct od_err *err); /* sorts the workers */

int odp_deal_new(struct odp_sim *s, struct od_err *err);
void odp_deal_free(struct odp_sim *s);
void odp_send_wants(struct odp_sim *s);
void odp_close_unused(struct odp_sim *s, uint64_t step, uint32_t m);
void odp_close_step(struct odp_sim *s, uint64_t step); /* every worker's WANTs of it */
void odp_cut_layer(struct odp_sim *s);

void odp_predicted(struct odp_sim *s, const struct sim_message *m); /* PREDICT has come */

double odp_stream_layer_ns(struct odp_sim *s, uint32_t layer); /* main waits so long for a layer's */
double odp_stream_head_ns(struct odp_sim *s, double compute_ns); /* the head's time, of which it computes so long */
void odp_stream_give(struct odp_sim *s, uint32_t layer); /* it uses them no more */

bool odp_next_gate_asks(struct odp_sim *s, double *ns); /* about the layer under way; *ns: its time */
void odp_next_gate_says(struct odp_sim *s);

static inline struct sim_half *odp_half(const struct odp_sim *s)
{
	return &s->engine.now->half[s->engine.now->at];
}
static inline const struct od_moe_call *odp_call(const struct odp_sim *s)
{
	return &s->engine.call[s->engine.now->at];
}

void odp_layer_routed(struct odp_sim *s); /* main's router has chosen: RUNs, and what follows them */
void odp_layer_state(struct odp_sim *s, uint32_t layer); /* STATEs of all layers up to this one */
void odp_layer_result(struct odp_sim *s, struct sim_message *m);
bool odp_layer_done(const struct odp_sim *s);

int odp_engine_new(struct odp_sim *s, struct od_err *err);
void odp_engine_free(struct odp_sim *s);
void odp_engine_text(struct odp_sim *s, uint32_t text); /* it has arrived */
void odp_engine_event(struct odp_sim *s, const struct sim_event *e);
void odp_engine_wake(struct odp_sim *s); /* a RESULT has come */

/* ---- The shadow (sim_shadow.c) ---- */

int odp_shadow_begin(struct odp_sim *s, struct od_err *err); /* a run begins */
void odp_shadow_end(struct odp_sim *s);
void odp_shadow_event(struct odp_sim *s, const struct sim_event *e);
void odp_shadow_receive(struct odp_sim *s, struct sim_message *m);
void odp_shadow_answer(struct odp_sim *s, const struct sim_message *m); /* main's: rows of a prompt are asked for */
bool odp_shadow_told(const struct odp_sim *s, uint32_t step); /* does a text's STEP of this number have the token? */
bool odp_shadow_aligned(const struct odp_sim *s, uint32_t step); /* do STATEs follow the step? */

/* ---- Traces (sim_trace.c) ---- */

enum sim_thread { COMPUTES, READS, SENDS, N_THREADS };

OD_MUST_CHECK int odp_trace_new(struct odp_sim *s, struct od_err *err);
int odp_trace_free(struct odp_sim *s, struct od_err *err);
/* From begin_ns to now. */
void odp_trace(const struct odp_sim *s, uint32_t node, enum sim_thread thread, const char *what, uint64_t begin_ns,
	       int64_t step, int64_t m, int64_t expert);

#endif
