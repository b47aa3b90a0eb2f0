// cluster.js - the view of the cluster: its machines, curves of the last minutes, and the timeline of the last steps.
// The server sends states and steps (GET /cluster/events) and never a text of a user.
import { events } from './api.js';
import { CURVES, Curve } from './curves.js';
import { $, el, formatBytes, formatNumber, setText } from './dom.js';
import { Timeline } from './timeline.js';

const RETRY_MS = [1000, 2000, 4000, 8000];
const SILENCE_MS = 10000; // a state comes each second: after this the connection is dead

const TONES = { serving: 'good', 'idle by choice': 'plain', connecting: 'warn', lost: 'bad', refused: 'bad',
	distrusted: 'bad' };

let curves = [];
let timeline = null;
let watching = null; // AbortController of the stream; null: the view is not shown
let machines = new Map(); // id: view of a machine
let modelName = null; // of the last state

// ---- The stream ----

function sleep(ms, signal) {
	return new Promise((resolve) => {
		const timer = setTimeout(resolve, ms);
		signal.addEventListener('abort', () => {
			clearTimeout(timer);
			resolve();
		});
	});
}

// Reads events until the connection ends or is silent.
async function readOnce(signal, onEvent) {
	const own = new AbortController(), abort = () => own.abort();
	let timer = setTimeout(abort, SILENCE_MS);
	signal.addEventListener('abort', abort);
	try {
		for await (const { type, data } of events('/cluster/events', { signal: own.signal })) {
			clearTimeout(timer);
			timer = setTimeout(abort, SILENCE_MS);
			onEvent(type, JSON.parse(data));
		}
	} finally {
		clearTimeout(timer);
		signal.removeEventListener('abort', abort);
	}
}

async function watch(signal) {
	for (let failures = 0; !signal.aborted; failures++) {
		let why = 'The connection ended.';
		try {
			await readOnce(signal, (type, data) => {
				failures = 0;
				onEvent(type, data);
			});
		} catch (e) {
			why = e.name === 'AbortError' ? 'The server is silent.' : e.message;
			if (e.kind === 'key') {
				setText($('link-state'), `${why} Open this view again to enter another.`);
				return;
			}
		}
		if (signal.aborted)
			return;
		setText($('link-state'), `${why} Connecting again.`);
		document.body.classList.add('link-lost');
		await sleep(RETRY_MS[Math.min(failures, RETRY_MS.length - 1)], signal);
	}
}

function onEvent(type, data) {
	if (type === 'state')
		showState(data);
	else if (type === 'steps')
		timeline.add(data.steps ?? []);
}

// ---- The state ----

function fact(name, value) {
	return el('div', { class: 'fact' }, el('dt', {}, name), el('dd', {}, value));
}

