// markdown.js - Markdown as nodes, while it is being written. The text is cut into segments at blank lines and code
// fences; a segment that has ended is never looked at again. A model's text is hostile: there is no HTML in it, nothing
// is loaded, depth is limited, time is linear.
import { copyButton, el } from './dom.js';
import { highlight } from './highlight.js';
import { inlineNodes } from './inline.js';

const MAX_DEPTH = 10; // of lists and quotes in each other
const MAX_COLUMNS = 64;
const MAX_FENCE = 200; // characters of a closing fence
const SMALL = 2000; // characters: a segment of this size is made anew whenever it grows
const FENCE = /^ {0,3}(`{3,}(?=[^`]*$)|~{3,})/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?: |$)/;

// ---- Lines ----

function isBlank(line) {
	return /^\s*$/.test(line);
}

function indentOf(line) {
	let n = 0;
	while (line[n] === ' ')
		n++;
	return n;
}

function withoutTabs(line) {
	const m = /^[ \t]*/.exec(line)[0];
	return m.includes('\t') ? m.replaceAll('\t', '    ') + line.slice(m.length) : line;
}

// Drops up to n spaces.
function outdent(line, n) {
	return line.slice(Math.min(n, indentOf(line)));
}

function fenceOf(line) {
	const m = FENCE.exec(line);
	return m === null ? null : { mark: m[1], indent: indentOf(line),
		language: line.slice(indentOf(line) + m[1].length).trim() };
}

function endsFence(line, fence) {
	const t = line.trim();
	return indentOf(line) < 4 && t.length <= MAX_FENCE && t.length >= fence.mark.length && t[0] === fence.mark[0] &&
		t === fence.mark[0].repeat(t.length);
}

function headingOf(line) {
	const t = line.trimStart(), m = /^#{1,6}(?= |$)/.exec(t);
	if (m === null || indentOf(line) > 3)
		return null;
	let text = t.slice(m[0].length).trim(), end = text.length;
	while (end > 0 && text[end - 1] === '#')
		end--;
	if (end === 0 || text[end - 1] === ' ')
		text = text.slice(0, end).trimEnd();
	return { level: m[0].length, text };
}

function isRule(line) {
	const c = line.trimStart()[0];
	if ((c !== '-' && c !== '*' && c !== '_') || indentOf(line) > 3)
		return false;
	let n = 0;
	for (const d of line) {
		if (d === c)
			n++;
		else if (d !== ' ')
			return false;
	}
	return n >= 3;
}

// At most three spaces, then a mark, then its text: at which column the text begins.
function itemOf(line) {
	const m = ITEM.exec(line);
	if (m === null || isRule(line))
		return null;
	const marker = m[1].length + m[2].length, rest = indentOf(line.slice(marker));
	return { ordered: m[2].length > 1, kind: m[2].at(-1), start: parseInt(m[2], 10), indent: m[1].length,
		column: marker + (rest >= 1 && rest <= 4 ? rest : 1), empty: isBlank(line.slice(marker)) };
}

function isQuote(line) {
	return /^ {0,3}>/.test(line);
}

function beginsBlock(line) {
	const item = itemOf(line);
	return isQuote(line) || headingOf(line) !== null || isRule(line) || fenceOf(line) !== null ||
		(item !== null && !item.empty && (!item.ordered || item.start === 1));
}

// ---- Tables ----

// The cells of a row. A bar after a backslash or in code is a character.
function cellsOf(line) {
	const cells = [];
	let cell = '', code = false;
	const t = line.trim();
	for (let i = t[0] === '|' ? 1 : 0; i < t.length; i++) {
		if (t[i] === '\\' && t[i + 1] === '|') {
			cell += '|';
			i++;
		} else if (t[i] === '|' && !code) {
			cells.push(cell.trim());
			cell = '';
		} else {
			code = t[i] === '`' ? !code : code;
			cell += t[i];
		}
	}
	if (cell.trim() !== '' || t.at(-1) !== '|')
		cells.push(cell.trim());
	return cells;
}

