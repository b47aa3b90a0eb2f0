// chat.js - the chat: the list of conversations, the messages of one, and answers while they are written. Answers go on
// while another conversation is shown.
import { ApiError, chatChunks } from './api.js';
import { $, ask, button, composes, el, formatBytes, iconButton, isTouch, setText } from './dom.js';
import { AnswerView, ToolView, UserView } from './message_view.js';
import { deleteChat, listChats, loadChat, loadSettings, onOtherTab, restorePart, saveChat, savePart,
	saveSettings } from './store.js';
import * as tree from './tree.js';

const SAVE_EVERY_MS = 2000;
const MAX_FILE = 256e6; // bytes of a file to import
const NEAR_END_PX = 80;
const SHOWN = 100; // messages; earlier ones on demand, as each costs time whenever the page is laid out

let chat = tree.newChat(tree.cleanSettings(loadSettings()));
let shownMessages = SHOWN;
let titles = [];
let model = { name: '' };
let followsEnd = true;
const running = new Map(); // id of a conversation: the Answer that is being written in it
const deleted = new Set(); // ids of conversations: an answer that still comes must not bring them back
const views = new Map(); // number of a message of the shown conversation: its view

// ---- Answers ----

// One answer: it asks the server and writes what comes into a node of its conversation.
class Answer {
	constructor(ofChat, parent) {
		this.chat = ofChat;
		this.parent = parent;
		this.message = { role: 'assistant', text: '', thoughts: '', calls: [], end: 'cut', problem: '', rate: 0,
			tokens: 0, drafted: 0, accepted: 0 };
		this.number = tree.add(ofChat, parent, this.message);
		this.message = ofChat.nodes[this.number];
		this.controller = new AbortController();
		this.view = null; // while its conversation is shown
		this.nextSave = Date.now() + SAVE_EVERY_MS;
		this.frame = 0;
		this.isRefused = false; // for another reason than the key
	}

	async run() {
		const m = this.message;
		try {
			for await (const chunk of chatChunks(this.body(), this.controller.signal))
				this.take(chunk);
			m.end = m.end === 'cut' ? '' : m.end;
		} catch (e) {
			if (e.name === 'AbortError')
				m.end = 'stopped';
			else
				m.problem = e instanceof ApiError ? e.message : `This page failed: ${e.message}`;
			this.isRefused = e instanceof ApiError && e.kind !== 'key';
			if (!(e instanceof ApiError) && e.name !== 'AbortError')
				console.error(e);
		}
		cancelAnimationFrame(this.frame);
		this.frame = 0;
		this.chat.updated = Date.now();
	}

	body() {
		const s = this.chat.settings;
		const body = { model: model.name || undefined, messages: tree.messagesUntil(this.chat, this.parent),
			stream: true,
			stream_options: { include_usage: true } };
		for (const name of ['temperature', 'top_p', 'max_tokens'])
			if (typeof s[name] === 'number')
				body[name] = s[name];
		if (s.reasoning)
			body.enable_thinking = s.reasoning === 'on';
		if (s.tools)
			body.tools = JSON.parse(s.tools);
		return body;
	}

	take(chunk) {
		const choice = chunk.choices?.[0], delta = choice?.delta ?? {}, m = this.message;
		if (typeof delta.reasoning_content === 'string')
			m.thoughts += delta.reasoning_content;
		if (typeof delta.content === 'string')
			m.text += delta.content;
		for (const part of delta.tool_calls ?? [])
			takeCall(m.calls, part);
		if (choice?.finish_reason)
			m.end = choice.finish_reason === 'length' ? 'length' : '';
		if (chunk.usage)
			m.tokens = chunk.usage.completion_tokens ?? 0;
		if (chunk.timings)
			Object.assign(m, { rate: chunk.timings.predicted_per_second ?? 0,
				drafted: chunk.timings.draft_n ?? 0,
				accepted: chunk.timings.draft_n_accepted ?? 0 });
		if (this.frame === 0)
			this.frame = requestAnimationFrame(() => this.show());
		if (Date.now() > this.nextSave && !deleted.has(this.chat.id))
			this.savePart();
	}

	// A long conversation takes long to be copied into the database: not more than a twentieth of the time goes there.
	async savePart() {
		const begun = Date.now();
		this.nextSave = Infinity;
		await saveChat(this.chat, true);
		this.nextSave = Date.now() + Math.max(SAVE_EVERY_MS, 20 * (Date.now() - begun));
	}

