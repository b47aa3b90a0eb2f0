// highlight.js - colours for code: comments, texts, numbers and common keywords, the same for all languages. It looks
// at each character a bounded number of times.
import { el } from './dom.js';

const MAX_CODE = 50000; // characters; longer code stays plain
const WORDS = new Set(
	(
		'and as assert async await auto bool boolean break case catch char class const continue def default ' +
		'defer del delete do double elif else enum except export extends extern false final finally float fn ' +
		'for from func function go goto if impl import in include instanceof int interface is lambda let long ' +
		'loop match mod module mut namespace new nil none None not null nullptr of operator or package pass ' +
		'private protected pub public raise return self short signed sizeof static struct super switch ' +
		'template this throw trait true True False try type typedef typeof union unsigned use using var void ' +
		'volatile where while with yield SELECT FROM WHERE INSERT INTO UPDATE DELETE CREATE TABLE JOIN ON ' +
		'GROUP ORDER BY LIMIT VALUES SET echo fi then done esac'
	).split(' '),
);
const HASH_COMMENTS = new Set(['python', 'py', 'sh', 'bash', 'shell', 'zsh', 'ruby', 'rb', 'perl', 'yaml', 'yml',
	'toml', 'make', 'makefile', 'r',
	'dockerfile', 'ini', 'conf']);
const DASH_COMMENTS = new Set(['sql', 'lua', 'haskell', 'hs', 'ada']);
const PLAIN = new Set(['text', 'txt', 'plain', 'markdown', 'md', 'diff', 'html', 'xml', 'console', 'output']);
// Texts end on their line. A comment over several lines that does not end is no comment.
const COMMENT = /\/\*[^]{0,5000}?\*\/|\/\/[^\n]*|#[^\n]*|--[^\n]*/;
const TEXT = /"(?:\\.|[^"\\\n]){0,2000}"|'(?:\\.|[^'\\\n]){0,2000}'/;
const TOKEN = new RegExp(`${COMMENT.source}|${TEXT.source}|\\b\\d[\\w.]*|\\b[A-Za-z_]\\w*`, 'g');

function classOf(token, language) {
	const two = token.slice(0, 2);
	if (two === '/*' || two === '//')
		return HASH_COMMENTS.has(language) ? null : 'c-comment';
	if (token[0] === '#')
		return HASH_COMMENTS.has(language) ? 'c-comment' : null;
	if (two === '--')
		return DASH_COMMENTS.has(language) ? 'c-comment' : null;
	if (token[0] === '"' || token[0] === "'")
		return 'c-text';
	if (token[0] >= '0' && token[0] <= '9')
		return 'c-number';
	return WORDS.has(token) ? 'c-word' : null;
}

// The nodes of a code in a language, which may be '', as a fragment.
export function highlight(code, language) {
	const nodes = document.createDocumentFragment();
	let plain = 0;
	if (language === '' || PLAIN.has(language) || code.length > MAX_CODE) {
		nodes.append(code);
		return nodes;
	}
	TOKEN.lastIndex = 0;
	for (let m = TOKEN.exec(code); m !== null; m = TOKEN.exec(code)) {
		const name = classOf(m[0], language);
		if (name === null) {
			if (!/\w/.test(m[0][0]))
				TOKEN.lastIndex = m.index + 1; // not a comment here: what stands in it is looked at
			continue;
		}
		if (m.index > plain)
			nodes.append(code.slice(plain, m.index));
		nodes.append(el('span', { class: name }, m[0]));
		plain = m.index + m[0].length;
	}
	if (plain < code.length)
		nodes.append(code.slice(plain));
	return nodes;
}