function alignmentsOf(line) {
	if (!line.includes('-') || !/^[ |:-]+$/.test(line) || (!line.includes('|') && !line.includes(':')))
		return null;
	const cells = cellsOf(line);
	if (cells.length > MAX_COLUMNS || !cells.every((c) => /^:?-+:?$/.test(c)))
		return null;
	return cells.map((c) => (c.at(-1) !== ':' ? 'left' : c[0] === ':' ? 'center' : 'right'));
}

function rowNode(tag, cells, alignments) {
	const row = el('tr');
	const n = Math.min(cells.length, alignments.length);
	for (let i = 0; i < n; i++)
		row.append(el(tag, { class: `to-${alignments[i]}`, scope: tag === 'th' ? 'col' : null },
			inlineNodes(cells[i])));
	if (n < alignments.length) // one cell for all that are missing
		row.append(el('td', { colspan: alignments.length - n }));
	return row;
}

// ---- Blocks ----

// Makes nodes of lines. One is made for each segment; headings is shared by all of a text.
class BlockParser {
	constructor(headings) {
		this.headings = headings;
	}

	// True: there are blank lines between two of the blocks.
	blocks(lines, depth, into) {
		let n = 0, isSpaced = false, blank = false;
		for (let i = 0; i < lines.length;) {
			if (isBlank(lines[i])) {
				blank = true;
				i++;
				continue;
			}
			isSpaced ||= blank && n > 0;
			blank = false;
			n++;
			i = this.block(lines, i, depth, into);
		}
		return isSpaced;
	}

	// Appends the block that begins at line i, and returns the line behind it.
	block(lines, i, depth, into) {
		const line = lines[i];
		const fence = fenceOf(line);
		if (fence !== null)
			return this.fence(lines, i, fence, into);
		const heading = headingOf(line);
		if (heading !== null) {
			into.append(this.heading(heading.level, heading.text));
			return i + 1;
		}
		if (isRule(line)) {
			into.append(el('hr'));
			return i + 1;
		}
		if (depth < MAX_DEPTH && isQuote(line))
			return this.quote(lines, i, depth, into);
		if (depth < MAX_DEPTH && itemOf(line) !== null)
			return this.list(lines, i, depth, into);
		if (indentOf(line) >= 4)
			return this.indented(lines, i, into);
		const alignments = line.includes('|') && i + 1 < lines.length ? alignmentsOf(lines[i + 1]) : null;
		if (alignments !== null && cellsOf(line).length === alignments.length)
			return this.table(lines, i, alignments, into);
		return this.paragraph(lines, i, into);
	}

	// The heading looks as its level says. For screen readers no level is left out.
	heading(level, text) {
		const { base } = this.headings;
		const shown = Math.min(6, Math.min(base + level - 1, this.headings.last + 1));
		this.headings.last = shown;
		return el(`h${shown}`, { class: `h-${level}` }, inlineNodes(text));
	}

	fence(lines, i, fence, into) {
		const code = [];
		let ended = false;
		for (i++; i < lines.length && !ended; i++) {
			ended = endsFence(lines[i], fence);
			if (!ended)
				code.push(outdent(lines[i], fence.indent));
		}
		const box = new CodeBox(fence.language);
		box.append(code.join('\n'));
		box.end();
		into.append(box.node);
		return i;
	}

	indented(lines, i, into) {
		const code = [];
		for (; i < lines.length && (indentOf(lines[i]) >= 4 || isBlank(lines[i])); i++)
			code.push(outdent(lines[i], 4));
		const box = new CodeBox('');
		box.append(code.join('\n').trimEnd());
		into.append(box.node);
		return i;
	}

	quote(lines, i, depth, into) {
		const inside = [], node = el('blockquote');
		for (; i < lines.length && !isBlank(lines[i]) && (isQuote(lines[i]) || !beginsBlock(lines[i])); i++) {
			const t = isQuote(lines[i]) ? lines[i].trimStart().slice(1) : lines[i];
			inside.push(isQuote(lines[i]) && t[0] === ' ' ? t.slice(1) : t);
		}
		this.blocks(inside, depth + 1, node);
		into.append(node);
		return i;
	}

