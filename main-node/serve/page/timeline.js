// timeline.js - the last steps on a canvas: a lane for main, one for each shadow's predictions, one for each worker.
// Beside it the last step as a table, for readers that see no canvas.
import { $, el, formatNumber, setText } from './dom.js';

const KEEP = 16; // steps
const LANE_PX = 22, SMALL_LANE_PX = 14, GAP_PX = 16, TOP_PX = 22, LABEL_PX = 120, SMALL_LABEL_PX = 74,
	MIN_STEP_PX = 300;

const MAIN = { attention: ['attention', 'attention'], send: ['send', 'sends rows'], wait: ['wait', 'waits for experts'],
	head: ['head', 'head and sampling'],
	experts: ['experts', 'experts on main'] };
const LEGEND = [['attention', '', 'attention'], ['experts', '', 'experts on main'], ['send', '', 'sending'],
	['wait', '', 'waiting'], ['head', '', 'head'],
	['good', ' up', 'predicted right'], ['danger', ' down', 'predicted wrong'], ['send', ' line', 'in flight'],
		['load', '', 'expert load'],
	['compute', '', 'expert compute']];
const COLOURS = ['attention', 'experts', 'send', 'wait', 'head', 'good', 'danger', 'load', 'compute', 'text', 'soft',
	'line', 'side'];

function milliseconds(us) {
	return `${formatNumber(us / 1000, us < 10000 ? 2 : 1)} ms`;
}

// The host's name; where several daemons run on one host, with the port.
function labelOf(m, machines) {
	const isAlone = machines.filter((o) => o.host === m.host && o.role === m.role).length === 1;
	if (m.role === 'main')
		return 'main';
	if (m.host && !isAlone)
		return m.host + m.name.slice(m.name.lastIndexOf(':'));
	return m.host || m.name || `${m.role} ${m.id}`;
}

