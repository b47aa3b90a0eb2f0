// app.js - what the views share: the address, the colours, dialogs, keys, and which model there is.
import { ApiError, getJson, hasKey, isKey, onKeyNeeded, setKey } from './api.js';
import { changeSettings, chatTitle, currentHash, currentSettings, newConversation, openChat, setModel, startChat,
	stopAnswer } from './chat.js';
import { hideCluster, showCluster, startCluster } from './cluster.js';
import { $, composes, el, formatBytes, formatNumber, openDialog, setIcon, setText } from './dom.js';
import { onStoreProblem } from './store.js';

const RETRY_MS = 3000;
const THEMES = { auto: 'Colours: as the system', light: 'Colours: light', dark: 'Colours: dark' };

// ---- A line above the views ----

const said = new Map(); // who says it: what

function say(who, text) {
	said.set(who, text);
	const all = [...said.values()].filter((t) => t !== '').join(' ');
	setText($('banner'), all);
	$('banner').hidden = all === '';
}

// ---- Views ----

function route() {
	const [, view, id] = location.hash.split('/');
	const cluster = view === 'cluster';
	$('chat-view').hidden = cluster;
	$('cluster-view').hidden = !cluster;
	document.body.classList.toggle('shows-cluster', cluster);
	$('tab-chat').toggleAttribute('aria-current', false);
	$('tab-cluster').toggleAttribute('aria-current', false);
	$(cluster ? 'tab-cluster' : 'tab-chat').setAttribute('aria-current', 'page');
	closeMenu();
	document.title = cluster ? 'Cluster - od-moe' : chatTitle();
	if (cluster) {
		showCluster();
	} else {
		hideCluster();
		openChat(id);
	}
}

function showsCluster() {
	return location.hash.startsWith('#/cluster');
}

function switchView() {
	location.hash = showsCluster() ? currentHash() : '#/cluster';
}

function closeMenu() {
	if (!document.body.classList.contains('menu-open'))
		return;
	document.body.classList.remove('menu-open');
	$('menu').setAttribute('aria-expanded', 'false');
	$('main').inert = false;
	if ($('sidebar').contains(document.activeElement))
		$('menu').focus();
}

// On a narrow screen the list of conversations lies over the page, and opens as a menu.
function openMenu() {
	if (getComputedStyle($('menu')).display === 'none')
		return;
	document.body.classList.add('menu-open');
	$('menu').setAttribute('aria-expanded', 'true');
	$('main').inert = true;
}

function toggleMenu() {
	if (document.body.classList.contains('menu-open')) {
		closeMenu();
		return;
	}
	openMenu();
	$('new-chat').focus();
}

function openSearch() {
	openMenu();
	$('search').focus();
}

// ---- Colours ----

function theme() {
	return document.documentElement.dataset.theme ?? 'auto';
}

function showTheme() {
	setIcon($('theme'), theme(), THEMES[theme()]);
}

function nextTheme() {
	const names = Object.keys(THEMES), next = names[(names.indexOf(theme()) + 1) % names.length];
	if (next === 'auto')
		delete document.documentElement.dataset.theme;
	else
		document.documentElement.dataset.theme = next;
	try {
		localStorage.setItem('od-moe.theme', next);
	} catch {
		// It lasts as long as the page.
	}
	showTheme();
	dispatchEvent(new Event('themechange'));
}

// ---- Dialogs ----

async function askForKey(wrong) {
	setText($('key-text'), wrong ? 'The server did not accept this key. Please check it.' :
		'This server asks for an API key. Its operator has it.');
	$('key').value = '';
	if (!(await openDialog($('key-dialog'), checkKey)))
		return false;
	setKey($('key').value.trim(), $('key-remember').checked);
	$('key').value = '';
	findModel();
	return true;
}

function checkKey() {
	const key = $('key').value.trim(), good = isKey(key);
	if (!good && key !== '')
		setText($('key-text'), 'This is no API key: it has characters beyond those of ASCII. Please copy it again.');
	return good;
}

function showSettings(s) {
	$('set-system').value = s.system ?? '';
	$('set-temperature').value = s.temperature ?? '';
	$('set-top-p').value = s.top_p ?? '';
	$('set-max-tokens').value = s.max_tokens ?? '';
	$('set-reasoning').value = s.reasoning ?? '';
	$('set-tools').value = s.tools ?? '';
	$('settings-error').hidden = true;
	$('forget-key').hidden = !hasKey();
}