	list(lines, i, depth, into) {
		const first = itemOf(lines[i]);
		const node = el(first.ordered ? 'ol' : 'ul', { start: first.ordered && first.start !== 1 ? first.start :
			null });
		let loose = false;
		for (let item = first; item !== null;) {
			const read = this.item(lines, i, item);
			const { li, isSpaced } = this.itemNode(read.lines, depth);
			node.append(li);
			loose ||= isSpaced;
			i = read.next;
			let p = i;
			while (p < lines.length && isBlank(lines[p]))
				p++;
			item = p < lines.length ? itemOf(lines[p]) : null;
			if (item !== null && item.kind !== first.kind)
				item = null;
			if (item !== null) {
				loose ||= p > i;
				i = p;
			}
		}
		if (!loose)
			unwrapParagraphs(node);
		into.append(node);
		return i;
	}

	// The lines of an item without what stands before its text.
	item(lines, i, item) {
		const inside = [lines[i].slice(item.column)];
		let blanks = 0;
		for (i++; i < lines.length; i++) {
			const line = lines[i], indent = indentOf(line);
			if (isBlank(line)) {
				blanks++;
				continue;
			}
			// Models often indent an inner list by two spaces only.
			const isInside = indent >= item.column ||
				(indent >= item.indent + 2 && itemOf(line.trimStart()) !== null);
			const isLazy = blanks === 0 && !isInside && !beginsBlock(line) && itemOf(line) === null;
			if (!isInside && !isLazy)
				break;
			for (; blanks > 0; blanks--)
				inside.push('');
			inside.push(outdent(line, item.column));
		}
		return { lines: inside, next: i - blanks };
	}

	itemNode(lines, depth) {
		const li = el('li'), task = /^\[([ xX])\] /.exec(lines[0]), done = task !== null && task[1] !== ' ';
		if (task !== null)
			lines[0] = lines[0].slice(4);
		const isSpaced = this.blocks(lines, depth + 1, li);
		if (task !== null)
			(li.querySelector(':scope > p') ?? li).prepend(el('span', { class: 'task', role: 'img',
				'aria-label': done ? 'done' : 'to do' }, done ? '☑' : '☐'), ' ');
		return { li, isSpaced };
	}

	table(lines, i, alignments, into) {
		const body = el('tbody');
		const head = el('thead', {}, rowNode('th', cellsOf(lines[i]), alignments));
		for (i += 2; i < lines.length && !isBlank(lines[i]) && lines[i].includes('|'); i++)
			body.append(rowNode('td', cellsOf(lines[i]), alignments));
		into.append(el('div', { class: 'table-box', tabindex: '0', role: 'group', 'aria-label': 'Table' },
			el('table', {}, head, body)));
		return i;
	}

	paragraph(lines, i, into) {
		const inside = [lines[i].trim()];
		for (i++; i < lines.length && !isBlank(lines[i]); i++) {
			const under = /^ {0,3}(=+|-+) *$/.exec(lines[i]);
			if (under !== null) {
				into.append(this.heading(under[1][0] === '=' ? 1 : 2, inside.join('\n')));
				return i + 1;
			}
			if (beginsBlock(lines[i]) || (lines[i].includes('|') && i + 1 < lines.length &&
				alignmentsOf(lines[i + 1]) !== null))
				break;
			inside.push(lines[i].trimStart());
		}
		into.append(el('p', {}, inlineNodes(inside.join('\n'))));
		return i;
	}
}

// The paragraphs of a list without blank lines are only their text.
function unwrapParagraphs(list) {
	for (const li of list.children)
		for (const child of [...li.children])
			if (child.tagName === 'P')
				child.replaceWith(contentOf(child));
}

function contentOf(e) {
	const nodes = document.createDocumentFragment();
	while (e.firstChild !== null)
		nodes.append(e.firstChild);
	nodes.append('\n');
	return nodes;
}

// ---- Code ----

// Text that grows at its end. A text node is copied when it is appended to, so that none becomes long.
class GrowingText {
	constructor(parent) {
		this.parent = parent;
		this.last = null;
	}

	append(text) {
		if (this.last === null || this.last.length + text.length > 4096) {
			this.last = document.createTextNode('');
			this.parent.append(this.last);
		}
		this.last.appendData(text);
	}
}

