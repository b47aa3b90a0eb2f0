// dom.js - elements, made without any text that is parsed as HTML.

const SVG = 'http://www.w3.org/2000/svg';

export function $(id) {
	return document.getElementById(id);
}

// An element with attributes, and with children that are nodes or texts. Nothing is made of null.
export function el(tag, attributes = {}, ...children) {
	const e = document.createElement(tag);
	for (const [name, value] of Object.entries(attributes))
		if (value !== null && value !== false)
			e.setAttribute(name, value === true ? '' : value);
	e.append(...children.filter((c) => c !== null));
	return e;
}

export function svg(tag, attributes = {}, ...children) {
	const e = document.createElementNS(SVG, tag);
	for (const [name, value] of Object.entries(attributes))
		e.setAttribute(name, value);
	e.append(...children);
	return e;
}

export function icon(name) {
	return svg('svg', { class: 'icon', 'aria-hidden': 'true' }, svg('use', { href: `#i-${name}` }));
}

export function iconButton(name, label, onClick) {
	const b = el('button', { type: 'button', class: 'icon-button small', 'aria-label': label, title: label },
		icon(name));
	b.addEventListener('click', onClick);
	return b;
}

export function button(text, onClick, attributes = {}) {
	const b = el('button', { type: 'button', ...attributes }, text);
	b.addEventListener('click', onClick);
	return b;
}

// Writes only what has changed, so that nothing is laid out again and no selection is lost.
export function setText(e, text) {
	if (e.textContent !== text)
		e.textContent = text;
}

export function setIcon(b, name, label) {
	b.querySelector('use').setAttribute('href', `#i-${name}`);
	b.setAttribute('aria-label', label);
	b.title = label;
}

// Shows a dialog. Resolves to true when it is sent, to false when it is closed otherwise.
export function openDialog(dialog, check = () => true) {
	const form = dialog.querySelector('form');
	return new Promise((resolve) => {
		const onSubmit = (e) => {
			e.preventDefault();
			if (check())
				close(true);
		};
		const onCancel = (e) => {
			e.preventDefault();
			close(false);
		};
		const onClick = (e) => {
			if (e.target === dialog || e.target.closest('.cancel'))
				close(false);
		};
		function close(value) {
			form.removeEventListener('submit', onSubmit);
			dialog.removeEventListener('cancel', onCancel);
			dialog.removeEventListener('click', onClick);
			dialog.close();
			resolve(value);
		}
		form.addEventListener('submit', onSubmit);
		dialog.addEventListener('cancel', onCancel);
		dialog.addEventListener('click', onClick);
		dialog.showModal();
	});
}

// Asks for a text (text: what stands there at first), or, with text null, for a yes. Resolves to the text, true, or
// null.
export async function ask(title, label, ok, text = null) {
	const input = $('ask-input');
	$('ask-title').textContent = title;
	$('ask-label').textContent = label;
	$('ask-ok').textContent = ok;
	input.hidden = text === null;
	input.value = text ?? '';
	const sent = openDialog($('ask'));
	if (text === null)
		$('ask-ok').focus();
	else
		input.select();
	if (!(await sent))
		return null;
	return text === null ? true : input.value;
}

// Copies a text, and returns whether that went well. Where the page came over plain HTTP from another machine, browsers
// only allow the old way.
async function copyText(text) {
	try {
		await navigator.clipboard.writeText(text);
		return true;
	} catch {
		const area = el('textarea', { class: 'hidden', 'aria-hidden': 'true' }), had = document.activeElement;
		area.value = text;
		document.body.append(area);
		area.select();
		const good = document.execCommand('copy');
		area.remove();
		had?.focus({ preventScroll: true });
		return good;
	}
}

// A button that copies what text() returns and says so for a moment.
export function copyButton(label, text) {
	const b = iconButton('copy', label, async () => {
		if (await copyText(text()))
			setIcon(b, 'check', 'Copied');
		else
			setIcon(b, 'copy', 'The browser did not allow to copy');
		setTimeout(() => setIcon(b, 'copy', label), 1500);
	});
	return b;
}

// Is this key for an input method, which still composes a character? Safari says so by the code only.
export function composes(e) {
	return e.isComposing || e.keyCode === 229;
}

// A keyboard on the screen has no Shift+Enter, and comes up over the page with the focus.
export function isTouch() {
	return matchMedia('(pointer: coarse) and (hover: none)').matches;
}

export function formatBytes(n) {
	const units = ['B', 'KB', 'MB', 'GB', 'TB'];
	let i = 0;
	while (n >= 1000 && i < units.length - 1) {
		n /= 1000;
		i++;
	}
	return `${n >= 100 || i === 0 ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}

export function formatNumber(n, digits = 0) {
	return n.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits });
}
