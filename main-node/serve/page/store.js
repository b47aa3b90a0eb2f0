// store.js - conversations in IndexedDB, settings in localStorage. Where the browser allows neither, both last as long
// as the page, and onProblem says so.

const DATABASE = 'od-moe', CHATS = 'chats', TITLES = 'titles';
const SETTINGS = 'od-moe.settings', PART = 'od-moe.part';

const others = 'BroadcastChannel' in globalThis ? new BroadcastChannel(DATABASE) : null; // other tabs with this page

let onProblem = () => {};
let opened = null;
const memory = new Map(); // conversations, where there is no database

export function onStoreProblem(f) {
	onProblem = f;
}

// f(id): another tab has changed a conversation.
export function onOtherTab(f) {
	others?.addEventListener('message', (e) => f(e.data));
}

function finished(request) {
	return new Promise((resolve, reject) => {
		request.onsuccess = () => resolve(request.result);
		request.onerror = () => reject(request.error);
	});
}

function ended(transaction) {
	return new Promise((resolve, reject) => {
		transaction.oncomplete = () => resolve();
		transaction.onabort = () => reject(transaction.error ?? new Error('aborted'));
	});
}

// The database, or null where there is none.
function open() {
	opened ??= new Promise((resolve) => {
		const none = () => {
			onProblem('This browser does not let the page keep anything: conversations are lost when it is closed.');
			resolve(null);
		};
		try {
			const request = indexedDB.open(DATABASE, 1);
			request.onupgradeneeded = () => {
				request.result.createObjectStore(CHATS, { keyPath: 'id' });
				request.result.createObjectStore(TITLES, { keyPath: 'id' });
			};
			request.onsuccess = () => resolve(request.result);
			request.onerror = request.onblocked = () => {
				none();
				if (request.error?.name === 'VersionError')
					onProblem('A later version of this page keeps conversations in this browser, which this one cannot read: ' +
						'it keeps none.');
			};
		} catch {
			none();
		}
	});
	return opened;
}

// What the list shows of each conversation: the latest first.
export async function listChats() {
	const db = await open();
	const titles = db === null ? [...memory.values()] :
		await finished(db.transaction(TITLES).objectStore(TITLES).getAll());
	return titles.filter((t) => typeof t.title === 'string').sort((a, b) => b.updated - a.updated);
}

export async function loadChat(id) {
	const db = await open();
	const chat = db === null ? memory.get(id) : await finished(db.transaction(CHATS).objectStore(CHATS).get(id));
	return Array.isArray(chat?.nodes) && chat.nodes[0]?.role === 'root' ? chat : null;
}

// False: it could not be kept, and onProblem has said why. Other tabs hear of it unless it is only a part of an answer.
export async function saveChat(chat, isPart = false) {
	const db = await open();
	if (db === null) {
		memory.set(chat.id, chat);
		return true;
	}
	try {
		const t = db.transaction([CHATS, TITLES], 'readwrite');
		t.objectStore(CHATS).put(chat);
		t.objectStore(TITLES).put({ id: chat.id, title: chat.title, updated: chat.updated });
		await ended(t);
		onProblem('');
		if (!isPart)
			others?.postMessage(chat.id);
		return true;
	} catch (e) {
		onProblem(e?.name === 'QuotaExceededError' ?
			'The storage of this browser is full: this conversation is not kept. Export what you need, then delete conversations.' :
			`The browser could not keep this conversation (${e?.message ?? e}). Export it if you need it.`);
		return false;
	}
}

export async function deleteChat(id) {
	const db = await open();
	memory.delete(id);
	if (db === null)
		return;
	const t = db.transaction([CHATS, TITLES], 'readwrite');
	t.objectStore(CHATS).delete(id);
	t.objectStore(TITLES).delete(id);
	await ended(t);
	others?.postMessage(id);
}

// What has come of an answer when its page is closed: a database is too slow then. part has the id of the conversation,
// the number of the message, text and thoughts.
export function savePart(part) {
	try {
		localStorage.setItem(PART, JSON.stringify(part));
	} catch {
		// It is long, or there is no storage: what was saved last stays.
	}
}

// Puts the part that the last page left where it belongs.
export async function restorePart() {
	try {
		const part = JSON.parse(localStorage.getItem(PART) ?? 'null');
		localStorage.removeItem(PART);
		const chat = part === null ? null : await loadChat(part.id), node = chat?.nodes[part.number];
		if (node?.role !== 'assistant' || node.end !== 'cut')
			return;
		Object.assign(node, { text: String(part.text), thoughts: String(part.thoughts) });
		await saveChat(chat);
	} catch {
		// What was saved last stays.
	}
}

export function loadSettings() {
	try {
		const o = JSON.parse(localStorage.getItem(SETTINGS) ?? '{}');
		return o !== null && typeof o === 'object' ? o : {};
	} catch {
		return {};
	}
}

export function saveSettings(settings) {
	try {
		localStorage.setItem(SETTINGS, JSON.stringify(settings));
	} catch {
		onProblem('The storage of this browser is full: settings last as long as this page.');
	}
}
