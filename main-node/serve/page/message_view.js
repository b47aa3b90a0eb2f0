// message_view.js - how one message looks. A view is made for a node of a conversation (tree.js) and shows no other.
import { button, composes, copyButton, el, formatNumber, iconButton, setText } from './dom.js';
import { Markdown, showMarkdown } from './markdown.js';

function prettyJson(text) {
	try {
		return JSON.stringify(JSON.parse(text), null, 2);
	} catch {
		return text; // it is still being written, or it is none
	}
}

// The messages beside this one: earlier ones, "2 of 3", later ones. Null where there is only one.
function branchBar({ brothers, at, onChoose }) {
	if (brothers.length < 2)
		return null;
	const before = iconButton('left', 'Earlier version', () => onChoose(brothers[at - 1]));
	const after = iconButton('right', 'Later version', () => onChoose(brothers[at + 1]));
	before.disabled = at === 0;
	after.disabled = at === brothers.length - 1;
	return el('span', { class: 'branches', role: 'group', 'aria-label': 'Versions of this message' }, before,
		el('span', {}, `${at + 1} / ${brothers.length}`), after);
}

export class UserView {
	// actions: onEdit(text), onDelete(); branch: what branchBar() takes.
	constructor(node, actions, branch) {
		this.message = node;
		this.actions = actions;
		this.bubble = el('div', { class: 'bubble', dir: 'auto' }, node.text);
		this.editButton = iconButton('edit', 'Edit the message', () => this.edit());
		this.bar = el('div', { class: 'bar' }, branchBar(branch),
			copyButton('Copy the message', () => node.text), this.editButton,
			iconButton('delete', 'Delete from here on', actions.onDelete));
		this.node = el('article', { class: 'message user', 'aria-label': 'You' }, this.bubble, this.bar);
	}

	edit() {
		const area = el('textarea', { class: 'edit', 'aria-label': 'Edit the message', rows: '3' });
		const done = () => {
			form.replaceWith(this.bubble);
			this.bar.hidden = false;
			this.editButton.focus();
		};
		const send = () => {
			const text = area.value.trim();
			done();
			if (text !== '')
				this.actions.onEdit(text);
		};
		const form = el('div', { class: 'edit-box' }, area,
			el('div', { class: 'buttons' }, button('Cancel', done),
				button('Send as a new branch', send, { class: 'primary' })));
		area.value = this.message.text;
		area.addEventListener('keydown', (e) => {
			if (composes(e))
				return;
			if (e.key === 'Escape') {
				e.stopPropagation();
				done();
			} else if (e.key === 'Enter' && !e.shiftKey) {
				e.preventDefault();
				send();
			}
		});
		this.bubble.replaceWith(form);
		this.bar.hidden = true;
		area.focus();
	}
}

export class ToolView {
	constructor(node) {
		this.message = node;
		this.node = el('article', { class: 'message tool', 'aria-label': 'Results of tools' },
			...node.results.map((r) => el('details', { class: 'call' },
				el('summary', {}, `Result of ${r.name}`), el('pre', { tabindex: '0' }, r.text))));
	}
}

const ENDS = {
	stopped: 'Stopped.',
	length: 'The answer reached its greatest length.',
	cut: 'The page was closed before the answer ended.',
};

export class AnswerView {
	// actions: onAgain(), onDelete(), onResults(results); announce(text) reads aloud.
	constructor(node, actions, branch, announce = () => {}) {
		this.message = node;
		this.actions = actions;
		this.branch = branch;
		this.announce = announce;
		this.callViews = [];
		this.shownThoughts = this.shownText = 0;
		this.thoughts = el('div', { class: 'thoughts-text', dir: 'auto' });
		this.thoughtsTitle = el('summary', {}, 'Thoughts');
		this.thoughtsBox = el('details', { class: 'thoughts', hidden: true }, this.thoughtsTitle,
			this.thoughts);
		this.text = el('div', { class: 'markdown', dir: 'auto' });
		this.calls = el('div', { class: 'calls' });
		this.notice = el('div', { class: 'notice' });
		this.wait = el('p', { class: 'wait', hidden: true },
			el('span', { class: 'dots', 'aria-hidden': 'true' }),
			el('span', {}, 'Waiting for the first token'));
		this.bar = el('div', { class: 'bar' });
		this.node = el('article', { class: 'message answer', 'aria-label': 'Answer' }, this.thoughtsBox,
			this.text, this.calls, this.wait, this.notice,
			this.bar);
	}