class CodeBox {
	constructor(language) {
		this.language = (/^[\w+#.-]{1,30}/.exec(language)?.[0] ?? '').toLowerCase();
		this.code = el('code');
		this.text = new GrowingText(this.code);
		this.node = el('div', { class: 'code' },
			el('div', { class: 'code-head' }, el('span', {}, this.language),
				copyButton('Copy the code', () => this.code.textContent)),
			el('pre', { tabindex: '0', role: 'group', 'aria-label': this.language === '' ? 'Code' :
				`Code, ${this.language}` }, this.code));
	}

	append(text) {
		this.text.append(text);
	}

	end() {
		this.code.replaceChildren(highlight(this.code.textContent, this.language));
	}
}

// ---- Segments ----

// The blocks of one segment, in an element of its own so that they can be made anew.
class Segment {
	constructor(parent, headings) {
		this.node = el('div', { class: 'segment' });
		this.lines = [];
		this.length = 0;
		this.madeLength = 0;
		this.shownLines = 0; // so many lines, and of the next one so many characters, are shown
		this.shownRest = 0;
		this.headings = headings;
		this.lastHeading = headings.last;
		this.inList = false;
		parent.append(this.node);
	}

	add(line) {
		if (this.lines.length === 0)
			this.inList = itemOf(line) !== null;
		this.lines.push(line);
		this.length += line.length + 1;
	}

	// Where a segment is long, it is made anew only after it has grown by a quarter. Until then its end is plain
	// text.
	staysWith(length) {
		return length > SMALL && length < this.madeLength * 1.25;
	}

	show(unfinished) {
		const length = this.length + unfinished.length;
		if (this.staysWith(length)) {
			this.tail.append([...this.lines.slice(this.shownLines),
				unfinished].join('\n').slice(this.shownRest));
		} else {
			const tail = el('span', { class: 'tail' });
			this.make([...this.lines, unfinished]);
			this.madeLength = length;
			this.tail = new GrowingText(tail);
			this.node.append(tail);
		}
		this.shownLines = this.lines.length;
		this.shownRest = unfinished.length;
	}

	// Shows more of the unfinished line. False: show() has to do it.
	grow(text) {
		if (!this.staysWith(this.length + this.shownRest + text.length))
			return false;
		this.tail.append(text);
		this.shownRest += text.length;
		return true;
	}

	make(lines) {
		const nodes = document.createDocumentFragment();
		this.headings.last = this.lastHeading;
		new BlockParser(this.headings).blocks(lines, 0, nodes);
		this.node.replaceChildren(nodes);
	}

	end() {
		this.make(this.lines);
	}
}

// A code block at the outer level. It is appended to, and made anew only when it ends.
class OpenFence {
	constructor(parent, fence) {
		this.fence = fence;
		this.box = new CodeBox(fence.language);
		this.empty = true;
		this.begun = false; // a part of the unfinished line is shown: so many characters
		this.shown = 0;
		this.node = el('div', { class: 'segment' }, this.box.node);
		parent.append(this.node);
	}

	// An unfinished line that may become the closing fence is not shown yet.
	show(unfinished) {
		const t = unfinished.trim();
		if (t.length <= MAX_FENCE && t === this.fence.mark[0].repeat(t.length))
			return;
		this.write(unfinished);
		this.shown = outdent(unfinished, this.fence.indent).length;
	}

	grow(text) {
		if (!this.begun)
			return false;
		this.box.append(text);
		this.shown += text.length;
		return true;
	}

	write(line) {
		const text = outdent(line, this.fence.indent);
		this.box.append((this.empty || this.begun ? '' : '\n') + text.slice(this.shown));
		this.empty = false;
		this.begun = true;
	}

	add(line) {
		this.write(line);
		this.begun = false;
		this.shown = 0;
	}

	end() {
		this.box.end();
	}
}

// May this line, which has not ended, still become the first line of a list, of code or a rule? Then it is not known
// yet where it belongs.
function isOpen(line) {
	return fenceOf(line) !== null || /^ *([-*_+ ]+|`+|~+|\d{1,9}[.)]?)$/.test(line);
}

// A text that grows. append() takes pieces; show() brings the nodes up to date; end() says that no more comes.
export class Markdown {
	#line = []; // pieces of the line that has not ended
	#length = 0; // of this line
	#fresh = 0; // so many of its pieces are not shown
	#isShown = false; // a part of this line is shown
	#looked = 0; // length of this line when it was looked at last and not shown
	#return = ''; // a carriage return at the end: a line feed may follow
	#blanks = 0; // blank lines after the open segment
	#open = null; // a Segment, an OpenFence, or null

	// headingLevel: of the largest heading in the text. onSegment(node) is called for each segment that has ended.
	constructor(node, { headingLevel = 3, onSegment = () => {} } = {}) {
		this.node = node;
		this.headings = { base: headingLevel, last: headingLevel - 1 };
		this.onSegment = onSegment;
	}

	append(text) {
		let from = 0;
		text = (this.#return + text).replaceAll('\0', '\ufffd');
		this.#return = text.endsWith('\r') ? '\r' : '';
		text = text.slice(0, text.length - this.#return.length).replace(/\r\n?/g, '\n');
		for (let at = text.indexOf('\n'); at >= 0; at = text.indexOf('\n', from)) {
			this.#line.push(text.slice(from, at));
			from = at + 1;
			this.#endLine();
		}
		if (from < text.length) {
			this.#line.push(text.slice(from));
			this.#length += text.length - from;
			this.#fresh++;
		}
	}

	#endLine() {
		const line = this.#line.join('');
		this.#line = [];
		this.#fresh = 0;
		this.#isShown = false;
		this.#length = this.#looked = 0;
		this.#onLine(withoutTabs(line));
	}

	show() {
		const fresh = this.#fresh === 0 ? '' : this.#line.slice(this.#line.length - this.#fresh).join('');
		this.#fresh = 0;
		if (this.#isShown ? this.#open.grow(fresh) : this.#length > SMALL && this.#length < 2 * this.#looked)
			return;
		this.#looked = this.#length;
		if (this.#length > 0)
			this.#line = [this.#line.join('')];
		this.#showLine(withoutTabs(this.#line[0] ?? ''));
	}

	#showLine(line) {
		if (this.#open instanceof OpenFence) {
			this.#open.show(line);
			this.#isShown = true;
			return;
		}
		if (isBlank(line)) {
			if (this.#open !== null && this.#blanks === 0)
				this.#open.show('');
			return;
		}
		if (isOpen(line))
			return;
		this.#place(line);
		this.#open.show(line);
		this.#isShown = true;
	}

	end() {
		if (this.#return !== '')
			this.append('\n');
		if (this.#line.length > 0)
			this.#endLine();
		this.#close();
	}

	#close() {
		if (this.#open === null)
			return;
		this.#open.end();
		this.onSegment(this.#open.node);
		this.#open = null;
		this.#blanks = 0;
	}

	// Makes sure that the open segment is the one that a line belongs to. After blank lines a segment goes on only
	// where the line belongs to its list, or is indented.
	#place(line) {
		const starts = this.#blanks > 0 && indentOf(line) < 2 && !(this.#open.inList && itemOf(line) !== null);
		if (this.#open === null || starts) {
			this.#close();
			this.#open = new Segment(this.node, this.headings);
		}
		for (; this.#blanks > 0; this.#blanks--)
			this.#open.add('');
	}

	#onLine(line) {
		if (this.#open instanceof OpenFence) {
			if (endsFence(line, this.#open.fence))
				this.#close();
			else
				this.#open.add(line);
			return;
		}
		if (isBlank(line)) {
			this.#blanks += this.#open === null ? 0 : 1;
			return;
		}
		const fence = fenceOf(line);
		if (fence !== null && !(this.#open !== null && this.#open.inList && fence.indent >= 2)) {
			this.#close();
			this.#open = new OpenFence(this.node, fence);
			return;
		}
		this.#place(line);
		this.#open.add(line);
	}
}

// A whole text at once.
export function showMarkdown(node, text, options) {
	const m = new Markdown(node, options);
	m.append(text);
	m.end();
}
