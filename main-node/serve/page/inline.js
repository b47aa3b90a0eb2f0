// inline.js - what stands inside a paragraph of Markdown: emphasis, code, links. A model's text is hostile: nodes are
// made one by one, time is linear in the length, and depth is limited. Emphasis is found as CommonMark 0.31 says
// (appendix, "delimiter stack").
import { el } from './dom.js';

const MAX_DEPTH = 16; // of elements in each other
const MAX_TARGET = 2000; // characters of a link's address
const MAX_PARENTHESES = 8; // in each other, in a link's address
const SPECIAL = /[\\`*_~[\]!<&\nh$]/g;
const PUNCTUATION = /[\p{P}\p{S}]/u;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const ENTITIES = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0', copy: '©', hellip: '…', mdash: '—',
	ndash: '–',
	times: '×', rarr: '→', larr: '←', le: '≤', ge: '≥', ne: '≠' };

// The address as it may be opened, or null: only these schemes, and never an address relative to this page.
export function safeUrl(text) {
	if (!/^(https?:\/\/|mailto:)/i.test(text))
		return null;
	try {
		return new URL(text).href;
	} catch {
		return null;
	}
}

function link(href, inside) {
	return el('a', { href, title: href.slice(0, 500), rel: 'noopener noreferrer', target: '_blank' }, inside);
}

// Parts of the text between its start and its end: a node, or characters of emphasis that may become one. They are in a
// list, linked both ways.
class Part {
	constructor(node, depth = 0) {
		this.node = node;
		this.depth = depth; // of elements in it
		this.mark = ''; // '*', '_', '~': characters of emphasis; '[', '!': the start of a link
		this.count = 0;
		this.original = 0;
		this.opens = this.closes = false;
		this.before = this.after = null;
		this.at = 0; // position in the text, for '['
	}
}

class InlineParser {
	constructor(text) {
		this.text = text;
		this.at = 0;
		this.first = this.last = null;
		this.brackets = []; // parts '[' and '!' that no ']' has met
		this.inactive = 0; // so many of them, from the left, stand before a link: '[' begins none there, as links are not nested
		this.ends = new Map(); // where a closing sequence was not found: none follows behind this position
		this.plain = [];
	}

	append(part) {
		this.flush();
		this.link(part);
		return part;
	}

	link(part) {
		part.before = this.last;
		if (this.last !== null)
			this.last.after = part;
		else
			this.first = part;
		this.last = part;
	}

	flush() {
		if (this.plain.length > 0)
			this.link(new Part(document.createTextNode(this.plain.join(''))));
		this.plain = [];
	}

	say(text) {
		if (text !== '')
			this.plain.push(text);
	}

	// The position of what from on, or -1. A search that failed is not repeated.
	find(what, from) {
		if (this.ends.has(what))
			return -1;
		const at = this.text.indexOf(what, from);
		if (at < 0)
			this.ends.set(what, from);
		return at;
	}

	parse() {
		const { text } = this;
		while (this.at < text.length) {
			SPECIAL.lastIndex = this.at;
			const m = SPECIAL.exec(text);
			const next = m === null ? text.length : m.index;
			this.say(text.slice(this.at, next));
			this.at = next;
			if (m !== null)
				this.special(m[0]);
		}
		this.flush();
		emphasize(this);
		return nodesOf(this.first);
	}

	special(c) {
		switch (c) {
		case '\\': return this.backslash();
		case '`': return this.code();
		case '*':
		case '_':
		case '~': return this.marks(c);
		case '[': return this.bracket('[', 1);
		case '!': return this.text[this.at + 1] === '[' ? this.bracket('!', 2) : this.one();
		case ']': return this.closeBracket();
		case '<': return this.angle();
		case '&': return this.entity();
		case 'h': return this.address();
		case '$': return this.math('$$', '$$');
		default: return this.lineBreak();
		}
	}

	one() {
		this.say(this.text[this.at]);
		this.at++;
	}

	lineBreak() {
		const last = this.plain.length - 1;
		if (last >= 0)
			this.plain[last] = this.plain[last].replace(/ {1,16}$/, '');
		this.at++;
		this.append(new Part(el('br')));
	}

	backslash() {
		const next = this.text[this.at + 1];
		if (next === '(')
			return this.math('\\(', '\\)');
		if (next === '[')
			return this.math('\\[', '\\]');
		if (next === '\n') {
			this.at++;
			return this.lineBreak();
		}
		if (next !== undefined && ESCAPABLE.test(next)) {
			this.say(next);
			this.at += 2;
			return undefined;
		}
		return this.one();
	}

	// A formula stays as it is written.
	math(opening, closing) {
		const end = this.text.startsWith(opening, this.at) ? this.find(closing, this.at + opening.length) : -1;
		if (end < 0) {
			const n = opening === '$$' ? 1 : 2;
			this.say(opening === '$$' ? '$' : this.text[this.at + 1]);
			this.at += n;
			return;
		}
		this.append(new Part(el('span', { class: 'math' }, this.text.slice(this.at, end + closing.length))));
		this.at = end + closing.length;
	}

	run(c) {
		let end = this.at;
		while (this.text[end] === c)
			end++;
		return end - this.at;
	}

	// Of backquotes only a run of the same length closes. Runs of each length are searched once over the whole
	// text.
	code() {
		const n = this.run('`'), start = this.at + n;
		const end = this.closingRun(n, start);
		if (end < 0) {
			this.say('`'.repeat(n));
			this.at = start;
			return;
		}
		let inside = this.text.slice(start, end).replaceAll('\n', ' ');
		if (inside.length > 2 && inside[0] === ' ' && inside.at(-1) === ' ' && inside.trim() !== '')
			inside = inside.slice(1, -1);
		this.append(new Part(el('code', {}, inside)));
		this.at = end + n;
	}

	closingRun(n, from) {
		if (this.runs === undefined) {
			this.runs = new Map();
			for (const m of this.text.matchAll(/`+/g)) {
				if (!this.runs.has(m[0].length))
					this.runs.set(m[0].length, { at: [], next: 0 });
				this.runs.get(m[0].length).at.push(m.index);
			}
		}
		const found = this.runs.get(n);
		if (found === undefined)
			return -1;
		while (found.next < found.at.length && found.at[found.next] < from)
			found.next++;
		return found.at[found.next] ?? -1;
	}

	marks(c) {
		const n = this.run(c), { text, at } = this;
		const before = at === 0 ? ' ' : text[at - 1], after = text[at + n] ?? ' ';
		const spaceBefore = /\s/.test(before), spaceAfter = /\s/.test(after);
		const punctuationBefore = PUNCTUATION.test(before), punctuationAfter = PUNCTUATION.test(after);
		const left = !spaceAfter && (!punctuationAfter || spaceBefore || punctuationBefore);
		const right = !spaceBefore && (!punctuationBefore || spaceAfter || punctuationAfter);
		this.at += n;
		if (c === '~' && n !== 2) {
			this.say('~'.repeat(n));
			return;
		}
		const part = this.append(new Part(document.createTextNode(c.repeat(n))));
		part.mark = c;
		part.count = part.original = n;
		part.opens = left && (c !== '_' || !right || punctuationBefore);
		part.closes = right && (c !== '_' || !left || punctuationAfter);
	}

	bracket(mark, length) {
		const part = this.append(new Part(document.createTextNode(this.text.slice(this.at, this.at + length))));
		part.mark = mark;
		this.at += length;
		part.at = this.at;
		this.brackets.push(part);
	}

	closeBracket() {
		const opening = this.brackets.pop();
		const dead = opening === undefined || (opening.mark === '[' && this.brackets.length < this.inactive);
		const target = dead ? null : this.target(this.at + 1);
		this.inactive = Math.min(this.inactive, this.brackets.length);
		if (target === null) {
			this.one();
			return;
		}
		this.flush();
		const inside = this.text.slice(opening.at, this.at);
		this.at = target.end;
		if (opening.mark === '!')
			this.image(opening, inside, target.url);
		else
			this.wrapLink(opening, target.url);
	}

	// Takes the parts behind opening out of the list, and opening too.
	cut(opening) {
		const inside = opening.after;
		if (inside !== null)
			inside.before = null;
		this.last = opening.before;
		if (this.last === null)
			this.first = null;
		else
			this.last.after = null;
		return inside;
	}

	// Nothing is loaded: an image is a link to it.
	image(opening, inside, url) {
		this.cut(opening);
		this.link(new Part(linkOrText(url, `image: ${(inside || url).slice(0, 500)}`, false), 1));
	}

	wrapLink(opening, url) {
		const list = { first: this.cut(opening), last: null };
		emphasize(list);
		const depth = deepest(list.first), inside = nodesOf(list.first);
		for (const a of inside.querySelectorAll('a'))
			a.replaceWith(a.textContent);
		this.link(new Part(linkOrText(url, inside, true), depth + 1));
		this.inactive = this.brackets.length;
	}

	// The address and the end of "(address "title")" at a position; null where none is.
	target(at) {
		const { text } = this;
		if (text[at] !== '(')
			return null;
		let p = skipSpaces(text, at + 1), url;
		if (text[p] === '<') {
			const end = boundedIndex(text, '>', p, MAX_TARGET);
			if (end < 0 || boundedIndex(text, '\n', p, end - p) >= 0)
				return null;
			url = text.slice(p + 1, end);
			p = end + 1;
		} else {
			const end = endOfTarget(text, p);
			if (end < 0)
				return null;
			url = text.slice(p, end);
			p = end;
		}
		p = skipSpaces(text, p);
		if (text[p] === '"' || text[p] === "'") {
			const end = boundedIndex(text, text[p], p + 1, 500);
			if (end < 0)
				return null;
			p = skipSpaces(text, end + 1);
		}
		return text[p] === ')' ? { url, end: p + 1 } : null;
	}

	// <https://...> is a link; all else that begins with < is text, tags too.
	angle() {
		const end = boundedIndex(this.text, '>', this.at, 1000);
		const inside = end < 0 ? '' : this.text.slice(this.at + 1, end);
		const mail = /^[\w.+-]{1,64}@[\w-]{1,63}(\.[\w-]{1,63}){1,8}$/.test(inside) ? `mailto:${inside}` :
			inside;
		const href = /[\s<]/.test(inside) ? null : safeUrl(mail);
		if (/^<br ?\/?>$/i.test(this.text.slice(this.at, end + 1))) {
			this.at = end + 1;
			this.append(new Part(el('br')));
			return;
		}
		if (href === null) {
			this.one();
			return;
		}
		this.append(new Part(link(href, inside), 1));
		this.at = end + 1;
	}

	entity() {
		const m = /^&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-z]{2,6}));/.exec(this.text.slice(this.at,
			this.at + 12));
		let c = null;
		if (m !== null && m[3] !== undefined)
			c = Object.hasOwn(ENTITIES, m[3]) ? ENTITIES[m[3]] : null;
		else if (m !== null)
			c = codePoint(m[1] !== undefined ? Number(m[1]) : parseInt(m[2], 16));
		if (c === null) {
			this.one();
			return;
		}
		this.say(c);
		this.at += m[0].length;
	}

	// An address without any brackets.
	address() {
		const { text, at } = this;
		if ((!text.startsWith('https://', at) && !text.startsWith('http://', at)) ||
			/\w/.test(text[at - 1] ?? ' ') || this.brackets.length > 0) {
			this.one();
			return;
		}
		let end = at;
		while (end < text.length && end - at < MAX_TARGET && !/[\s<>"`|\\]/.test(text[end]))
			end++;
		const parentheses = text.slice(at, end).includes('(');
		while (end > at && /[.,;:!?'*_~)\]}]/.test(text[end - 1]) && !(text[end - 1] === ')' && parentheses))
			end--;
		const found = text.slice(at, end), href = safeUrl(found);
		if (href === null)
			this.say(found);
		else
			this.append(new Part(link(href, found), 1));
		this.at = end;
	}
}

// A link, or, where its address may not be opened, its text and the address.
function linkOrText(url, inside, showUrl) {
	const href = safeUrl(url);
	if (href !== null)
		return link(href, inside);
	return el('span', { class: 'no-link' }, inside, showUrl ? ` (${url})` : null);
}

function codePoint(n) {
	return n === 0 || n > 0x10ffff || (n >= 0xd800 && n < 0xe000) ? '\ufffd' : String.fromCodePoint(n);
}

function boundedIndex(text, what, from, length) {
	const at = text.slice(from, from + length + 1).indexOf(what);
	return at < 0 ? -1 : from + at;
}

function skipSpaces(text, at) {
	const end = Math.min(text.length, at + 100);
	while (at < end && (text[at] === ' ' || text[at] === '\n'))
		at++;
	return at;
}

// Parentheses in an address come in pairs.
function endOfTarget(text, from) {
	let open = 0;
	for (let at = from; at < text.length && at - from < MAX_TARGET; at++) {
		const c = text[at];
		if (c === '\\' && at + 1 < text.length)
			at++;
		else if (c <= ' ')
			return open === 0 ? at : -1;
		else if (c === '(' && ++open > MAX_PARENTHESES)
			return -1;
		else if (c === ')' && open-- === 0)
			return at;
	}
	return -1;
}

function deepest(part) {
	let depth = 0;
	for (; part !== null; part = part.after)
		depth = Math.max(depth, part.depth);
	return depth;
}

function nodesOf(part) {
	const nodes = document.createDocumentFragment();
	for (; part !== null; part = part.after)
		if (part.node.nodeType !== Node.TEXT_NODE || part.node.data !== '')
			nodes.append(part.node);
	return nodes;
}

function unlink(list, part) {
	if (part.before !== null)
		part.before.after = part.after;
	else
		list.first = part.after;
	if (part.after !== null)
		part.after.before = part.before;
	else
		list.last = part.before;
}

// The rule of three: runs that could both open and close pair only where their lengths do not add up to a multiple of
// three.
function pairs(opener, closer) {
	if (opener.mark !== closer.mark || !opener.opens)
		return false;
	if (opener.mark === '~')
		return true;
	return !((opener.closes || closer.opens) && (opener.original + closer.original) % 3 === 0 &&
		(opener.original % 3 !== 0 || closer.original % 3 !== 0));
}

// What an opener is looked for by: where a search has failed, the next one of this kind stops there.
function kindOf(closer) {
	return `${closer.mark}${closer.opens}${closer.original % 3}`;
}

// Makes elements of the marks in a list. Each part is passed at most a few times: marks that no later one can pair with
// are left behind.
function emphasize(list) {
	const stack = []; // marks that may open, from the left
	const bottom = new Map(); // kind of a closer: so many of the stack need not be looked at
	let part = list.first;
	while (part !== null) {
		const next = part.after;
		if (part.closes && part.count > 0)
			close(list, stack, bottom, part);
		if (part.opens && part.count > 0)
			stack.push(part);
		part = next;
	}
}

function close(list, stack, bottom, closer) {
	while (closer.count > 0) {
		const kind = kindOf(closer);
		let i = stack.length - 1;
		const stop = Math.min(bottom.get(kind) ?? 0, stack.length);
		while (i >= stop && !pairs(stack[i], closer))
			i--;
		if (i < stop) {
			bottom.set(kind, stack.length);
			return;
		}
		stack.length = i + 1; // marks between the two can open no more
		if (!wrap(list, stack[i], closer)) {
			stack.length = 0; // all that would be around this is too deep, too
			return;
		}
		if (stack[i].count === 0)
			stack.pop();
		for (const [k, n] of bottom)
			if (n > stack.length)
				bottom.set(k, stack.length);
	}
}

// Puts what is between two marks into an element. False where this would be too deep.
function wrap(list, opener, closer) {
	const n = opener.count >= 2 && closer.count >= 2 ? 2 : 1;
	let depth = 0;
	for (let p = opener.after; p !== closer; p = p.after)
		depth = Math.max(depth, p.depth);
	if (depth >= MAX_DEPTH)
		return false;
	const e = el(opener.mark === '~' ? 'del' : n === 2 ? 'strong' : 'em');
	for (let p = opener.after; p !== closer; p = p.after)
		if (p.node.nodeType !== Node.TEXT_NODE || p.node.data !== '')
			e.append(p.node);
	const inside = new Part(e, depth + 1);
	inside.before = opener;
	inside.after = closer;
	opener.after = closer.before = inside;
	take(opener, n);
	take(closer, n);
	if (opener.count === 0)
		unlink(list, opener);
	return true;
}

function take(part, n) {
	part.count -= n;
	part.node.data = part.mark.repeat(part.count);
}

// The nodes of a text, as a fragment.
export function inlineNodes(text) {
	return new InlineParser(text).parse();
}