	// A message that has ended.
	showWhole() {
		const m = this.message;
		this.showThoughts(false);
		this.shownText = m.text.length;
		showMarkdown(this.text, m.text);
		this.showCalls(false);
		this.finish();
	}

	begin() {
		this.node.setAttribute('aria-busy', 'true');
		this.wait.hidden = false;
		this.markdown = new Markdown(this.text, { onSegment: (segment) => this.announce(spoken(segment)) });
	}

	// Shows what the message has gained.
	update() {
		const m = this.message;
		this.wait.hidden = m.text !== '' || m.thoughts !== '' || m.calls.length > 0;
		this.showThoughts(m.text === '' && m.calls.length === 0);
		if (m.text.length > this.shownText) {
			this.markdown.append(m.text.slice(this.shownText));
			this.shownText = m.text.length;
			this.markdown.show();
		}
		this.showCalls(true);
	}

	end() {
		this.node.removeAttribute('aria-busy');
		this.update();
		this.markdown.end();
		this.wait.hidden = true;
		this.showThoughts(false);
		this.showCalls(false);
		this.finish();
	}

	showThoughts(live) {
		const { thoughts } = this.message;
		if (thoughts === '')
			return;
		this.thoughtsBox.hidden = false;
		setText(this.thoughtsTitle, live ? 'Thinking' : 'Thoughts');
		this.thoughtsBox.classList.toggle('live', live);
		if (thoughts.length > this.shownThoughts)
			this.thoughts.append(thoughts.slice(this.shownThoughts));
		this.shownThoughts = thoughts.length;
		if (live)
			this.thoughts.scrollTop = this.thoughts.scrollHeight;
	}

	showCalls(live) {
		this.message.calls.forEach((call, i) => {
			this.callViews[i] ??= this.addCall();
			const view = this.callViews[i];
			setText(view.title, live ? `Calls ${call.name}` : `Called ${call.name}`);
			if (view.shown !== call.arguments.length || !live)
				setText(view.text, live ? call.arguments : prettyJson(call.arguments));
			view.shown = call.arguments.length;
		});
	}

	addCall() {
		const view = { title: el('summary'), text: el('pre',
			{ tabindex: '0', role: 'group', 'aria-label': 'Arguments' }), shown: -1 };
		this.calls.append(el('details', { class: 'call', open: true }, view.title, view.text));
		return view;
	}

	finish() {
		const m = this.message, words = [];
		if (m.problem)
			words.push(el('div', { class: 'error' }, el('p', {}, m.problem),
				button('Try again', this.actions.onAgain)));
		else if (ENDS[m.end])
			words.push(el('p', { class: 'note' }, ENDS[m.end]));
		else if (m.text === '' && m.calls.length === 0)
			words.push(el('p', { class: 'note' }, 'The answer is empty.'));
		this.notice.replaceChildren(...words);
		this.bar.replaceChildren(...[branchBar(this.branch), copyButton('Copy the answer', () => m.text),
			iconButton('again', 'Answer again', this.actions.onAgain),
				iconButton('delete', 'Delete from here on', this.actions.onDelete),
			statistics(m)].filter((n) => n !== null));
	}

	// Fields for the results of the calls, which the user gives.
	askResults() {
		const areas = this.message.calls.map((call, i) => {
			const area = el('textarea', { rows: '2', id: `result-${i}` });
			this.calls.append(el('label', { for: `result-${i}` }, `Result of ${call.name}`), area);
			return area;
		});
		const send = () => this.actions.onResults(this.message.calls.map((c, i) =>
			({ id: c.id, name: c.name, text: areas[i].value })));
		this.calls.append(el('div', { class: 'buttons' }, button('Send results', send, { class: 'primary' })));
	}
}

// What a screen reader says of a part of an answer.
function spoken(segment) {
	const code = segment.querySelector('.code');
	if (code !== null)
		return 'A block of code.';
	const text = segment.textContent.trim();
	return text.length > 1000 ? `${text.slice(0, 1000)}...` : text;
}

function statistics(m) {
	const words = [];
	if (m.rate > 0)
		words.push(`${formatNumber(m.rate, m.rate < 10 ? 2 : 1)} tokens/s`);
	if (m.tokens > 0)
		words.push(`${formatNumber(m.tokens)} tokens`);
	if (m.drafted > 0)
		words.push(`${formatNumber(m.accepted)} of ${formatNumber(m.drafted)} drafts accepted`);
	return words.length > 0 ? el('span', { class: 'statistics' }, words.join(' · ')) : null;
}