	show() {
		this.frame = 0;
		if (this.view === null)
			return;
		this.view.update();
		scrollToEnd();
	}
}

function takeCall(calls, part) {
	const i = part.index ?? calls.length;
	if (!Number.isInteger(i) || i < 0 || i > calls.length)
		return;
	calls[i] ??= { id: '', name: '', arguments: '' };
	calls[i].id = part.id ?? calls[i].id;
	calls[i].name += part.function?.name ?? '';
	calls[i].arguments += part.function?.arguments ?? '';
}

async function answer(parent) {
	const of = chat, a = new Answer(of, parent);
	running.set(of.id, a);
	followsEnd = true;
	showChat();
	announce('The answer begins.');
	await saveChat(of, true);
	refreshList();
	await a.run();
	if (running.get(of.id) === a) { // else a later answer has taken its place
		running.delete(of.id);
		showEnd(a);
	}
	if (a.isRefused)
		dispatchEvent(new Event('modeldoubt')); // the server may have started again with another model
	if (!deleted.has(of.id))
		await saveChat(of);
	refreshList();
}

function showEnd(a) {
	if (a.view !== null && chat === a.chat) {
		a.view.end();
		announce(a.message.problem || 'The answer has ended.');
		if (a.message.calls.length > 0 && chat.nodes[a.number].chosen < 0)
			a.view.askResults();
		scrollToEnd();
	}
	showButtons();
}

export function stopAnswer() {
	const a = running.get(chat.id);
	a?.controller.abort();
	return a !== undefined;
}

function sendText(text) {
	const shown = tree.path(chat), last = shown.at(-1) ?? 0;
	if (chat.title === '')
		chat.title = tree.titleFrom(text);
	const parent = tree.add(chat, last, { role: 'user', text });
	answer(parent);
	history.replaceState(null, '', `#/chat/${chat.id}`);
}

// ---- The messages ----

function branchOf(i) {
	const brothers = tree.children(chat, chat.nodes[i].parent);
	return { brothers, at: brothers.indexOf(i), onChoose: (k) => {
		tree.choose(chat, k);
		saveChat(chat);
		showChat();
		const buttons = [...views.get(k).node.querySelectorAll('.branches button')];
		(k < i ? buttons : buttons.reverse()).find((b) => !b.disabled)?.focus();
	} };
}

function viewOf(i) {
	const node = chat.nodes[i], busy = running.get(chat.id);
	const onDelete = async () => {
		if ((await ask('Delete this message and all after it?', '', 'Delete')) === null)
			return;
		stopAnswer();
		tree.remove(chat, i);
		saveChat(chat);
		showChat();
		focusPrompt();
	};
	if (node.role === 'user')
		return new UserView(node, { onDelete, onEdit: (text) => {
			stopAnswer();
			answer(tree.add(chat, node.parent, { role: 'user', text }));
			focusPrompt();
		} }, branchOf(i));
	if (node.role === 'tool')
		return new ToolView(node);
	const view = new AnswerView(node, { onDelete, onAgain: () => {
		if (!running.has(chat.id))
			answer(node.parent);
		focusPrompt();
	}, onResults: (results) => {
		answer(tree.add(chat, i, { role: 'tool', text: '', results }));
		focusPrompt();
	} }, branchOf(i), announce);
	if (busy?.number === i) {
		busy.view = view;
		view.begin();
		view.update();
	} else {
		view.showWhole();
		if (node.calls?.length > 0 && node.chosen < 0 && !node.problem)
			view.askResults();
	}
	return view;
}

// The view of a message: the one that is there already, unless something in it has changed.
function shownView(i) {
	const node = chat.nodes[i], brothers = tree.children(chat, node.parent);
	const state = `${brothers.join()} ${node.chosen < 0} ${running.get(chat.id)?.number === i}`, old = views.get(i);
	if (old?.message === node && old.state === state && running.get(chat.id)?.number !== i)
		return old;
	const view = viewOf(i);
	view.state = state;
	return view;
}

