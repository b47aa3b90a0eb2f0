// curves.js - small curves of what the server counts. Its counters only grow: a value is the difference of two states.
import { el, formatNumber, setText, svg } from './dom.js';

const MIN_SECONDS = 60, SECONDS = 300, WIDTH = 300, HEIGHT = 54;

function ratio(part, whole) {
	return (d) => (d[whole] > 0 ? d[part] / d[whole] * 100 : null);
}

// value(d, state): from differences of the counters (d.seconds: the time between); null: nothing to say.
export const CURVES = [
	{ name: 'Tokens per second', unit: '', digits: 1, value: (d) => d.tokens / d.seconds },
	{ name: 'Experts predicted (recall)', unit: '%', digits: 1, most: 100,
		value: ratio('recalled_uses', 'predicted_uses') },
	{ name: 'Experts served in time', unit: '%', digits: 1, most: 100, value: ratio('ready_uses', 'expert_uses') },
	{ name: 'Texts: written and waiting', unit: '', digits: 0, value: (d, s) => (s.queue?.running ?? 0) +
		(s.queue?.waiting ?? 0) },
];

export class Curve {
	constructor({ name, unit, digits, most = 0, value }) {
		Object.assign(this, { name, unit, digits, most, value });
		this.points = []; // [time in seconds, value]
		this.last = null;
		this.now = el('p', { class: 'curve-now' }, '-');
		this.line = svg('path', { class: 'line' });
		this.area = svg('path', { class: 'area' });
		this.picture = svg('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img',
			'aria-label': `${name}: nothing yet` },
			this.area, this.line);
		this.node = el('div', { class: 'curve' }, el('p', { class: 'curve-name' }, name), this.now,
			this.picture);
	}

	add(state) {
		const now = { ...state.counters, at: state.uptime_seconds }, { last } = this;
		this.last = now;
		if (last === null || !(now.at > last.at)) { // the first, or a server that started again
			this.points = [];
			this.clear();
			return;
		}
		const d = { seconds: now.at - last.at };
		for (const name of Object.keys(now))
			d[name] = now[name] - last[name];
		const value = this.value(d, state);
		if (value !== null && Number.isFinite(value))
			this.points.push([now.at, value]);
		while (this.points.length > 0 && this.points[0][0] < now.at - SECONDS)
			this.points.shift();
		this.draw(now.at);
	}

	text(value) {
		return `${formatNumber(value, this.digits)}${this.unit === '' ? '' : ` ${this.unit}`}`;
	}

	// Nothing was counted for so long that no point is left.
	clear() {
		setText(this.now, '-');
		this.line.removeAttribute('d');
		this.area.removeAttribute('d');
		this.picture.setAttribute('aria-label', `${this.name}: nothing yet`);
	}

	draw(end) {
		const values = this.points.map((p) => p[1]), latest = values.at(-1);
		if (latest === undefined) {
			this.clear();
			return;
		}
		const span = Math.min(SECONDS, Math.max(MIN_SECONDS, end - this.points[0][0]));
		const most = Math.max(this.most, ...values) || 1;
		setText(this.now, this.text(latest));
		const least = this.text(Math.min(...values)), largest = this.text(Math.max(...values));
		this.picture.setAttribute('aria-label', `${this.name}: now ${this.text(latest)}, ` +
			`between ${least} and ${largest} in the last ${Math.ceil(span / 60)} minutes`);
		const x = (t) => ((1 - (end - t) / span) * WIDTH).toFixed(1);
		const y = (v) => ((1 - v / most) * (HEIGHT - 4) + 2).toFixed(1);
		const xy = this.points.map(([t, v]) => `${x(t)},${y(v)}`);
		const first = xy[0].split(',')[0];
		this.line.setAttribute('d', `M${xy.join('L')}`);
		this.area.setAttribute('d', `M${first},${HEIGHT}L${xy.join('L')}L${WIDTH},${HEIGHT}Z`);
	}
}
