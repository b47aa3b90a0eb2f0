// theme.js - the colours that this browser's user chose, set before the page is painted for the first time.
// A plain script: modules run too late for that.
(function () {
	'use strict';
	let theme = null;
	try {
		theme = localStorage.getItem('od-moe.theme');
	} catch {
		// Without storage the system's colours stay.
	}
	if (theme === 'dark' || theme === 'light')
		document.documentElement.dataset.theme = theme;
})();