// The settings of the dialog; null where they are wrong, and the dialog says why.
function readSettings() {
	const s = { system: $('set-system').value.trim(), reasoning: $('set-reasoning').value,
		tools: $('set-tools').value.trim() };
	for (const [name, id] of [['temperature', 'set-temperature'], ['top_p', 'set-top-p'],
		['max_tokens', 'set-max-tokens']])
		if ($(id).value !== '')
			s[name] = Number($(id).value);
	try {
		if (s.tools !== '' && !Array.isArray(JSON.parse(s.tools)))
			throw new Error('expected an array');
	} catch (e) {
		setText($('settings-error'), `Tools: ${e.message}.`);
		$('settings-error').hidden = false;
		return null;
	}
	return s;
}

async function openSettings() {
	showSettings(currentSettings());
	let settings = null;
	if (await openDialog($('settings'), () => (settings = readSettings()) !== null))
		changeSettings(settings);
}

function forgetKey() {
	setKey('', false);
	$('forget-key').hidden = true;
}

// ---- The model ----

function fact(name, value) {
	return [el('dt', {}, name), el('dd', {}, value)];
}

function showModel(m) {
	const meta = m.meta ?? {};
	setText($('model'), m.id);
	setText($('welcome-text'), `${m.id} answers, from the machines of this cluster.`);
	$('model-facts').replaceChildren(...fact('Model', m.id),
		...fact('Context', `${formatNumber(m.max_model_len ?? 0)} tokens`),
		...(meta.n_params ? fact('Parameters', `${formatNumber(meta.n_params / 1e9, 2)} billion`) : []),
		...(meta.size ? fact('Size on disk', formatBytes(meta.size)) : []));
	setModel({ name: m.id });
}

let isFinding = false, lacksKey = false;

async function askForModel() {
	const list = await getJson('/v1/models');
	if (typeof list?.data?.[0]?.id !== 'string')
		throw new ApiError('failed', 'The server names no model.');
	showModel(list.data[0]);
}

// Asks until the server answers: it may be loading, or about to start again, with another model.
async function findModel() {
	if (isFinding)
		return;
	isFinding = true;
	for (let problem = null; problem === null || problem.kind !== 'key';) {
		try {
			await askForModel();
			say('server', '');
			lacksKey = false;
			break;
		} catch (e) {
			problem = e;
			lacksKey = e.kind === 'key';
			say('server', e.kind === 'key' ? 'No API key: the next message asks for it again.' : e.message);
			if (e.kind !== 'key')
				await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
		}
	}
	isFinding = false;
}

// ---- Keys ----

function onKey(e) {
	const typing = e.target.matches('input, textarea, select');
	if (document.querySelector('dialog[open]') !== null || composes(e))
		return;
	if (e.key === 'Escape') {
		if (document.body.classList.contains('menu-open'))
			closeMenu();
		else if (!showsCluster())
			stopAnswer();
	} else if (e.altKey && !e.ctrlKey && e.code === 'KeyN') {
		e.preventDefault();
		location.hash = '#/chat';
		newConversation();
	} else if (e.altKey && !e.ctrlKey && e.code === 'KeyK') {
		e.preventDefault();
		if (showsCluster()) {
			addEventListener('hashchange', openSearch, { once: true });
			switchView();
		} else {
			openSearch();
		}
	} else if (e.altKey && !e.ctrlKey && e.code === 'KeyC') {
		e.preventDefault();
		switchView();
	} else if (e.key === '?' && !typing) {
		openDialog($('help'));
	}
}

async function start() {
	onKeyNeeded(askForKey);
	onStoreProblem((text) => say('store', text));
	showTheme();
	$('theme').addEventListener('click', nextTheme);
	$('menu').addEventListener('click', toggleMenu);
	$('shade').addEventListener('click', closeMenu);
	$('open-help').addEventListener('click', () => openDialog($('help')));
	$('open-settings').addEventListener('click', openSettings);
	$('forget-key').addEventListener('click', forgetKey);
	$('tab-chat').addEventListener('click', (e) => {
		e.preventDefault();
		location.hash = currentHash();
	});
	$('skip').addEventListener('click', (e) => {
		e.preventDefault();
		(location.hash.startsWith('#/cluster') ? $('main') : $('prompt')).focus();
	});
	$('chats').addEventListener('click', closeMenu);
	addEventListener('keydown', onKey);
	addEventListener('hashchange', route);
	matchMedia('(max-width: 760px)').addEventListener('change', closeMenu);
	addEventListener('modeldoubt', findModel);
	document.addEventListener('visibilitychange', () => {
		if (!document.hidden && !lacksKey)
			findModel();
	});
	startCluster();
	await startChat((text) => say('import', text));
	route();
	findModel();
}

start();
