// api.js - requests to the server that this page came from. All of them carry the API key, if there is one, and all
// failures become an ApiError in words.
import { readEvents } from './events.js';

const KEY = 'od-moe.key';
const MAX_MESSAGE = 2000; // characters of an error's text

let key = readKey();
let askForKey = async () => null;
let asking = null; // the promise of an open question for a key

export class ApiError extends Error {
	// kind: 'key', 'busy', 'loading', 'lost', 'refused', 'failed'
	constructor(kind, message, retryAfter = 0) {
		super(message);
		this.kind = kind;
		this.retryAfter = retryAfter;
	}
}

function readKey() {
	try {
		const kept = sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? '';
		return isKey(kept) ? kept : '';
	} catch {
		return '';
	}
}

// Can a header carry this? fetch() throws at other characters, before anything is sent.
export function isKey(text) {
	return /^[\x20-\x7e]+$/.test(text);
}

export function hasKey() {
	return key !== '';
}

// Keeps the key for this tab, or, with remember, on this device.
export function setKey(value, remember) {
	key = value;
	try {
		sessionStorage.removeItem(KEY);
		localStorage.removeItem(KEY);
		if (value !== '')
			(remember ? localStorage : sessionStorage).setItem(KEY, value);
	} catch {
		// Without storage the key lasts as long as the page.
	}
}

// ask(wrong) shows the question for a key and resolves to true when one was given. wrong: the server did not take the
// last one.
export function onKeyNeeded(ask) {
	askForKey = ask;
}

function headers(extra) {
	return key === '' ? extra : { ...extra, Authorization: `Bearer ${key}` };
}

async function send(path, options) {
	try {
		// Relative to the page: a proxy may have put it below a prefix.
		return await fetch(path.slice(1), { ...options, headers: headers(options.headers ?? {}),
			cache: 'no-store', credentials: 'omit',
			referrerPolicy: 'no-referrer', redirect: 'error' });
	} catch (e) {
		if (e.name === 'AbortError')
			throw e;
		throw new ApiError('lost',
			'The server cannot be reached. Is it running, and is this device on its network?');
	}
}

async function messageOf(response) {
	try {
		const text = await response.text();
		const error = JSON.parse(text).error;
		return (typeof error === 'string' ? error : String(error.message ?? '')).slice(0, MAX_MESSAGE);
	} catch {
		return '';
	}
}

function sentence(text) {
	const s = text.trim();
	if (s === '')
		return '';
	return s[0].toUpperCase() + s.slice(1) + (/[.!?]$/.test(s) ? '' : '.');
}

async function failure(response) {
	const said = sentence(await messageOf(response));
	const after = Number(response.headers.get('Retry-After')) || 0;
	switch (response.status) {
	case 401:
	case 403:
		return new ApiError('key', `The server does not accept this API key. ${said}`.trim());
	case 413:
		return new ApiError('refused',
			`${said || 'This is too long for the server.'} Shorten the message, or begin a new conversation.`);
	case 429:
		return new ApiError('busy',
			`${said || 'The server has too much to do.'}${after > 0 ? ` Try again in ${after} s.` : ''}`,
			after);
	case 503:
		return new ApiError('loading', said || 'The server is not ready yet.', after || 2);
	default:
		if (response.status >= 500)
			return new ApiError('failed', `The server failed (HTTP ${response.status}). ${said}`.trim());
		return new ApiError('refused', said || `The server refused this request (HTTP ${response.status}).`);
	}
}

// One question for all requests that need a key at the same time.
function oneQuestion(wrong) {
	asking ??= askForKey(wrong).finally(() => {
		asking = null;
	});
	return asking;
}

// The response, which is good. Where a key is missing or wrong the user is asked, and the request is sent again.
export async function request(path, options = {}) {
	for (;;) {
		const used = key;
		const response = await send(path, options);
		if (response.ok)
			return response;
		const error = await failure(response);
		if (error.kind !== 'key')
			throw error;
		options.signal?.throwIfAborted();
		if (key === used && !(await oneQuestion(used !== '')))
			throw error;
	}
}

export async function getJson(path, signal) {
	const response = await request(path, { signal });
	try {
		return await response.json();
	} catch (e) {
		if (e.name === 'AbortError')
			throw e;
		throw new ApiError('lost', 'The connection to the server was lost.');
	}
}

// The events of a request, until the server ends it or the connection is lost.
export async function* events(path, options) {
	const response = await request(path, options);
	try {
		yield* readEvents(response);
	} catch (e) {
		if (e.name === 'AbortError' || e instanceof ApiError)
			throw e;
		throw new ApiError('lost', 'The connection to the server was lost.');
	}
}

// The chunks of an answer, as objects of OpenAI's API. Throws where the stream ends before its end was said.
export async function* chatChunks(body, signal) {
	const options = { method: 'POST', signal, headers: { 'Content-Type': 'application/json' },
		body: JSON.stringify(body) };
	for await (const { data } of events('/v1/chat/completions', options)) {
		if (data === '[DONE]')
			return;
		let chunk;
		try {
			chunk = JSON.parse(data);
		} catch {
			throw new ApiError('failed', 'The server sent something that is not JSON.');
		}
		if (chunk === null || typeof chunk !== 'object')
			throw new ApiError('failed', 'The server sent something that is no chunk of an answer.');
		if (chunk.error)
			throw new ApiError('failed', sentence(String(chunk.error.message ?? chunk.error)) ||
				'The server failed.');
		yield chunk;
	}
	throw new ApiError('lost', 'The connection was lost before the answer ended.');
}
