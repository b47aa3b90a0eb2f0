// events.js - server-sent events from a stream of bytes, as the HTML standard reads them (section 9.2.6). Chunks may
// end anywhere, in the middle of a character too. EventSource is not used because it sends no Authorization header.

const LINE_END = /\r\n?|\n/g;
const MAX_EVENT = 32 << 20; // characters; a server that sends more is broken

export class EventParser {
	#decoder = new TextDecoder(); // it drops a byte order mark
	#onEvent;
	#line = []; // pieces of a line that has not ended
	#lineLength = 0;
	#data = [];
	#dataLength = 0;
	#type = '';
	#afterReturn = false; // the last chunk ended with a carriage return: a line feed still belongs to it

	// onEvent(type, data) is called for each event.
	constructor(onEvent) {
		this.#onEvent = onEvent;
	}

	push(bytes) {
		const text = this.#decoder.decode(bytes, { stream: true });
		let from = 0;
		if (text === '')
			return;
		if (this.#afterReturn && text[0] === '\n')
			from = 1;
		this.#afterReturn = text.endsWith('\r');
		LINE_END.lastIndex = from;
		for (let m = LINE_END.exec(text); m !== null; m = LINE_END.exec(text)) {
			this.#keep(text.slice(from, m.index));
			from = LINE_END.lastIndex;
			const line = this.#line.join('');
			this.#line = [];
			this.#lineLength = 0;
			this.#onLine(line);
			LINE_END.lastIndex = from; // onEvent may have parsed with it
		}
		this.#keep(text.slice(from));
	}

	#keep(piece) {
		if (piece === '')
			return;
		this.#lineLength += piece.length;
		if (this.#lineLength + this.#dataLength > MAX_EVENT)
			throw new Error('an event of the server is too long');
		this.#line.push(piece);
	}

	#onLine(line) {
		if (line === '') {
			this.#dispatch();
			return;
		}
		const colon = line.indexOf(':');
		const field = colon < 0 ? line : line.slice(0, colon);
		let value = colon < 0 ? '' : line.slice(colon + 1);
		if (value.startsWith(' '))
			value = value.slice(1);
		if (field === 'data') {
			this.#data.push(value);
			this.#dataLength += value.length;
		} else if (field === 'event') {
			this.#type = value;
		}
	}

	#dispatch() {
		const data = this.#data, type = this.#type || 'message';
		this.#data = [];
		this.#dataLength = 0;
		this.#type = '';
		if (data.length > 0)
			this.#onEvent(type, data.join('\n'));
	}
}

// The events of a response of fetch: objects with type and data. It ends where the response ends.
export async function* readEvents(response) {
	const reader = response.body.getReader();
	let events = [];
	const parser = new EventParser((type, data) => events.push({ type, data }));
	try {
		for (;;) {
			const { done, value } = await reader.read();
			if (done)
				return;
			parser.push(value);
			const ready = events;
			events = [];
			yield* ready;
		}
	} finally {
		reader.cancel().catch(() => {}); // the reader of the events may have left early
	}
}