function showChat() {
	const numbers = tree.path(chat), busy = running.get(chat.id);
	if (busy !== undefined)
		busy.view = null;
	const hidden = Math.max(0, numbers.length - shownMessages);
	const shown = numbers.slice(hidden).map((i) => [i, shownView(i)]);
	views.clear();
	for (const [i, view] of shown)
		views.set(i, view);
	$('messages').replaceChildren(...(hidden > 0 ? [button(`Show earlier messages (${hidden})`, showEarlier)] : []),
		...shown.map(([, view]) => view.node));
	$('welcome').hidden = numbers.length > 0;
	setText($('chat-title'), tree.titleOf(chat));
	if (!$('chat-view').hidden)
		document.title = chatTitle();
	showButtons();
	showList();
	scrollToEnd();
	requestAnimationFrame(() => requestAnimationFrame(scrollToEnd)); // what is in sight now has its size only then
}

// What is read stays where it is.
function showEarlier() {
	const s = $('scroll'), below = s.scrollHeight - s.scrollTop, first = $('messages').querySelector('.message');
	shownMessages += SHOWN;
	followsEnd = false;
	showChat();
	s.scrollTop = s.scrollHeight - below;
	first.tabIndex = -1;
	first.focus({ preventScroll: true });
}

export function chatTitle() {
	return chat.title ? `${chat.title} - od-moe` : 'od-moe';
}

function focusPrompt() {
	if (!isTouch())
		$('prompt').focus();
}

// A button that goes hands its focus on.
function showButtons() {
	const busy = running.has(chat.id), had = document.activeElement;
	$('send').hidden = busy;
	$('stop').hidden = !busy;
	$('send').disabled = $('prompt').value.trim() === '';
	if (busy && had === $('send'))
		$('stop').focus();
	else if (!busy && had === $('stop'))
		focusPrompt();
}

function scrollToEnd() {
	const s = $('scroll');
	if (followsEnd)
		s.scrollTop = s.scrollHeight;
	$('to-end').hidden = followsEnd || s.scrollHeight - s.scrollTop - s.clientHeight < NEAR_END_PX;
}

function announce(text) {
	const log = $('announce');
	log.append(el('p', {}, text));
	while (log.childElementCount > 20)
		log.firstElementChild.remove();
}

// ---- The list ----

async function refreshList() {
	titles = await listChats();
	showList();
}

function chatItem(t) {
	const current = t.id === chat.id;
	const link = el('a', { href: `#/chat/${t.id}`, 'aria-current': current ? 'page' : null, title: t.title },
		tree.titleOf(t));
	if (running.has(t.id))
		link.append(el('span', { class: 'dots small', role: 'img',
			'aria-label': 'an answer is being written' }));
	return el('li', { class: current ? 'current' : null, 'data-id': t.id }, link,
		iconButton('edit', `Rename ${tree.titleOf(t)}`, () => renameChat(t)),
		iconButton('delete', `Delete ${tree.titleOf(t)}`, () => removeChat(t)));
}

function showList() {
	const words = $('search').value.toLowerCase(), had = document.activeElement, item = had?.closest('.chats li');
	const found = titles.filter((t) => t.title.toLowerCase().includes(words));
	const which = item ? [...item.children].indexOf(had) : -1;
	$('chats').replaceChildren(...found.slice(0, 500).map(chatItem));
	$('no-chats').hidden = titles.length > 0;
	if (which >= 0)
		([...$('chats').children].find((e) => e.dataset.id === item.dataset.id)?.children[which] ??
			$('new-chat')).focus();
}

async function renameChat(t) {
	const title = await ask('Rename this conversation', 'Title', 'Rename', t.title);
	const c = t.id === chat.id ? chat : (running.get(t.id)?.chat ?? await loadChat(t.id));
	if (title === null || title.trim() === '' || c === null)
		return;
	c.title = title.trim().slice(0, 200);
	await saveChat(c, running.has(c.id));
	await refreshList();
	if (c === chat)
		showChat();
}

async function removeChat(t) {
	if ((await ask(`Delete "${tree.titleOf(t)}"?`, 'It cannot be brought back.', 'Delete')) === null)
		return;
	deleted.add(t.id);
	running.get(t.id)?.controller.abort();
	running.delete(t.id);
	await deleteChat(t.id);
	if (t.id === chat.id)
		newConversation();
	await refreshList();
}

export function newConversation() {
	chat = tree.newChat(tree.cleanSettings(loadSettings()));
	history.replaceState(null, '', '#/chat');
	followsEnd = true;
	shownMessages = SHOWN;
	showChat();
	focusPrompt();
}