export class Timeline {
	constructor() {
		this.steps = [];
		this.lanes = []; // { key, label, id }
		this.boxes = []; // what is drawn where: { x, y, width, height, text }
		this.frame = 0;
		this.paused = false;
		this.canvas = $('timeline-canvas');
		this.readColours();
		$('legend').replaceChildren(...LEGEND.map(([colour, form, text]) => {
			const swatch = el('span', { class: `swatch${form}`, 'aria-hidden': 'true' });
			swatch.style.background = `var(--${colour})`;
			return el('li', {}, swatch, text);
		}));
		$('timeline-pause').addEventListener('click', () => this.pause());
		$('timeline-steps').addEventListener('change', () => this.drawSoon());
		this.canvas.addEventListener('pointermove', (e) => this.point(e));
		addEventListener('resize', () => this.drawSoon());
		addEventListener('themechange', () => this.recolour());
		matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.recolour());
		this.drawSoon();
	}

	// light-dark() is resolved where a colour is used, not where it is declared.
	readColours() {
		const probe = el('span', { hidden: true });
		probe.style.forcedColorAdjust = 'none'; // else all are the same in a mode of high contrast
		document.body.append(probe);
		this.colour = {};
		for (const name of COLOURS) {
			probe.style.color = `var(--${name})`;
			this.colour[name] = getComputedStyle(probe).color;
		}
		probe.remove();
	}

	recolour() {
		this.readColours();
		this.drawSoon();
	}

	pause() {
		this.paused = !this.paused;
		$('timeline-pause').setAttribute('aria-pressed', String(this.paused));
	}

	setMachines(machines) {
		const order = { main: 0, shadow: 1, worker: 2 };
		const lanes = [...machines]
			.sort((a, b) => order[a.role] - order[b.role] || a.id - b.id)
			.map((m) => ({ role: m.role, id: m.id, label: labelOf(m, machines) }));
		// Steps say what came from a shadow, but not from which: all predictions are in the first one's lane.
		const firstShadow = lanes.findIndex((l) => l.role === 'shadow');
		this.lanes = lanes.filter((l, i) => l.role !== 'shadow' || i === firstShadow);
		if (firstShadow >= 0)
			this.lanes.find((l) => l.role === 'shadow').label = 'shadow';
		this.drawSoon();
	}

	add(steps) {
		if (this.paused)
			return;
		this.steps.push(...steps.filter((s) => s !== null && s.us > 0));
		this.steps.splice(0, Math.max(0, this.steps.length - KEEP));
		this.drawSoon();
	}

	drawSoon() {
		if (this.frame === 0)
			this.frame = requestAnimationFrame(() => {
				this.frame = 0;
				this.draw();
				this.drawTable();
			});
	}

	// ---- The canvas ----

	draw() {
		const box = $('timeline');
		if (box.clientWidth === 0)
			return;
		const steps = this.steps.slice(-Number($('timeline-steps').value));
		const lane = this.lanes.length > 14 ? SMALL_LANE_PX : LANE_PX;
		this.labelPx = box.clientWidth < 600 ? SMALL_LABEL_PX : LABEL_PX;
		const width = Math.max(box.clientWidth, this.labelPx + steps.length * MIN_STEP_PX), height = TOP_PX +
			Math.max(1, this.lanes.length) * lane + 6;
		const scale = devicePixelRatio || 1;
		Object.assign(this.canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
		this.canvas.style.width = `${width}px`;
		this.canvas.style.height = `${height}px`;
		this.context = this.canvas.getContext('2d');
		this.context.scale(scale, scale);
		this.boxes = [];
		this.lanePx = lane;
		this.drawLanes(width, height);
		this.drawSteps(steps, width, height);
		this.canvas.setAttribute('aria-label', steps.length === 0 ? 'No step yet' :
			`The last ${steps.length} steps; the table below has the last one`);
	}

	drawLanes(width, height) {
		const c = this.context;
		c.font = `${this.lanePx < LANE_PX ? 11 : 12.5}px system-ui, sans-serif`;
		c.textBaseline = 'middle';
		this.lanes.forEach((lane, i) => {
			const y = TOP_PX + i * this.lanePx;
			c.fillStyle = this.colour.text;
			c.fillText(fit(c, lane.label, this.labelPx - 18), 10, y + this.lanePx / 2);
			c.fillStyle = this.colour.line;
			c.fillRect(this.labelPx, y + this.lanePx - 1, width - this.labelPx, 1);
		});
		if (this.steps.length === 0) {
			c.fillStyle = this.colour.soft;
			c.fillText('Steps are shown here while a text is written.', this.labelPx + 10, height / 2);
		}
	}

	drawSteps(steps, width, height) {
		const c = this.context, total = steps.reduce((sum, s) => sum + s.us, 0);
		const perUs = (width - this.labelPx - steps.length * GAP_PX) / (total || 1);
		let x = this.labelPx;
		for (const s of steps) {
			this.perUs = perUs;
			this.x = x;
			this.left = x - GAP_PX / 2;
			this.right = x + s.us * perUs + GAP_PX / 2;
			c.fillStyle = this.colour.soft;
			c.fillText(fit(c, stepTitle(s), s.us * perUs), x, TOP_PX / 2 + 1);
			c.fillStyle = this.colour.line;
			c.fillRect(this.right, 0, 1, height);
			this.drawStep(s);
			x += s.us * perUs + GAP_PX;
		}
	}

	laneOf(role, id) {
		return this.lanes.findIndex((l) => l.role === role && (role !== 'worker' || l.id === id));
	}

	drawStep(s) {
		const main = this.laneOf('main'), shadow = this.laneOf('shadow');
		for (const [kind, m, at, us] of s.main ?? [])
			this.bar(main, at, us, MAIN[kind]?.[0] ?? 'soft',
				`main, layer ${m}: ${MAIN[kind]?.[1] ?? kind}, ${milliseconds(us)}`);
		for (const [m, at, right, wrong] of s.shadow ?? [])
			this.prediction(shadow, at, right, wrong,
				`shadow, layer ${m}: ${right} predicted right, ${wrong} wrong`);
		for (const w of s.workers ?? [])
			this.result(w);
	}

	bar(lane, at, us, colour, text, thin = false) {
		if (lane < 0)
			return;
		const from = Math.max(this.left, this.x + at * this.perUs),
			to = Math.min(this.right, this.x + (at + us) * this.perUs);
		const y = TOP_PX + lane * this.lanePx, height = thin ? 2 : this.lanePx - 6;
		if (to < from)
			return;
		const box = { x: from, y: y + (this.lanePx - height) / 2 - .5, width: Math.max(.7, to - from), height,
			text };
		this.context.fillStyle = this.colour[colour];
		this.context.fillRect(box.x, box.y, box.width, box.height);
		this.boxes.push(box);
	}

	// Right experts as a triangle that stands, wrong ones as one that hangs: colours are not all that tells them
	// apart.
	prediction(lane, at, right, wrong, text) {
		if (lane < 0)
			return;
		const x = Math.min(this.right, Math.max(this.left, this.x + at * this.perUs)), y = TOP_PX +
			lane * this.lanePx + this.lanePx / 2 - .5;
		const most = this.lanePx / 2 - 2, size = (n) => (n > 0 ? Math.min(most, 2 + n) : 0);
		const c = this.context;
		for (const [n, up, colour] of [[right, -1, 'good'], [wrong, 1, 'danger']]) {
			c.fillStyle = this.colour[colour];
			c.beginPath();
			c.moveTo(x - 2.5, y);
			c.lineTo(x + 2.5, y);
			c.lineTo(x, y + up * size(n));
			c.fill();
		}
		this.boxes.push({ x: x - 2.5, y: y - most, width: 5, height: 2 * most, text });
	}

	// In flight from sent to answered. The worker says how long it loaded, waited and computed; computing ends with
	// the answer.
	result([id, m, sent, answered, load, wait, compute, experts, ready]) {
		const lane = this.laneOf('worker', id), who = this.lanes[lane]?.label ?? `worker ${id}`;
		const text = `${who}, layer ${m}: ${experts} ${experts === 1 ? 'expert' : 'experts'}, ${ready} ready, ` +
			`load ${milliseconds(load)}, wait ${milliseconds(wait)}, compute ${milliseconds(compute)}, ` +
			`in flight ${milliseconds(answered - sent)}`;
		this.bar(lane, sent, answered - sent, 'send', text, true);
		this.bar(lane, answered - compute, compute, 'compute', text);
		this.bar(lane, answered - compute - wait, wait, 'wait', text);
		this.bar(lane, answered - compute - wait - load, load, 'load', text);
	}

	point(e) {
		const r = this.canvas.getBoundingClientRect(), x = e.clientX - r.left, y = e.clientY - r.top;
		const hit = this.boxes.findLast((b) => x >= b.x - 2 && x <= b.x + b.width + 2 && y >= b.y - 3 &&
			y <= b.y + b.height + 3);
		setText($('timeline-detail'), hit === undefined ? '' : hit.text);
	}

	// ---- The table ----

	drawTable() {
		const box = $('timeline-table-box'), s = this.steps.at(-1);
		if (!box.open || s === undefined) {
			box.ontoggle ??= () => this.drawSoon();
			return;
		}
		const rows = [...this.mainRows(s), ...this.workerRows(s)];
		$('timeline-table').replaceChildren(el('table', {},
			el('caption', {}, stepTitle(s)),
			el('thead', {}, el('tr', {}, ...['Machine', 'Did', 'Times', 'Together'].map((t) =>
				el('th', { scope: 'col' }, t)))),
			el('tbody', {}, ...rows.map(([who, what, times, together]) =>
				el('tr', {}, el('th', { scope: 'row' }, who), el('td', {}, what),
				el('td', { class: 'number' }, times), el('td', { class: 'number' }, together))))));
	}

	mainRows(s) {
		const rows = [];
		for (const [kind, [, text]] of Object.entries(MAIN)) {
			const all = (s.main ?? []).filter((e) => e[0] === kind);
			if (all.length > 0)
				rows.push(['main', text, formatNumber(all.length),
					milliseconds(all.reduce((t, e) => t + e[3], 0))]);
		}
		const right = (s.shadow ?? []).reduce((n, e) => n + e[2], 0),
			wrong = (s.shadow ?? []).reduce((n, e) => n + e[3], 0);
		if (right + wrong > 0)
			rows.push(['shadow', `predicted ${right} experts right, ${wrong} wrong`,
				formatNumber(s.shadow.length), '']);
		return rows;
	}

	workerRows(s) {
		return this.lanes.filter((l) => l.role === 'worker').flatMap((l) => {
			const all = (s.workers ?? []).filter((w) => w[0] === l.id), sum = (i) =>
				all.reduce((t, w) => t + w[i], 0);
			return all.length === 0 ? [] : [[l.label, `${sum(7)} experts, ${sum(8)} ready in time`,
				formatNumber(all.length),
				`load ${milliseconds(sum(4))}, wait ${milliseconds(sum(5))}, compute ${milliseconds(sum(6))}`]];
		});
	}
}

function stepTitle(s) {
	const parts = [`${s.kind === 'prompt' ? 'prompt' : 'step'} ${s.step}: ${milliseconds(s.us)}`];
	if (s.texts > 1)
		parts.push(`${s.texts} texts`);
	if (s.drafted > 0)
		parts.push(`${s.accepted} of ${s.drafted} drafts accepted`);
	else if (s.rows > 1)
		parts.push(`${s.rows} rows`);
	return parts.join(', ');
}

function fit(context, text, width) {
	if (context.measureText(text).width <= width)
		return text;
	let n = text.length;
	while (n > 1 && context.measureText(`${text.slice(0, n)}…`).width > width)
		n--;
	return n > 1 ? `${text.slice(0, n)}…` : '';
}
