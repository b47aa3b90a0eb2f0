// tree.js - a conversation: messages in a tree, because an edited message begins a branch. No nodes of the document
// here.
//
// chat.nodes[i] is null (deleted) or { parent, role, text, ... }; parent < i, so that there are no cycles. nodes[0] is
// the root. chosen is the child that is shown.

const MAX_TEXT = 8 << 20; // characters of a text that is imported
const MAX_NODES = 20000; // messages of a conversation that is imported
const ROLES = new Set(['user', 'assistant', 'tool']);
const SETTINGS = { system: 'string', temperature: 'number', top_p: 'number', max_tokens: 'number', reasoning: 'string',
	tools: 'string' };

export function newChat(settings) {
	const now = Date.now();
	return { id: newId(), title: '', created: now, updated: now, settings: { ...settings },
		nodes: [{ parent: -1, role: 'root', chosen: -1 }] };
}

function newId() {
	const bytes = crypto.getRandomValues(new Uint8Array(12));
	return Array.from(bytes, (b) => b.toString(16).padStart(2, '0')).join('');
}

// The numbers of the messages that are shown, from the first on.
export function path(chat) {
	const list = [];
	for (let i = chat.nodes[0].chosen; i > 0; i = chat.nodes[i].chosen)
		list.push(i);
	return list;
}

export function children(chat, parent) {
	return chat.nodes.flatMap((n, i) => (n !== null && n.parent === parent && i > 0 ? [i] : []));
}

// Adds a message and shows it. Returns its number.
export function add(chat, parent, node) {
	const i = chat.nodes.length;
	chat.nodes.push({ chosen: -1, ...node, parent });
	chat.nodes[parent].chosen = i;
	chat.updated = Date.now();
	return i;
}

export function choose(chat, i) {
	chat.nodes[chat.nodes[i].parent].chosen = i;
}

// Deletes a message and all that follow it, and shows its neighbour, if it has one.
export function remove(chat, i) {
	const { parent } = chat.nodes[i], brothers = children(chat, parent), at = brothers.indexOf(i);
	const gone = new Set([i]);
	chat.nodes[i] = null;
	for (let k = i + 1; k < chat.nodes.length; k++) {
		if (chat.nodes[k] !== null && gone.has(chat.nodes[k].parent)) {
			gone.add(k);
			chat.nodes[k] = null;
		}
	}
	chat.nodes[parent].chosen = brothers[at + 1] ?? brothers[at - 1] ?? -1;
	chat.updated = Date.now();
}

function messagesOf(node) {
	if (node.role === 'tool')
		return node.results.map((r) => ({ role: 'tool', tool_call_id: r.id, content: r.text }));
	if (node.role === 'user')
		return [{ role: 'user', content: node.text }];
	const message = { role: 'assistant', content: node.text };
	if (node.calls?.length > 0)
		message.tool_calls = node.calls.map((c) => ({ id: c.id, type: 'function',
			function: { name: c.name, arguments: c.arguments } }));
	return [message];
}

// The messages up to a node, for a request.
export function messagesUntil(chat, last) {
	const list = [];
	for (let i = last; i > 0; i = chat.nodes[i].parent)
		list.unshift(...messagesOf(chat.nodes[i]));
	if (chat.settings.system)
		list.unshift({ role: 'system', content: chat.settings.system });
	return list;
}

export function titleOf(chat) {
	return chat.title || 'New conversation';
}

// A title from the first message.
export function titleFrom(text) {
	const line = text.trim().split('\n', 1)[0].replace(/\s+/g, ' ');
	return line.length > 60 ? `${line.slice(0, 57)}...` : line;
}

// ---- Export and import ----

function text(value) {
	return typeof value === 'string' ? value.slice(0, MAX_TEXT) : '';
}

function number(value) {
	return Number.isFinite(value) ? value : 0;
}

function list(value) {
	return Array.isArray(value) ? value.slice(0, 1000).filter((v) => v !== null && typeof v === 'object') : [];
}

function importedNode(n, i, nodes) {
	if (n === null || typeof n !== 'object' || !ROLES.has(n.role) || !Number.isInteger(n.parent) || n.parent < 0 ||
		n.parent >= i ||
		nodes[n.parent] === null)
		return null;
	const node = { parent: n.parent, role: n.role, chosen: -1, text: text(n.text) };
	nodes[n.parent].chosen = i;
	if (n.role === 'tool')
		node.results = list(n.results).map((r) => ({ id: text(r.id), name: text(r.name), text: text(r.text) }));
	if (n.role === 'assistant') {
		node.thoughts = text(n.thoughts);
		node.calls = list(n.calls).map((c) => ({ id: text(c.id), name: text(c.name),
			arguments: text(c.arguments) }));
		node.end = text(n.end);
		node.problem = text(n.problem);
		node.rate = number(n.rate);
		node.tokens = number(n.tokens);
	}
	return node;
}

// Settings of a file, or of another version of this page: what this one knows, and can send.
export function cleanSettings(from) {
	const settings = {};
	for (const [name, type] of Object.entries(SETTINGS))
		if (typeof from?.[name] === type)
			settings[name] = type === 'string' ? text(from[name]) : number(from[name]);
	try {
		if (!Array.isArray(JSON.parse(settings.tools)))
			delete settings.tools;
	} catch {
		delete settings.tools;
	}
	return settings;
}

function importedChat(c) {
	if (c === null || typeof c !== 'object' || !Array.isArray(c.nodes))
		return null;
	const chat = newChat(cleanSettings(c.settings));
	chat.title = text(c.title).slice(0, 200);
	chat.created = number(c.created);
	chat.updated = number(c.updated);
	for (let i = 1; i < Math.min(c.nodes.length, MAX_NODES); i++)
		chat.nodes.push(importedNode(c.nodes[i], i, chat.nodes));
	for (let i = 0; i < chat.nodes.length; i++) {
		const chosen = c.nodes[i]?.chosen;
		if (chat.nodes[i] !== null && Number.isInteger(chosen) && chosen > i &&
			chat.nodes[chosen]?.parent === i)
			chat.nodes[i].chosen = chosen;
	}
	return chat.nodes.slice(1).some((n) => n !== null) ? chat : null;
}

export function exportText(chats) {
	return JSON.stringify({ format: 'od-moe conversations', version: 1, chats }, null, 1);
}

// The conversations of a file, as new ones. Throws an Error in words.
export function importText(json) {
	let o;
	try {
		o = JSON.parse(json);
	} catch {
		throw new Error('This file is not JSON: expected a file that this page exported.');
	}
	if (o === null || typeof o !== 'object' || !Array.isArray(o.chats))
		throw new Error('This file has no conversations: expected a file that this page exported.');
	const chats = o.chats.slice(0, 10000).map(importedChat).filter((c) => c !== null);
	if (chats.length === 0)
		throw new Error('No conversation in this file can be read.');
	return chats;
}