// Shows the conversation of an address; without one the current.
export async function openChat(id) {
	if (id === undefined || id === chat.id)
		return;
	const found = running.get(id)?.chat ?? await loadChat(id);
	if (!location.hash.endsWith(`/${id}`))
		return; // another one was chosen while this was read
	if (found === null) {
		history.replaceState(null, '', currentHash());
		return;
	}
	chat = found;
	followsEnd = true;
	shownMessages = SHOWN;
	showChat();
}

// Another tab has changed a conversation. The one that is shown here is read again, so that it is not put back as it was.
async function onOtherChange(id) {
	await refreshList();
	if (id !== chat.id || running.has(id) || document.querySelector('.edit') !== null)
		return;
	const found = await loadChat(id);
	if (found === null || id !== chat.id || running.has(id))
		return;
	chat = found;
	showChat();
}

export function currentHash() {
	return chat.nodes.length > 1 ? `#/chat/${chat.id}` : '#/chat';
}

// ---- Export and import ----

async function exportChats() {
	const all = [];
	for (const t of titles)
		all.push(await loadChat(t.id));
	const url = URL.createObjectURL(new Blob([tree.exportText(all.filter((c) => c !== null))],
		{ type: 'application/json' }));
	el('a', { href: url, download: `od-moe-${new Date().toISOString().slice(0, 10)}.json` }).click();
	setTimeout(() => URL.revokeObjectURL(url), 60000);
}

async function importChats(file, onProblem) {
	try {
		let n = 0;
		if (file.size > MAX_FILE)
			throw new Error(`This file is too large: ${formatBytes(file.size)}, expected at most ${formatBytes(MAX_FILE)}.`);
		for (const c of tree.importText(await file.text()))
			n += await saveChat(c) ? 1 : 0;
		onProblem(`${n} ${n === 1 ? 'conversation' : 'conversations'} imported.`);
	} catch (e) {
		onProblem(e.message);
	}
	await refreshList();
}

// ---- Settings ----

export function currentSettings() {
	return chat.settings;
}

export function changeSettings(settings) {
	chat.settings = settings;
	saveSettings(settings);
	if (chat.nodes.length > 1)
		saveChat(chat);
}

export function setModel(m) {
	model = m;
}

// ---- The beginning ----

function onPromptKey(e) {
	if (composes(e))
		return;
	if (e.key === 'Enter' && !e.shiftKey && !isTouch()) {
		e.preventDefault();
		$('composer').requestSubmit();
	} else if (e.key === 'ArrowUp' && $('prompt').value === '') {
		const edits = $('messages').querySelectorAll('.user [aria-label="Edit the message"]');
		if (edits.length > 0) {
			e.preventDefault();
			edits[edits.length - 1].click();
		}
	}
}

function onSubmit(e) {
	const text = $('prompt').value.trim();
	e.preventDefault();
	if (text === '' || running.has(chat.id))
		return;
	$('prompt').value = '';
	fitPrompt();
	sendText(text);
}

function fitPrompt() {
	const p = $('prompt');
	p.style.height = 'auto';
	p.style.height = `${p.scrollHeight + p.offsetHeight - p.clientHeight}px`; // with its border: else it scrolls
	showButtons();
}

function onScroll() {
	const s = $('scroll');
	followsEnd = s.scrollHeight - s.scrollTop - s.clientHeight < NEAR_END_PX;
	$('to-end').hidden = followsEnd;
}

// say(text) shows a line above the messages.
export async function startChat(say) {
	$('prompt').addEventListener('keydown', onPromptKey);
	$('prompt').addEventListener('input', fitPrompt);
	$('composer').addEventListener('submit', onSubmit);
	$('stop').addEventListener('click', () => {
		stopAnswer();
		focusPrompt();
	});
	$('scroll').addEventListener('scroll', onScroll);
	$('to-end').addEventListener('click', () => {
		followsEnd = true;
		scrollToEnd();
	});
	$('search').addEventListener('input', showList);
	$('new-chat').addEventListener('click', newConversation);
	$('export').addEventListener('click', exportChats);
	$('import').addEventListener('click', () => $('import-file').click());
	$('import-file').addEventListener('change', async () => {
		const [file] = $('import-file').files;
		if (file !== undefined)
			await importChats(file, say);
		$('import-file').value = '';
	});
	addEventListener('pagehide', () => {
		for (const a of running.values())
			savePart({ id: a.chat.id, number: a.number, text: a.message.text,
				thoughts: a.message.thoughts });
	});
	onOtherTab(onOtherChange);
	await restorePart();
	showChat();
	await refreshList();
}