function duration(seconds) {
	if (seconds < 120)
		return `${Math.round(seconds)} s`;
	if (seconds < 7200)
		return `${Math.round(seconds / 60)} min`;
	return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

const MODES = { cluster: 'cluster', memory: 'one machine, experts on demand', resident: 'one machine, all in memory' };

function showState(s) {
	document.body.classList.remove('link-lost');
	setText($('link-state'), s.ready ? 'Serving.' : 'Not ready.');
	const problem = $('cluster-problem');
	problem.hidden = !s.problem;
	setText(problem, [s.problem, s.remedy].filter((t) => t).join(' '));
	const m = s.model ?? {}, q = s.queue ?? {};
	if (modelName !== null && m.name !== modelName)
		dispatchEvent(new Event('modeldoubt'));
	modelName = m.name;
	const facts = [['Model', m.name ?? ''],
		['Experts', `${m.moe_layers ?? '?'} layers of ${m.experts ?? '?'}, ${m.top_k ?? '?'} for each token`],
		['Runs as', MODES[s.mode] ?? s.mode ?? ''], ['Texts',
			`${q.running ?? 0} written, ${q.waiting ?? 0} waiting (of ${q.limit ?? '?'})`],
		['Up for', duration(s.uptime_seconds ?? 0)], ['Version', s.version ?? '']];
	const shown = facts.map((f) => f.join('\n')).join('\n');
	if ($('facts').dataset.shown !== shown) {
		$('facts').dataset.shown = shown;
		$('facts').replaceChildren(...facts.map(([name, value]) => fact(name, value)));
	}
	for (const c of curves)
		c.add(s);
	showMachines(s.machines ?? []);
	timeline.setMachines(s.machines ?? []);
}

class MachineView {
	constructor() {
		this.name = el('span', { class: 'machine-name' });
		this.state = el('span', { class: 'machine-state' });
		this.lines = [0, 1, 2].map(() => el('p', { class: 'machine-line' }));
		this.problem = el('p', { class: 'machine-problem', hidden: true });
		this.remedy = el('p', { class: 'machine-remedy', hidden: true });
		this.node = el('li', {}, el('div', { class: 'machine-head' }, this.name, this.state), ...this.lines,
			this.problem, this.remedy);
	}

	show(m) {
		this.node.className = `machine ${TONES[m.state] ?? 'warn'}`;
		setText(this.name, nameOf(m));
		setText(this.state, m.state);
		[whoOf(m), memoryOf(m), workOf(m)].forEach((text, i) => {
			setText(this.lines[i], text);
			this.lines[i].hidden = text === '';
		});
		this.problem.hidden = !m.problem;
		setText(this.problem, m.problem ?? '');
		this.remedy.hidden = !m.remedy;
		setText(this.remedy, m.remedy ?? '');
	}
}

export function nameOf(m) {
	return m.host || m.name || m.role;
}

function whoOf(m) {
	const parts = [m.role];
	if (m.name && m.name !== nameOf(m))
		parts.push(m.name);
	if (m.precision)
		parts.push(m.precision);
	if (m.layers)
		parts.push(`layers ${m.layers[0]} to ${m.layers[1] - 1}`);
	return parts.join(' · ');
}

function memoryOf(m) {
	const parts = [];
	if (m.memory_bytes > 0)
		parts.push(`${formatBytes(m.memory_bytes)} of memory`);
	if (m.memory_bytes > 0 && m.memory_peak_bytes > m.memory_bytes)
		parts.push(`peak ${formatBytes(m.memory_peak_bytes)}`);
	return parts.join(' · ');
}

function workOf(m) {
	const h = m.holds ?? {}, c = m.counters ?? {}, parts = [];
	if (h.experts > 0)
		parts.push(`${formatNumber(h.experts)} experts on disk`);
	if (h.cached > 0)
		parts.push(`${formatNumber(h.cached)} in memory`);
	if (h.slots > 0)
		parts.push(`${formatNumber(h.slots)} ${h.slots === 1 ? 'slot' : 'slots'}`);
	if (c.loads > 0)
		parts.push(`${formatNumber(c.loads)} loads of ${formatNumber(c.load_seconds / c.loads * 1000, 1)} ms`);
	return parts.join(' · ');
}

function showMachines(list) {
	const seen = new Map();
	for (const m of list) {
		const view = machines.get(m.id) ?? new MachineView();
		view.show(m);
		seen.set(m.id, view);
	}
	const nodes = [...seen.values()].map((v) => v.node), shown = $('machines').children;
	if (nodes.length !== shown.length || nodes.some((n, i) => n !== shown[i]))
		$('machines').replaceChildren(...nodes);
	machines = seen;
}

// ---- Shown and hidden ----

export function startCluster() {
	curves = CURVES.map((c) => new Curve(c));
	$('curves').replaceChildren(...curves.map((c) => c.node));
	timeline = new Timeline();
}

export function showCluster() {
	if (watching !== null)
		return;
	watching = new AbortController();
	setText($('link-state'), 'Connecting.');
	watch(watching.signal);
}

// Nobody watches: the server then records nothing.
export function hideCluster() {
	watching?.abort();
	watching = null;
}
