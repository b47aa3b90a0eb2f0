// hostile_checks.js - run in the page by test_page_hostile.py: what a text became is compared with what may be there.
// It is an expression.
(async () => {
	const { Markdown, showMarkdown } = await import('/page/markdown.js');
	const { EventParser } = await import('/page/events.js');
	const TAGS = new Set(('DIV SPAN P A EM STRONG DEL CODE PRE BR HR H3 H4 H5 H6 UL OL LI BLOCKQUOTE ' +
		'TABLE THEAD TBODY TR TH TD BUTTON svg use').split(' '));
	const ATTRIBUTES = { A: ['href', 'title', 'rel', 'target'], OL: ['start'], TD: ['class', 'colspan'],
		TH: ['class', 'scope'],
		SPAN: ['class', 'role', 'aria-label'], DIV: ['class', 'tabindex', 'role', 'aria-label'],
			PRE: ['tabindex', 'role', 'aria-label'],
		BUTTON: ['type', 'class', 'aria-label', 'title'], svg: ['class', 'aria-hidden'], use: ['href'] };
	// elements in each other: lists and quotes 2 to 3 for each of ten levels, emphasis, links
	const MAX_DEPTH = 120;

	function badElement(e) {
		if (!TAGS.has(e.tagName))
			return `element ${e.tagName}`;
		const allowed = ATTRIBUTES[e.tagName] ?? (e.tagName.startsWith('H') ? ['class'] : []);
		for (const a of e.attributes)
			if (!allowed.includes(a.name))
				return `attribute ${a.name} of ${e.tagName}`;
		if (e.tagName === 'A' && !(/^(https?|mailto):/.test(e.href) && e.href === e.getAttribute('href') &&
			e.rel === 'noopener noreferrer' && e.target === '_blank'))
			return `link ${e.outerHTML}`;
		if (e.tagName === 'use' && !/^#i-[a-z]+$/.test(e.getAttribute('href')))
			return `use ${e.getAttribute('href')}`;
		if (e.tagName === 'A' && e.querySelector('a') !== null)
			return 'a link in a link';
		return null;
	}

	function depthOf(root) {
		let most = 0;
		for (const e of root.querySelectorAll('*:not(:has(*))')) {
			let n = 0;
			for (let p = e; p !== root; p = p.parentNode)
				n++;
			most = Math.max(most, n);
		}
		return most;
	}

	function problemOf(root) {
		if (window.__xss !== undefined)
			return 'a script ran';
		for (const e of root.querySelectorAll('*')) {
			const bad = badElement(e);
			if (bad !== null)
				return bad;
		}
		const depth = depthOf(root);
		return depth > MAX_DEPTH ? `elements ${depth} deep` : null;
	}

	// A small generator of numbers, so that a seed repeats the cuts.
	function numbers(seed) {
		let x = seed >>> 0 || 1;
		return (n) => {
			x ^= x << 13;
			x ^= x >>> 17;
			x ^= x << 5;
			return (x >>> 0) % n;
		};
	}

	function stream(node, text, most, next, shows = true) {
		const m = new Markdown(node);
		for (let at = 0; at < text.length;) {
			const n = 1 + next(most);
			m.append(text.slice(at, at + n));
			at += n;
			if (shows)
				m.show();
		}
		m.end();
	}

	// Why a text is not shown as it must be; null: all is well. Pieces of any length must become what the whole
	// becomes.
	function check(text, seed, most = null) {
		const next = numbers(seed), whole = document.createElement('div'),
			parts = document.createElement('div');
		document.querySelector('#messages').replaceChildren(whole, parts);
		showMarkdown(whole, text);
		stream(parts, text, most ?? [1, 3, 9, 200][next(4)], next);
		for (const root of [whole, parts]) {
			root.normalize();
			const bad = problemOf(root);
			if (bad !== null)
				return bad;
		}
		return whole.isEqualNode(parts) ? null :
			`pieces differ: ${parts.innerHTML} expected ${whole.innerHTML}`;
	}

	function timed(f) {
		const begin = performance.now();
		f();
		return performance.now() - begin;
	}

	window.hostile = {
		check,
		problemOf,
		// The least of three times in milliseconds; streamed: in pieces of 16 characters that are shown one by
		// one.
		time(text, streamed) {
			const times = [];
			for (let i = 0; i < 3; i++) {
				const node = document.createElement('div');
				times.push(timed(() => (streamed ? stream(node, text, 31, numbers(7)) :
					showMarkdown(node, text))));
			}
			return Math.min(...times);
		},
		html(text) {
			const node = document.createElement('div');
			showMarkdown(node, text);
			return node.innerHTML;
		},
		// The events in base64, cut in pieces.
		events(base64, most, seed) {
			const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0)), found = [],
				next = numbers(seed);
			const parser = new EventParser((type, data) => found.push([type, data]));
			for (let at = 0; at < bytes.length;) {
				const n = next(most + 1);
				parser.push(bytes.subarray(at, at + n));
				at += n;
			}
			return found;
		},
		timeEvents(n, piece) {
			const bytes = new TextEncoder().encode(`data: ${'x'.repeat(n)}\n\n`);
			return Math.min(...[1, 2, 3].map(() => timed(() => {
				const parser = new EventParser(() => {});
				for (let at = 0; at < bytes.length; at += piece)
					parser.push(bytes.subarray(at, at + piece));
			})));
		},
	};
	return true;
})()
